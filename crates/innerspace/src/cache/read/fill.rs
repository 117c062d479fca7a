//! Fills blocks from the store. One read of neighbouring blocks serves all threads that wait for
//! them (P21), read-ahead follows it, and holes get no frames.
//!
//! The steps are: charge and allocate memory; publish the blocks locked and not up to date, so that
//! others wait for them; put in flight the blocks that no thread waits for yet
//! ([`crate::cache::read::requests`]); read the caller's own blocks in its own thread. All of these
//! run with `invalidate` held shared: a punch or truncation comes before them, or waits until the
//! requests in flight on its range have landed (P15, R17).

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::dirty::marks::mark_dirty;
use crate::cache::errors::FileError;
use crate::cache::lookup::block::{BlockRef, NewBlock};
use crate::cache::lookup::get::{Basis, Get};
use crate::cache::map::mappers::Revoke;
use crate::cache::read::content::{content, known_content};
use crate::cache::read::holes::Content;
use crate::cache::read::read_ahead::{Ahead, Reading, Stream};
use crate::cache::read::requests::zero_from;
use crate::cache::read::window::{self, Tuning};
use crate::cache::wait::Wait;
use crate::frame::{Fills, Uses};
use crate::stats::Event;
use crate::store::Batch;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;

/// Blocks that are read together, and then used one after the other, take at most
/// `1 / TOGETHER_PART` of the nearest limit. More blocks would evict one another.
const TOGETHER_PART: u64 = 2;

/// A lookup that may miss: its stream, the reading order, and how many blocks are needed.
#[derive(Clone, Copy)]
pub(crate) struct Miss<'s> {
    pub(crate) stream: &'s Stream,
    pub(crate) reading: Reading,
    /// The number of blocks that the caller needs, from the missing one on.
    pub(crate) wanted: u64,
}

impl<'s> Miss<'s> {
    /// Creates a miss of one block, in the reading order that was set for the stream.
    pub(crate) fn of(stream: &'s Stream) -> Miss<'s> {
        Miss {
            stream,
            reading: stream.reading(),
            wanted: 1,
        }
    }

    /// Returns this miss for a caller that needs `wanted` blocks, from the missing one on.
    pub(crate) fn wanting(self, wanted: u64) -> Miss<'s> {
        Miss { wanted, ..self }
    }
}

