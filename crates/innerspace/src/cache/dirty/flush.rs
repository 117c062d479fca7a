//! Writes a part of a file's dirty blocks: in the background, here or in the file's lane, or for a
//! writer that needs room.

use crate::cache::core::FileCore;
use crate::cache::dirty::index::WriteReason;
use crate::cache::dirty::limits::has_too_much_dirty;
use crate::cache::dirty::sync::{sync_if_wanted, take_doubted_back};
use crate::cache::dirty::write_depth::write_range;
use crate::cache::dirty::writeback::{RunEnd, max_run};
use crate::cache::wait::Wait;
use crate::exec::Turn;
use crate::reclaim::{FlushRequest, LeftFlush};
use crate::sync::atomic::Ordering;

/// Like [`write_range`] over the whole file, but begins where the last call ended. So a block that
/// is dirtied again and again does not keep the blocks after it waiting. If no block is written or
/// fails from there on, continues with the blocks before.
pub(crate) fn write_onwards(core: &FileCore, reason: WriteReason, max_blocks: u64) -> RunEnd {
    let end_block = core.end_block();
    let from = core.writes.next_block().min(end_block);
    let mut total = write_range(core, from..end_block, reason, Wait::Yes, max_blocks);
    if total.written == 0 && total.failed == 0 && from > 0 {
        total = write_range(core, 0..from, reason, Wait::Yes, max_blocks);
    }
    core.writes.set_next_block(total.next % end_block);
    total
}

/// Writes blocks that may be written: at most as many as one run can have. This is the share of a
/// writer over a dirty limit. Returns the number of blocks written.
pub(crate) fn write_some(core: &FileCore) -> u64 {
    let reason = WriteReason::Pressure;
    write_onwards(core, reason, max_run(core, reason)).written
}

/// Writes blocks at the request of the flusher, in this thread and in jobs that help it. Before
/// that, makes blocks in doubt dirty again, except those that are locked.
pub(crate) fn flush_here(core: &FileCore, request: &FlushRequest) -> RunEnd {
    let reason = WriteReason::Flusher {
        through: request.dirtied_by,
    };
    take_doubted_back(core, Wait::No);
    let most = (request.pages.0 >> core.id.order).max(1);
    write_onwards(core, reason, most)
}

/// Starts a job in the file's lane that calls [`flush_here`], unless a flush is already under way.
/// The job repeats the flush as long as blocks are written, the file is not closed, and either
/// blocks are chosen by their age or some group has too many dirty pages. Then the job makes the
/// sync that eviction has requested, if any.
pub(crate) fn flush_in_its_lane(core: &FileCore, request: FlushRequest) {
    let Some(shared) = core.me.upgrade() else {
        return;
    };
    if !core.writes.begin_flush() {
        return;
    }
    let mut left = LeftFlush::begin(&core.pool);
    let flush = Box::new(move || {
        let core = &*shared;
        let _here = core.cache.serving();
        let ended = core.writes.flush_of_job();
        let mut goes_on = true;
        while goes_on && !core.is_closed() {
            let written = flush_here(core, &request).written > 0;
            left.has_cleaned |= written;
            goes_on = written && (request.is_of_age() || has_too_much_dirty(core));
            if !written {
                core.cache.note_futile_flush();
            }
        }
        let is_wanted = core.writes.syncs.wanted.load(Ordering::Relaxed);
        left.has_cleaned |= sync_if_wanted(core).is_ok() && is_wanted;
        drop(ended);
        drop(left);
    });
    core.cache.push(&core.store_calls, Turn::Shared, flush);
}
