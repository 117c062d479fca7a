//! Writes several runs of dirty blocks concurrently.
//!
//! In a sync of more than one run, jobs in the file's lane write together with the caller: as many
//! as the calls that the store serves at a time, as long as the memory that they hold is a small
//! part of the nearest limit. Each job claims the next run, which no other job gets, and writes it
//! as if it were alone. The caller claims runs as well, so that all are written even if no thread
//! is free. At the end, the caller waits for runs that jobs have claimed, but not for jobs that
//! have not begun. A file whose writes are ordered has one run in flight.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{WriteOrder, WriteReason};
use crate::cache::dirty::marks::rules;
use crate::cache::dirty::writeback::{RunEnd, max_run, write_range};
use crate::cache::read::requests::FLIGHT_PART;
use crate::cache::wait::Wait;
use crate::exec::Turn;
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
    /// The blocks that no job has claimed.
    left: Range<u64>,
    /// The number of blocks that may still be claimed.
    allowed: u64,
    /// The number of runs that were claimed and have not ended.
    claimed: u32,
    total: RunEnd,
}

/// A run that its holder has to write. Dropping this ends the run.
struct Claim<'s> {
    spread: &'s Spread,
    blocks: Range<u64>,
    end: RunEnd,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.spread.state.lock();
        state.claimed -= 1;
        state.total.written += self.end.written;
        state.total.failed += self.end.failed;
        drop(state);
        self.spread.ended.notify_all();
    }
}

impl Spread {
    /// Claims the next run of at most `most` blocks, as `next_run` finds it.
    fn claim(
        &self,
        most: u64,
        next_run: impl FnOnce(Range<u64>, u64) -> Range<u64>,
    ) -> Option<Claim<'_>> {
        let mut state = self.state.lock();
        let most = most.min(state.allowed);
        if most == 0 {
            return None;
        }
        let blocks = next_run(state.left.clone(), most);
        if blocks.is_empty() {
            state.left.start = state.left.end;
            return None;
        }
        state.left.start = blocks.end;
        state.allowed -= blocks.end - blocks.start;
        state.claimed += 1;
        Some(Claim {
            spread: self,
            blocks,
            end: RunEnd::default(),
        })
    }

    /// Stops the claiming of runs: a write for this reason ends at the first failure.
    fn give_up(&self) {
        self.state.lock().allowed = 0;
    }

    /// Returns the totals, once every claimed run has ended.
    fn wait_ended(&self) -> RunEnd {
        let mut state = self.state.lock();
        while state.claimed > 0 {
            state = self.ended.wait(state);
        }
        RunEnd {
            next: state.left.start,
            ..state.total
        }
    }
}

/// Like [`write_range`], with several runs in flight. The caller holds no lock of a
/// block.
pub(crate) fn write_in_depth(
    core: &FileCore,
    blocks: Range<u64>,
    reason: WriteReason,
    max_blocks: u64,
) -> RunEnd {
    let run = max_run(core, reason);
    let helpers = helpers(core, run, max_blocks.min(core.dirty_blocks()));
    let shared = match helpers {
        0 => None,
        _ => core.me.upgrade(),
    };
    let Some(shared) = shared else {
        return write_range(core, blocks, reason, Wait::Yes, max_blocks);
    };
    let spread = Arc::new(Spread {
        state: Mutex::new(State {
            left: blocks,
            allowed: max_blocks,
            claimed: 0,
            total: RunEnd::default(),
        }),
        ended: Condvar::new(),
    });
    for _ in 0..helpers {
        let (shared, spread) = (shared.clone(), spread.clone());
        let help = Box::new(move || {
            let _here = shared.cache.serving();
            write_claimed(&shared, &spread, reason, run);
        });
        let lane = &core.store_calls;
        core.cache.push(lane, Turn::Shared, help);
    }
    write_claimed(core, &spread, reason, run);
    spread.wait_ended()
}

/// Claims and writes runs until there are none left.
fn write_claimed(core: &FileCore, spread: &Spread, reason: WriteReason, run: u64) {
    let rules = rules(core, reason);
    let next_run = |left, most| core.dirty().next_run(left, most, &rules);
    while let Some(mut claim) = spread.claim(run, next_run) {
        let blocks = claim.blocks.clone();
        claim.end = write_range(core, blocks, reason, Wait::Yes, u64::MAX);
        let in_vain = claim.end.written == 0 && claim.end.failed > 0;
        if reason != WriteReason::Sync && in_vain {
            spread.give_up();
        }
    }
}

/// Returns how many jobs to start for this many dirty blocks in runs of `run`.
fn helpers(core: &FileCore, run: u64, dirty: u64) -> u64 {
    if core.id.write_order == WriteOrder::Ordered || !core.cache.workers.has_threads() {
        return 0;
    }
    let others = dirty.div_ceil(run).saturating_sub(1);
    let room = core.nearest_limit() / FLIGHT_PART / (run << core.block_shift());
    let calls = u64::from(core.store.at_a_time);
    let most = room.min(calls).saturating_sub(1);
    others.min(most).min(MOST_HELPERS)
}
