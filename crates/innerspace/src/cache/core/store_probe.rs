//! The calls to a store before a file is opened on it.
//!
//! A store may be made of other files, and open them when it is called. So nothing is locked during
//! these calls, nor while a store that cannot be opened is dropped.

use std::borrow::Cow;

use crate::cache::core::store_handle::FileStore;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::file::options::FileOptions;
use crate::group::{Group, GroupId, SetAside};
use crate::reclaim::{AllocMode, OwnerId, Pool};
use crate::store::{Accepted, FileAccess, Identity, Store, Version, shown_name, uninterrupted};
use crate::sync::Arc;
use crate::units::PageCount;

/// The number of pages, besides one block, that are set aside for the files of which a store is
/// made. They are for nodes of these files' indexes, and for one more block: what is written may
/// cross the border between two blocks of these files, or also be recorded in a log.
const ASIDE: u64 = 6;

/// The largest size of a file in bytes.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

/// A store on which a file can be opened, and what the store has reported about itself.
pub(crate) struct StoreProbe {
    pub(crate) store: FileStore,
    /// The identity that the file has once it is open.
    pub(crate) id: FileIdentity,
    /// The length in bytes.
    pub(crate) len: u64,
    pub(crate) version: Option<Version>,
}

/// The properties of a file that never change.
pub(crate) struct FileIdentity {
    /// The file's number in the cache's table of open files; 0 until the file is created.
    pub(crate) number: u64,
    /// The owner number in the metadata of the file's frames; 0 until the file is created.
    pub(crate) owner: OwnerId,
    /// The name as the caller gave it.
    pub(crate) own_name: Arc<str>,
    /// The name as it appears in messages.
    pub(crate) name: Arc<str>,
    /// The identity that the store reports for itself.
    pub(crate) identity: Option<Identity>,
    /// The group that pays for blocks and index nodes. This field keeps the group alive.
    pub(crate) group: Group,
    /// Whether other groups may also use the file.
    pub(crate) shared: bool,
    /// The group and its ancestors, for the dirty limits.
    pub(crate) groups: Vec<GroupId>,
    /// log2 of the number of pages in a block.
    pub(crate) order: u8,
    pub(crate) access: FileAccess,
    pub(crate) write_order: WriteOrder,
    /// Whether written blocks have to be kept until a sync.
    pub(crate) accepted: Accepted,
}

impl StoreProbe {
    /// Calls the store, and checks whether it can be opened with these options. If the store uses
    /// files, dirty blocks can be written to it only while those files have memory. So for a file
    /// that may be written, such memory is set aside here. Returns an error if the options or the
    /// store's answers do not allow the file, if the store does not answer, or if there is no
    /// memory to set aside.
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
        let group = options.group.as_ref().unwrap_or(root).clone();
        let writes = options.access == FileAccess::ReadWrite;
        let aside = match store.uses_files() && writes {
            true => {
                let pages = PageCount((1 << order) + ASIDE);
                let charge = pool.charge(group.id(), pages, AllocMode::Wait)?;
                Some(Arc::new(SetAside::new(&group, charge)))
            }
            false => None,
        };
        let id = FileIdentity {
            number: 0,
            owner: OwnerId(0),
            own_name,
            name,
            identity: store.identity(),
            groups: pool.groups.path(group.id()).collect(),
            group,
            shared: options.shared,
            order,
            access: options.access,
            write_order: options.write_order,
            accepted: store.accepted(),
        };
        Ok(StoreProbe {
            store: FileStore::new(store, aside, order),
            id,
            len,
            version,
        })
    }
}
