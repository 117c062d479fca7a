//! Copy-on-write fork: the child gets a copy of the root's words and shares everything below.
//!
//! With the gate closed, no fault is under way and no accessor of the parent has a write tag left (the flush is posted before
//! the grace period that closes the gate, and read before the next access). From then on every write fault, on either side,
//! finds its path shared and copies it (`table`). So the time does not depend on how much is mapped.

use super::change::EVERYWHERE;
use super::ledger::Ledger;
use super::table::Nodes;
use super::{Role, Space, SpaceError, SpaceInner};
use crate::group::Group;
use crate::reclaim::AllocMode;
use crate::stats::Event;
use crate::sync::domain::Post;

impl Space {
    /// A copy-on-write copy of this space, in the same group: same mappings, same bytes; what either side stores to private
    /// memory afterwards the other does not see. Shared file mappings stay shared. Costs microseconds, whatever is mapped;
    /// waits for no accessor longer than its current access.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] when the group has no page for the child's root; [`SpaceError::TooManyForks`].
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_into(&self.0.group.clone())
    }

    /// Like [`Space::fork`], with the child's own pages and tables charged to `group`, which must be of the same `Memory`.
    ///
    /// # Panics
    /// If `group` belongs to another `Memory`.
    pub fn fork_into(&self, group: &Group) -> Result<Space, SpaceError> {
        self.copy(group, Role::Live { born_of: None })
    }

    /// A space with the same mappings that shares all of this one's table.
    pub(super) fn copy(&self, group: &Group, role: Role) -> Result<Space, SpaceError> {
        let parent = &*self.0;
        assert!(
            group.belongs_to(&parent.pool.groups),
            "fork into a group of another memory"
        );
        parent.check_entry("fork")?;
        let event = match role {
            Role::Live { .. } => Event::Fork,
            Role::Frozen { .. } => Event::Freeze,
        };
        let pool = &parent.pool;
        let nodes = Nodes { pool };
        let mut root = pool.alloc(group.id(), 0, AllocMode::Wait)?;
        root.zero();
        let root = nodes.publish(root);
        let mut writer = parent.gate.write();
        let vmas = writer.vmas.with_ledger(Ledger::new(pool, group));
        let child = Space(SpaceInner::new(pool, group, role, parent.width, root, vmas));
        writer.register_fork(&child.0);
        if parent.is_frozen() {
            // Its table gains children and loses none, and nobody writes to what is below: there is nothing to end.
            let shared = nodes.share_root(parent.root, root);
            drop(writer);
            shared.map_err(|_| SpaceError::TooManyForks)?;
            pool.counters.count(event);
            return Ok(child);
        }
        writer.revision += 1;
        let closed = writer.close(&pool.domain, &EVERYWHERE, || {
            // mutant: A4 the write tags survive the fork
            if cfg!(not(mutant = "A4")) {
                parent.post(Post::All);
            }
        });
        let shared = nodes.share_root(parent.root, root);
        drop(closed);
        drop(writer);
        // On failure the child is dropped with what it had got.
        shared.map_err(|_| SpaceError::TooManyForks)?;
        pool.counters.count(event);
        Ok(child)
    }
}
