//! Calls the store for its version, and refuses to read from a store that was changed: see
//! `store_version`.

use crate::cache::core::FileCore;
use crate::cache::errors::{FileError, StoreAction};
use crate::store::Version;

impl FileCore {
    /// Refuses to read from a store that was changed. May call the store. The caller holds no lock
    /// of a block.
    pub(crate) fn check_version(&self) -> Result<(), FileError> {
        if self.version.begins_to_ask(self.pool.now()) {
            self.ask_version()?;
        }
        match self.version.is_changed() {
            false => Ok(()),
            true => Err(self.changed_in_place()),
        }
    }

    /// Calls the store for its version. A new one is noted, and recorded in the error sequence.
    pub(crate) fn ask_version(&self) -> Result<(), FileError> {
        if self.version.is_told() && self.version.note(self.version_of_store()?) {
            self.writes.errors.record(self.changed_in_place());
        }
        Ok(())
    }

    fn version_of_store(&self) -> Result<Option<Version>, FileError> {
        let store = self.store()?;
        let _call = self.store_call();
        let version = store.version();
        version.map_err(|error| self.store_error(StoreAction::Query, 0, 0, error))
    }

    /// Accepts the store's present version. The caller knows that others may have changed the
    /// store, and has invalidated, or is about to invalidate, the blocks that it needs to read
    /// anew.
    pub(crate) fn accept_version(&self) -> Result<(), FileError> {
        if self.version.is_told() {
            self.version.accept(self.version_of_store()?);
        }
        Ok(())
    }

    #[cold]
    fn changed_in_place(&self) -> FileError {
        let (was, now) = self.version.known_and_now();
        FileError::ChangedInPlace {
            file: self.id.name.clone(),
            was,
            now,
        }
    }
}
