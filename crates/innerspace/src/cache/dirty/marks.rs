//! Marks blocks dirty and clean, with the counts of the groups above the file.

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{Dirty, DirtyIndex, WriteOrder, WriteReason, WriteRules};
use crate::frame::FlagSet;
use crate::stats::Event;
use crate::store::Accepted;
use crate::units::FrameId;

/// Returns the rules for a writer with this reason, as they are now.
pub(crate) fn rules(core: &FileCore, reason: WriteReason) -> WriteRules {
    let released = core.writes.barrier.released();
    WriteRules {
        order: core.id.write_order,
        released,
        reason,
    }
}

/// Notes that a block's bytes are newer than the store's. The caller holds the block's lock,
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
    let flags = &core.frames().meta(frame).flags;
    if !flags.test_and_set(FlagSet::DIRTY).contains(FlagSet::DIRTY) {
        count_dirty(core, dirty, 1);
    }
    dirty.insert(block, entry);
}

/// Removes a block from the dirty index, whether dirty or not yet synced: it is being removed
/// from the file. The caller holds the block's lock.
pub(crate) fn forget_dirty(core: &FileCore, block: u64, frame: FrameId) {
    let flags = &core.frames().meta(frame).flags;
    if core.id.accepted == Accepted::Kept && !flags.load().contains(FlagSet::DIRTY) {
        return;
    }
    let mut dirty = core.dirty();
    if flags
        .test_and_clear(FlagSet::DIRTY)
        .contains(FlagSet::DIRTY)
    {
        count_clean(core, 1);
    }
    dirty.remove(block);
    count_behind(core, &mut dirty);
}

/// Adds to the count of dirty blocks. Called under the mutex of the index, as DIRTY is always
/// changed under it.
#[inline]
pub(crate) fn count_dirty(core: &FileCore, dirty: &mut DirtyIndex, blocks: usize) {
    if dirty.set_listed(true) {
        core.cache.list_unwritten(core, true);
    }
    list_flushable(core, dirty);
    let pages = (blocks as u64) << core.id.order;
    core.cache.dirty.add(&core.id.groups, pages);
    core.pool.counters.add(Event::PgDirtied, pages);
}

/// Lists the file among the owners to flush, before a block becomes dirty or doubted under the
/// mutex of the index. It is unlisted under the same mutex.
#[inline]
pub(crate) fn list_flushable(core: &FileCore, dirty: &mut DirtyIndex) {
    if dirty.set_flushable(true) {
        core.pool.owners.set_flushable(core.id.owner, true);
    }
}

/// Subtracts from the count of dirty blocks, under the same mutex.
pub(crate) fn count_clean(core: &FileCore, blocks: usize) {
    let pages = (blocks as u64) << core.id.order;
    core.cache.dirty.add(&core.id.groups, pages.wrapping_neg());
    core.pool.counters.add(Event::PgCleaned, pages);
}

/// Updates the count of blocks that are not dirty but must stay in memory.
pub(crate) fn count_behind(core: &FileCore, dirty: &mut DirtyIndex) {
    let (now, before) = dirty.recount_behind();
    if now != before {
        let more = now.wrapping_sub(before) << core.id.order;
        core.cache.behind.add(&core.id.groups, more);
    }
}
