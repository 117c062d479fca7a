//! Nodes for an index, allocated before they are needed: a thread that holds the mutex of an index,
//! or is in a section, cannot allocate.

use crate::frame::{Dropped, HoldState, Kind};
use crate::group::{GroupId, LimitError};
use crate::reclaim::{AllocMode, Pool};
use crate::units::FrameId;

/// Nodes that are charged, zeroed, and not linked yet. Dropping this frees the nodes that are left.
#[derive(Debug)]
pub(crate) struct SpareNodes<'p> {
    pool: &'p Pool,
    group: GroupId,
    nodes: Vec<FrameId>,
}

impl<'p> SpareNodes<'p> {
    /// Creates an empty supply. Its nodes will be charged to `group`.
    pub(crate) fn new(pool: &'p Pool, group: GroupId) -> SpareNodes<'p> {
        SpareNodes {
            pool,
            group,
            nodes: Vec::new(),
        }
    }

    /// Allocates nodes until there are `count`. The caller holds no innermost lock, and no section
    /// is open.
    pub(crate) fn ensure(&mut self, count: usize, mode: AllocMode) -> Result<(), LimitError> {
        while self.nodes.len() < count {
            let mut node = self.pool.alloc(self.group, 0, mode)?;
            node.zero();
            node.set_kind(Kind::IndexNode);
            self.nodes.push(node.publish(HoldState::refs_only(1)));
        }
        Ok(())
    }

    /// Returns the nodes. An insertion removes those that it links.
    pub(crate) fn nodes(&mut self) -> &mut Vec<FrameId> {
        &mut self.nodes
    }
}

impl Drop for SpareNodes<'_> {
    fn drop(&mut self) {
        for node in self.nodes.drain(..) {
            // No other thread can have found the node.
            if self.pool.frames.meta(node).hold.put() == Dropped::Last {
                self.pool.free(node);
            }
        }
    }
}
