//! Writes dirty blocks back, and waits for writebacks.
//!
//! One run of adjacent blocks takes these steps, in order (I6): lock the blocks; revoke the right
//! to store through mappings, with one grace period for all; pin the bytes; clear DIRTY and set
//! WRITEBACK; unlock; write; and end each block either clean, or with DIRTY and ERROR set again.
//! The pin is a view: it keeps every writer out of the bytes while the store reads them, so
//! checksums hold. A writer of such a block first waits for WRITEBACK (STABLE), and the pin is
//! dropped before that ends.

use std::io::{self, IoSlice};
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::gate::ROOMS;
use crate::cache::dirty::index::{Dirty, WriteReason, WriteRules};
use crate::cache::dirty::marks::{count_behind, count_clean, count_dirty, list_flushable, rules};
use crate::cache::errors::{FileError, StoreAction, store_panicked};
use crate::cache::lookup::block::{BlockRef, Locked};
use crate::cache::lookup::get::Get;
use crate::cache::map::mappers::Revoke;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::zero_past_end;
use crate::frame::{FlagSet, Pinned};
use crate::reclaim::Pool;
use crate::stats::Event;
use crate::store::{Accepted, write_all_vectored_at};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::MIB;

/// The most bytes that one call to a store writes without a sync, but at least one block.
const MAX_RUN: u64 = MIB;

/// The most bytes that one call to a store writes for a sync: the sync waits for all of them
/// anyway, and a device is faster with large requests.
const MAX_SYNC_RUN: u64 = 4 * MIB;

/// A run longer than [`MAX_RUN`] is at most this part of every limit, since a block that is being
/// written can be neither changed nor evicted.
const SYNC_RUN_PART: u64 = 16;

/// The number of failed calls to the store after which a run is given up, unless a sync asks for
/// it.
const PATIENCE: u32 = 4;

/// The reason why a block stays dirty when its bytes cannot be pinned for the store.
const TOO_MANY_VIEWS: &str = "more views of its block than can be counted";

/// The result of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RunEnd {
    /// The number of blocks written.
    pub(crate) written: u64,
    /// The number of blocks whose write failed.
    pub(crate) failed: u64,
    /// The block at which to continue.
    pub(crate) next: u64,
}

/// How much longer a run that the store refuses is retried.
struct Trying {
    /// The number of failures left.
    patience: u32,
    /// The error of a store that found no memory for the files that it is made of.
    short: Option<FileError>,
}

/// A block whose write is under way. It counts as failed unless noted otherwise.
struct InFlight<'f> {
    held: BlockRef<'f>,
    pinned: Option<Pinned<Pool>>,
    /// The block's entry in the dirty index.
    entry: Dirty,
    /// How many bytes of the block are inside the file.
    len: usize,
    failed: bool,
}

impl InFlight<'_> {
    fn bytes(&self) -> &[u8] {
        let pinned = self.pinned.as_ref().expect("pinned until the write ends");
        &pinned[..self.len]
    }

    /// Whether `next` is the block after this one, and ended in the same way.
    fn goes_on(&self, next: &Self) -> bool {
        self.held.block + 1 == next.held.block && self.failed == next.failed
    }

    /// Clears ERROR after a write that succeeded. Only a failed write sets the flag, and a block
    /// has only one write under way at a time: this one.
    fn clear_error(&self) {
        let flags = &self.held.meta().flags;
        if flags.load().contains(FlagSet::ERROR) {
            flags.clear(FlagSet::ERROR);
        }
    }
}

/// The blocks of one run, in ascending order, whose writes end together.
struct InFlights<'f> {
    file: &'f FileCore,
    blocks: Vec<InFlight<'f>>,
    /// Whether the store has answered, and its failures are recorded for all handles.
    answered: bool,
}

