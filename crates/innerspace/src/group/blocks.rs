//! Makes sure that the limits of groups have room for a block of each open file: otherwise every
//! read of the file would fail.

use super::block_sizes::{pages_for, too_small};
use super::{Group, GroupError, GroupId, GroupTree};
use crate::sync::Arc;

/// An open file, counted in the groups that pay for it, so that their limits keep room for its
/// blocks. Dropping this ends the count.
#[must_use = "the file counts as closed when this is dropped"]
pub(crate) struct FileBlocks {
    tree: Arc<GroupTree>,
    group: GroupId,
    order: u8,
}

impl FileBlocks {
    /// Counts a file with blocks of this order, for which `group` pays. The caller keeps the
    /// group's number in use while the result lives.
    ///
    /// # Errors
    /// [`GroupError::TooSmallForBlocks`]: the group, or one above it, has no room for one block.
    pub(crate) fn begin(group: &Group, order: u8) -> Result<FileBlocks, GroupError> {
        let (tree, group) = (group.tree().clone(), group.id());
        // Limits change only with the shape locked.
        let shape = tree.shape.lock();
        for id in tree.path(group) {
            if let Some(max) = tree.max(id).filter(|max| *max < pages_for(order)) {
                return Err(too_small(tree.full_name(&shape, id), max, order));
            }
        }
        for id in tree.path(group) {
            let sizes = &tree.node(id).blocks;
            sizes.add(order);
        }
        drop(shape);
        Ok(FileBlocks { tree, group, order })
    }
}

impl Drop for FileBlocks {
    fn drop(&mut self) {
        for id in self.tree.path(self.group) {
            let sizes = &self.tree.node(id).blocks;
            sizes.remove(self.order);
        }
    }
}
