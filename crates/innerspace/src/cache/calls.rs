//! Calls of stores: what a thread that is in one may ask of the file it belongs to.
//!
//! A store call may hold locks of the file's blocks, and the file itself steady. A callback that came back to the same file on
//! the same thread would wait for itself; so what may wait is an error there. Other files are free to use: a store may
//! well be made of one.

use std::cell::RefCell;

use super::core::FileCore;
use super::errors::FileError;
use crate::reclaim::StoreScope;
use crate::sync::Apart;

crate::sync::thread_local! {
    /// The files in whose store calls this thread is, by address.
    static CALLS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, this thread calls the store of a file.
#[must_use = "the call ends when this is dropped"]
pub(super) struct StoreCall {
    file: usize,
    _scope: StoreScope,
    _apart: Apart,
}

impl Drop for StoreCall {
    fn drop(&mut self) {
        // A thread that is ending has no list, and began none.
        let _ = CALLS.try_with(|calls| {
            let mut calls = calls.borrow_mut();
            let at = calls.iter().rposition(|file| *file == self.file);
            calls.remove(at.expect("a call ends once, on its thread"));
        });
    }
}

impl FileCore {
    /// Begins a call of the file's store: no reclaim below it, and no way back into the file.
    pub(super) fn store_call(&self) -> StoreCall {
        let file = std::ptr::from_ref(self) as usize;
        let _ = CALLS.try_with(|calls| calls.borrow_mut().push(file));
        StoreCall {
            file,
            _scope: self.pool.store_scope(),
            _apart: Apart::begin(),
        }
    }

    /// Whether this thread is in a call of the file's store.
    pub(super) fn in_store_call(&self) -> bool {
        let file = std::ptr::from_ref(self) as usize;
        let listed = CALLS.try_with(|calls| calls.borrow().contains(&file));
        listed.unwrap_or(false)
    }

    /// Refuses what may wait to a thread that is in a call of the file's store.
    pub(super) fn check_outside(&self) -> Result<(), FileError> {
        match self.in_store_call() {
            false => Ok(()),
            true => Err(FileError::Reentered {
                file: self.name.clone(),
            }),
        }
    }
}
