//! Removes parts of a file (truncation, punching, discarding, invalidating) or makes it longer,
//! always with the file locked exclusively.
//!
//! The steps of a cut come in this order (I9): fills and writes are excluded (`alone`); new
//! writebacks past the new end are prevented ([`cut_from`]), and those under way end; the store is
//! changed; the size is changed; blocks are removed from the index under their locks; translations
//! are revoked; one grace period passes for a batch of blocks; the frames are freed. When the call
//! returns, no read, no view taken later, and no access through a mapping sees the removed bytes.
//! `docs/protocols/cuts.md` has the argument.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::core::store_probe::MAX_SIZE;
use crate::cache::dirty::marks::mark_dirty;
use crate::cache::dirty::punch::{make_room_for_punch, punch_again, punch_store};
use crate::cache::dirty::sync::{sync_store, take_doubted_back};
use crate::cache::dirty::sync_file::wait_written;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::batch::{drop_batch, forget_clean, lock_batch, remove_blocks};
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::Get;
use crate::cache::map::mappers::Revoke;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::{clear_tail_before, zero_tail};
use crate::cache::write::new_blocks::Source;
use crate::cache::write::write_at::{check_range, end_operation, write_part};
use crate::frame::FlagSet;
use crate::store::SyncWhat;
use crate::sync::atomic::Ordering;
use crate::sync::panics::Panics;
use crate::sync::{OnDrop, failpoint};
use crate::units::{PAGE_SIZE, PageCount};

/// Cuts or lengthens the file. After an error of the store, nothing has changed.
pub(super) fn set_len(core: &FileCore, new: u64) -> Result<(), FileError> {
    core.check_writable()?;
    check_range(core, new, 0)?;
    while_alone(core, |alone| {
        let old = core.size();
        match new.cmp(&old) {
            Greater => extend(core, old, new),
            Less => truncate(core, new, alone),
            Equal => Ok(()),
        }
    })
}

