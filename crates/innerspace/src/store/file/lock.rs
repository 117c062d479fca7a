//! An open file with its advisory lock. A sync also makes the file's name durable, if the file may
//! be new.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::options::{Create, LockHolder};
use crate::sync::Mutex;
use crate::sys::file as sys;
use crate::sys::process::Process;

/// An open file, perhaps with an advisory lock. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    locked_by: Option<Process>,
    /// The folder that has to be synced before the file can be found by its name after a crash.
    /// `None` once the folder is synced, and for a file that cannot be new or whose path cannot be
    /// resolved.
    new_in: Mutex<Option<PathBuf>>,
}

impl LockedFile {
    /// Wraps a file that was opened at `path` as `create` says, and is not locked.
    pub(super) fn unlocked(file: File, path: &Path, create: Create) -> LockedFile {
        let may_be_new = cfg!(unix) && create != Create::Never;
        // A symbolic link is resolved, because the file to which it leads may be in another folder.
        let path = may_be_new
            .then(|| std::fs::canonicalize(path).ok())
            .flatten();
        let folder = path.and_then(|path| path.parent().map(Path::to_owned));
        LockedFile {
            file,
            locked_by: None,
            new_in: Mutex::new(folder),
        }
    }

    /// Makes the file's name durable, if the file may be new. Every sync calls this.
    pub(crate) fn sync_name(&self) -> io::Result<()> {
        use io::ErrorKind::{InvalidInput, NotFound, PermissionDenied, Unsupported};
        let mut folder = self.new_in.lock();
        let Some(path) = &*folder else { return Ok(()) };
        if let Err(error) = File::open(path).and_then(|folder| folder.sync_all())
            // Errors that are ignored: the folder may be gone, may not be readable, or may be on a
            // file system that cannot sync folders.
            && !matches!(error.kind(), NotFound | PermissionDenied | InvalidInput | Unsupported)
        {
            return Err(error);
        }
        *folder = None;
        Ok(())
    }

    /// Takes an exclusive lock, or a shared one. The lock lasts until it is released, or until
    /// every process that has inherited the file has closed it. If another handle has a conflicting
    /// lock, returns the holder of that lock.
    pub(super) fn lock(
        &mut self,
        shared: bool,
        metadata: &Metadata,
    ) -> io::Result<Option<LockHolder>> {
        let locked = match shared {
            true => self.file.try_lock_shared(),
            false => self.file.try_lock(),
        };
        match locked {
            Ok(()) => {
                self.locked_by = Some(Process::current());
                Ok(None)
            }
            Err(TryLockError::Error(error)) => Err(error),
            Err(TryLockError::WouldBlock) => {
                let holder = sys::identity(metadata).and_then(sys::lock_holder);
                Ok(Some(match holder {
                    Some(pid) if pid == std::process::id() => LockHolder::ThisProcess,
                    Some(pid) => LockHolder::Process(pid),
                    None => LockHolder::Unknown,
                }))
            }
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // A child of fork(2) has this handle too, but the lock belongs to its parent.
        if self.locked_by.is_some_and(Process::is_current) {
            // Closing the file would not be enough: a child that another thread is spawning shares
            // the open file, and so the lock, until it executes its program. If unlocking fails,
            // closing is all that can be done.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl LockedFile {
        /// Returns whether the folder has to be synced.
        pub(in crate::store::file) fn is_name_pending(&self) -> bool {
            self.new_in.lock().is_some()
        }
    }
}

#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
mod tests {
    use crate::store::{FileOptions, FileStore, Store, SyncWhat};

    #[test]
    fn the_first_sync_of_a_file_that_may_be_new_makes_its_name_durable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        for what in [SyncWhat::All, SyncWhat::Data] {
            let store = FileStore::create(&path).unwrap();
            assert!(store.file.is_name_pending());
            store.sync(what).unwrap();
            assert!(!store.file.is_name_pending());
        }
        let store = FileOptions::new().open(&path).unwrap();
        assert!(!store.file.is_name_pending());
        // If the folder is gone, there is no name to make durable.
        let store = FileStore::create(&path).unwrap();
        drop(folder);
        store.sync(SyncWhat::All).unwrap();
    }
}