impl Drop for InFlights<'_> {
    fn drop(&mut self) {
        let file = self.file;
        if let (false, [first, .., last] | [first @ last]) = (self.answered, &self.blocks[..]) {
            // A panic has occurred since the writes began. Almost nothing but the store's call runs
            // there, so the store is reported.
            let offset = first.held.block << file.block_shift();
            let end = (last.held.block << file.block_shift()) + last.len as u64;
            let (what, error) = (StoreAction::Write, store_panicked());
            file.writes
                .errors
                .record(file.store_error(what, offset, end - offset, error));
        }
        // The pins are dropped before WRITEBACK ends: a writer that waited for it must find the
        // bytes unpinned.
        self.blocks.iter_mut().for_each(|one| one.pinned = None);
        let mut dirty = file.dirty();
        for run in self.blocks.chunk_by(InFlight::goes_on) {
            let blocks = run[0].held.block..run[run.len() - 1].held.block + 1;
            dirty.end_write(blocks.clone());
            if !run[0].failed {
                run.iter().for_each(InFlight::clear_error);
                if file.id.accepted == Accepted::UntilSync {
                    dirty.accept(blocks.clone());
                }
                if !file.blocks.extents.lock().punched.written(blocks.clone()) {
                    list_flushable(file, &mut dirty);
                    dirty.doubt(blocks);
                }
                continue;
            }
            file.blocks.extents.lock().punched.written_in_part(blocks);
            for one in run {
                let flags = &one.held.meta().flags;
                let before = flags.test_and_set(FlagSet::DIRTY | FlagSet::ERROR);
                if !before.contains(FlagSet::DIRTY) {
                    count_dirty(file, &mut dirty, 1);
                }
                dirty.insert_unwritten(one.held.block, one.entry);
            }
        }
        // Until now, a writer may have taken the block for a hole. It no longer is one, and may
        // soon be evicted, so the epoch moves.
        file.blocks.hole_epoch.fetch_add(1, Ordering::SeqCst);
        count_behind(file, &mut dirty);
        drop(dirty);
        for one in &self.blocks {
            file.frames().end_writeback(one.held.frame);
        }
        file.writes.write_ended.notify_all();
    }
}

/// Writes every block in `blocks` that is dirty now and may be written. Returns the counts of
/// written and failed blocks. Unless a sync asks for the write, a file is skipped for a while
/// after a failure.
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
    let max_run = max_run(core, reason);
    let (mut rooms, mut refused) = (0, 0);
    while total.next < blocks.end && total.written + total.failed < max_blocks {
        let rules = rules(core, reason);
        let left = max_blocks - total.written - total.failed;
        let max = max_run.min(left);
        let run = core.dirty().next_run(total.next..blocks.end, max, &rules);
        if run.is_empty() {
            total.next = blocks.end;
            break;
        }
        let len = run.end - run.start;
        let (end, short) = write_run(core, run, &rules, mode);
        total.written += end.written;
        if let Some(error) = short {
            // No write of this thread is under way any more, so reclaim, which may wait for
            // one, can be called.
            rooms = if end.written > 0 { 0 } else { rooms + 1 };
            if rooms <= ROOMS && core.make_room_below(&error, len) {
                continue;
            }
            // Other reasons do not count this as a failure of the store: the blocks are written
            // later.
            refused += end.failed;
            if reason == WriteReason::Sync {
                core.writes.errors.record(error);
            }
        }
        total.failed += end.failed;
        total.next = end.next;
        if reason != WriteReason::Sync && end.written == 0 && end.failed > 0 {
            break;
        }
    }
    let now = core.pool.background.now();
    let failed = total.failed - refused;
    core.writes.backoff.note(total.written, failed, now);
    total
}

/// Returns the most blocks of one run.
pub(crate) fn max_run(core: &FileCore, reason: WriteReason) -> u64 {
    let bytes = match reason {
        WriteReason::Sync => max_sync_run(core),
        WriteReason::Flusher { .. } | WriteReason::Pressure => MAX_RUN,
    };
    (bytes >> core.block_shift()).max(1)
}

/// Returns the most bytes of one run of a sync, by the nearest limit of the groups that pay for
/// the file.
fn max_sync_run(core: &FileCore) -> u64 {
    (core.nearest_limit() / SYNC_RUN_PART).clamp(MAX_RUN, MAX_SYNC_RUN)
}

