//! Writes: into the block's frame if it is not viewed, otherwise into a new frame.
//!
//! A write to one block has these steps: make room under the dirty limit; lock the block when it is
//! stable (a missing one is filled first if only a part of it is written and the store has the
//! rest, P22); change the bytes under the WRITER bit; set DIRTY and enter the block in the dirty
//! index; raise the file's size; unlock. Any other missing block is made with its new bytes
//! (`new_blocks`). In both cases, a reader that sees the new size also sees the bytes.

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
use crate::cache::read::fill::Miss;
use crate::cache::read::holes::Content;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::{begin_writing, clear_tail_before};
use crate::cache::write::new_blocks::{Source, append_page, write_new_block, write_new_run};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::PAGE_SIZE;

/// Returns an error if a range reaches past the end of the largest file.
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

/// Whether a write past the end of the file makes it longer, or is an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Moves,
    Stays,
}

/// Writes all of `bytes` at `offset`. With [`End::Stays`] the file does not get longer, even if it
/// is cut while the write is under way: bytes past its end are an error.
pub(crate) fn write_at(
    core: &FileCore,
    bytes: &[u8],
    offset: u64,
    file_end: End,
) -> Result<(), FileError> {
    write_all(core, bytes, offset, &mut 0, file_end)?;
    end_operation(core);
    Ok(())
}

/// Does the work that is due after an operation that fills, writes or cuts. The caller holds no
/// lock. A write that fails leaves this work to the next operation, and to the service.
#[inline]
pub(crate) fn end_operation(core: &FileCore) {
    core.pool.flush_retired_if_due();
    core.ready.wake_due();
}

/// Writes the bytes after the first `done`, and adds the number of bytes written to `done` as it
/// goes.
pub(crate) fn write_all(
    core: &FileCore,
    bytes: &[u8],
    offset: u64,
    done: &mut usize,
    file_end: End,
) -> Result<(), FileError> {
    core.check_writable()?;
    check_range(core, offset, bytes.len() as u64)?;
    while *done < bytes.len() {
        let (at, rest) = (offset + *done as u64, &bytes[*done..]);
        make_dirty_room(core, at, Wait::Yes)?;
        if file_end == End::Moves && append_page(core, at, rest)? {
            *done += PAGE_SIZE;
            continue;
        }
        // Each round writes some new pages, or a part of one block.
        *done += core.with_room(|| {
            let steady = core.locks.shared();
            let (len, size) = (rest.len() as u64, core.size());
            if file_end == End::Stays && at + len > size {
                return Err(core.past_end(at, len, size));
            }
            let in_run = write_new_run(core, at, rest, bytes.len(), &steady)?;
            if in_run > 0 {
                return Ok(in_run);
            }
            let part = &rest[..rest.len().min(core.left_in_block(at))];
            clear_tail_before(core, at + part.len() as u64)?;
            write_part(core, at, Source::Bytes(part), &steady, Wait::Yes)?;
            Ok(part.len())
        })?;
    }
    Ok(())
}

/// Writes all of `bytes` into one cached block, without waiting. If that is not possible, writes
/// nothing and returns "would block". The file does not get longer.
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
    // Only one block is allowed: a write over several blocks could fail half-way.
    if blocks.end - blocks.start > 1 || end > core.size() {
        return Err(core.would_block(offset));
    }
    make_dirty_room(core, offset, Wait::No)?;
    write_part(core, offset, Source::Bytes(bytes), &steady, Wait::No)
}

/// Writes a part of one block, and makes the file longer if the part ends past the end of the file.
/// Zeros are not written to a hole inside the file. With [`Wait::No`], writes only into a cached
/// block that is not viewed, and otherwise returns "would block".
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
        // The epoch is read before the lookup: if a block is made from here on, the epoch advances.
        let epoch = core.blocks.hole_epoch.load(Ordering::SeqCst);
        if let Some(locked) = core.find_lock(block, get)? {
            if store_locked(core, locked, inside.clone(), source, &mut spare) {
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
        // If all bytes that the store may have of the block are overwritten, and no mapping may
        // show a hole in it, the store need not be asked.
        let content = match is_new && core.mappers.is_empty() {
            true => Content::Data,
            false => content(core, block)?,
        };
        if content == Content::Hole {
            if matches!(source, Source::Zeros(_)) && end <= core.size() {
                return Ok(());
            }
            failpoint!(HoleFound);
        }
        let basis = if covers_block {
            Basis::Nothing
        } else if content == Content::Hole {
            core.hole_basis(block, epoch)
        } else if start == 0 && end >= core.size() {
            // All bytes that the store has of the block are overwritten.
            Basis::StoredUpTo(end)
        } else {
            let miss = Miss::of(&core.stream);
            let found = core.fill_absent(block, Get::WRITE, steady, miss, drop)?;
            debug_assert_eq!(found, Content::Data, "as it was found above");
            continue;
        };
        if write_new_block(core, block, inside.clone(), source, (content, basis))? {
            return Ok(());
        }
    }
}

/// Writes into a locked block, after moving it to `spare` if it is viewed. Returns false if it is
/// viewed and there is no spare, or if it is viewed again after the move.
pub(super) fn store_locked<'f>(
    core: &'f FileCore,
    locked: Locked<'f>,
    inside: Range<usize>,
    source: Source<'_>,
    spare: &mut Option<PoolFrame<'_>>,
) -> bool {
    let Some((locked, mut writing)) = begin_writing(core, locked, spare) else {
        return false;
    };
    match source {
        Source::Bytes(bytes) => writing.write(inside.start, bytes),
        Source::Zeros(_) => writing.zero(inside.clone()),
    }
    drop(writing);
    locked.written_in_place(&inside);
    mark_dirty(core, locked.block(), locked.frame());
    core.grow_to((locked.block() << core.block_shift()) + inside.end as u64);
    true
}
