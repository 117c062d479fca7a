//! Writes dirty blocks back.
//!
//! One run of adjacent blocks takes these steps, in order (I6): lock the blocks; revoke the right
//! to store through mappings, with one grace period for all; pin the bytes; clear DIRTY and set
//! WRITEBACK; unlock; write; and end each block either clean, or with DIRTY and ERROR set again.
//! The pin is a view: it keeps every writer from changing the bytes while the store reads them, so
//! checksums hold. A writer of such a block first waits until WRITEBACK ends (STABLE), and the pin
//! is dropped before WRITEBACK ends.

use std::io::{self, IoSlice};
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::gate::ROOMS;
use crate::cache::dirty::index::{Dirty, WriteReason, WriteRules};
use crate::cache::dirty::marks::{publish, rules};
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::block::{BlockRef, Locked};
use crate::cache::lookup::get::Get;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::end_write_mappings;
use crate::frame::{FlagSet, Pinned};
use crate::reclaim::Pool;
use crate::stats::Event;
use crate::store::{Accepted, write_all_vectored_at};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::sync::panics::Panics;
use crate::units::MIB;

/// The most bytes that one call to a store writes, unless the write is for a sync. At least one
/// block is written.
const MAX_RUN: u64 = MIB;

/// The most bytes that one call to a store writes for a sync: the sync waits for all of them
/// anyway, and a device is faster with large requests.
const MAX_SYNC_RUN: u64 = 4 * MIB;

/// A run longer than [`MAX_RUN`] takes at most `1 / SYNC_RUN_PART` of every limit, since a block
/// that is being written can be neither changed nor evicted.
const SYNC_RUN_PART: u64 = 16;

/// The number of failed calls to the store after which the rest of a run is given up, unless the
/// write is for a sync.
const PATIENCE: u32 = 4;

/// The reason why a block stays dirty when its bytes cannot be pinned for the store.
const TOO_MANY_VIEWS: &str = "more views of its block than can be counted";

/// The outcome of writing blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RunEnd {
    /// The number of blocks written.
    pub(crate) written: u64,
    /// The number of blocks whose write failed, or was given up.
    pub(crate) failed: u64,
    /// The number of blocks among `failed` that are in runs given up because the files below the
    /// store lacked memory.
    pub(crate) refused: u64,
    /// The block at which to continue.
    pub(crate) next: u64,
}

/// The state of one run's calls to the store.
struct Trying {
    /// The number of blocks written.
    written: u64,
    /// The number of failures left before the rest is given up.
    patience: u32,
    /// The error of a store that found no memory for the files below it.
    short: Option<FileError>,
    /// The panic of the store, if there was one. It ends the run.
    panics: Panics,
}

/// A block whose write is under way.
struct InFlight<'f> {
    held: BlockRef<'f>,
    pinned: Pinned<Pool>,
    /// The block's entry in the dirty index, which it gets back if the write fails.
    entry: Dirty,
    /// How many bytes of the block are inside the file.
    len: usize,
    failed: bool,
}

/// Returns the largest number of blocks in one run.
pub(super) fn max_run(core: &FileCore, reason: WriteReason) -> u64 {
    let bytes = match reason {
        WriteReason::Sync => (core.nearest_limit() / SYNC_RUN_PART).clamp(MAX_RUN, MAX_SYNC_RUN),
        WriteReason::Flusher { .. } | WriteReason::Pressure => MAX_RUN,
    };
    (bytes >> core.block_shift()).max(1)
}

/// Writes the blocks in `blocks` that are dirty now and may be written. Adjacent blocks whose locks
/// are free are written as one run. If the files below the store lack memory, makes room and tries
/// again. Unless the write is for a sync, stops at the first run that failed as a whole.
/// A lack of memory below the store is recorded as a failure only for a sync.
pub(super) fn write_blocks(
    core: &FileCore,
    blocks: Range<u64>,
    reason: WriteReason,
    mode: Wait,
) -> RunEnd {
    let mut total = RunEnd {
        next: blocks.start,
        ..RunEnd::default()
    };
    let mut rooms = 0;
    loop {
        let rules = rules(core, reason);
        let run = core
            .dirty()
            .next_run(total.next..blocks.end, u64::MAX, &rules);
        if run.is_empty() {
            return total;
        }
        let (end, short) = write_run(core, run.clone(), &rules, mode);
        total.written += end.written;
        if let Some(error) = short {
            // No write of this thread is under way here, so reclaim can be called, which may wait
            // for a write to end.
            rooms = if end.written > 0 { 0 } else { rooms + 1 };
            if rooms <= ROOMS && core.make_room_below(&error, run.end - run.start) {
                continue;
            }
            total.refused += end.failed;
            if reason == WriteReason::Sync {
                core.writes.errors.record(error);
            }
        }
        total.failed += end.failed;
        total.next = end.next;
        if reason != WriteReason::Sync && end.written == 0 && end.failed > 0 {
            return total;
        }
    }
}