/// Writes one run of adjacent blocks, as far as their locks are free. An error means that the
/// store found no memory for the files that it is made of. That error is not recorded, since
/// the caller may make room.
fn write_run(
    core: &FileCore,
    run: Range<u64>,
    rules: &WriteRules,
    mode: Wait,
) -> (RunEnd, Option<FileError>) {
    let mut locked: Vec<Locked<'_>> = Vec::with_capacity((run.end - run.start) as usize);
    let mut next = run.start;
    for block in run.clone() {
        let wait = if locked.is_empty() { mode } else { Wait::No };
        match lock_dirty(core, block, wait) {
            Ok(Some(one)) => locked.push(one),
            // The block is not dirty any more: the run ends here, or begins later.
            Ok(None) if locked.is_empty() => {}
            _ => break,
        }
        next = block + 1;
    }
    if locked.is_empty() {
        // A block that could not be locked is skipped, so that the caller makes progress.
        let end = RunEnd {
            next: next.max(run.start + 1),
            ..RunEnd::default()
        };
        return (end, None);
    }
    end_store_translations(core, &locked);
    let mut in_flight = begin_writes(core, locked, rules);
    let (written, failed, short) = write_in_flight(core, &mut in_flight.blocks, rules.reason);
    in_flight.answered = true;
    drop(in_flight);
    let end = RunEnd {
        written,
        failed,
        next,
    };
    (end, short)
}

/// Locks a block that is dirty, when it is stable. Returns `None` if it is not dirty. May fail with
/// "would block".
fn lock_dirty(core: &FileCore, block: u64, wait: Wait) -> Result<Option<Locked<'_>>, FileError> {
    let is_dirty = |one: &Locked<'_>| one.meta().flags.load().contains(FlagSet::DIRTY);
    let locked = core.find_lock(block, Get::waiting(wait))?;
    let Some(locked) = locked.filter(is_dirty) else {
        return Ok(None);
    };
    if wait == Wait::No && !locked.is_stable() {
        return Err(core.would_block_in(block));
    }
    locked.wait_stable();
    Ok(Some(locked))
}

/// Takes the right to store through mappings away from locked blocks, with one grace period for
/// all.
fn end_store_translations(core: &FileCore, locked: &[Locked<'_>]) {
    let wmapped = |one: &&Locked<'_>| one.meta().hold.load().is_wmapped();
    let Some(first) = locked.iter().find(wmapped).map(Locked::block) else {
        return;
    };
    let last = locked.iter().rfind(wmapped).map_or(first, Locked::block);
    core.revoke(first..last + 1, Revoke::Write);
    core.grace();
    for one in locked.iter().filter(wmapped) {
        zero_past_end(core, one);
        one.meta().hold.clear_wmapped();
    }
}

/// Pins locked blocks, turns DIRTY into WRITEBACK, and unlocks them. Blocks that must not be
/// written after all are left as they are.
fn begin_writes<'f>(
    core: &'f FileCore,
    locked: Vec<Locked<'f>>,
    rules: &WriteRules,
) -> InFlights<'f> {
    let mut ready = Vec::with_capacity(locked.len());
    for one in locked {
        let start = one.block() << core.block_shift();
        let len = core.size().saturating_sub(start).min(core.block_bytes()) as usize;
        if len == 0 {
            // The block is being cut off, so its write would not begin.
            continue;
        }
        match Pinned::try_new(&core.pool, one.frame(), 0..core.block_bytes() as usize) {
            Some(pinned) => ready.push((one, pinned, len)),
            // The block is written later, but a sync must not report that it was written.
            None if rules.reason == WriteReason::Sync => {
                let error = io::Error::new(io::ErrorKind::ResourceBusy, TOO_MANY_VIEWS);
                let error = core.store_error(StoreAction::Write, start, len as u64, error);
                core.writes.errors.record(error);
            }
            None => {}
        }
    }
    failpoint!(WriteBeginning);
    let mut in_flight = InFlights {
        file: core,
        blocks: Vec::with_capacity(ready.len()),
        answered: false,
    };
    let entries = begin_in_index(core, &ready, rules);
    for ((one, pinned, len), entry) in ready.into_iter().zip(entries) {
        let Some(entry) = entry else {
            continue;
        };
        in_flight.blocks.push(InFlight {
            held: one.unlock(),
            pinned: Some(pinned),
            entry,
            len,
            failed: true,
        });
    }
    in_flight
}

