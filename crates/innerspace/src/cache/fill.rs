//! Getting blocks from the store: one read per block whoever wants it (P21), read-ahead behind it, holes without frames.
//!
//! Order: memory is charged and allocated; the block is published locked and not up to date, so that others wait for it;
//! the store is read into it; `end_read`. All of it with the file steady: a punch or truncation comes before or after
//! as a whole (P15).

use std::io::ErrorKind;
use std::ops::Range;

use super::block::{BlockRef, NewBlock};
use super::core::FileCore;
use super::errors::{FileError, StoreAction};
use super::extents::Content;
use super::lookup::{Basis, Get};
use super::stats::count;
use super::steady::Steady;
use super::stream::Stream;
use super::syncs::NoIo;
use crate::stats::Event;
use crate::store::{Batch, Store, read_exact_or_eof, short_read_error};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// What one read locks of blocks that nobody waits for yet is this part of every limit at most: until it is there, and used where it
/// is passing, nobody can evict it.
const LOCKED_PART: u64 = 8;

/// What is read together, and used one after the other when all of it is there, is this part of every limit at most: more would
/// push itself out.
const TOGETHER_PART: u64 = 2;

/// What was found, or made, where a block was wanted.
#[derive(Debug)]
pub(super) enum Present<'f> {
    /// The block, up to date.
    Block(BlockRef<'f>),
    /// Nothing is cached and the store has zeros alone.
    Hole,
}

/// What an attempt to fill came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Filled {
    /// The block was read, or another thread has made it: look again.
    LookAgain,
    /// There is nothing to read.
    Hole,
}

