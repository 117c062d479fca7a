//! Finds out whether the store has data or a hole for a block that is not cached. The answers are
//! recorded, so that most blocks need no query.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::errors::FileError;
use crate::cache::read::holes::Content;
use crate::sync::atomic::Ordering;

/// Returns the store's content of `block`, if it is known without a query.
pub(crate) fn known_content(core: &FileCore, block: u64) -> Option<Content> {
    let bytes = stored_bytes(core, block);
    if bytes.is_empty() {
        return Some(Content::Hole);
    }
    let extents = core.blocks.extents.lock();
    match extents.punched.contains(block) {
        true => Some(Content::Hole),
        false => extents.answer(&bytes),
    }
}

/// Returns the store's content of `block`, which is not cached. Queries the store if the content is
/// not known.
pub(crate) fn content(core: &FileCore, block: u64) -> Result<Content, FileError> {
    if let Some(known) = known_content(core, block) {
        return Ok(known);
    }
    let bytes = stored_bytes(core, block);
    let cuts = core.blocks.extents.lock().cuts;
    let next_data = core.query_store(&bytes, |store| store.next_data(bytes.start))?;
    let data_start = next_data.unwrap_or(u64::MAX);
    if data_start >= bytes.end {
        // A store that was cut short has no data here either. Then the answer is data, and the read
        // detects the missing bytes.
        let len = core.query_store(&bytes, |store| store.len())?;
        if len < bytes.end {
            return Ok(Content::Data);
        }
        let hole = bytes.start..data_start.min(len);
        core.blocks.extents.lock().remember_hole(hole, cuts);
        return Ok(Content::Hole);
    }
    let hole_start = core.query_store(&bytes, |store| store.next_hole(data_start))?;
    // If the block begins with a hole, the hole is recorded as data too: it is read as zeros with
    // the rest of the block.
    core.blocks.extents.lock().data = bytes.start..hole_start.max(bytes.end);
    Ok(Content::Data)
}

/// Returns the first block after `block` that is not known to be a hole. Returns `u64::MAX` if the
/// store ends before `block`, and `block` itself if it is no longer known to be a hole. The caller
/// has found `block` to be a hole.
pub(crate) fn end_of_hole(core: &FileCore, block: u64) -> u64 {
    let bytes = stored_bytes(core, block);
    if bytes.is_empty() {
        return u64::MAX; // the store ends before the block
    }
    let extents = core.blocks.extents.lock();
    if let Some(end) = extents.punched.end_of(block) {
        return end;
    }
    let hole = &extents.hole;
    match hole.contains(&bytes.start) {
        true => hole.end >> core.block_shift(),
        false => block, // the hole was forgotten meanwhile
    }
}

/// Returns the part of the block's byte range that the store has.
pub(crate) fn stored_bytes(core: &FileCore, block: u64) -> Range<u64> {
    let start = block << core.block_shift();
    let end = (start + core.block_bytes()).min(core.blocks.stored.load(Ordering::Acquire));
    start..end.max(start)
}
