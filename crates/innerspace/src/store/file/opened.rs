//! Opening in steps, for who has to know which file it is before anything happens to it: opened,
//! locked, emptied.
//!
//! What a path names can change between any two of them. So a file is known by what was opened;
//! once it is locked, the path is looked at again (who had the lock may have renamed another file
//! there), and so is the length (who had the lock may have written). It is emptied last, when
//! nothing else can fail.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::path::Path;

use super::open::{Opening, forced};
use super::watch::Watch;
use super::{Access, CacheMode, Create, FileState, FileStore, OpenError};
use crate::store::Identity;
use crate::sync::Arc;
use crate::sync::atomic::AtomicBool;
use crate::sys::file as sys;
use crate::sys::process::Process;

/// How often a file is opened again because its path has come to name another one.
const TRIES: u32 = 16;

/// A file that is open, and neither locked nor emptied yet.
pub(crate) struct Opened<'a> {
    opening: Opening<'a>,
    create: Create,
    file: File,
    metadata: Metadata,
    tries: u32,
}

/// What became of an open file that was to be locked.
pub(crate) enum Locking<'a> {
    /// It is, and its path names it still.
    Done(Locked<'a>),
    /// The path names another file by now, which is open in its place: nothing that was known of
    /// the first holds for it.
    Other(Opened<'a>),
}

impl<'a> Opened<'a> {
    /// Opens or makes a file as [`FileOptions::open`](super::FileOptions::open) does, with its
    /// errors.
    pub(crate) fn begin(
        path: &'a Path,
        access: Access,
        create: Create,
    ) -> Result<Opened<'a>, OpenError> {
        Opened::try_again(Opening { path, access }, create, TRIES)
    }

    fn try_again(
        opening: Opening<'a>,
        create: Create,
        tries: u32,
    ) -> Result<Opened<'a>, OpenError> {
        let (file, metadata) = opening.open_regular(create)?;
        #[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
        hook::run(&file);
        Ok(Opened {
            opening,
            create,
            file,
            metadata,
            tries,
        })
    }

    /// What the file that was opened is known by, whatever its path names by now.
    pub(crate) fn identity(&self) -> Option<Identity> {
        super::identity_of(&self.metadata)
    }

    /// Locks it if it is to be written, and looks at it again.
    ///
    /// # Errors
    /// [`OpenError::InUse`] while the path names it; [`OpenError::Io`], also when the path names
    /// another file every time.
    pub(crate) fn lock(self) -> Result<Locking<'a>, OpenError> {
        let Opened {
            opening,
            create,
            file,
            metadata,
            tries,
        } = self;
        let to_be_locked = opening.access == Access::ReadWrite;
        let locking = match to_be_locked {
            true => opening.lock(&file, &metadata),
            false => Ok(()),
        };
        let locked_by = (to_be_locked && locking.is_ok()).then(Process::current);
        let file = LockedFile { file, locked_by };
        // Also where somebody has the lock: that one is in the way of the file alone.
        let is_told = matches!(locking, Ok(()) | Err(OpenError::InUse { .. }));
        if to_be_locked && is_told && !opening.still_names(&metadata) {
            drop(file);
            let Some(tries) = tries.checked_sub(1) else {
                let text = "it was replaced by another file each time";
                let error = io::Error::new(io::ErrorKind::ResourceBusy, text);
                return Err(opening.io("lock it", error));
            };
            return Opened::try_again(opening, create, tries).map(Locking::Other);
        }
        locking?;
        // Whoever had it may have changed it until now.
        let metadata = opening.examine(&file)?;
        Ok(Locking::Done(Locked {
            file,
            metadata,
            emptying: Emptying { opening, create },
        }))
    }

    /// The same for who takes whatever file the path names.
    pub(crate) fn lock_any(self) -> Result<Locked<'a>, OpenError> {
        let mut opened = self;
        loop {
            match opened.lock()? {
                Locking::Done(locked) => return Ok(locked),
                Locking::Other(other) => opened = other,
            }
        }
    }
}

/// A file that is open, locked if it is to be written, and not emptied yet.
pub(crate) struct Locked<'a> {
    pub(crate) file: LockedFile,
    /// Of the file as it is now.
    pub(crate) metadata: Metadata,
    pub(crate) emptying: Emptying<'a>,
}

impl Locked<'_> {
    /// A store over it.
    ///
    /// # Errors
    /// [`OpenError::CacheMode`], [`OpenError::Io`]: it has its content then, unless it was emptied
    /// and could not be looked at any more.
    pub(crate) fn into_store(self, cache: CacheMode) -> Result<FileStore, OpenError> {
        let Locked {
            file,
            metadata,
            emptying,
        } = self;
        let opening = &emptying.opening;
        let engine = opening.engine(&file, &metadata, cache)?;
        emptying.run(&file)?;
        let metadata = opening.examine(&file)?;
        Ok(FileStore {
            engine,
            access: opening.access,
            identity: super::identity_of(&metadata),
            name: opening.path.to_string_lossy().into_owned(),
            state: Arc::new(FileState {
                watch: Watch::new(&metadata),
                fell_back: AtomicBool::new(forced::no_ring()),
            }),
            file,
        })
    }
}

/// What is left to do when nothing else can fail: to empty the file, if it is to be.
#[must_use]
pub(crate) struct Emptying<'a> {
    opening: Opening<'a>,
    create: Create,
}

impl<'a> Emptying<'a> {
    pub(crate) fn path(&self) -> &'a Path {
        self.opening.path
    }

    pub(crate) fn access(&self) -> Access {
        self.opening.access
    }

    /// The length that the file will have.
    pub(crate) fn len(&self, metadata: &Metadata) -> u64 {
        match self.create {
            Create::Truncate => 0,
            _ => metadata.len(),
        }
    }

    /// Does it.
    pub(crate) fn run(&self, file: &LockedFile) -> Result<(), OpenError> {
        if self.create != Create::Truncate {
            return Ok(());
        }
        file.set_len(0)
            .map_err(|source| self.opening.io("empty it", source))
    }
}

/// An open file, which may have the lock, and gives it back when it goes.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    locked_by: Option<Process>,
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // A child of fork(2) has the handle too: the lock is its parent's.
        if self.locked_by.is_some_and(Process::is_current) {
            // Closing would not do: a child that another thread is spawning has the description
            // too, until it runs its program. A failure leaves just that.
            let _ = self.file.unlock();
        }
    }
}

impl Opening<'_> {
    fn examine(&self, file: &File) -> Result<Metadata, OpenError> {
        file.metadata()
            .map_err(|source| self.io("examine it", source))
    }

    /// Whether the path names the file with this metadata, as far as can be told.
    fn still_names(&self, metadata: &Metadata) -> bool {
        std::fs::metadata(self.path).is_ok_and(|now| sys::identity(&now) == sys::identity(metadata))
    }
}

/// What a test has others do between opening and locking.
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) mod hook {
    use std::cell::Cell;
    use std::fs::File;

    type Hook = Box<dyn FnOnce(&File)>;

    thread_local! {
        static OPENED: Cell<Option<Hook>> = const { Cell::new(None) };
    }

    /// Runs `what` when this thread has opened a file the next time, before it is looked for or
    /// locked.
    pub(crate) fn when_opened(what: impl FnOnce(&File) + 'static) {
        OPENED.set(Some(Box::new(what)));
    }

    pub(super) fn run(file: &File) {
        if let Some(what) = OPENED.take() {
            what(file);
        }
    }
}
