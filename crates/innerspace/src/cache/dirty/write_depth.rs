//! Writes the dirty blocks of a range, run by run, and several runs concurrently.
//!
//! If there is more than one run, jobs in the file's lane write together with the caller. There are
//! at most as many writers as the store serves calls at a time. Their number is also limited so
//! that the memory that their runs hold is a small part of the nearest limit. Each thread claims
//! the next run, which no other thread gets, and writes it as if it were alone. The caller also
//! claims runs, so that all are written even if no thread is free. At the end, the caller waits for
//! runs that jobs have claimed, but not for jobs that have not begun. The caller writes alone if
//! the file's writes are ordered, or if it passes [`Wait::No`].

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{WriteOrder, WriteReason};
use crate::cache::dirty::marks::rules;
use crate::cache::dirty::writeback::{RunEnd, max_run, write_blocks};
use crate::cache::read::requests::FLIGHT_PART;
use crate::cache::wait::Wait;
use crate::exec::Turn;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex};

/// The most jobs that write in addition to the caller. More would not keep a disk any busier.
const MOST_HELPERS: u64 = 7;

/// The work that a caller shares with its helpers.
struct Spread {
    state: Mutex<State>,
    /// Notified when a claimed run has ended.
    ended: Condvar,
}

struct State {
    /// The blocks that no thread has claimed.
    left: Range<u64>,
    /// The number of blocks that may still be claimed.
    allowed: u64,
    /// The number of runs that were claimed and have not ended.
    claimed: u32,
    total: RunEnd,
}

impl Spread {
    /// Claims the next run. Returns `None` if there is none, or no more blocks may be claimed.
    fn claim(&self, core: &FileCore, reason: WriteReason) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let most = max_run(core, reason).min(state.allowed);
        if most == 0 {
            return None;
        }
        let rules = rules(core, reason);
        let blocks = core.dirty().next_run(state.left.clone(), most, &rules);
        if blocks.is_empty() {
            state.left.start = state.left.end;
            return None;
        }
        state.left.start = blocks.end;
        state.allowed -= blocks.end - blocks.start;
        state.claimed += 1;
        Some(blocks)
    }

    /// Claims and writes runs until there are none left. Unless the write is for a sync, no thread
    /// claims another run after one of which nothing could be written.
    fn write(&self, core: &FileCore, reason: WriteReason, mode: Wait) {
        while let Some(blocks) = self.claim(core, reason) {
            let claimed = blocks.end - blocks.start;
            let (mut end, mut panics) = (RunEnd::default(), Panics::default());
            panics.catch(|| end = write_blocks(core, blocks, reason, mode));
            let mut state = self.state.lock();
            state.claimed -= 1;
            // Blocks that another thread has written since they were claimed do not count against
            // `allowed`.
            state.allowed += claimed.saturating_sub(end.written + end.failed);
            state.total.written += end.written;
            state.total.failed += end.failed;
            state.total.refused += end.refused;
            if reason != WriteReason::Sync && end.written == 0 && end.failed > 0 {
                state.allowed = 0;
            }
            drop(state);
            self.ended.notify_all();
            panics.go_on();
        }
    }
}

/// Writes every block in `blocks` that is dirty now and may be written, but at most `max_blocks`.
/// Unless the write is for a sync, stops after a run of which nothing could be written, and skips
/// the file for a while after such a failure. A caller that holds locks of blocks passes
/// [`Wait::No`].
pub(crate) fn write_range(
    core: &FileCore,
    blocks: Range<u64>,
    reason: WriteReason,
    mode: Wait,
    max_blocks: u64,
) -> RunEnd {
    let mut total = RunEnd {
        next: blocks.start,
        ..RunEnd::default()
    };
    if reason != WriteReason::Sync && !core.writes.backoff.may_try(core.pool.background.now()) {
        return total;
    }
    let spread = Arc::new(Spread {
        state: Mutex::new(State {
            left: blocks,
            allowed: max_blocks,
            claimed: 0,
            total,
        }),
        ended: Condvar::new(),
    });
    for _ in 0..helpers(core, reason, mode, max_blocks) {
        let Some(shared) = core.me.upgrade() else {
            break;
        };
        let spread = spread.clone();
        let help = Box::new(move || {
            let _here = shared.cache.serving();
            spread.write(&shared, reason, mode);
        });
        core.cache.push(&core.store_calls, Turn::Shared, help);
    }
    spread.write(core, reason, mode);
    let mut state = spread.state.lock();
    while state.claimed > 0 {
        state = spread.ended.wait(state);
    }
    total = RunEnd {
        next: state.left.start,
        ..state.total
    };
    drop(state);
    // If the files below the store lack memory, this is no failure of the store: the blocks are
    // written later.
    let (failed, now) = (total.failed - total.refused, core.pool.background.now());
    core.writes.backoff.note(total.written, failed, now);
    total
}

/// Returns the number of jobs that help a thread that writes at most `most` blocks.
fn helpers(core: &FileCore, reason: WriteReason, mode: Wait, most: u64) -> u64 {
    let is_ordered = core.id.write_order == WriteOrder::Ordered;
    if mode == Wait::No || is_ordered || !core.cache.workers.has_threads() {
        return 0;
    }
    let run = max_run(core, reason);
    let others = most
        .min(core.dirty_blocks())
        .div_ceil(run)
        .saturating_sub(1);
    let room = core.nearest_limit() / FLIGHT_PART / (run << core.block_shift());
    let calls = u64::from(core.store.at_a_time);
    others
        .min(room.min(calls).saturating_sub(1))
        .min(MOST_HELPERS)
}