/// Runs `work`, which may move the end of the file, with the file locked exclusively. Then ends the
/// operation with nothing locked.
fn while_alone<T>(core: &FileCore, work: impl FnOnce(&InvalidateGuard<'_>) -> T) -> T {
    // An append writes at the end that the file had when the append began. So the end does not move
    // while an append is under way.
    let appending = core.locks.append();
    let alone = core.locks.alone(&core.blocks.index);
    let result = work(&alone);
    drop((alone, appending));
    end_operation(core);
    result
}

fn extend(core: &FileCore, old: u64, new: u64) -> Result<(), FileError> {
    clear_tail_before(core, new)?;
    resize_store(core, new)?;
    core.blocks.extents.lock().clear();
    debug_assert_eq!(core.size(), old, "the file is ours alone");
    core.set_size(new);
    Ok(())
}

fn resize_store(core: &FileCore, new: u64) -> Result<(), FileError> {
    core.change_store(StoreAction::Resize, (new, 0), |store| store.set_len(new))?;
    core.blocks.stored.store(new, Ordering::Release);
    Ok(())
}

/// Begins a cut: prevents new writebacks of the blocks from `first` on until the result is dropped,
/// and waits for those under way.
///
/// A writeback of a block begins under the mutex of the index. The block is locked then, and the
/// length to write was taken from the file's size under the block's lock. A writeback that began
/// before the cut is waited for, before the store is cut. None begins during the cut, so if the
/// store refuses the cut, the block is as dirty as before. The cut ends after every block concerned
/// was removed, or had its tail cleared, under its lock. So a thread that locks such a block later
/// takes the length from the new size.
fn cut_from(core: &FileCore, first: u64, _alone: &InvalidateGuard<'_>) -> OnDrop<impl FnMut()> {
    core.dirty().set_cut(Some(first));
    let cutting = OnDrop(|| core.dirty().set_cut(Some(u64::MAX)));
    wait_written(core, first..u64::MAX);
    failpoint!(Cutting);
    cutting
}

fn truncate(core: &FileCore, new: u64, alone: &InvalidateGuard<'_>) -> Result<(), FileError> {
    let _cutting = cut_from(core, new >> core.block_shift(), alone);
    core.wait_landed(&(new >> core.block_shift()..u64::MAX));
    resize_store(core, new)?;
    core.blocks.extents.lock().clear();
    // From here on, no read or fault goes past the new end.
    core.set_size(new);
    cut_blocks(core, new);
    // The memory of the blocks that were cut off is free now. If the last block has to move, its
    // new frame may come from there.
    let cleared = cut_tail(core, new);
    core.end_mapped_holes(new.div_ceil(PAGE_SIZE as u64)..u64::MAX);
    core.blocks
        .index
        .write()
        .drop_shadows(core.frames(), new.div_ceil(core.block_bytes()));
    core.ready.changed();
    cleared
}

/// Clears the part of the last block that was cut off. If the block is viewed, and there is no
/// memory to move it, the part is cleared later: before the file grows again, or before a mapping
/// shows it.
fn cut_tail(core: &FileCore, size: u64) -> Result<(), FileError> {
    let cleared = zero_tail(core, size);
    if !matches!(cleared, Err(FileError::Limit(_))) {
        return cleared;
    }
    core.blocks.tail_left.store(true, Ordering::Release);
    // A fault reads `tail_left` and locks the block with `invalidate` held shared, and maps the
    // page before it unlocks the block. So when the block is locked here, every fault that has not
    // seen the flag has mapped its page.
    let block = size >> core.block_shift();
    if let Ok(Some(locked)) = core.find_lock(block, Get::NONE)
        && locked.meta().hold.load().mapped() > 0
    {
        let last = size / PAGE_SIZE as u64;
        core.mappers.revoke(last..last + 1, Revoke::All);
        core.grace();
    }
    Ok(())
}

/// Makes a range read as zeros. Any part of the range past the end of the file is ignored.
pub(super) fn punch(core: &FileCore, range: Range<u64>) -> Result<(), FileError> {
    core.check_writable()?;
    make_room_for_punch(core)?;
    let result =
        core.with_room(|| punch_alone(core, range.clone(), &core.locks.alone(&core.blocks.index)));
    // Wakers are called here, outside the attempt that may be repeated.
    end_operation(core);
    result
}

fn punch_alone(
    core: &FileCore,
    range: Range<u64>,
    alone: &InvalidateGuard<'_>,
) -> Result<(), FileError> {
    let size = core.size();
    let range = range.start..range.end.min(size);
    if range.is_empty() {
        return Ok(());
    }
    core.wait_landed(&core.blocks_of(range.clone()));
    let bytes = core.block_bytes();
    let first_whole = range.start.div_ceil(bytes);
    // The last block of the file counts as whole if all of its bytes inside the file are punched.
    let end_whole = if range.end == size {
        size.div_ceil(bytes)
    } else {
        range.end / bytes
    };
    if first_whole >= end_whole {
        // The range is inside one block, or crosses one border between blocks.
        let border = (first_whole * bytes).clamp(range.start, range.end);
        write_zeros(core, range.start..border, alone)?;
        return write_zeros(core, border..range.end, alone);
    }
    // Punched blocks at the end of the file may never have been written to the store, and will not
    // be. So the store is given the file's length separately.
    if range.end == size && core.blocks.stored.load(Ordering::Acquire) < size {
        resize_store(core, size)?;
    }
    let clear_edges = || {
        write_zeros(core, range.start..first_whole * bytes, alone)?;
        write_zeros(core, (end_whole * bytes).min(range.end)..range.end, alone)
    };
    // The edges are cleared first: if that fails, nothing else has happened yet. But clearing them
    // may need memory that the punch of the whole blocks frees. So if the group was full, the edges
    // are cleared again after that punch.
    let edges = clear_edges();
    if !matches!(edges, Ok(()) | Err(FileError::Limit(_))) {
        return edges;
    }
    let result = punch_blocks(core, first_whole..end_whole, alone).and_then(|()| match edges {
        Ok(()) => Ok(()),
        Err(_) => clear_edges(),
    });
    core.blocks.extents.lock().clear();
    core.ready.changed();
    result
}

/// Removes whole blocks, from the store first: if that fails, unwritten data is still in the cache.
/// The blocks stay locked, so that no old bytes are written back between the store's punch and
/// their removal.
fn punch_blocks(
    core: &FileCore,
    blocks: Range<u64>,
    alone: &InvalidateGuard<'_>,
) -> Result<(), FileError> {
    let mut next = blocks.start;
    while next < blocks.end {
        let start = next;
        let batch = lock_batch(core, &mut next, blocks.end);
        // A write that failed may have left the store longer than `stored` says.
        let has_failed = |one: &Locked<'_>| one.meta().flags.load().contains(FlagSet::ERROR);
        let known = match batch.iter().any(has_failed) {
            true => u64::MAX,
            false => core.blocks.stored.load(Ordering::Acquire),
        };
        let mut panics = Panics::default();
        let punch = || punch_store(core, start..next, known, alone);
        let result = core.caught(&mut panics, StoreAction::Punch, (0, 0), punch);
        match result {
            Ok(()) => drop_batch(core, batch),
            // The store may have punched some of the blocks.
            Err(_) => show_what_is_left(core, batch),
        }
        panics.go_on();
        result?;
    }
    Ok(())
}

/// Corrects the state of locked blocks whose punch failed: no cached block may be clean and differ
/// from the store. Clean blocks that no sync covers yet become dirty; other clean ones are dropped.
/// Dirty blocks stay.
fn show_what_is_left(core: &FileCore, mut batch: Vec<Locked<'_>>) {
    batch.retain(|one| !one.meta().flags.load().contains(FlagSet::DIRTY));
    let is_unsynced = |one: &Locked<'_>| core.dirty().is_unsynced(one.block());
    let (kept, gone): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_unsynced);
    for one in kept {
        mark_dirty(core, one.block(), one.frame());
    }
    drop_batch(core, gone);
}

