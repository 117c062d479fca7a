//! The name of a file that may be new. The name is durable once its folder was synced.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::options::Create;
use crate::sync::Mutex;

/// The folder that has to be synced before the file can be found by its name after a crash. `None`
/// once that is done, and for files that existed before.
#[derive(Debug, Default)]
pub(super) struct NewName(Mutex<Option<PathBuf>>);

impl NewName {
    /// Records the name at `path` of a file that was opened as `create` says.
    pub(super) fn of(path: &Path, create: Create) -> NewName {
        let may_be_new = cfg!(unix) && create != Create::Never;
        // A link is resolved, because the file to which it leads is in another folder.
        let path = may_be_new
            .then(|| std::fs::canonicalize(path).ok())
            .flatten();
        let folder = path.and_then(|path| path.parent().map(Path::to_owned));
        NewName(Mutex::new(folder))
    }

    /// Makes the name durable, if that is not done yet.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut folder = self.0.lock();
        let Some(path) = &*folder else { return Ok(()) };
        match File::open(path).and_then(|folder| folder.sync_all()) {
            Err(error) if !cannot_be_synced(&error) => Err(error),
            _ => {
                *folder = None;
                Ok(())
            }
        }
    }
}

/// Returns whether the error means that the folder is gone, may not be read, or is on a file system
/// that cannot sync folders.
fn cannot_be_synced(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
    )
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl NewName {
        /// Returns whether the folder has to be synced.
        pub(crate) fn is_pending(&self) -> bool {
            self.0.lock().is_some()
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
            assert!(store.file.name().is_pending());
            store.sync(what).unwrap();
            assert!(!store.file.name().is_pending());
        }
        let store = FileOptions::new().open(&path).unwrap();
        assert!(!store.file.name().is_pending());
        // If the folder is gone, there is no name to make durable.
        let store = FileStore::create(&path).unwrap();
        drop(folder);
        store.sync(SyncWhat::All).unwrap();
    }
}
