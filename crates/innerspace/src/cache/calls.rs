//! Calls of stores: what a thread that is in one may ask of the file it belongs to, and which calls
//! are made unasked.
//!
//! A store call may hold locks of the file's blocks, and the file itself steady. A callback that
//! came back to the same file on the same thread would wait for itself; so what may wait is an
//! error there. Other files are free to use: a store may well be made of one.
//!
//! So files are locked from the top of such a stack downwards. Whoever wants memory, makes room for
//! dirty blocks, or does the service's work, calls stores of files that he was not asked for, which
//! may stand anywhere: also above one that this thread has locked (its append, its `invalidate`, or
//! a direct file's layout: [`Holding`]) or is in a call of. There only those stores are called that
//! use no files, as far as they say or were seen to ([`FileCore::may_call_unasked`]). What the
//! others have is written with nothing locked: an operation that found no memory gives its locks
//! back, makes room, and tries again ([`with_room`]).

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use super::core::FileCore;
use super::errors::FileError;
use crate::group::{GroupId, Reclaimer};
use crate::reclaim::{Pool, StoreScope, Trial};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Apart, Arc};
use crate::sys::process::Process;
use crate::units::PageCount;

crate::sync::thread_local! {
    /// The files in whose store calls this thread is.
    static CALLS: RefCell<Vec<Called>> = const { RefCell::new(Vec::new()) };
    /// How many locks of files that may be slept on this thread holds, those of blocks not counted.
    static HOLDING: Cell<u32> = const { Cell::new(0) };
    /// In how many callbacks of spaces this thread is: it needs no destructor, so that reading it
    /// costs a load.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// In how many callbacks of spaces this thread is, as the layer above says: those of devices, and
/// those of stores for a fault or a change. There that space refuses to be used.
#[inline(always)]
pub(crate) fn depth_in_spaces() -> usize {
    // A thread that is ending counts as in one.
    DEPTH.try_with(Cell::get).unwrap_or(1)
}

pub(crate) fn set_depth_in_spaces(depth: usize) {
    let _ = DEPTH.try_with(|known| known.set(depth));
}

/// Whether this thread is in a callback of a space and in none of a store, as a device's handler
/// is.
pub(super) fn is_below_device() -> bool {
    depth_in_spaces() > 0 && !is_in_any()
}

/// A file whose store is being called.
struct Called {
    /// By address.
    file: usize,
    uses_files: Arc<AtomicBool>,
}

/// A call of a store uses a file. Stores may forget to say that they do
/// ([`Store::uses_files`](crate::store::Store::uses_files)): from here on it is known.
#[inline]
fn note_use() {
    let _ = CALLS.try_with(|calls| {
        for called in calls.borrow().iter() {
            // Relaxed: who learns it late does what was right for a store that uses none.
            called.uses_files.store(true, Ordering::Relaxed);
        }
    });
}

/// How often an operation makes room for itself.
pub(super) const ROOMS: u32 = 8;

/// Pages of such room beside two blocks: nodes of the index, and what others take meanwhile.
const EXTRA_ROOM: u64 = 8;

/// While it lives, this thread has a file locked.
#[must_use = "the file is taken for unlocked when this is dropped"]
pub(crate) struct Holding(PhantomData<*const ()>);

impl Holding {
    #[inline]
    pub(crate) fn begin() -> Holding {
        note_use();
        let _ = HOLDING.try_with(|holding| holding.set(holding.get() + 1));
        Holding(PhantomData)
    }
}

impl Drop for Holding {
    #[inline]
    fn drop(&mut self) {
        let _ = HOLDING.try_with(|holding| holding.set(holding.get() - 1));
    }
}

/// Whether this thread is in a call of some file's store.
fn is_in_any() -> bool {
    CALLS
        .try_with(|calls| !calls.borrow().is_empty())
        .unwrap_or(false)
}

/// Whether this thread is in calls of stores, none of them of the file at this address. A future
/// about that file is not served to such a thread, which would be passed over; so its poll does the
/// work itself.
pub(super) fn is_below_others(address: usize) -> bool {
    let below = CALLS.try_with(|calls| {
        let calls = calls.borrow();
        !calls.is_empty() && calls.iter().all(|called| called.file != address)
    });
    below.unwrap_or(false)
}

/// Whether this thread has no file locked and is in no call of a store.
pub(super) fn is_free() -> bool {
    let holding = HOLDING.try_with(Cell::get).unwrap_or(0);
    holding == 0 && !is_in_any()
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
            let at = calls.iter().rposition(|called| called.file == self.file);
            calls.remove(at.expect("a call ends once, on its thread"));
        });
    }
}