/// Writes zeros to part of one block.
fn write_zeros(
    core: &FileCore,
    range: Range<u64>,
    steady: &InvalidateGuard<'_>,
) -> Result<(), FileError> {
    if range.is_empty() {
        return Ok(());
    }
    let len = (range.end - range.start) as usize;
    write_part(core, range.start, Source::Zeros(len), steady, Wait::Yes)
}

/// Forgets all unwritten data, so that the file has the bytes of the store.
pub(super) fn discard(core: &FileCore) -> Result<(), FileError> {
    core.check_writable()?;
    // Blocks that a failed sync left in doubt count as unwritten too, so they become dirty. Punches
    // that such a sync may have undone are repeated, so that the old bytes do not come back.
    punch_again(core);
    take_doubted_back(core, Wait::Yes);
    while_alone(core, |alone| {
        let _cutting = cut_from(core, 0, alone);
        core.wait_landed(&(0..u64::MAX));
        // A store that does not answer makes the call fail here, before anything is forgotten. If
        // the query failed later, the file would be longer than the store.
        let told = store_len(core)?;
        let (given_up, is_over_unsynced) = core.dirty().all_dirty();
        if is_over_unsynced {
            // For some of these blocks, the store has accepted older bytes that it may still lose.
            // The cache no longer has those bytes, so they could not be written again: the store is
            // synced first. If this sync fails, the clean blocks that it leaves in doubt become
            // dirty, and stay.
            sync_store(core, SyncWhat::Data)?;
        }
        for run in given_up {
            remove_blocks(core, run);
        }
        adopt_store_len(core, unwritten_end(core), Some(told))
    })
}

