//! Operations on a cached block: ending stores to it through mappings, clearing bytes past the end
//! of the file, moving it to a new frame.

use std::slice::from_ref;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::errors::FileError;
use crate::cache::lookup::batch::forget_clean;
use crate::cache::lookup::block::{INDEX_AND_USER, Locked};
use crate::cache::lookup::get::Get;
use crate::cache::map::mappers::Revoke;
use crate::frame::{Dropped, FlagSet, Writing};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::units::PAGE_SIZE;

/// Revokes the right to store to locked blocks through mappings. Waits, with one grace period for
/// all, until no access uses that right. Then clears what was stored past the end of the file. The
/// blocks are in ascending order.
pub(crate) fn end_write_mappings(core: &FileCore, locked: &[Locked<'_>]) {
    let wmapped = |one: &&Locked<'_>| one.meta().hold.load().is_wmapped();
    let Some(first) = locked.iter().find(wmapped).map(Locked::block) else {
        return;
    };
    let last = locked.iter().rfind(wmapped).map_or(first, Locked::block);
    core.revoke_and_wait(first..last + 1, Revoke::Write);
    for one in locked.iter().filter(wmapped) {
        zero_past_end(core, one);
        one.meta().hold.clear_wmapped();
    }
}

/// Clears bytes that were stored past the end of the file through mappings of a locked block. The
/// right to store has just been revoked. WMAPPED is still set, so there is no view of the block.
fn zero_past_end(core: &FileCore, locked: &Locked<'_>) {
    let start = locked.block() << core.block_shift();
    let inside = core.size().saturating_sub(start).min(core.block_bytes()) as usize;
    if inside < core.block_bytes() as usize
        && let Some(writing) = Writing::begin(core.frames(), locked.frame())
    {
        zero_from(core, locked, writing, inside);
    }
}

/// Clears a locked block from byte `from` to its end.
pub(super) fn zero_from(
    core: &FileCore,
    locked: &Locked<'_>,
    mut writing: Writing<'_>,
    from: usize,
) {
    let rest = from..core.block_bytes() as usize;
    writing.zero(rest.clone());
    drop(writing);
    locked.written_in_place(&rest);
}

/// Begins to change a locked block's bytes, after moving it to `spare` if it is viewed. Returns
/// `None` if it is viewed and there is no spare, or if it is viewed again after the move.
pub(super) fn begin_writing<'f>(
    core: &'f FileCore,
    mut locked: Locked<'f>,
    spare: &mut Option<PoolFrame<'_>>,
) -> Option<(Locked<'f>, Writing<'f>)> {
    let mut writing = Writing::begin(core.frames(), locked.frame());
    if writing.is_none() {
        locked = move_block(core, locked, spare.take()?);
        // A view may be taken between the move and this second attempt: the lock excludes writers,
        // not viewers.
        writing = Writing::begin(core.frames(), locked.frame());
    }
    Some((locked, writing?))
}

/// Moves a locked block to another frame, and returns it locked. The old frame is left to its
/// views. The new frame is already charged, so this cannot fail.
pub(crate) fn move_block<'f>(
    core: &'f FileCore,
    old: Locked<'f>,
    mut spare: PoolFrame<'_>,
) -> Locked<'f> {
    let (block, old_frame) = (old.block(), old.frame());
    let old_meta = old.meta();
    debug_assert!(
        !old_meta.flags.load().contains(FlagSet::WRITEBACK),
        "I5: stable before it moves"
    );
    spare.copy_from(old_frame);
    let flags = old_meta.flags.load();
    let mut kept = FlagSet::LOCKED | FlagSet::UPTODATE;
    for flag in [
        FlagSet::DIRTY,
        FlagSet::REFERENCED,
        FlagSet::ACTIVE,
        FlagSet::ERROR,
    ] {
        if flags.contains(flag) {
            kept |= flag;
        }
    }
    let frame = core.publish(spare, block, kept, INDEX_AND_USER);
    core.blocks
        .index
        .write()
        .replace(core.frames(), block, old_frame, frame);
    let new = Locked::new(crate::cache::lookup::block::BlockRef::new(
        core, frame, block,
    ));
    // No fault maps the old frame from here on. The translations of the old frame are revoked
    // before the new frame can be written.
    if old_meta.hold.load().mapped() > 0 {
        core.revoke_and_wait(block..block + 1, Revoke::All);
    }
    core.pool.lru_set(old_frame, crate::reclaim::Evictable::No);
    core.pool.lru_add(frame);
    old_meta.flags.clear(FlagSet::DIRTY | FlagSet::ERROR);
    let dropped = core.pool.uncache(old_frame);
    debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
    count(&core.counters.moved, 1);
    core.pool.counters.add(Event::ViewMove, core.block_pages());
    drop(old);
    new
}

/// Clears bytes past the end of the file, which a mapping has stored or a cut has left there: they
/// must not become visible when the file grows to `new_end`.
#[inline]
pub(crate) fn clear_tail_before(core: &FileCore, new_end: u64) -> Result<(), FileError> {
    let size = core.size();
    if new_end <= size || core.inside_block(size) == 0 {
        return Ok(());
    }
    clear_tail(core, size)
}

#[cold]
pub(crate) fn clear_tail(core: &FileCore, size: u64) -> Result<(), FileError> {
    // If no translation can store, the bytes past the end are already zeros (see
    // `zero_past_end`), except for a tail that was left uncleared.
    match core.lookup(size >> core.block_shift()) {
        Some(held)
            if held.meta().hold.load().is_wmapped()
                || core.blocks.tail_left.load(Ordering::Acquire) =>
        {
            drop(held);
            zero_tail(core, size)?;
            core.blocks.tail_left.store(false, Ordering::Release);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Clears the cached part of the last block past `size`, unless the file has become longer
/// meanwhile, and revokes the translations of the block's pages wholly past `size`. If the block is
/// viewed, moves it first. If there is no memory for the move, evicts the block if the store has
/// its bytes. If the store lacks them, waits for memory, and returns an error if there is none.
pub(crate) fn zero_tail(core: &FileCore, size: u64) -> Result<(), FileError> {
    let mut spare = None;
    let block = size >> core.block_shift();
    let tail = core.inside_block(size) as usize;
    if tail == 0 {
        return Ok(());
    }
    loop {
        let Some(locked) = core.find_lock(block, Get::STABLE)? else {
            return Ok(());
        };
        end_write_mappings(core, from_ref(&locked));
        let first_past = size.div_ceil(PAGE_SIZE as u64);
        let pages = first_past..core.pages_in(block).end;
        if !pages.is_empty() && locked.meta().hold.load().mapped() > 0 {
            core.mappers.revoke(pages, Revoke::All);
            core.grace();
        }
        if let Some((locked, writing)) = begin_writing(core, locked, &mut spare) {
            // Checked under the lock: a writer may have made the file longer meanwhile.
            if core.size() == size {
                zero_from(core, &locked, writing, tail);
            }
            return Ok(());
        }
        spare = match core.alloc(AllocMode::NoIo) {
            Ok(frame) => Some(frame),
            Err(_) if forget_clean(core, block..block + 1) > 0 => return Ok(()),
            Err(_) => Some(core.alloc(AllocMode::Wait)?),
        };
    }
}
