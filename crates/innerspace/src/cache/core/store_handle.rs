//! The store of an open file, shared by the file and the calls that are under way.
//!
//! A call that is under way as the file is closed has the store a moment longer, and with it
//! whatever keeps others out, such as a lock. So the file's entry in the table of open files stays
//! until then: the next open of the same store waits, instead of meeting that lock.

use std::io;
use std::ops::Deref;

use crate::store::{Limits, Store, SyncWhat, Version, uninterrupted};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::MIB;

/// See the module.
pub(crate) struct StoreHandle {
    store: Arc<dyn Store>,
    /// Dropped when the store is, behind it.
    open: Arc<()>,
}

impl StoreHandle {
    pub(crate) fn new(store: Arc<dyn Store>) -> StoreHandle {
        let open = Arc::new(());
        StoreHandle { store, open }
    }

    /// As long as it can be upgraded, the store is in use: by the file, or by a call that is under
    /// way yet.
    pub(crate) fn in_use(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }
}

/// The calls that transfer no bytes, made again when they are interrupted. Those that do are made
/// again where they go on after a short transfer.
impl StoreHandle {
    pub(crate) fn len(&self) -> io::Result<u64> {
        uninterrupted(|| self.store.len())
    }

    pub(crate) fn set_len(&self, len: u64) -> io::Result<()> {
        uninterrupted(|| self.store.set_len(len))
    }

    pub(crate) fn sync(&self, what: SyncWhat) -> io::Result<()> {
        uninterrupted(|| self.store.sync(what))
    }

    pub(crate) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        uninterrupted(|| self.store.punch(offset, len))
    }

    pub(crate) fn version(&self) -> io::Result<Option<Version>> {
        uninterrupted(|| self.store.version())
    }

    pub(crate) fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        uninterrupted(|| self.store.next_data(offset))
    }

    pub(crate) fn next_hole(&self, offset: u64) -> io::Result<u64> {
        uninterrupted(|| self.store.next_hole(offset))
    }
}

impl Deref for StoreHandle {
    type Target = dyn Store;

    fn deref(&self) -> &dyn Store {
        &*self.store
    }
}

/// The request size in bytes of stores that have no preference, and the largest of all.
const DEFAULT_REQUEST: u64 = MIB;
const MOST_REQUEST: u64 = 64 * MIB;

/// A file's knowledge of its store.
pub(crate) struct FileStore {
    /// `None` once the file is closed. A leaf lock, held to clone it.
    handle: Mutex<Option<Arc<StoreHandle>>>,
    /// Whether a call of the store may use other files.
    uses_files: Arc<AtomicBool>,
    at_a_time: u32,
    request_blocks: u64,
}

impl FileStore {
    /// For a file whose blocks have `1 << block_shift` bytes.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        uses_files: bool,
        limits: &Limits,
        block_shift: u32,
    ) -> FileStore {
        let preferred = match limits.preferred_size as u64 {
            0 => DEFAULT_REQUEST,
            bytes => bytes.min(MOST_REQUEST),
        };
        FileStore {
            handle: Mutex::new(Some(Arc::new(StoreHandle::new(store)))),
            uses_files: Arc::new(AtomicBool::new(uses_files)),
            at_a_time: limits.requests,
            request_blocks: (preferred >> block_shift).max(1),
        }
    }

    /// The store, unless the file is closed.
    pub(crate) fn get(&self) -> Option<Arc<StoreHandle>> {
        self.handle.lock().clone()
    }

    /// As long as it can be upgraded, the store is in use by this file.
    pub(crate) fn in_use(&self) -> Weak<()> {
        let handle = self.handle.lock();
        handle
            .as_deref()
            .map_or_else(Weak::new, StoreHandle::in_use)
    }

    /// The file is closed. The store is dropped with the lock released.
    pub(crate) fn close(&self) {
        let handle = self.handle.lock().take();
        drop(handle);
    }

    /// Whether a call of the store may use other files.
    pub(crate) fn may_use_files(&self) -> bool {
        self.uses_files.load(Ordering::Relaxed)
    }

    /// Where calls of the store note that they use other files.
    pub(crate) fn uses_files(&self) -> Arc<AtomicBool> {
        self.uses_files.clone()
    }

    /// Notes that a call of the store has used another file.
    #[cfg(all(test, not(loom), not(shuttle)))]
    pub(crate) fn note_use(&self) {
        self.uses_files.store(true, Ordering::Relaxed);
    }

    /// The number of requests that the store serves at a time.
    pub(crate) fn at_a_time(&self) -> u32 {
        self.at_a_time
    }

    /// The largest request in blocks.
    pub(crate) fn request_blocks(&self) -> u64 {
        self.request_blocks
    }
}
