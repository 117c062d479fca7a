//! Writes: into the block's frame if it is not viewed, otherwise into a new frame.
//!
//! A write to one block has these steps: make room under the dirty limit; lock the block when it is
//! stable (a missing one is made, and filled first if only a part of it is written and the store
//! has the rest, P22); store the bytes under the WRITER bit; set DIRTY and enter the dirty index;
//! raise the file's size; unlock. A reader sees the size only after the bytes.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::core::store_probe::MAX_SIZE;
use crate::cache::dirty::marks::mark_dirty;
use crate::cache::dirty::room::make_dirty_room;
use crate::cache::errors::FileError;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::{Basis, Get};
use crate::cache::read::content::content;
use crate::cache::read::fill::{Filled, Miss};
use crate::cache::read::holes::Content;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::{clear_tail_before, move_block};
use crate::cache::write::new_blocks::{
    Caches, Source, append_page, write_new_block, write_new_run, write_over_hole,
};
use crate::frame::Writing;
use crate::reclaim::{AllocMode, PoolFrame};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::PAGE_SIZE;

/// Refuses ranges that reach past the largest file.
pub(crate) fn check_range(core: &FileCore, offset: u64, len: u64) -> Result<(), FileError> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_SIZE => Ok(()),
        _ => Err(FileError::TooLarge {
            file: core.id.name.clone(),
            offset,
            len,
        }),
    }
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_at(core: &FileCore, bytes: &[u8], offset: u64) -> Result<(), FileError> {
    write_all(core, bytes, offset, &mut 0)?;
    end_operation(core);
    Ok(())
}

/// Does the work that is due after an operation that fills, writes or cuts. No lock is held any
/// more. A write that fails leaves this work to the next operation, and to the service.
#[inline]
pub(crate) fn end_operation(core: &FileCore) {
    core.pool.flush_retired_if_due();
    core.ready.wake_due();
}