impl FileCore {
    /// The block, filled from the store if need be. `stream` decides about read-ahead.
    pub(super) fn read_block(&self, block: u64, stream: &Stream) -> Result<Present<'_>, FileError> {
        loop {
            match self.lookup(block) {
                Some(held) if held.is_up_to_date() => return Ok(Present::Block(held)),
                Some(held) => {
                    self.check_outside()?;
                    self.wait_filled(&held)?;
                }
                None => {
                    self.check_outside()?;
                    let filled = self.with_room(|| {
                        let steady = self.steady();
                        self.fill_absent(block, Get::NONE, &steady, stream)
                    });
                    self.ready.wake_due();
                    self.cache.serve_if_abandoned();
                    if filled? == Filled::Hole {
                        return Ok(Present::Hole);
                    }
                }
            }
        }
    }

    /// The same for who does not wait: the block if it is there, or the hole if it is known to be one.
    pub(super) fn block_at_once(&self, block: u64) -> Option<Present<'_>> {
        match self.lookup(block) {
            Some(held) => held.is_up_to_date().then_some(Present::Block(held)),
            None => {
                // A block that is absent while nobody can punch or truncate is absent for a reason.
                let _steady = self.try_steady()?;
                let is_hole = block << self.block_shift() < self.size()
                    && self.lookup(block).is_none()
                    && self.known_content(block) == Some(Content::Hole);
                is_hole.then_some(Present::Hole)
            }
        }
    }

    /// Makes and fills a block that is not cached, and reads ahead behind it. Reading is no use of the block: the caller looks
    /// it up, and marks it, when it is there. [`Get::WRITE`] in `get` says that it is filled for a writer.
    pub(super) fn fill_absent(
        &self,
        block: u64,
        get: Get,
        steady: &Steady<'_>,
        stream: &Stream,
    ) -> Result<Filled, FileError> {
        self.fill_absent_with(block, get, steady, || {
            stream.miss(block, self.block_bytes())
        })
    }

    /// The same; `ahead` says how many blocks behind it to read as well.
    pub(super) fn fill_absent_with(
        &self,
        block: u64,
        get: Get,
        steady: &Steady<'_>,
        ahead: impl FnOnce() -> u64,
    ) -> Result<Filled, FileError> {
        self.fill_absent_into(block, get, steady, ahead, drop)
    }

    /// The same; `read` gets each block that was read, the first first. [`Get::DONTCACHE`] holds for those read ahead, too.
    pub(super) fn fill_absent_into<'f>(
        &'f self,
        block: u64,
        get: Get,
        _steady: &Steady<'_>,
        ahead: impl FnOnce() -> u64,
        read: impl FnMut(BlockRef<'f>),
    ) -> Result<Filled, FileError> {
        let start = block << self.block_shift();
        let size = self.size();
        if start >= size {
            return Err(self.past_end(start, self.block_bytes(), size));
        }
        if self.content(block)? == Content::Hole {
            return Ok(Filled::Hole);
        }
        let Some(first) = self.create(block, Get::CREATE | get)? else {
            return Ok(Filled::LookAgain);
        };
        let mut run = vec![first];
        self.add_ahead(&mut run, ahead(), get.of(Get::DONTCACHE));
        self.read_run(run, read)?;
        Ok(Filled::LookAgain)
    }

    /// Makes the blocks behind a run as long as they are absent, have data, and memory is there without I/O. Never fails.
    fn add_ahead<'f>(&'f self, run: &mut Vec<NewBlock<'f>>, ahead: u64, get: Get) {
        let _no_io = NoIo::begin();
        let from = run[0].block() + 1;
        let ahead = match ahead {
            0 => 0,
            _ => ahead.min(self.blocks_in_limit(LOCKED_PART)),
        };
        let end = (from + ahead).min(self.size().div_ceil(self.block_bytes()));
        for block in from..end {
            if self.lookup(block).is_some() || !matches!(self.content(block), Ok(Content::Data)) {
                break;
            }
            // Locks are held (those of the run): the allocation may evict, not write.
            match self.create(block, Get::CREATE | Get::NOIO | get) {
                Ok(Some(new)) => run.push(new),
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Blocks that are a part of the nearest limit.
    fn blocks_in_limit(&self, part: u64) -> u64 {
        self.nearest_limit() / part / self.block_bytes()
    }

    /// Reads blocks of these pages (in order) that are absent and have data, many at once, as far as memory is there without
    /// I/O. Never fails.
    pub(crate) fn fill_together(&self, pages: &[u64]) {
        /// Blocks read at once.
        const MOST: u64 = 64;
        let at_once = self.blocks_in_limit(LOCKED_PART).clamp(1, MOST) as usize;
        let mut blocks: Vec<u64> = pages.iter().map(|page| page >> self.order).collect();
        blocks.dedup();
        blocks.truncate(usize::try_from(self.blocks_in_limit(TOGETHER_PART)).unwrap_or(usize::MAX));
        let _steady = self.steady();
        let end = self.size().div_ceil(self.block_bytes());
        for blocks in blocks.chunks(at_once) {
            let no_io = NoIo::begin();
            let mut run = Vec::new();
            for block in blocks.iter().filter(|block| **block < end) {
                if self.lookup(*block).is_some()
                    || !matches!(self.content(*block), Ok(Content::Data))
                {
                    continue;
                }
                // Locks are held, as for read-ahead.
                match self.create(*block, Get::CREATE | Get::NOIO) {
                    Ok(Some(new)) => run.push(new),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            drop(no_io);
            if run.is_empty() || self.read_run(run, drop).is_err() {
                return;
            }
        }
    }

    /// New blocks may stand where the store has told of a hole before: it says what it has in steps of its own, and a write
    /// nearby moves them.
    fn end_shown_holes(&self, run: &[NewBlock<'_>]) {
        let blocks = || run.iter().map(NewBlock::block);
        let shown = |block: &u64| self.shown_holes.meet(&(*block..*block + 1));
        let (Some(first), Some(last)) = (blocks().find(shown), blocks().rfind(shown)) else {
            return;
        };
        self.move_hole_epoch();
        if !self.mappers.is_empty() {
            self.pool.domain.synchronize();
            // At once, with those between: a hole that is not one of these faults in again.
            self.revoke_and_wait(first..last + 1, super::mappers::Revoke::Holes);
        }
    }

    /// Reads a run of new blocks, and hands on what was read; the error of the first is the caller's, those behind it fail for
    /// themselves.
    fn read_run<'f>(
        &'f self,
        mut run: Vec<NewBlock<'f>>,
        mut read: impl FnMut(BlockRef<'f>),
    ) -> Result<(), FileError> {
        self.end_shown_holes(&run);
        let results = match self.store() {
            Ok(store) => self.read_into(&**store, &mut run),
            Err(error) => run.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut outcome = Ok(());
        for (at, (new, result)) in run.into_iter().zip(results).enumerate() {
            match result {
                Ok(()) => {
                    count(&self.counters.filled, 1);
                    self.pool.counters.add(Event::PgIn, self.block_pages());
                    if at > 0 {
                        count(&self.counters.ahead, 1);
                        self.pool
                            .counters
                            .add(Event::PgReadAhead, self.block_pages());
                    }
                    read(new.finish());
                }
                Err(error) => {
                    new.fail(&error);
                    if at == 0 {
                        outcome = Err(error);
                    }
                }
            }
        }
        outcome
    }

    /// One result a block.
    fn read_into(&self, store: &dyn Store, run: &mut [NewBlock<'_>]) -> Vec<Result<(), FileError>> {
        count(&self.counters.store_reads, 1);
        let _call = self.store_call();
        if let [only] = run {
            let block = only.block();
            let bytes = only.bytes_mut();
            let wanted = self.stored_len(block);
            let got = read_exact_or_eof(store, &mut bytes[..wanted], block << self.block_shift());
            return vec![self.settle_read(store, block, bytes, wanted, got)];
        }
        let blocks: Vec<u64> = run.iter().map(NewBlock::block).collect();
        let results = Mutex::new(blocks.iter().map(|_| None).collect::<Vec<_>>());
        let note = |token: u64, result| results.lock()[token as usize] = Some(result);
        let mut batch = Batch::new(&note);
        for (token, new) in run.iter_mut().enumerate() {
            let (block, wanted) = (new.block(), self.stored_len(new.block()));
            let bytes = &mut new.bytes_mut()[..wanted];
            batch.read(token as u64, bytes, block << self.block_shift());
        }
        store.submit(batch);
        let results = results.into_inner();
        run.iter_mut()
            .zip(results)
            .map(|(new, result)| {
                let block = new.block();
                let wanted = self.stored_len(block);
                let bytes = new.bytes_mut();
                let got = match result {
                    // Not begun, as far as is known: by the plain calls, which try again.
                    None => Ok(0),
                    Some(Err(error)) if error.kind() == ErrorKind::Interrupted => Ok(0),
                    Some(got) => got,
                };
                let got = got.and_then(|got| {
                    if got > wanted {
                        return Ok(got); // `settle_read` refuses it
                    }
                    // Short transfers are the store's right: go on where it stopped.
                    let offset = (block << self.block_shift()) + got as u64;
                    let rest = &mut bytes[got..wanted];
                    Ok(got + read_exact_or_eof(store, rest, offset)?)
                });
                self.settle_read(store, block, bytes, wanted, got)
            })
            .collect()
    }

    /// The bytes of a block that the store has now.
    fn stored_len(&self, block: u64) -> usize {
        let bytes = self.stored_bytes(block);
        (bytes.end - bytes.start) as usize
    }

    /// Checks the outcome of a read and clears what the store does not have.
    fn settle_read(
        &self,
        store: &dyn Store,
        block: u64,
        bytes: &mut [u8],
        wanted: usize,
        got: std::io::Result<usize>,
    ) -> Result<(), FileError> {
        let offset = block << self.block_shift();
        let got = got.and_then(|got| {
            if got == wanted {
                return Ok(got);
            }
            let was = self.stored.load(Ordering::Acquire);
            Err(short_read_error(
                store,
                offset,
                wanted as u64,
                got as u64,
                was,
            ))
        });
        match got {
            Ok(got) => {
                bytes[got..].fill(0);
                Ok(())
            }
            Err(error) => Err(self.store_error(StoreAction::Read, offset, wanted as u64, error)),
        }
    }

    /// What a block is made on where the store has nothing, by what was found at `epoch`.
    pub(super) fn hole_basis(&self, block: u64, epoch: u64) -> Basis {
        let start = block << self.block_shift();
        if self.stored.load(Ordering::Acquire) <= start {
            Basis::StoredUpTo(start)
        } else {
            Basis::Hole { epoch }
        }
    }

    /// Puts a block where the store has a hole, for a writer or a writable mapping; `None` when another thread made the block
    /// first. Mappings of the hole are revoked before the bytes can change. The file is at least `end` bytes long then: who locks the
    /// block to write it back takes its length from that.
    pub(super) fn create_over_hole(
        &self,
        block: u64,
        end: u64,
        basis: Basis,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Option<BlockRef<'_>>, FileError> {
        let get = Get::CREATE | Get::ACCESSED | Get::WRITE;
        let Some(mut new) = self.create_on(block, get, basis)? else {
            return Ok(None);
        };
        self.end_hole(block..block + 1);
        fill(new.bytes_mut());
        self.mark_dirty(block, new.frame());
        self.grow_to(end);
        let made = new.finish();
        #[cfg(all(test, not(shuttle)))]
        super::midway::reached(super::midway::Point::HoleFilled);
        Ok(Some(made))
    }

    /// Blocks were put where a hole may be mapped: takes the translations of the hole away. Who made them to be filled has not
    /// filled them yet.
    ///
    /// A fault that found the hole asks [`FileCore::hole_still`] in the section in which it installs the zero frame. Either
    /// it sees the epoch moved, or its section is over before the first grace period here is, and the revocation finds its
    /// translation. (A mapper takes the mutex of the index after it has registered: who moves the epoch under that mutex and then
    /// sees no mapper comes before every fault of a mapper registered later, which then finds the block in the index.)
    pub(super) fn end_hole(&self, blocks: Range<u64>) {
        self.move_hole_epoch();
        self.end_hole_moved(blocks);
    }

    /// The same, where the epoch was moved under the mutex under which the blocks came into the index.
    #[inline]
    pub(super) fn end_hole_moved(&self, blocks: Range<u64>) {
        let start = blocks.start << self.block_shift();
        // Of what lies past its end the store was never asked; what it is asked after it has grown is cut when it has.
        if start < self.stored.load(Ordering::Acquire) {
            self.extents
                .lock()
                .cut_hole(&(start..blocks.end << self.block_shift()));
        }
        if !self.mappers.is_empty() {
            self.end_shown_hole(blocks);
        }
    }

    #[cold]
    fn end_shown_hole(&self, blocks: Range<u64>) {
        // For a mapper that was there all the time: SeqCst, as its faults read it.
        self.move_hole_epoch();
        self.pool.domain.synchronize();
        self.revoke_and_wait(blocks, super::mappers::Revoke::Holes);
    }

    /// Something may have stopped being a hole. Under the mutex of the index, like every change of the epoch.
    pub(super) fn move_hole_epoch(&self) {
        let _alone = self.dirty();
        self.hole_epoch.fetch_add(1, Ordering::SeqCst);
    }
}
