//! The table of open files: each store is open once.
//!
//! For a file of the file system, the table stays locked from the search until the file has been
//! locked, if it is to be locked, and added. A store that the user implements may open other files
//! when it is probed. So it is probed with the table unlocked, and an [`OpenFile::Opening`] is in
//! the table meanwhile. If that entry is gone when the table is locked again, the store was opened
//! and closed meanwhile. It may have changed, so it is probed once more. No call waits for an
//! `Opening`: if two calls open a store at the same time, the one that comes second finds the file
//! of the first.
//!
//! A file, or a call that opens one, has a [`Listing`], which removes the file's entry from the
//! table when dropped. So entries do not outlast their files, and no call has to walk the table.

use std::collections::HashMap;

use crate::cache::{Cache, FileCore, FileInner, PagedFile};
use crate::dax::DaxCore;
use crate::store::{self, Identity, Locking, Opened};
use crate::sync::{Arc, Mutex, MutexGuard, Rank, Weak, failpoint, thread};

/// The open files, by the identity of their stores.
pub(super) struct OpenFiles(Arc<Table>);

struct Table {
    files: Mutex<Entries>,
    /// Entries to be removed, because their listing was dropped while `files` was locked. The next
    /// call to [`Table::lock`] removes them. The mutex is an innermost lock.
    ended: Mutex<Vec<(Identity, u64)>>,
}

#[derive(Default)]
pub(super) struct Entries {
    by_identity: HashMap<Identity, Entry>,
    /// The number for the next entry.
    next: u64,
}

struct Entry {
    /// The number of the listing that removes this entry.
    number: u64,
    file: OpenFile,
}

impl Entry {
    fn file(&self) -> &OpenFile {
        failpoint!(FileSeen);
        &self.file
    }
}

/// Removes an entry from the table of open files when dropped, unless the entry has been replaced.
pub(super) struct Listing {
    table: Arc<Table>,
    identity: Identity,
    number: u64,
}

impl Drop for Listing {
    fn drop(&mut self) {
        let ended = (self.identity, self.number);
        // A file may end while the table is locked, perhaps by this thread, so this does not wait.
        match self.table.files.try_lock() {
            Some(mut files) => files.remove(ended),
            None => self.table.ended.lock().push(ended),
        }
    }
}

impl Table {
    fn lock(&self) -> Files<'_> {
        let mut files = self.files.lock();
        for ended in std::mem::take(&mut *self.ended.lock()) {
            files.remove(ended);
        }
        files
    }
}

impl Entries {
    fn get(&self, identity: Identity) -> Option<&OpenFile> {
        self.by_identity.get(&identity).map(Entry::file)
    }

    fn insert(&mut self, identity: Identity, file: OpenFile) -> u64 {
        let number = self.next;
        self.next += 1;
        self.by_identity.insert(identity, Entry { number, file });
        number
    }

    /// Returns whether the store has not been open since [`OpenFiles::note_opening`] returned
    /// `mark`.
    pub(super) fn is_opening(&self, identity: Identity, mark: &Arc<Listing>) -> bool {
        let now = self.get(identity);
        matches!(now, Some(OpenFile::Opening(now)) if std::ptr::eq(now.as_ptr(), Arc::as_ptr(mark)))
    }

    fn remove(&mut self, (identity, number): (Identity, u64)) {
        let entry = self.by_identity.get(&identity);
        if entry.is_some_and(|entry| entry.number == number) {
            self.by_identity.remove(&identity);
        }
    }
}

/// A file that is open, is being opened, or was open: its last reference may be gone.
pub(super) enum OpenFile {
    /// The file is being opened, and has not been open since this entry was made: its store is
    /// being probed. All calls that probe it at the same time share the listing.
    Opening(Weak<Listing>),
    /// The file is open through the page cache. The second reference can be upgraded until the file
    /// is closed, or longer.
    Cached(Weak<FileInner>, Weak<FileCore>),
    /// The file is open for direct access. The second reference can be upgraded until the file is
    /// closed.
    Direct(Weak<DaxCore>, Weak<()>),
}

/// An open file, found in the table.
pub(super) enum Listed {
    Cached(Arc<FileInner>),
    Direct(Arc<DaxCore>),
}

/// The table of files, locked.
pub(super) type Files<'memory> = MutexGuard<'memory, Entries>;

/// The result of a search for an open file.
pub(super) enum Found<'memory, F> {
    /// The file is open.
    Same(F),
    /// The file is not open. Holds the table of files, still locked.
    Nothing(Files<'memory>),
}

impl OpenFile {
    pub(super) fn cached(file: &PagedFile) -> OpenFile {
        let inner = file.inner();
        OpenFile::Cached(Arc::downgrade(inner), Arc::downgrade(inner.core()))
    }

    /// Returns the file, if a handle or a mapping keeps it open. Returns `None` for
    /// [`OpenFile::Opening`].
    fn upgrade(&self) -> Option<Listed> {
        match self {
            OpenFile::Opening(_) => None,
            OpenFile::Cached(file, _) => file.upgrade().map(Listed::Cached),
            OpenFile::Direct(file, _) => file.upgrade().map(Listed::Direct),
        }
    }

