//! Copy-on-write fork: the child gets a copy of the root's words and shares everything below.
//!
//! With the gate closed, no fault is under way and no accessor of the parent has a write tag left
//! (the flush is posted before the grace period that closes the gate, and read before the next
//! access). From then on every write fault, on either side, finds its path shared and copies it
//! (`table`). So the time does not depend on how much is mapped. Pinned pages are the exception
//! (`pin`): they are copied at once, before the gate opens.

use super::revoke::mapper;
use super::steps::EVERYWHERE;
use crate::VirtAddr;
use crate::exec::reentry::InCallback;
use crate::group::{Group, LimitError};
use crate::reclaim::AllocMode;
use crate::space::core::error::SpaceError;
use crate::space::core::options::check_group;
use crate::space::core::space::{Role, Space, SpaceInner};
use crate::space::pin::PinnedCopies;
use crate::space::vma::area::Residence;
use crate::space::vma::ledger::Ledger;
use crate::space::vma::set::VmaSet;
use crate::stats::Event;
use crate::sync::domain::Post;

impl Space {
    /// A copy-on-write copy of this space, in the same group: the same mappings and the same bytes.
    /// Neither side sees what the other stores to private memory afterwards. Shared file mappings
    /// stay shared. It takes microseconds, whatever is mapped, and waits for no accessor longer
    /// than its current access. Locks ([`Space::lock`]) are not inherited, as on Linux.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] when the group has no page for the child's root, or for a copy of each
    /// pinned page; [`SpaceError::PinnedAlone`] while a page is pinned with
    /// [`AtFork::Refuse`](crate::AtFork::Refuse); [`SpaceError::TooManyForks`];
    /// [`SpaceError::Reentered`]. The space is as it was.
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_into(&self.0.group.clone())
    }

    /// Like [`Space::fork`], with the child's own pages and tables charged to `group`, which must
    /// be of the same `Memory`.
    ///
    /// # Errors
    /// As [`Space::fork`]; [`SpaceError::OtherMemorysGroup`].
    pub fn fork_into(&self, group: &Group) -> Result<Space, SpaceError> {
        // An accessor of a snapshot gives the snapshot's space.
        let born_of = self.0.is_frozen().then_some(self.0.id);
        self.copy(group, Role::Live { born_of })
    }

    /// A space with the same mappings that shares all of this one's table.
    pub(crate) fn copy(&self, group: &Group, role: Role) -> Result<Space, SpaceError> {
        let parent = &*self.0;
        let (event, what) = match role {
            Role::Live { .. } => (Event::Fork, "fork"),
            Role::Frozen { .. } => (Event::Freeze, "freeze"),
        };
        parent.check_entry(what, VirtAddr(0), parent.end())?;
        check_group(what, group, &parent.pool)?;
        let pool = &parent.pool;
        let nodes = parent.nodes();
        let mut root = pool.alloc(group.id(), 0, AllocMode::Wait)?;
        root.zero();
        let mut writer = parent.gate.write();
        let mut pinned = PinnedCopies::set_aside(parent, &mut writer, what, group)?;
        let mut vmas = writer.vmas.with_ledger(Ledger::new(pool, group));
        if matches!(role, Role::Live { .. }) && vmas.has_locked() {
            let _inside = InCallback::begin(parent.id);
            unlock_all(&mut vmas)?;
        }
        let root = nodes.publish(root);
        let child = Space(SpaceInner::new(
            &parent.cache,
            group,
            role,
            parent.width,
            root,
            vmas,
        ));
        writer.register_fork(&mut child.0.gate.write_new(), |file| mapper(&child.0, file));
        if parent.is_frozen() {
            // Its table gains children and loses none, and nobody writes to the nodes below, so no
            // translation has to end.
            let shared = nodes.share_root(parent.root, root);
            drop(writer);
            shared.map_err(|_| SpaceError::TooManyForks)?;
            pool.counters.count(event);
            return Ok(child);
        }
        writer.revision += 1;
        let closed = writer.close(&pool.domain, &EVERYWHERE, || parent.post(Post::All));
        let shared = nodes.share_root(parent.root, root);
        let shared = shared.and_then(|()| pinned.put(nodes, root));
        if shared.is_err() {
            // While the gate is closed: a store must not find the way to a pinned page shared.
            nodes.clear_root(root);
        }
        drop(closed);
        drop(writer);
        shared.map_err(|_| SpaceError::TooManyForks)?;
        pool.counters.count(event);
        Ok(child)
    }
}

/// Reclaim may have every page. The charge for new nodes may wait.
fn unlock_all(vmas: &mut VmaSet) -> Result<(), LimitError> {
    let locked = vmas.iter().filter(|vma| vma.is_locked());
    let locked: Vec<_> = locked.map(|vma| vma.start..vma.end).collect();
    for range in locked {
        // The changes are in a space that nobody sees yet.
        let _changed = vmas.update(&range, |vma| vma.residence = Residence::Pageable);
    }
    vmas.ledger().settle(AllocMode::Wait)
}