/// Writes one run of adjacent blocks. The run ends early at a further block that is no longer dirty
/// or not stable, or whose lock is not free. Returns an error if the store found no memory for the
/// files below it. That error is not recorded, since the caller may make room.
fn write_run(
    core: &FileCore,
    run: Range<u64>,
    rules: &WriteRules,
    mode: Wait,
) -> (RunEnd, Option<FileError>) {
    let mut locked: Vec<Locked<'_>> = Vec::with_capacity((run.end - run.start) as usize);
    // A first block that cannot be locked is skipped, so that the caller makes progress.
    let mut end = RunEnd {
        next: run.start + 1,
        ..RunEnd::default()
    };
    for block in run {
        let wait = if locked.is_empty() { mode } else { Wait::No };
        match lock_dirty(core, block, wait) {
            Ok(Some(one)) => locked.push(one),
            // The block is not dirty any more: the run ends here, or begins later.
            Ok(None) if locked.is_empty() => {}
            _ => break,
        }
        end.next = block + 1;
    }
    if locked.is_empty() {
        return (end, None);
    }
    end_write_mappings(core, &locked);
    let mut in_flight = begin_writes(core, locked, rules);
    let mut trying = Trying {
        written: 0,
        patience: match rules.reason {
            WriteReason::Sync => u32::MAX,
            WriteReason::Flusher { .. } | WriteReason::Pressure => PATIENCE,
        },
        short: None,
        panics: Panics::default(),
    };
    for run in in_flight.chunk_by_mut(|one, next| {
        one.held.block + 1 == next.held.block && one.len as u64 == core.block_bytes()
    }) {
        write_split(core, run, &mut trying);
    }
    end.written = trying.written;
    end.failed = in_flight.len() as u64 - trying.written;
    count(&core.counters.written, end.written);
    count(&core.counters.write_errors, end.failed);
    let counters = &core.pool.counters;
    counters.add(Event::PgOut, end.written * core.block_pages());
    counters.add(Event::WriteError, end.failed);
    end_writes(core, in_flight);
    trying.panics.go_on();
    (end, trying.short)
}

/// Locks a dirty block, and waits until it is stable. Returns `None` if it is not dirty. With
/// [`Wait::No`], returns "would block" instead of waiting.
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

/// Pins locked blocks, turns DIRTY into WRITEBACK, and unlocks them. The blocks are in ascending
/// order. Returns the blocks whose write has begun. Blocks that must not be written after all, or
/// cannot be pinned, stay dirty. For a sync, a block that cannot be pinned is recorded as a
/// failure.
fn begin_writes<'f>(
    core: &'f FileCore,
    locked: Vec<Locked<'f>>,
    rules: &WriteRules,
) -> Vec<InFlight<'f>> {
    let mut ready = Vec::with_capacity(locked.len());
    for one in locked {
        let start = one.block() << core.block_shift();
        let len = core.size().saturating_sub(start).min(core.block_bytes()) as usize;
        if len == 0 {
            // The block is being cut off, so its write would not begin anyway.
            continue;
        }
        match Pinned::try_new(&core.pool, one.frame(), 0..core.block_bytes() as usize) {
            Some(pinned) => ready.push((one, pinned, len, None)),
            // The block is written later. But a sync must not report that it has been written.
            None if rules.reason == WriteReason::Sync => {
                let error = io::Error::new(io::ErrorKind::ResourceBusy, TOO_MANY_VIEWS);
                let error = core.store_error(StoreAction::Write, start, len as u64, error);
                core.writes.errors.record(error);
            }
            None => {}
        }
    }
    failpoint!(WriteBeginning);
    let mut dirty = core.dirty();
    for run in ready.chunk_by_mut(|(one, ..), (next, ..)| one.block() + 1 == next.block()) {
        let mut rest = run;
        while let [(first, ..), ..] = rest {
            let first = first.block();
            let blocks = first..first + rest.len() as u64;
            let Some((end, entry)) = dirty.begin_write_if(blocks, rules) else {
                rest = &mut rest[1..];
                continue;
            };
            let (begun, behind) = rest.split_at_mut((end - first) as usize);
            for (one, .., noted) in &mut *begun {
                one.meta().flags.clear(FlagSet::DIRTY);
                core.frames().lock_of(one.frame()).set_writeback();
                *noted = Some(entry);
            }
            rest = behind;
        }
    }
    publish(core, &mut dirty);
    drop(dirty);
    let begun = ready.into_iter().filter_map(|(one, pinned, len, entry)| {
        Some(InFlight {
            entry: entry?,
            held: one.unlock(),
            pinned,
            len,
            failed: true,
        })
    });
    begun.collect()
}

