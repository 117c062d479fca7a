//! Requests in flight: reads of a file's store that continue without a thread that waits.
//!
//! [`FileCore::request_for`] takes neighbouring blocks that were just made (in the index, locked,
//! not up to date), and notes them in the file's table. [`FileCore::submit`] hands them to
//! [`Store::submit`]. From then on, until the store completes the request, the [`Fill`] owns the
//! right to change the blocks' bytes, and a reference to each frame. If the store completes the
//! request with bytes missing, or with an error for several blocks, the request is queued, and
//! these bytes are read by plain calls: by a worker, or by a thread that waits for one of the
//! blocks ([`FileCore::wait_made`]). If a request cannot be called back when its file is closed, it
//! is *detached*: its blocks leave the index, and the frames stay with the request until the store
//! completes it. No frame to which a store may still write is reused (R6).
//!
//! The pages in flight are bounded for each group above the file ([`FileCore::room_in_flight`]).
//! The states of a request, and the argument for waiting without threads, are in
//! `docs/protocols/requests.md`.
//!
//! Locking: the table's mutex is an innermost lock, and so is the lock of each queued request. A
//! completion takes the mutex of the index, for blocks that could not be filled, and no lock
//! outside it.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::store_handle::StoreHandle;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::block::{BlockRef, NewBlock};
use crate::cache::read::content::stored_bytes;
use crate::exec::{Entry, Job, Stage, Turn, is_in_job};
use crate::frame::{Bit, Fills, ReadEnd, Uses};
use crate::reclaim::{Pool, StoreScope};
use crate::stats::Event;
use crate::store::{
    Batch, Operation, Own, Request, Store, StoreError, Transfer, read_vectored_or_eof,
    short_read_error,
};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::panics::{Panics, caught};
use crate::units::FrameId;

/// Requests in flight take at most `1 / FLIGHT_PART` of every limit.
pub(crate) const FLIGHT_PART: u64 = 8;

/// A read of neighbouring blocks. If this is dropped before the read has ended, the read counts as
/// failed.
pub(crate) struct Fill {
    core: Arc<FileCore>,
    request: Arc<Entry<Box<dyn Job>>>,
    /// `None` once the request has ended.
    fills: Option<Fills<Pool>>,
    /// The number of bytes that the store has for the blocks.
    wanted: usize,
    /// The number of bytes read so far. `None` if reading the blocks together failed: they are then
    /// read one by one.
    done: Option<usize>,
    /// Whether no caller needs the blocks yet.
    is_ahead: bool,
    /// Keeps the store in use until the request is over. The next open of the same store waits for
    /// that.
    store: Option<Arc<StoreHandle>>,
}

/// The job of a queued request: makes the call to the store.
impl Job for Fill {
    fn run(self: Box<Self>) {
        self.read_here();
    }
}

impl Transfer for Fill {
    fn len(&self) -> usize {
        self.wanted
    }

    fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>> {
        self.fills.as_mut().expect("not over").slices_mut(bytes)
    }

    fn slices(&self, _: Range<usize>) -> Vec<IoSlice<'_>> {
        Vec::new()
    }

    fn complete(self: Box<Self>, result: io::Result<usize>) {
        let cache = self.core.cache.clone();
        self.take_result(result);
        if !cache.is_served() {
            cache.serve_waiting_if_abandoned();
            cache.run_deferred_if_abandoned();
        }
    }

    fn by_ring(&self) -> Option<Arc<crate::store::Flights>> {
        self.core.cache.flights()
    }

    fn take_back(self: Box<Self>) -> Option<Box<dyn Transfer>> {
        self.queue();
        None
    }
}

impl Fill {
    fn first(&self) -> u64 {
        self.request.blocks().start
    }

    /// Returns the number of blocks.
    fn blocks(&self) -> u64 {
        self.request.blocks().end - self.first()
    }

