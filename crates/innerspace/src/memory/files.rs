//! The table of open files: each store is open once.
//!
//! The table is locked while a file of the file system is opened, locked and put into it. A store
//! of the user's may open other files when it is asked, so it is asked with the table unlocked, and
//! an [`OpenFile::Opening`] stands in the table meanwhile. If that is gone when the table is locked
//! again, the store was open in between and may have changed, and is asked once more. No call waits
//! for an `Opening`: of two calls that open a store at once, the second finds the first one's file.

use std::collections::HashMap;

use crate::cache::{Cache, FileCore, FileInner, PagedFile};
use crate::dax::DaxCore;
use crate::store::Identity;
use crate::store::{self, Locked, Locking, Opened};
use crate::sync::thread;
use crate::sync::{Arc, Mutex, MutexGuard, Rank, Weak};

/// Open files by the identity of their stores.
pub(super) struct OpenFiles(Mutex<HashMap<Identity, OpenFile>>);

/// A file that is open, or was: its last handle may be gone.
pub(super) enum OpenFile {
    /// The file is being opened, and has not been open since this entry was made: its store is
    /// being probed.
    Opening(Weak<()>),
    /// Open through the page cache; the second reference lives until the file is closed, or longer.
    Cached(Weak<FileInner>, Weak<FileCore>),
    /// Open for direct access; the second reference lives until the file is closed.
    Direct(Weak<DaxCore>, Weak<()>),
}

/// A file in the table that is open.
pub(super) enum Listed {
    Cached(Arc<FileInner>),
    Direct(Arc<DaxCore>),
}

/// The table of files, locked.
pub(super) type Files<'memory> = MutexGuard<'memory, HashMap<Identity, OpenFile>>;

/// Whether a file is open already.
pub(super) enum Found<'memory, F> {
    /// The file is open.
    Same(F),
    /// The file is not open; has the table of files, locked.
    Nothing(Files<'memory>),
}

impl OpenFile {
    pub(super) fn cached(file: &PagedFile) -> OpenFile {
        let inner = file.inner();
        OpenFile::Cached(Arc::downgrade(inner), Arc::downgrade(inner.core()))
    }

    /// Whether the file is open, or being opened or closed: then a call that opens it has to find
    /// it.
    fn is_in_use(&self) -> bool {
        match self {
            OpenFile::Opening(mark) => mark.strong_count() > 0,
            OpenFile::Cached(_, core) => core.strong_count() > 0,
            OpenFile::Direct(_, closed) => closed.strong_count() > 0,
        }
    }
}

/// Notes a file that was just opened, and forgets those that are closed.
pub(super) fn note_open(
    files: &mut HashMap<Identity, OpenFile>,
    identity: Identity,
    open: OpenFile,
) {
    files.retain(|_, file| file.is_in_use());
    files.insert(identity, open);
}

/// Notes that a store is about to be asked. The mark lasts while its result lives; all calls that
/// ask the store at the same time share it.
pub(super) fn note_opening(files: &mut HashMap<Identity, OpenFile>, identity: Identity) -> Arc<()> {
    if let Some(OpenFile::Opening(mark)) = files.get(&identity)
        && let Some(mark) = mark.upgrade()
    {
        return mark;
    }
    let mark = Arc::new(());
    files.insert(identity, OpenFile::Opening(Arc::downgrade(&mark)));
    mark
}

/// Whether the store has not been open since it was marked.
pub(super) fn is_opening(
    files: &HashMap<Identity, OpenFile>,
    identity: Identity,
    mark: &Arc<()>,
) -> bool {
    let now = files.get(&identity);
    matches!(now, Some(OpenFile::Opening(now)) if std::ptr::eq(now.as_ptr(), Arc::as_ptr(mark)))
}

impl OpenFiles {
    pub(super) fn new() -> OpenFiles {
        OpenFiles(Mutex::ranked(Rank::Registry, HashMap::new()))
    }

    /// Opens the file at a path once. If it is open already, `same` makes the result of it; if not,
    /// `make` does, with the file locked against other processes.
    ///
    /// The file is identified by its open descriptor: the path may name another file a moment
    /// later. A second writable open of one file would meet our own lock, so the table is searched
    /// before, and stays locked until the file is in it.
    pub(super) fn open_once<F, E: From<store::OpenError>>(
        &self,
        cache: &Cache,
        mut opened: Opened,
        same: impl Fn(Listed) -> Result<F, E>,
        make: impl FnOnce(Locked<'_>) -> Result<(F, OpenFile), E>,
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
            let locked = match opened.lock()? {
                Locking::Done(locked) => locked,
                Locking::Other(other) => {
                    opened = other;
                    continue;
                }
            };
            let (file, open) = make(locked)?;
            if let (Some(mut files), Some(identity)) = (files, identity) {
                note_open(&mut files, identity, open);
            }
            return Ok(file);
        }
    }

    /// Looks for a file that is open as `identity`, of which `same` makes the result. A file that
    /// `same` refuses may be kept open only by mappings that are unreachable already: those are
    /// dropped, and the file is looked for once more.
    pub(super) fn look<F, E>(
        &self,
        cache: &Cache,
        identity: Identity,
        same: impl Fn(Listed) -> Result<F, E>,
    ) -> Result<Found<'_, F>, E> {
        let mut refused = false;
        loop {
            let (files, listed) = self.look_for(cache, identity);
            let Some(listed) = listed else {
                return Ok(Found::Nothing(files));
            };
            drop(files);
            match same(listed) {
                Ok(open) => return Ok(Found::Same(open)),
                Err(error) if refused => return Err(error),
                // Must be called outside every section, with nothing locked.
                Err(_) => cache.released(Vec::new()),
            }
            refused = true;
        }
    }

    /// The table of files, locked, and the file that is open as `identity`. A file whose last
    /// handle is gone may still be writing, and have its store locked. This waits for it, with the
    /// table unlocked, since stores are called meanwhile.
    fn look_for(&self, cache: &Cache, identity: Identity) -> (Files<'_>, Option<Listed>) {
        loop {
            let files = self.0.lock();
            match files.get(&identity) {
                Some(OpenFile::Cached(file, _)) => match file.upgrade() {
                    Some(file) => return (files, Some(Listed::Cached(file))),
                    None if cache.is_closing(identity) => {
                        drop(files);
                        cache.wait_closed(identity);
                    }
                    None => return (files, None),
                },
                Some(OpenFile::Direct(file, closed)) => match file.upgrade() {
                    Some(file) => return (files, Some(Listed::Direct(file))),
                    None if closed.strong_count() > 0 => {
                        drop(files);
                        thread::yield_now();
                    }
                    None => return (files, None),
                },
                Some(OpenFile::Opening(_)) | None => return (files, None),
            }
        }
    }
}
