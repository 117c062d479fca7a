//! Locks the cached blocks of a range in batches, and removes them from the index.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::marks::forget_dirty;
use crate::cache::dirty::sync::retain_synced;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::Get;
use crate::cache::map::mappers::Revoke;
use crate::frame::{Dropped, FlagSet};
use crate::sync::failpoint;

/// The most blocks that are locked at a time. They share one grace period.
const BATCH: usize = 64;

/// Removes from the index those blocks of a range whose bytes the store has and can no longer lose.
/// Returns how many it removed.
pub(crate) fn forget_clean(core: &FileCore, blocks: Range<u64>) -> u64 {
    remove_some(core, blocks, |batch| {
        batch.retain(|locked| !locked.meta().flags.load().contains(FlagSet::DIRTY));
        // If the store may lose blocks that it has accepted and not synced, those accepted since
        // the last sync began stay, and so do blocks that a failed sync left in doubt.
        retain_synced(core, batch);
    })
}

/// Removes all blocks of a range from the index, dirty or not.
pub(crate) fn remove_blocks(core: &FileCore, blocks: Range<u64>) {
    remove_some(core, blocks, |_| {});
}

/// Removes from the index those blocks of a range that `retain` leaves in each batch. Returns how
/// many it removed.
fn remove_some<'f>(
    core: &'f FileCore,
    blocks: Range<u64>,
    retain: impl Fn(&mut Vec<Locked<'f>>),
) -> u64 {
    let mut removed = 0;
    let mut next = blocks.start;
    loop {
        let mut batch = lock_batch(core, &mut next, blocks.end);
        if batch.is_empty() {
            return removed;
        }
        retain(&mut batch);
        removed += batch.len() as u64;
        drop_batch(core, batch);
    }
}

/// Locks the next cached blocks in `next..end`, at most [`BATCH`], in ascending order, and waits
/// until no write of them is under way. Advances `next` past them, or to `end` if no cached block
/// is left.
pub(crate) fn lock_batch<'f>(core: &'f FileCore, next: &mut u64, end: u64) -> Vec<Locked<'f>> {
    let mut batch = Vec::new();
    while batch.len() < BATCH {
        let found = {
            let _section = core.pool.domain.reader();
            core.blocks.index.next_block(core.frames(), *next, end)
        };
        let Some((block, _)) = found else {
            *next = end;
            break;
        };
        *next = block + 1;
        // An error means that the block's fill failed, which removed the block.
        if let Ok(Some(locked)) = core.find_lock(block, Get::NONE) {
            locked.wait_stable();
            batch.push(locked);
        }
    }
    batch
}

/// Removes locked, stable blocks from the index, revokes their translations, and drops the index's
/// references.
pub(crate) fn drop_batch(core: &FileCore, batch: Vec<Locked<'_>>) {
    let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
        return;
    };
    let range = first.block()..last.block() + 1;
    let mut mapped = false;
    for locked in &batch {
        forget_dirty(core, locked.block(), locked.frame());
        core.unlink(locked.block(), locked.frame(), None);
        mapped |= locked.meta().hold.load().mapped() > 0;
    }
    if mapped {
        if range.end - range.start == batch.len() as u64 {
            core.revoke(range, Revoke::All);
        } else {
            for locked in &batch {
                core.revoke(locked.block()..locked.block() + 1, Revoke::All);
            }
        }
        core.grace();
    }
    failpoint!(CutOff);
    // The frame freed last is allocated first, so the blocks are freed in reverse order. The next
    // blocks written then get contiguous frames, in ascending order.
    for locked in batch.into_iter().rev() {
        let dropped = core.pool.uncache(locked.frame());
        debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
    }
    failpoint!(BlocksGone);
}
