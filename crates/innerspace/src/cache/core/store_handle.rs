//! The store of an open file, shared by the file and the calls to the store that are under way.
//!
//! A call that is under way while the file is closed keeps the store alive a moment longer, and
//! with it anything that excludes other users, such as a lock on a host file. So the file's entry
//! in the table of open files stays until the call ends. The next open of the same store then
//! waits, instead of failing because of that lock.

use std::ops::Deref;

use crate::group::SetAside;
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::{MIB, PAGE_SHIFT};

/// A store, and a mark that it is in use.
pub(crate) struct StoreHandle {
    store: Arc<dyn Store>,
    /// Shows, through weak references, whether the store is in use. Declared after `store`, so that
    /// it is dropped after the store.
    open: Arc<()>,
}

impl Deref for StoreHandle {
    type Target = dyn Store;

    fn deref(&self) -> &dyn Store {
        &*self.store
    }
}

/// The size in bytes of a read request for stores that have no preference, and the largest size for
/// all stores.
const DEFAULT_REQUEST: u64 = MIB;
const MOST_REQUEST: u64 = 64 * MIB;

/// The store of a file, and what the file knows about it.
pub(crate) struct FileStore {
    /// `None` once the file is closed. An innermost lock, held only to clone or take the handle.
    handle: Mutex<Option<Arc<StoreHandle>>>,
    /// Whether a call to the store may use other files.
    pub(super) uses_files: Arc<AtomicBool>,
    /// The pages that calls to the store may use when the memory is full.
    pub(super) aside: Option<Arc<SetAside>>,
    /// How many requests the store serves at a time.
    pub(crate) at_a_time: u32,
    /// The size of the largest read request, in blocks.
    pub(crate) request_blocks: u64,
}

impl FileStore {
    /// Creates the store of a file whose blocks have `1 << order` pages. Calls to the store may use
    /// the pages `aside` when the memory is full.
    pub(crate) fn new(store: Arc<dyn Store>, aside: Option<Arc<SetAside>>, order: u8) -> FileStore {
        let limits = store.limits();
        let preferred = match limits.preferred_size as u64 {
            0 => DEFAULT_REQUEST,
            bytes => bytes.min(MOST_REQUEST),
        };
        FileStore {
            uses_files: Arc::new(AtomicBool::new(store.uses_files())),
            aside,
            at_a_time: limits.requests,
            request_blocks: (preferred >> PAGE_SHIFT >> order).max(1),
            handle: Mutex::new(Some(Arc::new(StoreHandle {
                store,
                open: Arc::new(()),
            }))),
        }
    }

    /// Returns the store, unless the file is closed.
    pub(crate) fn get(&self) -> Option<Arc<StoreHandle>> {
        self.handle.lock().clone()
    }

    /// Returns a weak reference that can be upgraded as long as this file, or a call to the store,
    /// still uses the store. If the file is closed already, the reference can never be upgraded.
    pub(crate) fn in_use(&self) -> Weak<()> {
        let handle = self.handle.lock();
        let open = handle.as_deref().map(|handle| Arc::downgrade(&handle.open));
        open.unwrap_or_default()
    }

    /// Closes the store. The lock is released before the store is dropped.
    pub(crate) fn close(&self) {
        let handle = self.handle.lock().take();
        drop(handle);
    }

    /// Whether a call to the store may use other files.
    pub(crate) fn may_use_files(&self) -> bool {
        self.uses_files.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl FileStore {
        /// Notes that a call to the store has used another file.
        pub(crate) fn note_use(&self) {
            self.uses_files.store(true, Ordering::Relaxed);
        }
    }
}