/// Turns DIRTY into WRITEBACK for locked blocks, which are in ascending order, under one lock
/// of the dirty index. Returns the entry of each block that may be written.
fn begin_in_index(
    core: &FileCore,
    ready: &[(Locked<'_>, Pinned<Pool>, usize)],
    rules: &WriteRules,
) -> Vec<Option<Dirty>> {
    let mut entries = Vec::with_capacity(ready.len());
    let mut dirty = core.dirty();
    for run in ready.chunk_by(|(one, ..), (next, ..)| one.block() + 1 == next.block()) {
        let first = run[0].0.block();
        let mut rest = run;
        while let Some((one, ..)) = rest.first() {
            let Some((end, entry)) =
                dirty.begin_write_if(one.block()..first + run.len() as u64, rules)
            else {
                entries.push(None);
                rest = &rest[1..];
                continue;
            };
            let (begun, behind) = rest.split_at((end - one.block()) as usize);
            for (one, ..) in begun {
                one.meta().flags.clear(FlagSet::DIRTY);
                core.frames().lock_of(one.frame()).set_writeback();
                entries.push(Some(entry));
            }
            count_clean(core, begun.len());
            rest = behind;
        }
    }
    count_behind(core, &mut dirty);
    entries
}

/// Calls the store for blocks in flight, run by run.
fn write_in_flight(
    core: &FileCore,
    in_flight: &mut [InFlight<'_>],
    reason: WriteReason,
) -> (u64, u64, Option<FileError>) {
    let (mut written, mut failed) = (0, 0);
    let mut trying = Trying {
        patience: match reason {
            WriteReason::Sync => u32::MAX,
            WriteReason::Flusher { .. } | WriteReason::Pressure => PATIENCE,
        },
        short: None,
    };
    let mut rest = in_flight;
    while !rest.is_empty() {
        let adjacent = rest.windows(2).take_while(|pair| {
            pair[0].held.block + 1 == pair[1].held.block && pair[0].len as u64 == core.block_bytes()
        });
        let len = adjacent.count() + 1;
        let (run, behind) = rest.split_at_mut(len);
        rest = behind;
        let good = write_split(core, run, &mut trying);
        written += good;
        failed += len as u64 - good;
    }
    count(&core.counters.written, written);
    count(&core.counters.write_errors, failed);
    core.pool
        .counters
        .add(Event::PgOut, written * core.block_pages());
    core.pool.counters.add(Event::WriteError, failed);
    (written, failed, trying.short)
}

/// Writes adjacent blocks. If that fails, writes the two halves separately, so that a bad block
/// does not make its neighbours fail, and a few are written if there is no memory for all. Each
/// failure of the store takes from the patience. Once that is used up, or the store has found
/// no memory for a single block, the rest is not tried. Returns how many blocks were written.
fn write_split(core: &FileCore, run: &mut [InFlight<'_>], trying: &mut Trying) -> u64 {
    if trying.patience == 0 || trying.short.is_some() {
        return 0;
    }
    match store_run(core, run) {
        Ok(()) => run.len() as u64,
        Err(error) => {
            let is_short = core.is_short_below(&error);
            trying.patience -= u32::from(!is_short);
            if run.len() == 1 || trying.patience == 0 {
                match is_short {
                    true => trying.short = Some(error),
                    false => core.writes.errors.record(error),
                }
                return 0;
            }
            let (first, second) = run.split_at_mut(run.len() / 2);
            write_split(core, first, trying) + write_split(core, second, trying)
        }
    }
}

/// Writes adjacent blocks with one call, or with as many as are needed if the store writes less
/// than requested.
fn store_run(core: &FileCore, run: &mut [InFlight<'_>]) -> Result<(), FileError> {
    let store = core.store()?;
    let offset = run[0].held.block << core.block_shift();
    let len: u64 = run.iter().map(|one| one.len as u64).sum();
    count(&core.counters.store_writes, 1);
    let result = {
        let mut slices: Vec<IoSlice<'_>> =
            run.iter().map(|one| IoSlice::new(one.bytes())).collect();
        let _call = core.store_change();
        let _changing = core.writes.syncs.changing();
        write_all_vectored_at(&**store, &mut slices, offset)
    };
    // This comes before WRITEBACK ends and the block can be evicted: the answer to a query for
    // holes that ran meanwhile may cover the block.
    core.blocks.extents.lock().cut_hole(&(offset..offset + len));
    result.map_err(|error| core.store_error(StoreAction::Write, offset, len, error))?;
    core.blocks.stored.fetch_max(offset + len, Ordering::AcqRel);
    run.iter_mut().for_each(|one| one.failed = false);
    if core.is_closed() {
        core.cache.note_written_at_end();
    }
    Ok(())
}