    /// Takes the store's answer. If bytes are missing, they are left to a thread that makes calls
    /// to the store, because the store may hold its own locks here.
    fn take_result(mut self: Box<Self>, result: io::Result<usize>) {
        match result {
            Ok(count) if count == self.wanted => {
                self.done = Some(count);
                return self.end(Vec::new());
            }
            // A store may transfer fewer bytes. If it reports more than were requested, none of
            // them count as read.
            Ok(count) => self.done = Some(if count < self.wanted { count } else { 0 }),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The read was not attempted.
            Err(error) if StoreError::is_abandoned(&error) => {}
            Err(error) if self.blocks() == 1 => {
                let error = self.error(error);
                return self.end(vec![Some(error)]);
            }
            Err(_) => self.done = None,
        }
        self.queue();
    }

    /// Queues the request for a thread that makes calls to the store. If the file was closed, gives
    /// the request up instead.
    fn queue(self: Box<Self>) {
        let (core, request) = (self.core.clone(), self.request.clone());
        if let Some(given_up) = core.requests.queue(&request, self) {
            return drop(given_up);
        }
        core.cache
            .push(&core.store_calls, Turn::Shared, Box::new(Call(request)));
    }

    fn error(&self, error: io::Error) -> FileError {
        let offset = self.first() << self.core.block_shift();
        let len = self.wanted as u64;
        self.core.store_error(StoreAction::Read, offset, len, error)
    }

    /// Reads the missing bytes by plain calls to the store, in this thread.
    fn read_here(mut self) {
        let (core, first, blocks) = (self.core.clone(), self.first(), self.blocks() as usize);
        let (what, bytes) = (
            StoreAction::Read,
            (first << core.block_shift(), self.wanted as u64),
        );
        let mut panics = Panics::default();
        let read = core.caught(&mut panics, what, bytes, || {
            let (store, fills) = (core.store()?, self.fills.as_mut().expect("not over"));
            let _call = core.store_call();
            Ok(core.read_fills(&**store, fills, first, self.done, self.wanted))
        });
        panics.forget();
        self.end(read.unwrap_or_else(|error| vec![Some(error); blocks]));
    }

    /// Ends the request: each block becomes up to date, or is removed from the index with the error
    /// at its position in `errors`. Wakers of futures are called at the end, by this job or
    /// another, where no lock is held.
    fn end(&mut self, errors: Vec<Option<FileError>>) {
        let Some(fills) = &mut self.fills else {
            return;
        };
        zero_from(fills, self.wanted);
        let core = self.core.clone();
        let failed = errors.iter().flatten().count() as u64;
        let mut errors = errors.into_iter();
        let filled = self.blocks() - failed;
        self.leave(|block, new| match errors.next().flatten() {
            None => drop(new.finish_unnoted()),
            Some(error) => {
                // The error comes first: a future that finds the block gone, and no error, reads
                // the block again.
                core.ready.failed(block, &error);
                new.fail(&error);
            }
        });
        count(&core.counters.filled, filled);
        let pages = filled * core.block_pages();
        core.pool.counters.add(Event::PgIn, pages);
        if self.is_ahead {
            count(&core.counters.ahead, filled);
            core.pool.counters.add(Event::PgReadAhead, pages);
        }
        core.ready.filled(self.request.blocks().clone());
        core.wake_due_elsewhere();
    }