impl FileCore {
    /// What names the file among those that are open.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Begins a call of the file's store: no reclaim below it, and no way back into the file.
    pub(super) fn store_call(&self) -> StoreCall {
        let file = self.address();
        note_use();
        let uses_files = self.uses_files.clone();
        let called = Called { file, uses_files };
        let _ = CALLS.try_with(|calls| calls.borrow_mut().push(called));
        StoreCall {
            file,
            _scope: self.pool.store_scope(),
            _apart: Apart::begin(),
        }
    }

    /// Whether this thread is in a call of the file's store.
    pub(super) fn in_store_call(&self) -> bool {
        let file = self.address();
        let listed =
            CALLS.try_with(|calls| calls.borrow().iter().any(|called| called.file == file));
        listed.unwrap_or(false)
    }

    /// Refuses everything to a child of fork(2): neither the bytes in memory nor the threads of the
    /// memory are there, and the store is the parent's to write to.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), FileError> {
        match self.pool.foreign_maker() {
            None => Ok(()),
            Some(maker) => Err(self.other_process(maker)),
        }
    }

    #[cold]
    fn other_process(&self, maker: Process) -> FileError {
        FileError::OtherProcess {
            file: self.name.clone(),
            pid: maker.id(),
        }
    }

    /// Refuses what may wait to a thread that is in a call of the file's store, and to a child of
    /// fork(2).
    pub(super) fn check_not_reentrant(&self) -> Result<(), FileError> {
        self.check_process()?;
        match self.in_store_call() {
            false => Ok(()),
            true => Err(FileError::Reentered {
                file: self.name.clone(),
            }),
        }
    }

    /// Whether this thread may call the file's store for somebody else's sake.
    pub(super) fn may_call_unasked(&self) -> bool {
        let may = !self.uses_files.load(Ordering::Relaxed) || is_free();
        if !may {
            StoreScope::note_skipped();
        }
        may
    }

    /// [`with_room`] for a file.
    pub(super) fn with_room<T>(
        &self,
        work: impl FnMut() -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let is_full = |error: &FileError| match error {
            FileError::Limit(full) => Some(full.details().id),
            _ => None,
        };
        let mut work = work;
        let mut landings = 0;
        let patient = || loop {
            let result = work();
            match result.as_ref().err().and_then(is_full) {
                Some(group) if landings < ROOMS && self.wait_for_landing(group) => landings += 1,
                _ => return result,
            }
        };
        with_room(
            &self.pool,
            PageCount(2 * self.block_pages()),
            is_full,
            patient,
        )
    }

    /// Memory is short. If requests in flight have some of the group's, waits a moment until one
    /// has landed, whose blocks can be evicted then: whether to try again.
    fn wait_for_landing(&self, group: GroupId) -> bool {
        if self.cache.pages_in_flight(group) == 0 {
            return false;
        }
        if self.cache.workers().has_threads() {
            self.cache.wait_for_landing();
        } else if is_free() {
            self.cache.run_jobs();
        } else {
            while self.requests.store_calls.run_one() {}
        }
        true
    }
}

/// Does `work`, which locks files and wants memory. If it finds none (`is_full` says where), and
/// has passed over files whose stores could not be called there, some is made with nothing locked,
/// `pages` and a few more, and it is done again: it has to be such that it can be. The limit that
/// it met is counted as one that failed somebody only if it is what the caller hears.
pub(crate) fn with_room<T, E>(
    pool: &Pool,
    pages: PageCount,
    is_full: impl Fn(&E) -> Option<GroupId>,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut rooms = 0;
    loop {
        let before = StoreScope::skipped();
        let trial = Trial::begin(pool);
        let result = work();
        let Some(group) = result.as_ref().err().and_then(&is_full) else {
            trial.forget();
            return result;
        };
        if rooms == ROOMS
            || StoreScope::skipped() == before
            || !is_free()
            || pool.reclaim(group, PageCount(pages.0 + EXTRA_ROOM)) == PageCount(0)
        {
            return result;
        }
        trial.forget();
        rooms += 1;
    }
}