impl FileCore {
    /// Returns the block at `offset`, up to date, filled from the store if necessary; `None` if no
    /// block is cached and the store has only zeros there. With [`Wait::No`], succeeds only if the
    /// block is cached and up to date, or known to be a hole.
    pub(crate) fn read_block(
        &self,
        offset: u64,
        miss: Miss<'_>,
        wait: Wait,
    ) -> Result<Option<BlockRef<'_>>, FileError> {
        let block = offset >> self.block_shift();
        loop {
            match self.lookup(block) {
                Some(held) if wait == Wait::No && !held.is_up_to_date() => {
                    return Err(self.would_block(offset));
                }
                None if wait == Wait::No => {
                    return match self.is_absent_hole(block) {
                        true => Ok(None),
                        false => Err(self.would_block(offset)),
                    };
                }
                Some(held) => {
                    self.note_ahead(&held, miss.stream);
                    if held.is_up_to_date() {
                        return Ok(Some(held));
                    }
                    self.check_not_reentrant()?;
                    self.wait_filled(&held)?;
                }
                None => {
                    self.check_not_reentrant()?;
                    let filled = self.with_room(|| {
                        let steady = self.locks.shared();
                        self.fill_absent(block, Get::NONE, &steady, miss, drop)
                    });
                    self.ready.wake_due();
                    self.cache.run_deferred_if_abandoned();
                    if filled? == Content::Hole {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Lets the stream continue if a found block is used for the first time since it was read
    /// ahead.
    #[inline]
    pub(crate) fn note_ahead(&self, held: &BlockRef<'_>, stream: &Stream) {
        if held.meta().uses.has(Uses::AHEAD) {
            self.go_on(held.block, &held.meta().uses, stream, Get::NONE, drop);
        }
    }

    /// Handles the first use of a block that was read ahead: puts the next window in flight, if the
    /// reader has entered the last one.
    #[cold]
    pub(crate) fn go_on<'f>(
        &'f self,
        block: u64,
        uses: &Uses,
        stream: &Stream,
        get: Get,
        mut keep: impl FnMut(BlockRef<'f>),
    ) {
        if !uses.clear(Uses::AHEAD) || !stream.is_due(block) {
            return;
        }
        // Read-ahead is a hint: it neither waits while the file is locked exclusively, nor asks the
        // store for its version. If read-ahead is skipped, the next block is a miss, which does
        // both.
        if self.in_store_call() || self.version.stops_hints(self.pool.background.now()) {
            return;
        }
        let Some(_steady) = self.locks.try_shared() else {
            return;
        };
        let ahead = stream.used(block, &self.tuning());
        self.read_ahead(stream, ahead, get, &mut keep);
    }

    /// Returns the bounds of read-ahead windows at this moment.
    pub(crate) fn tuning(&self) -> Tuning {
        let request = self.store.request_blocks;
        let bytes = request << self.block_shift();
        let most = window::largest(self.nearest_limit(), bytes, self.store.at_a_time);
        Tuning {
            most: most >> self.block_shift(),
            request,
            room: self.room_in_flight(),
            wasted: self.counters.unused.load(Ordering::Relaxed),
        }
    }

    /// Whether the block is inside the file, not cached, and known to be a hole. Does not wait:
    /// returns false while the file is locked exclusively.
    pub(super) fn is_absent_hole(&self, block: u64) -> bool {
        let Some(_steady) = self.locks.try_shared() else {
            return false;
        };
        block << self.block_shift() < self.size()
            && self.lookup(block).is_none()
            && known_content(self, block) == Some(Content::Hole)
    }

    /// Makes and fills a block that is not cached, with others that are needed after it, and puts
    /// the stream's next blocks in flight. Returns the store's content of the block.
    /// [`Content::Data`] means that this thread has filled the block, or that another thread has
    /// made it. The read does not count as a use: the caller then looks the block up and marks it.
    /// [`Get::WRITE`] in `get` says that the block is filled for a writer.
    ///
    /// `keep` is called with the block after it is read. With [`Get::DONTCACHE`], the flag holds
    /// for all blocks that are read or put in flight, and `keep` is first called with the other
    /// blocks, in the order in which they are made.
    pub(crate) fn fill_absent<'f>(
        &'f self,
        block: u64,
        get: Get,
        _steady: &InvalidateGuard<'_>,
        miss: Miss<'_>,
        mut keep: impl FnMut(BlockRef<'f>),
    ) -> Result<Content, FileError> {
        let start = block << self.block_shift();
        let size = self.size();
        if start >= size {
            return Err(self.past_end(start, self.block_bytes(), size));
        }
        self.check_version()?;
        if content(self, block)? == Content::Hole {
            return Ok(Content::Hole);
        }
        let Some(first) = self.create(block, get)? else {
            return Ok(Content::Data);
        };
        let also = get.of(Get::DONTCACHE);
        let mut run = vec![first];
        let together = miss.wanted.min(self.store.request_blocks);
        let behind = block + 1..block + together.min(self.room_in_flight()).max(1);
        let (runs, _) = self.make_runs(behind, u64::MAX, also);
        if let Some(more) = runs.into_iter().next() {
            let follows = more[0].block() == block + 1;
            match follows {
                true => run.extend(more),
                // Dropping these blocks makes them absent again.
                false => drop(more),
            }
        }
        let read = block + run.len() as u64;
        if also.has(Get::DONTCACHE) {
            for new in &run[1..] {
                new.reference().into_iter().for_each(&mut keep);
            }
        }
        if read < block + miss.wanted {
            self.put_in_flight(read..block + miss.wanted, also, &mut keep);
        }
        let ahead = (miss.stream).miss(block, miss.wanted, miss.reading, &self.tuning());
        self.read_ahead(miss.stream, ahead, also, &mut keep);
        let first = self.read_run(run)?;
        keep(first);
        Ok(Content::Data)
    }

    /// Makes those of `blocks` that are absent and have data, at most `most` of them, as long as
    /// memory is available without I/O. Returns the new blocks as runs of neighbours, each no
    /// longer than one request, and the first block, if any, that was not made because memory or
    /// `most` ran out. Never fails.
    fn make_runs<'f>(
        &'f self,
        blocks: impl IntoIterator<Item = u64>,
        mut most: u64,
        get: Get,
    ) -> (Vec<Vec<NewBlock<'f>>>, Option<u64>) {
        let end = self.size().div_ceil(self.block_bytes());
        let content_of = |block| match get.has(Get::KNOWN) {
            true => known_content(self, block),
            false => content(self, block).ok(),
        };
        let mut runs: Vec<Vec<NewBlock<'f>>> = Vec::new();
        for block in blocks.into_iter().filter(|block| *block < end) {
            if most == 0 {
                return (runs, Some(block));
            }
            if self.lookup(block).is_some() || content_of(block) != Some(Content::Data) {
                continue;
            }
            // The blocks of the runs are locked, so the allocation may evict, but not write.
            let new = match self.create(block, Get::NOIO | get) {
                Ok(Some(new)) => new,
                Ok(None) => continue,
                Err(_) => return (runs, Some(block)),
            };
            most -= 1;
            match runs.last_mut() {
                Some(run)
                    if run[0].block() + run.len() as u64 == block
                        && (run.len() as u64) < self.store.request_blocks =>
                {
                    run.push(new);
                }
                _ => runs.push(vec![new]),
            }
        }
        (runs, None)
    }

    /// Puts those of `blocks` in flight that are absent and have data. Returns the first block for
    /// which there was no memory or no room in flight, if any.
    fn put_in_flight<'f>(
        &'f self,
        blocks: impl IntoIterator<Item = u64>,
        get: Get,
        keep: &mut impl FnMut(BlockRef<'f>),
    ) -> Option<u64> {
        let (runs, rest) = self.make_runs(blocks, self.room_in_flight(), get);
        let mut batch = Batch::new();
        for run in runs {
            for new in &run {
                if get.has(Get::DONTCACHE) {
                    new.reference().into_iter().for_each(&mut *keep);
                }
            }
            batch.push(self.request_for(run));
        }
        self.submit(batch);
        rest
    }

    /// Puts blocks in flight that a stream is about to need. Neighbours are in ascending order, so
    /// that they make one request. In a stream that goes downwards, the nearest blocks therefore
    /// come last. If there is no memory for the nearest, they become misses.
    pub(super) fn read_ahead<'f>(
        &'f self,
        stream: &Stream,
        ahead: Ahead,
        get: Get,
        keep: &mut impl FnMut(BlockRef<'f>),
    ) {
        if ahead.count > 0
            && let Some(block) = self.put_in_flight(ahead.blocks(), get | Get::AHEAD, keep)
            && ahead.step != -1
        {
            stream.fell_short(&ahead, block);
        }
    }

    /// Puts in flight the blocks of `pages` that are absent and have data, as long as memory is
    /// available without I/O. Leaves out the last blocks if all together exceed `1 / TOGETHER_PART`
    /// of the nearest limit. If the blocks exceed the room in flight, waits for each batch before
    /// the next. Never fails.
    pub(crate) fn fill_together(&self, pages: &[u64]) {
        let mut blocks: Vec<u64> = pages.iter().map(|page| page >> self.id.order).collect();
        // Adjacent blocks become one request, even if they are mapped in another order.
        blocks.sort_unstable();
        blocks.dedup();
        let most = self.nearest_limit() / TOGETHER_PART / self.block_bytes();
        blocks.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        let _steady = self.locks.shared();
        if self.check_version().is_err() {
            // If the store has changed, a later lookup that misses returns this error too. If the
            // store did not answer, it is asked again in a later tick.
            return;
        }
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            let room = (self.room_in_flight().max(1) as usize).min(rest.len());
            let (now, later) = rest.split_at(room);
            self.put_in_flight(now.iter().copied(), Get::NONE, &mut drop);
            rest = later;
            if !rest.is_empty() {
                for held in now.iter().filter_map(|block| self.lookup(*block)) {
                    // If the fill failed, a later read of the block repeats it, and returns the
                    // error if it fails again.
                    let _ = self.wait_filled(&held);
                }
            }
        }
    }

    /// Puts the absent blocks of a range in flight, for a future that waits for them. Returns
    /// whether all blocks are in flight or cached. Does nothing, and returns false, in a call to
    /// the store, if the blocks together exceed the nearest limit, if the store has changed or has
    /// to be asked for its version, if the file is locked exclusively, or if a block is neither
    /// cached nor known to have data. Never waits for the store, but may evict clean blocks, as the
    /// charge for the future does.
    pub(crate) fn begin_fills(&self, blocks: Range<u64>) -> bool {
        let most = self.nearest_limit() / self.block_bytes();
        if self.in_store_call() || blocks.end - blocks.start > most {
            return false;
        }
        // The store is not asked for its version here, because that call might take long.
        if self.version.stops_hints(self.pool.background.now()) {
            return false;
        }
        let Some(_steady) = self.locks.try_shared() else {
            return false;
        };
        let is_known = |block: &u64| {
            self.lookup(*block).is_some() || known_content(self, *block) == Some(Content::Data)
        };
        if !blocks.clone().all(|block| is_known(&block)) {
            return false;
        }
        failpoint!(DataKnown);
        // Another fill may ask the store about other blocks, and its answer replaces this one.
        self.put_in_flight(blocks.clone(), Get::KNOWN, &mut drop);
        blocks.clone().all(|block| self.lookup(block).is_some())
    }

    /// Whether a block of the range is being filled.
    pub(crate) fn is_in_flight(&self, blocks: &Range<u64>) -> bool {
        let mut held = blocks.clone().filter_map(|block| self.lookup(block));
        held.any(|held| !held.is_up_to_date())
    }

    /// Revokes translations of holes where these new blocks are. The store may have reported a hole
    /// there although the blocks have data now: a store reports ranges with its own granularity,
    /// and a write nearby can move their ends.
    pub(crate) fn end_visible_holes(&self, run: &[NewBlock<'_>]) {
        let blocks = || run.iter().map(NewBlock::block);
        let visible = |block: &u64| self.blocks.visible_holes.meet(&(*block..*block + 1));
        let (Some(first), Some(last)) = (blocks().find(visible), blocks().rfind(visible)) else {
            return;
        };
        // The translations are revoked as one range, with those of the blocks between the first and
        // the last. If one of these is a hole, the next fault maps it again.
        self.end_mapped_holes(self.pages_of(first..last + 1));
    }

    /// Reads a run of new blocks in this thread, and returns the first one. An error of the first
    /// block is returned to the caller; the other blocks fail separately.
    pub(super) fn read_run<'f>(
        &'f self,
        run: Vec<NewBlock<'f>>,
    ) -> Result<BlockRef<'f>, FileError> {
        self.end_visible_holes(&run);
        let blocks = run[0].block()..run[0].block() + run.len() as u64;
        let errors = match self.store() {
            Ok(store) => {
                let bytes = self.stored_range(&blocks);
                let wanted = (bytes.end - bytes.start) as usize;
                let frames = run.iter().map(NewBlock::frame).collect();
                let mut fills = Fills::adopt(&self.pool, frames, self.block_bytes() as usize);
                count(&self.counters.store_reads, 1);
                let _call = self.store_call();
                let errors = self.read_fills(&**store, &mut fills, blocks.start, Some(0), wanted);
                zero_from(&mut fills, wanted);
                errors
            }
            Err(error) => vec![Some(error); run.len()],
        };
        let filled = (run.len() - errors.iter().flatten().count()) as u64;
        count(&self.counters.filled, filled);
        let pages = filled * self.block_pages();
        self.pool.counters.add(Event::PgIn, pages);
        let errors = errors.into_iter().chain(std::iter::repeat(None));
        let mut ends = run.into_iter().zip(errors).map(|(new, error)| match error {
            None => Ok(new.finish_unnoted()),
            Some(error) => {
                new.fail(&error);
                Err(error)
            }
        });
        let first = ends.next().expect("a run has a block");
        // Each thread that waits for one of the other blocks holds a reference of its own.
        ends.flatten().for_each(|held| drop(held.keep_after_use()));
        self.ready.filled(blocks);
        first
    }

    /// Returns the basis of a new block at a place where the store has no data, according to a
    /// query that began at the hole epoch `epoch`.
    pub(crate) fn hole_basis(&self, block: u64, epoch: u64) -> Basis {
        let start = block << self.block_shift();
        if self.blocks.stored.load(Ordering::Acquire) <= start {
            Basis::StoredUpTo(start)
        } else {
            Basis::Hole { epoch }
        }
    }

    /// Makes a block where the store has a hole, for a writer or a writable mapping. Returns `None`
    /// if another thread made the block first, or `basis` no longer holds. Translations of the hole
    /// are revoked before the bytes can change. Makes the file at least `end` bytes long, because
    /// writeback takes the block's length from the file's.
    pub(crate) fn create_over_hole(
        &self,
        block: u64,
        end: u64,
        basis: Basis,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Option<BlockRef<'_>>, FileError> {
        let get = Get::ACCESSED | Get::WRITE;
        let Some(mut new) = self.create_on(block, get, basis)? else {
            return Ok(None);
        };
        self.end_hole(block..block + 1);
        fill(new.bytes_mut());
        mark_dirty(self, block, new.frame());
        self.grow_to(end);
        let made = new.finish();
        failpoint!(HoleFilled);
        Ok(Some(made))
    }

    /// Revokes the translations of a hole in which blocks were made. A caller that fills the blocks
    /// does so afterwards.
    ///
    /// A fault that found the hole calls [`hole_still`](crate::cache::map::fault::hole_still) in
    /// the section in which it installs the zero frame. Either the fault sees that the epoch has
    /// moved, or its section is over before the first grace period here ends, and the revocation
    /// finds its translation. (A mapper takes the mutex of the index after it has registered. So if
    /// a thread moves the epoch under that mutex and then sees no mapper, every fault of a mapper
    /// registered later comes after the move, and finds the block in the index.)
    pub(crate) fn end_hole(&self, blocks: Range<u64>) {
        self.move_hole_epoch();
        self.end_hole_moved(blocks);
    }

    /// Like [`FileCore::end_hole`], for a caller that has already moved the epoch, while it held
    /// the mutex under which the blocks entered the index.
    #[inline]
    pub(crate) fn end_hole_moved(&self, blocks: Range<u64>) {
        self.cut_known_hole(&blocks);
        if !self.mappers.is_empty() {
            self.end_mapped_holes(self.pages_of(blocks));
        }
    }

    /// Forgets the known hole if blocks were made in it.
    #[inline]
    pub(crate) fn cut_known_hole(&self, blocks: &Range<u64>) {
        let start = blocks.start << self.block_shift();
        // No hole is recorded past the store's end. A block past that end is removed from the known
        // hole once it has been written and the store has grown.
        if start < self.blocks.stored.load(Ordering::Acquire) {
            let bytes = start..blocks.end << self.block_shift();
            self.blocks.extents.lock().cut_hole(&bytes);
        }
    }

    /// Revokes the translations of holes in these pages of the file, some of which may no longer be
    /// holes.
    #[cold]
    pub(crate) fn end_mapped_holes(&self, pages: Range<u64>) {
        // SeqCst, paired with the registration of a mapper and the loads in its faults: if no
        // mapper is seen below, the faults of one registered later load the new epoch.
        self.move_hole_epoch();
        if !self.mappers.is_empty() {
            self.grace();
            self.mappers.revoke(pages, Revoke::Holes);
            self.grace();
        }
    }

    /// Moves the epoch, because something may have stopped being a hole. Takes the mutex of the
    /// index, under which every change of the epoch is made.
    pub(crate) fn move_hole_epoch(&self) {
        let _alone = self.dirty();
        self.blocks.hole_epoch.fetch_add(1, Ordering::SeqCst);
    }
}