    /// Ends the request, if it has not ended. Passes each block to `settle`, unless the request was
    /// detached from its file. A block that `settle` drops is removed from the index, and its
    /// waiters fill it themselves.
    fn leave(&mut self, mut settle: impl FnMut(u64, NewBlock<'_>)) {
        let Some(fills) = self.fills.take() else {
            return;
        };
        let core = &*self.core;
        let blocks = self.request.blocks().clone();
        let pages = core.pages_of(blocks.clone());
        // The request leaves the table before a block is unlocked: once unlocked, the block may be
        // evicted, and be in flight again.
        let leaving = core.requests.leave(&self.request);
        core.cache
            .count_landed(&core.id.groups, pages.end - pages.start);
        for (block, frame) in blocks.zip(fills.blocks().iter().copied()) {
            match leaving.was {
                Stage::Attached => settle(block, NewBlock::adopt(core, frame, block)),
                Stage::Detached | Stage::Over => core.free_detached(frame),
            }
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.fills.is_some() {
            self.leave(|_, new| drop(new));
            self.core.wake_due_elsewhere();
        }
        // If the file was closed meanwhile, this may be the last reference to its store, and
        // dropping a store may run any code. The current thread may be any one, even one of the
        // store's own in a completion. So the drop is deferred.
        let last = self.store.take().and_then(Arc::into_inner);
        if let Some(store) = last {
            let core = &self.core;
            let (group, owner) = (core.id.group.id(), core.id.owner);
            core.cache.defer(group, Some(owner), move || drop(store));
        }
    }
}

/// Clears the bytes from `start` on, which the store does not have.
pub(super) fn zero_from(fills: &mut Fills<Pool>, start: usize) {
    let end = fills.len();
    for mut rest in fills.slices_mut(start..end) {
        rest.fill(0);
    }
}

/// A job that makes the call to the store for a request, unless the call was already made.
struct Call(Arc<Entry<Box<dyn Job>>>);

impl Job for Call {
    fn run(self: Box<Self>) {
        if let Some(fill) = self.0.take() {
            fill.run();
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.is_queued()
    }
}

impl FileCore {
    /// Returns how many more blocks may be put in flight now under the limits of all groups that
    /// pay for the file.
    pub(crate) fn room_in_flight(&self) -> u64 {
        let rooms = self.id.groups.iter().map(|group| {
            let max = self.pool.groups.max(*group).map_or(u64::MAX, |max| max.0);
            (max / FLIGHT_PART).saturating_sub(self.cache.in_flight.of(*group))
        });
        rooms.min().unwrap_or(0) >> self.id.order
    }

    /// Turns neighbouring blocks that were just made into a request.
    pub(crate) fn request_for(&self, run: Vec<NewBlock<'_>>) -> Request {
        let first = run[0].block();
        let blocks = first..first + run.len() as u64;
        self.end_visible_holes(&run);
        let bytes = self.stored_range(&blocks);
        let core = self.me.upgrade().expect("who reads it has it");
        let is_ahead = self.frames().meta(run[0].frame()).uses.has(Uses::AHEAD);
        let frames = run.into_iter().map(NewBlock::into_frame).collect();
        let fills = Fills::adopt(&self.pool, frames, self.block_bytes() as usize);
        let pages = self.pages_of(blocks.clone());
        self.cache
            .in_flight
            .add(&self.id.groups, pages.end - pages.start);
        let request = self.requests.add(blocks);
        let fill = Box::new(Fill {
            core,
            request,
            fills: Some(fills),
            wanted: (bytes.end - bytes.start) as usize,
            done: Some(0),
            is_ahead,
            store: self.store().ok(),
        });
        count(&self.counters.store_reads, 1);
        Request::new(Operation::Read, bytes.start, fill)
    }

    /// Hands requests to the store. A panic of the store goes no further, because the caller may
    /// not need any of these requests. Requests that the store drops in the panic fail, and are
    /// then read by plain calls.
    pub(crate) fn submit(&self, batch: Batch) {
        if batch.remaining() == 0 {
            return;
        }
        match self.store() {
            Ok(store) => {
                let submitted = caught(|| {
                    let _call = self.store_call();
                    store.submit(batch);
                });
                // The panic hook has reported the panic.
                submitted.unwrap_or_else(std::mem::forget);
            }
            // Dropping the requests makes them fail.
            Err(_) => drop(batch),
        }
    }

    /// Returns the part of these blocks' byte range that the store has.
    pub(crate) fn stored_range(&self, blocks: &Range<u64>) -> Range<u64> {
        let start = blocks.start << self.block_shift();
        let last = stored_bytes(self, blocks.end - 1);
        start..last.end.max(start)
    }

    /// Reads the first `wanted` bytes of neighbouring blocks, which begin with `first`, by plain
    /// calls to the store. The first `done` of these bytes have already been read. If `done` is
    /// `None`, or reading the rest together fails, reads the blocks one by one. Returns an error or
    /// `None` for each block, or an empty list if all were read together.
    pub(crate) fn read_fills(
        &self,
        store: &dyn Store,
        fills: &mut Fills<Pool>,
        first: u64,
        done: Option<usize>,
        wanted: usize,
    ) -> Vec<Option<FileError>> {
        let together = done.map(|done| self.read_bytes(store, fills, first, done..wanted));
        match together {
            Some(Ok(())) => Vec::new(),
            Some(Err(error)) if fills.blocks().len() == 1 => vec![Some(error)],
            Some(Err(_)) | None => self.read_singly(store, fills, first, wanted),
        }
    }

    /// Reads the bytes `part` of neighbouring blocks, counted from the beginning of the block
    /// `first`. Returns an error if the store has fewer.
    fn read_bytes(
        &self,
        store: &dyn Store,
        fills: &mut Fills<Pool>,
        first: u64,
        part: Range<usize>,
    ) -> Result<(), FileError> {
        let offset = (first << self.block_shift()) + part.start as u64;
        let wanted = part.len();
        let mut slices = fills.slices_mut(part);
        if !store.fills_as_told(Own::ASKS) {
            slices.iter_mut().for_each(|slice| slice.fill(0));
        }
        let read = read_vectored_or_eof(store, &mut slices, offset).and_then(|got| {
            if got == wanted {
                return Ok(());
            }
            let was = self.blocks.stored.load(Ordering::Acquire);
            let (wanted, got) = (wanted as u64, got as u64);
            Err(short_read_error(store, offset, wanted, got, was))
        });
        read.map_err(|error| self.store_error(StoreAction::Read, offset, wanted as u64, error))
    }

    /// Reads the first `wanted` bytes of neighbouring blocks, block by block. Returns an error or
    /// `None` for each block.
    fn read_singly(
        &self,
        store: &dyn Store,
        fills: &mut Fills<Pool>,
        first: u64,
        wanted: usize,
    ) -> Vec<Option<FileError>> {
        let block_bytes = self.block_bytes() as usize;
        let starts = (0..fills.len()).step_by(block_bytes);
        let read = |start: usize| {
            let part = start..wanted.min(start + block_bytes).max(start);
            count(&self.counters.store_reads, 1);
            self.read_bytes(store, fills, first, part).err()
        };
        starts.map(read).collect()
    }

    /// Waits until the fill of a block has ended, with or without success. If the block's request
    /// is queued, makes the call to the store itself.
    pub(crate) fn wait_made(&self, held: &BlockRef<'_>) {
        let in_flight = &self.requests;
        if !self.cache.is_served() {
            let is_being_filled = || held.is_being_filled();
            return in_flight.wait_filled(held.block, is_being_filled, |fill| fill.run());
        }
        if let Some(fill) = in_flight.take_queued(held.block) {
            fill.run();
        }
        held.wait(Bit::Locked);
    }

    /// Notes that the fill of a block has ended, with or without success, and that the block was
    /// unlocked.
    pub(crate) fn note_made(&self) {
        if !self.cache.is_served() {
            self.requests.note_filled();
        }
    }

    /// Waits until no block of the range is in flight. The caller has locked the file exclusively,
    /// so no other thread begins a request meanwhile.
    pub(crate) fn wait_landed(&self, blocks: &Range<u64>) {
        self.requests.wait_landed(blocks, |fill| fill.run());
    }

    /// Gives up the requests that are queued, which no store has now, and removes the blocks of the
    /// others from the index. Called when the file is being closed.
    pub(crate) fn detach_requests(&self) {
        // A thread that put a block into the index before the file was closed holds `invalidate`
        // shared until its request is in the table.
        self.locks.wait_shared();
        self.requests.detach_all(|blocks| {
            for block in blocks.clone() {
                let held = self
                    .lookup(block)
                    .expect("a block in flight stays in the index");
                self.unlink(block, held.frame, None);
                let _request_has_it = self.pool.uncache(held.frame);
            }
        });
    }

    /// Frees a block that left the index while it was in flight.
    fn free_detached(&self, frame: FrameId) {
        self.frames().lock_of(frame).end_read(ReadEnd::Failed);
        drop(BlockRef::new(self, frame, 0));
    }

    /// Wakes due futures where no lock is held: here if this thread is in a job and not in a call
    /// to a store, otherwise by a deferred call.
    pub(crate) fn wake_due_elsewhere(&self) {
        if !self.ready.is_any_due() {
            return;
        }
        if is_in_job() && !StoreScope::is_any_open() {
            return self.ready.wake_due();
        }
        let core = self.me.clone();
        self.cache.defer(self.id.group.id(), None, move || {
            // If the file's state is gone, no future is left to wake: each of them keeps the state.
            if let Some(core) = core.upgrade() {
                core.ready.wake_due();
            }
        });
    }
}
