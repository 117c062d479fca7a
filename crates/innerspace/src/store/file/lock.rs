//! The advisory lock of a file that is open for writing.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::ops::Deref;

use super::name::NewName;
use super::options::LockHolder;
use crate::sys::file as sys;
use crate::sys::process::Process;

/// An open file, which may have the lock. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    locked_by: Option<Process>,
    name: NewName,
}

impl LockedFile {
    /// Wraps a file that is not locked.
    pub(super) fn unlocked(file: File, name: NewName) -> LockedFile {
        LockedFile {
            file,
            locked_by: None,
            name,
        }
    }

    /// Makes the file's name durable, if it may be new. Each sync does this.
    pub(crate) fn sync_name(&self) -> io::Result<()> {
        self.name.sync()
    }

    /// Takes the exclusive lock, or one that others may share. The lock lasts until it is released,
    /// or until every process that has inherited the file has closed it. Returns the holder of the
    /// lock if another handle has it.
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
        // A child of fork(2) has the handle too, but the lock belongs to its parent.
        if self.locked_by.is_some_and(Process::is_current) {
            // Closing the file would not be enough. A child that another thread is spawning shares
            // the open file until it runs its program. If unlocking fails, closing is all that can
            // be done.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl LockedFile {
        pub(in crate::store::file) fn name(&self) -> &NewName {
            &self.name
        }
    }
}