/// Returns the end of the last block that the store may not have, or the end of the file if that is
/// smaller; 0 if there is no such block. Blocks that are being written also count, since the store
/// may be asked for its length before it has their bytes.
fn unwritten_end(core: &FileCore) -> u64 {
    let last = core.dirty().last_unwritten();
    let end = last.map_or(0, |block| (block + 1) << core.block_shift());
    end.min(core.size())
}

/// Forgets cached blocks of a range that are not dirty, and takes over the store's length. Blocks
/// with unwritten data stay, since they are newer than any change by another process. Blocks that
/// the store may still lose also stay. Returns the number of pages dropped.
pub(super) fn invalidate(core: &FileCore, blocks: Range<u64>) -> Result<PageCount, FileError> {
    core.check_not_reentrant()?;
    // If the store has lost writes or punches, a later sync that succeeds does not bring them back.
    // So they are repeated first.
    punch_again(core);
    take_doubted_back(core, Wait::Yes);
    // The store may still lose blocks that no sync has covered. If they were forgotten here, they
    // could not be written again. So they are synced, or become dirty again.
    let is_unsynced = core.dirty().unsynced(blocks.clone()).next().is_some();
    if is_unsynced || core.blocks.extents.lock().punched.meets(blocks.clone()) {
        sync_store(core, SyncWhat::Data)?;
    }
    while_alone(core, |_alone| {
        core.wait_landed(&(0..u64::MAX));
        // The version is accepted before anything is forgotten: a change that comes later is
        // noticed later.
        core.accept_version()?;
        let dropped = forget_clean(core, blocks);
        adopt_store_len(core, unwritten_end(core), None)?;
        Ok(PageCount(dropped << core.id.order))
    })
}

/// Makes the file as long as the store is now, but at least `kept` bytes. `told` is the store's
/// earlier answer, which is used if the store does not answer now.
fn adopt_store_len(core: &FileCore, kept: u64, told: Option<u64>) -> Result<(), FileError> {
    let or_told = |len: Result<u64, FileError>| len.or_else(|error| told.ok_or(error));
    let (len, old) = (or_told(store_len(core))?, core.size());
    failpoint!(LengthRead);
    core.blocks.extents.lock().clear();
    let noted = core.blocks.stored.swap(len, Ordering::AcqRel);
    // A writeback that ended since the query may have raised `stored`, which the swap has
    // overwritten. But the store has the bytes, so it is asked for its length again. A writeback
    // that ends from here on raises `stored` after the swap.
    let again = or_told(store_len(core));
    let noted = again.as_ref().map_or(noted, |len| *len);
    core.blocks.stored.fetch_max(noted, Ordering::AcqRel);
    again?;
    // The length is read from `stored`, which may have grown since the swap.
    let new = core
        .blocks
        .stored
        .load(Ordering::Acquire)
        .min(MAX_SIZE)
        .max(kept);
    if new > old && core.inside_block(old) > 0 {
        // The store has more of the former last block than is cached. If that block is unwritten or
        // not synced, it stays, with zeros past the former end.
        let last = old >> core.block_shift();
        forget_clean(core, last..last + 1);
        clear_tail_before(core, new)?;
    }
    core.set_size(new);
    if new < old {
        cut_blocks(core, new);
        cut_tail(core, new)?;
    }
    core.end_mapped_holes(0..u64::MAX);
    core.ready.changed();
    Ok(())
}

fn store_len(core: &FileCore) -> Result<u64, FileError> {
    let len = core.query_store(&(0..0), |store| store.len())?;
    Ok(len.min(MAX_SIZE))
}

/// Removes the blocks past the new end, `size`, from the index, and forgets punched ranges there.
fn cut_blocks(core: &FileCore, size: u64) {
    let cut = size.div_ceil(core.block_bytes())..u64::MAX;
    remove_blocks(core, cut.clone());
    core.blocks.extents.lock().punched.forget(cut);
}
