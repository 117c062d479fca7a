//! Appends. Each is atomic with respect to other appends and changes of the length. One form waits
//! where necessary, the other never waits.
//!
//! To other threads, an append that does not wait is one step. If the file ends inside a block,
//! such an append writes to that block, under the block's lock, provided that the end has not
//! moved. If the file ends at the end of a block, the append makes a new block, which is complete
//! before it enters the index, and makes the file longer in the same step. Bytes in two blocks
//! would take two steps, so they are refused.

use crate::cache::core::FileCore;
use crate::cache::core::gate::ROOMS;
use crate::cache::dirty::flush::write_some;
use crate::cache::dirty::room::make_dirty_room;
use crate::cache::dirty::sync::sync_for_room;
use crate::cache::errors::FileError;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::{Basis, Get};
use crate::cache::wait::Wait;
use crate::cache::write::in_place::zero_from;
use crate::cache::write::new_blocks::{Source, insert_complete, publish_complete};
use crate::cache::write::write_at::{End, check_range, end_operation, store_locked, write_all};
use crate::exec::reentry::FileLocked;
use crate::frame::Writing;
use crate::reclaim::{AllocMode, note_failure};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;

/// Writes all of `bytes` at the end of the file, and returns their offset. If the append finds no
/// memory half-way through, it frees some of the file's own blocks and continues. After an error,
/// the file may have only the first part of the bytes: if the store fails, if the write order holds
/// blocks back, or if there is still no memory after [`ROOMS`] such attempts.
pub(crate) fn append(core: &FileCore, bytes: &[u8]) -> Result<u64, FileError> {
    core.check_writable()?;
    // An append that failed half-way is not repeated: the rest would not follow the first part.
    let mut failed = None;
    let offset = core.with_room(|| {
        let _appending = core.locks.append();
        let _holding = FileLocked::begin();
        let offset = core.size();
        let mut done = 0;
        match append_all(core, bytes, offset, &mut done) {
            Err(error) if done > 0 => failed = Some(error),
            result => result?,
        }
        Ok(offset)
    })?;
    if let Some(error) = failed {
        if let FileError::Limit(full) = &error {
            // `with_room` counted the refusal as resolved, so it is counted here.
            note_failure(&core.pool, full.details().id);
        }
        return Err(error);
    }
    end_operation(core);
    Ok(offset)
}

/// Writes the bytes after the first `done`. The caller holds `append`, so reclaim may have skipped
/// the file. If the append has written some bytes and then finds no memory, it makes room by
/// writing the file's own blocks.
fn append_all(
    core: &FileCore,
    bytes: &[u8],
    offset: u64,
    done: &mut usize,
) -> Result<(), FileError> {
    let mut rounds = 0;
    loop {
        let before = *done;
        match write_all(core, bytes, offset, done, End::Moves) {
            Err(FileError::Limit(_)) if *done > 0 && rounds < ROOMS => {
                rounds = if *done > before { 1 } else { rounds + 1 };
                write_some(core);
                sync_for_room(core);
            }
            result => return result,
        }
    }
}

/// Writes all of `bytes`, at most a block's worth, at the end of the file without waiting. If it
/// would have to wait, or the bytes would lie in two blocks, writes nothing and returns "would
/// block".
pub(crate) fn try_append(core: &FileCore, bytes: &[u8]) -> Result<u64, FileError> {
    core.check_writable()?;
    let offset = append_nonblocking(core, bytes)?;
    core.ready.wake_due();
    Ok(offset)
}

fn append_nonblocking(core: &FileCore, bytes: &[u8]) -> Result<u64, FileError> {
    let would_block = || core.would_block(core.size());
    let _appending = core.locks.try_append().ok_or_else(would_block)?;
    let _steady = core.locks.try_shared().ok_or_else(would_block)?;
    let offset = core.size();
    check_range(core, offset, bytes.len() as u64)?;
    if bytes.len() as u64 > core.block_bytes() {
        return Err(would_block());
    }
    make_dirty_room(core, offset, Wait::No)?;
    match core.inside_block(offset) {
        _ if bytes.is_empty() => {}
        0 => append_block(core, offset, bytes)?,
        _ if bytes.len() <= core.left_in_block(offset) => append_inside(core, offset, bytes)?,
        _ => return Err(would_block()),
    }
    Ok(offset)
}

/// Makes a block at `offset`, the end of the file. Returns "would block" if the store has bytes
/// past the new end, if another thread has made the block, or if the file is mapped: a mapping may
/// show a hole there, whose translation would have to be removed first.
fn append_block(core: &FileCore, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
    let mut owned = core.alloc(AllocMode::NoWait)?;
    let (into, rest) = owned.bytes_mut().split_at_mut(bytes.len());
    into.copy_from_slice(bytes);
    rest.fill(0);
    let block = offset >> core.block_shift();
    let frame = publish_complete(core, owned, block);
    let end = offset + bytes.len() as u64;
    let may = || core.mappers.is_empty() && core.holds(Basis::StoredUpTo(end));
    match insert_complete(core, block, &[frame], end, AllocMode::NoWait, may) {
        (1, _) => Ok(()),
        (_, result) => result.and(Err(core.would_block(offset))),
    }
}

fn append_inside(core: &FileCore, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
    failpoint!(Appending);
    let would_block = || core.would_block(offset);
    let get = Get::ACCESSED | Get::WRITE | Get::STABLE | Get::NOWAIT;
    let last = core.find_lock(offset >> core.block_shift(), get)?;
    // If a mapping may store to the block, bytes past the end would have to be cleared first. The
    // size is checked again, since a write may have made the file longer meanwhile.
    let fits = |last: &Locked<'_>| !last.meta().hold.load().is_wmapped() && core.size() == offset;
    let last = last.filter(fits).ok_or_else(would_block)?;
    let inside = core.inside_block(offset) as usize;
    if core.blocks.tail_left.load(Ordering::Acquire) {
        // The tail is cleared now. Later it could not be: `zero_tail` for the old size does nothing
        // once the file is longer.
        let writing = Writing::begin(core.frames(), last.frame()).ok_or_else(would_block)?;
        zero_from(core, &last, writing, inside);
        core.blocks.tail_left.store(false, Ordering::Release);
    }
    let inside = inside..inside + bytes.len();
    match store_locked(core, last, inside, Source::Bytes(bytes), &mut None) {
        true => Ok(()),
        false => Err(would_block()),
    }
}