    /// Keeps a value until the file ends. The caller keeps the file alive.
    fn keep(&self, ending: Box<dyn Send + Sync>) {
        match self {
            OpenFile::Opening(_) => {}
            OpenFile::Cached(_, core) => drop(core.upgrade().map(|core| core.keep(ending))),
            OpenFile::Direct(core, _) => drop(core.upgrade().map(|core| core.keep(ending))),
        }
    }
}

impl OpenFiles {
    pub(super) fn new() -> OpenFiles {
        OpenFiles(Arc::new(Table {
            files: Mutex::ranked(Rank::Registry, Entries::default()),
            ended: Mutex::default(),
        }))
    }

    /// Adds a file that was just opened to the table. The file stays in the table until it ends;
    /// then `ending` is dropped.
    pub(super) fn note_open(
        &self,
        files: &mut Entries,
        identity: Identity,
        file: OpenFile,
        ending: impl Send + Sync + 'static,
    ) {
        let ending = Box::new((self.listing(identity, files.next), ending));
        file.keep(ending);
        files.insert(identity, file);
    }

    fn listing(&self, identity: Identity, number: u64) -> Listing {
        let table = self.0.clone();
        Listing {
            table,
            identity,
            number,
        }
    }

    /// Notes, until the returned value is dropped, that a store is being probed. Calls that probe
    /// it at the same time share the value.
    pub(super) fn note_opening(&self, files: &mut Entries, identity: Identity) -> Arc<Listing> {
        if let Some(OpenFile::Opening(mark)) = files.get(identity)
            && let Some(mark) = mark.upgrade()
        {
            return mark;
        }
        let number = files.insert(identity, OpenFile::Opening(Weak::new()));
        let mark = Arc::new(self.listing(identity, number));
        if let Some(entry) = files.by_identity.get_mut(&identity) {
            entry.file = OpenFile::Opening(Arc::downgrade(&mark));
        }
        mark
    }

    /// Opens the file at a path once. If it is already open, returns the result of `same`; if not,
    /// the result of `make`. Before `make` is called, the file is locked against other processes,
    /// unless its `FileLock` means no lock (as `Auto` does for reading). A file whose identity is
    /// unknown is neither searched for nor added.
    ///
    /// The file is identified by its open descriptor, because the path may name another file a
    /// moment later. A second writable open of the file would conflict with this process's own
    /// lock. So the table is searched before the file is locked, and the table's own lock is held
    /// until the file has been added.
    pub(super) fn open_once<F, E: From<store::FileOpenError>, X: Send + Sync + 'static>(
        &self,
        cache: &Cache,
        mut opened: Opened,
        same: impl Fn(Listed) -> Result<F, E>,
        make: impl FnOnce(Opened<'_>) -> Result<(F, OpenFile, X), E>,
    ) -> Result<F, E> {
        loop {
            let identity = opened.identity();
            let files = match identity {
                None => None,
                Some(identity) => match self.look(cache, identity, &same)? {
                    Found::Same(open) => return Ok(open),
                    Found::Nothing(files) => Some(files),
                },
            };
            if let Locking::Other = opened.lock()? {
                continue;
            }
            let (file, open, ending) = make(opened)?;
            match (files, identity) {
                (Some(mut files), Some(identity)) => {
                    self.note_open(&mut files, identity, open, ending);
                }
                _ => open.keep(Box::new(ending)),
            }
            return Ok(file);
        }
    }

    /// Looks for a file that is open as `identity`, and returns what `same` makes of it. If it is
    /// being closed, first waits until it is closed. If `same` refuses the file, the reason may be
    /// mappings that are already unreachable but still keep it open. So these mappings are dropped,
    /// and the file is looked for once more.
    pub(super) fn look<F, E>(
        &self,
        cache: &Cache,
        identity: Identity,
        same: impl Fn(Listed) -> Result<F, E>,
    ) -> Result<Found<'_, F>, E> {
        let mut refused = false;
        loop {
            let files = self.0.lock();
            let found = files.get(identity);
            let Some(listed) = found.and_then(OpenFile::upgrade) else {
                // If the file's last handle was dropped, the file may still be writing, with its
                // store locked. This thread waits for it with the table unlocked, because stores
                // are called meanwhile.
                match found {
                    Some(OpenFile::Cached(..)) if cache.is_closing(identity) => {
                        drop(files);
                        cache.wait_closed(identity);
                    }
                    Some(OpenFile::Direct(_, closed)) if closed.strong_count() > 0 => {
                        drop(files);
                        thread::yield_now();
                    }
                    _ => return Ok(Found::Nothing(files)),
                }
                continue;
            };
            drop(files);
            match same(listed) {
                Ok(open) => return Ok(Found::Same(open)),
                Err(error) if refused => return Err(error),
                // `released` must be called outside every section, with nothing locked.
                Err(_) => cache.released(Vec::new()),
            }
            refused = true;
        }
    }
}
