//! The options for opening a file.

use crate::cache::dirty::index::WriteOrder;
use crate::cache::errors::FileError;
use crate::group::Group;
use crate::store::FileAccess;
use crate::sync::Arc;
use crate::units::{KIB, MIB, PAGE_SHIFT, PAGE_SIZE};

/// The options of a [`PagedFile`](crate::cache::PagedFile). By default it is read-only, in blocks
/// of 4 KiB.
#[derive(Clone, Debug)]
pub(crate) struct FileOptions {
    /// The unit of caching in bytes: a power of two from 4 KiB to 2 MiB. A block is read, cached
    /// and written as a whole; views inside one block are not copied.
    pub(crate) block_size: u64,
    pub(crate) access: FileAccess,
    pub(crate) write_order: WriteOrder,
    /// The group that pays for the file's blocks; by default the root group of the memory.
    pub(crate) group: Option<Group>,
    /// Whether other groups may also use the file.
    pub(crate) shared: bool,
    /// The name that messages use; by default the store's own name.
    pub(crate) name: Option<String>,
}

impl FileOptions {
    pub(crate) fn new() -> FileOptions {
        FileOptions {
            block_size: PAGE_SIZE as u64,
            access: FileAccess::ReadOnly,
            write_order: WriteOrder::Background,
            group: None,
            shared: false,
            name: None,
        }
    }

    /// Checks the block size of a file at `path`, before the file is opened.
    pub(crate) fn check(&self, path: &std::path::Path) -> Result<(), FileError> {
        let name = match &self.name {
            Some(name) => crate::store::shown_name(name).into(),
            None => crate::store::shown(path).into(),
        };
        self.block_order(&name).map(drop)
    }

    /// Returns log2 of the number of pages in a block. If the block size is not allowed, the error
    /// names `file`.
    pub(crate) fn block_order(&self, file: &Arc<str>) -> Result<u8, FileError> {
        let size = self.block_size;
        if !size.is_power_of_two() || !(4 * KIB..=2 * MIB).contains(&size) {
            return Err(FileError::BadBlockSize {
                file: file.clone(),
                size,
            });
        }
        Ok((size.trailing_zeros() - PAGE_SHIFT) as u8)
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl FileOptions {
        pub(crate) fn block_size(mut self, bytes: u64) -> FileOptions {
            self.block_size = bytes;
            self
        }

        pub(crate) fn access(mut self, access: FileAccess) -> FileOptions {
            self.access = access;
            self
        }

        pub(crate) fn write_order(mut self, order: WriteOrder) -> FileOptions {
            self.write_order = order;
            self
        }

        pub(crate) fn group(mut self, group: &Group) -> FileOptions {
            self.group = Some(group.clone());
            self
        }

        pub(crate) fn name(mut self, name: &str) -> FileOptions {
            self.name = Some(name.to_owned());
            self
        }
    }
}