/// Writes adjacent blocks with one call, or with several if the store writes less than requested.
/// If a call fails, writes the two halves separately. So a bad block does not make its neighbours
/// fail, and some blocks are written if there is no memory for all. Each failure uses up one unit
/// of the patience, unless the files below the store lacked memory. When the patience is used up,
/// the store panics, or there is no memory even for a single block, the rest is not tried. A
/// failure whose blocks are not tried again is recorded, unless the files below the store lacked
/// memory.
fn write_split(core: &FileCore, run: &mut [InFlight<'_>], trying: &mut Trying) {
    if trying.patience == 0 || trying.short.is_some() {
        return;
    }
    let offset = run[0].held.block << core.block_shift();
    let len: u64 = run.iter().map(|one| one.len as u64).sum();
    let write = || {
        core.change_store(StoreAction::Write, (offset, len), |store| {
            let bytes = run.iter().map(|one| IoSlice::new(&one.pinned[..one.len]));
            write_all_vectored_at(store, &mut bytes.collect::<Vec<_>>(), offset)
        })
    };
    count(&core.counters.store_writes, 1);
    let result = core.caught(&mut trying.panics, StoreAction::Write, (offset, len), write);
    // A query for holes that ran during the write may have recorded a hole over these blocks. The
    // record is corrected before WRITEBACK ends and the blocks can be evicted.
    core.blocks.extents.lock().cut_hole(&(offset..offset + len));
    let Err(error) = result else {
        core.blocks.stored.fetch_max(offset + len, Ordering::AcqRel);
        run.iter_mut().for_each(|one| one.failed = false);
        trying.written += run.len() as u64;
        if core.is_closed() {
            core.cache.note_written_at_end();
        }
        return;
    };
    let is_short = core.is_short_below(&error);
    trying.patience -= u32::from(!is_short);
    if trying.panics.is_any() {
        trying.patience = 0;
    }
    if run.len() > 1 && trying.patience > 0 {
        let (first, second) = run.split_at_mut(run.len() / 2);
        write_split(core, first, trying);
        write_split(core, second, trying);
    } else if is_short {
        trying.short = Some(error);
    } else {
        core.writes.errors.record(error);
    }
}

/// Ends the writes of blocks: each block becomes clean, or dirty again. The blocks are in ascending
/// order.
fn end_writes(core: &FileCore, blocks: Vec<InFlight<'_>>) {
    // The pins are dropped before WRITEBACK ends: a writer that waited for its end must find the
    // bytes unpinned.
    let blocks: Vec<_> = blocks
        .into_iter()
        .map(|one| (one.held, one.entry, one.failed))
        .collect();
    let mut dirty = core.dirty();
    for run in blocks.chunk_by(|(one, _, failed), (next, _, next_failed)| {
        one.block + 1 == next.block && failed == next_failed
    }) {
        let numbers = run[0].0.block..run[run.len() - 1].0.block + 1;
        dirty.end_write(numbers.clone());
        if !run[0].2 {
            // Only a failed write sets ERROR, and a block has only one write under way at a time,
            // so no other thread changes ERROR now.
            for (one, ..) in run {
                let flags = &one.meta().flags;
                if flags.load().contains(FlagSet::ERROR) {
                    flags.clear(FlagSet::ERROR);
                }
            }
            if core.id.accepted == Accepted::UntilSync {
                dirty.accept(numbers.clone());
            }
            if !core.blocks.extents.lock().punched.written(numbers.clone()) {
                dirty.doubt(numbers);
            }
            continue;
        }
        core.blocks.extents.lock().punched.written_in_part(numbers);
        for (one, entry, _) in run {
            one.meta().flags.set(FlagSet::DIRTY | FlagSet::ERROR);
            dirty.insert_unwritten(one.block, *entry);
        }
    }
    // Until now, a writer may have regarded a block as a hole. It is no longer a hole, and may soon
    // be evicted, so the epoch advances.
    core.blocks.hole_epoch.fetch_add(1, Ordering::SeqCst);
    publish(core, &mut dirty);
    drop(dirty);
    for (one, ..) in &blocks {
        core.frames().end_writeback(one.frame);
    }
    core.writes.write_ended.notify_all();
}