/// Writes the rest of `bytes` after the first `done`, and adds to `done` as it goes.
pub(crate) fn write_all(
    core: &FileCore,
    bytes: &[u8],
    offset: u64,
    done: &mut usize,
) -> Result<(), FileError> {
    core.check_writable()?;
    check_range(core, offset, bytes.len() as u64)?;
    let caches = Caches::of_write(bytes);
    while *done < bytes.len() {
        let (at, rest) = (offset + *done as u64, &bytes[*done..]);
        make_dirty_room(core, at, Wait::Yes)?;
        if append_page(core, at, rest)? {
            *done += PAGE_SIZE;
            continue;
        }
        *done += core.with_room(|| write_steady(core, rest, at, caches, &core.locks.shared()))?;
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`, inside the file. The file does not get longer, even if it
/// is cut meanwhile.
pub(crate) fn overwrite_at(core: &FileCore, bytes: &[u8], offset: u64) -> Result<(), FileError> {
    core.check_writable()?;
    check_range(core, offset, bytes.len() as u64)?;
    let caches = Caches::of_write(bytes);
    let mut done = 0;
    while done < bytes.len() {
        let (at, rest) = (offset + done as u64, &bytes[done..]);
        make_dirty_room(core, at, Wait::Yes)?;
        done += core.with_room(|| {
            let steady = core.locks.shared();
            let size = core.size();
            if at + rest.len() as u64 > size {
                return Err(core.past_end(at, rest.len() as u64, size));
            }
            write_steady(core, rest, at, caches, &steady)
        })?;
    }
    end_operation(core);
    Ok(())
}

/// Writes the first of `bytes`: some new pages, or a part of one block. Returns how many bytes.
fn write_steady(
    core: &FileCore,
    bytes: &[u8],
    offset: u64,
    caches: Caches,
    steady: &InvalidateGuard<'_>,
) -> Result<usize, FileError> {
    let in_run = write_new_run(core, offset, bytes, caches, steady)?;
    if in_run > 0 {
        return Ok(in_run);
    }
    let part = &bytes[..bytes.len().min(core.left_in_block(offset))];
    clear_tail_before(core, offset + part.len() as u64)?;
    write_part(core, offset, Source::Bytes(part), steady, Wait::Yes)?;
    Ok(part.len())
}

/// Writes into cached blocks only: all of `bytes`, or nothing, and then returns "would block".
pub(crate) fn try_write_at(core: &FileCore, bytes: &[u8], offset: u64) -> Result<(), FileError> {
    core.check_writable()?;
    check_range(core, offset, bytes.len() as u64)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let end = offset + bytes.len() as u64;
    let blocks = core.blocks_of(offset..end);
    let steady = core
        .locks
        .try_shared()
        .ok_or_else(|| core.would_block(offset))?;
    // Only one block: a write over several could fail half-way.
    if blocks.end - blocks.start > 1 || end > core.size() {
        return Err(core.would_block(offset));
    }
    make_dirty_room(core, offset, Wait::No)?;
    write_part(core, offset, Source::Bytes(bytes), &steady, Wait::No)
}

/// Writes part of one block, and makes the file longer if the part ends past it. If it may not
/// wait, it writes only into a cached block that nobody views.
pub(crate) fn write_part(
    core: &FileCore,
    offset: u64,
    source: Source<'_>,
    steady: &InvalidateGuard<'_>,
    wait: Wait,
) -> Result<(), FileError> {
    let block = offset >> core.block_shift();
    let start = core.inside_block(offset) as usize;
    let inside = start..start + source.len();
    let get = Get::ACCESSED | Get::WRITE | Get::STABLE | Get::waiting(wait);
    let mut spare = None;
    loop {
        // The epoch is read before the lookup: if a block is made from here on, the epoch
        // moves.
        let epoch = core.blocks.hole_epoch.load(Ordering::SeqCst);
        if let Some(locked) = core.find_lock(block, get)? {
            if store_locked(core, locked, inside.clone(), source, &mut spare)? {
                return Ok(());
            }
            if wait == Wait::No {
                return Err(core.would_block(offset));
            }
            // The block is viewed. The frame to move it to is allocated with no lock held.
            spare = Some(core.alloc(AllocMode::Wait)?);
            continue;
        }
        if wait == Wait::No {
            return Err(core.would_block(offset));
        }
        let end = offset + source.len() as u64;
        let covers_block = inside.len() as u64 == core.block_bytes();
        failpoint!(NotCached);
        let is_new = covers_block && matches!(source, Source::Bytes(_));
        let done = if is_new && core.mappers.is_empty() {
            // All bytes that the store may have there are overwritten.
            write_new_block(core, block, inside.clone(), source, Basis::Nothing)?
        } else if content(core, block)? == Content::Hole {
            if matches!(source, Source::Zeros(_)) && end <= core.size() {
                return Ok(());
            }
            failpoint!(HoleFound);
            let basis = match covers_block {
                true => Basis::Nothing,
                false => core.hole_basis(block, epoch),
            };
            write_over_hole(core, block, inside.clone(), source, basis)?
        } else if covers_block {
            write_new_block(core, block, inside.clone(), source, Basis::Nothing)?
        } else if start == 0 && end >= core.size() {
            // All bytes that the store has of the block are overwritten.
            write_new_block(core, block, inside.clone(), source, Basis::StoredUpTo(end))?
        } else {
            let filled = core.fill_absent(block, Get::WRITE, steady, Miss::of(&core.stream))?;
            debug_assert_eq!(filled, Filled::LookAgain, "data was found above");
            false
        };
        if done {
            return Ok(());
        }
    }
}

/// Stores into a locked block, after moving it to `spare` if it is viewed. Returns false if it
/// is viewed and there is no spare.
fn store_locked<'f>(
    core: &'f FileCore,
    mut locked: Locked<'f>,
    inside: Range<usize>,
    source: Source<'_>,
    spare: &mut Option<PoolFrame<'_>>,
) -> Result<bool, FileError> {
    let mut writing = Writing::begin(core.frames(), locked.frame());
    if writing.is_none() {
        let Some(frame) = spare.take() else {
            return Ok(false);
        };
        locked = move_block(core, locked, frame);
        writing = Writing::begin(core.frames(), locked.frame());
    }
    match (&mut writing, source) {
        (Some(writing), Source::Bytes(bytes)) => writing.write(inside.start, bytes),
        (Some(writing), Source::Zeros(_)) => writing.zero(inside.clone()),
        // A view was taken between the move and the second attempt: the lock excludes writers,
        // not viewers.
        (None, _) => return Ok(false),
    }
    drop(writing);
    locked.written_in_place(&inside);
    mark_dirty(core, locked.block(), locked.frame());
    core.grow_to((locked.block() << core.block_shift()) + inside.end as u64);
    Ok(true)
}
