//! Marks blocks dirty and clean, and updates the counts of the groups above the file.

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{Dirty, DirtyIndex, WriteOrder, WriteReason, WriteRules};
use crate::frame::FlagSet;
use crate::stats::Event;
use crate::store::Accepted;
use crate::units::FrameId;

/// Returns the rules that apply now to a write for this reason.
pub(crate) fn rules(core: &FileCore, reason: WriteReason) -> WriteRules {
    let released = core.writes.barrier.released();
    WriteRules {
        order: core.id.write_order,
        released,
        reason,
    }
}

/// Notes that a block's bytes are newer than the store's. If the block is dirty already, does
/// nothing, unless the write order is [`WriteOrder::Ordered`]. The caller holds the block's lock,
/// and has changed the bytes or is about to let others change them.
pub(crate) fn mark_dirty(core: &FileCore, block: u64, frame: FrameId) {
    let ordered = core.id.write_order == WriteOrder::Ordered;
    let flags = &core.frames().meta(frame).flags;
    if flags.load().contains(FlagSet::DIRTY) && !ordered {
        return;
    }
    mark_dirty_as(core, &mut core.dirty(), dirty_entry(core), block, frame);
}

/// Creates the entry of the dirty index for a write that happens now.
#[inline]
pub(crate) fn dirty_entry(core: &FileCore) -> Dirty {
    Dirty {
        since: core.pool.background.now(),
        barrier: match core.id.write_order {
            WriteOrder::Ordered => core.writes.barrier.current(),
            WriteOrder::Background | WriteOrder::OnSync => 0,
        },
    }
}

/// Like [`mark_dirty`], with the mutex of the index held, and an entry from the caller.
pub(crate) fn mark_dirty_as(
    core: &FileCore,
    dirty: &mut DirtyIndex,
    entry: Dirty,
    block: u64,
    frame: FrameId,
) {
    core.frames().meta(frame).flags.set(FlagSet::DIRTY);
    dirty.insert(block, entry);
    publish(core, dirty);
}

/// Removes a block that is leaving the file from the dirty index, where it may be dirty or not
/// synced. The caller holds the block's lock.
pub(crate) fn forget_dirty(core: &FileCore, block: u64, frame: FrameId) {
    let flags = &core.frames().meta(frame).flags;
    if core.id.accepted == Accepted::Kept && !flags.load().contains(FlagSet::DIRTY) {
        return;
    }
    let mut dirty = core.dirty();
    flags.clear(FlagSet::DIRTY);
    dirty.remove(block);
    publish(core, &mut dirty);
}

/// Updates the counts of the groups that pay for the file with the changes of its dirty index.
/// Enters the file in the lists of files with unwritten blocks and of owners to flush. Every change
/// is published before the mutex of the index is released, and DIRTY is changed under that mutex
/// too.
///
/// A file that no longer belongs in one of these lists leaves it under the same mutex, but only
/// when the list is next used: so a file that is alternately written and synced stays listed.
#[inline]
pub(crate) fn publish(core: &FileCore, index: &mut DirtyIndex) {
    let (now, before) = index.publish();
    let (groups, order) = (&core.id.groups, core.id.order);
    let counters = &core.pool.counters;
    // The file is listed before its blocks are counted: a thread that sees the count finds the
    // file.
    if now.dirty + now.behind > 0 && index.set_listed(true) {
        core.cache.list_unwritten(core, true);
    }
    if index.has_since(u64::MAX) && index.set_flushable(true) {
        core.pool.owners.set_flushable(core.id.owner, true);
    }
    if now.dirty > before.dirty {
        let pages = (now.dirty - before.dirty) << order;
        core.cache.dirty.add(groups, pages);
        counters.add(Event::PgDirtied, pages);
    } else if now.dirty < before.dirty {
        let pages = (before.dirty - now.dirty) << order;
        core.cache.dirty.add(groups, pages.wrapping_neg());
        counters.add(Event::PgCleaned, pages);
    }
    if now.behind != before.behind {
        let more = now.behind.wrapping_sub(before.behind) << order;
        core.cache.behind.add(groups, more);
    }
}
