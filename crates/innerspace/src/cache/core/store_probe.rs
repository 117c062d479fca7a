//! The questions to a store before it becomes a file.
//!
//! A store may be made of other files, and open them when it is called. So nothing is locked during
//! these calls, nor when a store that cannot be opened is dropped.

use std::borrow::Cow;

use crate::cache::errors::{FileError, StoreAction};
use crate::cache::file::options::{FileAccess, FileOptions};
use crate::store::{Accepted, Identity, Limits, Store, Version, shown_name, uninterrupted};
use crate::sync::Arc;

/// The largest size of a file in bytes.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// A store that can be opened, and its answers.
pub(crate) struct StoreProbe {
    pub(crate) store: Arc<dyn Store>,
    /// The name as the caller gave it.
    pub(crate) own_name: Arc<str>,
    /// The name as it appears in messages.
    pub(crate) name: Arc<str>,
    /// The order of a block, from the options.
    pub(crate) order: u8,
    /// The length in bytes.
    pub(crate) len: u64,
    pub(crate) identity: Option<Identity>,
    pub(crate) accepted: Accepted,
    pub(crate) uses_files: bool,
    pub(crate) limits: Limits,
    pub(crate) version: Option<Version>,
}

impl StoreProbe {
    /// Checks whether a store can be opened in this way.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: &FileOptions,
    ) -> Result<StoreProbe, FileError> {
        let own_name: Arc<str> = options.name.clone().unwrap_or_else(|| store.name()).into();
        let name = match shown_name(&own_name) {
            Cow::Borrowed(_) => own_name.clone(),
            Cow::Owned(name) => name.into(),
        };
        let order = options.block_order(&name)?;
        if options.access == FileAccess::ReadWrite && !store.writable() {
            return Err(FileError::NotWritable { file: name });
        }
        let unanswered = |source| FileError::Store {
            file: name.clone(),
            action: StoreAction::Query,
            offset: 0,
            len: 0,
            source: Arc::new(source),
        };
        // The version is read before the length: a change between the two calls is noticed later.
        let version = uninterrupted(|| store.version()).map_err(unanswered)?;
        let len = uninterrupted(|| store.len()).map_err(unanswered)?;
        if len > MAX_SIZE {
            return Err(FileError::TooLarge {
                file: name,
                offset: 0,
                len,
            });
        }
        Ok(StoreProbe {
            identity: store.identity(),
            accepted: store.accepted(),
            uses_files: store.uses_files(),
            limits: store.limits(),
            version,
            store,
            own_name,
            name,
            order,
            len,
        })
    }
}
