//! Copy-on-write fork: the child gets a copy of the root's words and shares all nodes below.
//!
//! With the gate closed, no fault is under way, and no accessor of the parent remembers a leaf for
//! stores: the flush is posted before the grace period that closes the gate, and each accessor
//! reads it before its next access. From then on the next store to each leaf, on either side,
//! faults, finds its path shared and copies it (`table`). A fork itself copies only the root, so
//! its time does not depend on how many pages are mapped. The exception is pinned pages (`pin`),
//! which are copied before the gate opens.

use super::revoke::mapper;
use crate::VirtAddr;
use crate::exec::reentry::Inside;
use crate::group::{Group, MayReclaim};
use crate::reclaim::AllocMode;
use crate::space::core::error::SpaceError;
use crate::space::core::options::check_group;
use crate::space::core::space::{Role, Space, SpaceInner};
use crate::space::pin::PinnedCopies;
use crate::space::vma::area::Residence;
use crate::space::vma::ledger::{Entry, Ledger};
use crate::space::vma::set::VmaSet;
use crate::stats::Event;
use crate::sync::domain::Post;
use crate::sync::gate::EVERYWHERE;

/// Creates a fork or a snapshot, as `role` says: a space with the same mappings, which shares all
/// of the parent's table except pinned pages. `group` pays for it. A fork starts without locks.
pub(crate) fn copy(parent: &SpaceInner, group: &Group, role: Role) -> Result<Space, SpaceError> {
    let (event, what) = match role {
        Role::Live { .. } => (Event::Fork, "fork"),
        Role::Frozen { .. } => (Event::Freeze, "freeze"),
    };
    parent.check_entry(what, VirtAddr(0), parent.end())?;
    check_group(what, group, &parent.pool)?;
    let pool = &parent.pool;
    let nodes = parent.nodes();
    let ledger = Ledger::new(group, SpaceInner::HEAP)?;
    let mut root = pool.alloc(group.id(), 0, AllocMode::Wait)?;
    root.zero();
    let mut writer = parent.gate.write();
    let mut pinned = PinnedCopies::set_aside(parent, &mut writer, what, group)?;
    let mut vmas = writer.vmas.with_ledger(ledger.clone());
    if matches!(role, Role::Live { .. }) && vmas.has_locked() {
        unlock_all(&mut vmas);
    }
    let files = Entry::new(&ledger, writer.bytes_of_files());
    let inside = Inside::callback(parent.id);
    ledger.settle(pool, MayReclaim::Yes)?;
    drop(inside);
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
    // The child has registered its files, so its ledger now counts them without this entry.
    drop(files);
    writer.revision += 1;
    // If the parent is a snapshot, its root may gain child nodes but loses none, and no thread
    // stores to its pages. So no translation needs to be invalidated, and none of its pages is
    // pinned.
    let close = || writer.close(&pool.domain, &EVERYWHERE, || parent.post(Post::All));
    let closed = (!parent.is_frozen()).then(close);
    let shared = nodes.share_root(root);
    let shared = shared.and_then(|()| pinned.put(nodes, root));
    if shared.is_err() {
        // The root is cleared while the gate is closed: a store must not find the path to a
        // pinned page shared.
        nodes.clear_root(root);
    }
    drop(closed);
    drop(writer);
    shared.map_err(|_| SpaceError::TooManyForks)?;
    pool.counters.count(event);
    Ok(child)
}

/// Unlocks all mappings, so that reclaim may take every page.
fn unlock_all(vmas: &mut VmaSet) {
    let locked = vmas.iter().filter(|vma| vma.is_locked());
    let locked: Vec<_> = locked.map(|vma| vma.start..vma.end).collect();
    for range in locked {
        // No other thread has to learn of this change, because none sees the new space yet.
        let _changed = vmas.update(&range, |vma| vma.residence = Residence::Pageable);
    }
}
