//! The calls to a store before a file is opened on it.
//!
//! A store may be made of other files, and open them when it is called. So nothing is locked during
//! these calls, nor when a store that cannot be opened is dropped.

use std::borrow::Cow;

use crate::cache::core::store_handle::FileStore;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::file::options::FileOptions;
use crate::group::{Group, SetAside};
use crate::reclaim::{AllocMode, Pool};
use crate::store::{Accepted, FileAccess, Identity, Store, Version, shown_name, uninterrupted};
use crate::sync::Arc;
use crate::units::PageCount;

/// The pages, besides one block, that are set aside for the files that a store is made of: for
/// nodes of their indexes, and for one more block where a block lies across two of theirs or is
/// noted in a log.
const ASIDE: u64 = 6;

/// The largest size of a file in bytes.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// A store that can be opened, and its answers.
pub(crate) struct StoreProbe {
    pub(crate) store: FileStore,
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
    pub(crate) version: Option<Version>,
}

impl StoreProbe {
    /// Checks whether a store can be opened in this way. Dirty blocks can only be written to a
    /// store that uses files if those files have memory for them. That memory is set aside here.
    pub(crate) fn new(
        (pool, root): (&Pool, &Group),
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
        let writes = options.access == FileAccess::ReadWrite;
        let aside = match store.uses_files() && writes {
            true => {
                let group = options.group.as_ref().unwrap_or(root);
                let pages = PageCount((1 << order) + ASIDE);
                let charge = pool.charge(group.id(), pages, AllocMode::Wait)?;
                Some(Arc::new(SetAside::new(group, charge)))
            }
            false => None,
        };
        Ok(StoreProbe {
            identity: store.identity(),
            accepted: store.accepted(),
            version,
            store: FileStore::new(store, aside, order),
            own_name,
            name,
            order,
            len,
        })
    }
}
