//! Reads without caching (DONTCACHE): bytes that are needed once leave no blocks behind.
//!
//! A block that another operation brought in is read where it is, and not marked as used. Blocks
//! that an uncached read brings in (the block that it needs, and those read ahead after it) are
//! held until they are used. Then they are evicted without a shadow, unless they were used in
//! another way meanwhile: marked by a use, held, viewed, mapped or written.
//!
//! Two cases are decided by the state of the frame at the moment of the eviction, since the frame's
//! metadata has no bits left to record more. A block that was only prefetched meanwhile has no mark
//! at that moment, and is evicted. If two uncached reads use a block at the same time, both hold
//! it, and the one that brought it in mistakes the other's reference for a use: the block stays.

use std::collections::VecDeque;
use std::ops::{Range, RangeBounds};

use crate::cache::PagedFile;
use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::lookup::block::BlockRef;
use crate::cache::lookup::get::Get;
use crate::cache::read::copy::{read_by_blocks, up_to_end};
use crate::cache::read::fill::Miss;
use crate::cache::read::holes::Content;
use crate::cache::read::read_ahead::Stream;
use crate::cache::read::view::View;
use crate::cache::read::window::MOST_UNCACHED_WINDOW;
use crate::cache::wait::Wait;
use crate::cache::write::write_at::end_operation;
use crate::sync::Arc;

impl PagedFile {
    /// Like [`PagedFile::read_at`], for bytes that are needed once: a block that was not cached
    /// before is not cached afterwards, unless it was read in another way, viewed, mapped or
    /// written meanwhile. A prefetch meanwhile does not count as such a use. A block that is in use
    /// at the very moment at which this read drops it also stays, even if it is another uncached
    /// read that uses it: two such reads of the same bytes at the same time may leave blocks in the
    /// cache, which are evicted like all others.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_at`].
    pub fn read_at_uncached(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        let done = self.handle().read_uncached(buf, offset);
        end_operation(self.core());
        done
    }

    /// Like [`PagedFile::scan`], for bytes that are needed once, as for a copy, a checksum or a
    /// scrub: a block that was not cached before is not cached afterwards, with the exceptions that
    /// [`PagedFile::read_at_uncached`] names. The scan takes memory for two windows of read-ahead
    /// at a time (each is at most 1 MiB, and at most the largest window of other reads), or for one
    /// block.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, PageCount, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(&[1; 1_000_000]))?;
    /// let mut sum = 0;
    /// file.scan_uncached(.., |piece| {
    ///     sum += piece.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    /// })?;
    /// assert_eq!((sum, file.stats().cached), (1_000_000, PageCount(0)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`PagedFile::scan`].
    pub fn scan_uncached(
        &self,
        range: impl RangeBounds<u64>,
        each: impl FnMut(&[u8]),
    ) -> Result<(), FileError> {
        let done = self.handle().scan_uncached(self.bytes(range)?, each);
        end_operation(self.core());
        done
    }
}

/// A read of some bytes, in order, that caches nothing.
struct UncachedRead<'f> {
    file: &'f FileCore,
    stream: Stream,
    /// The blocks that the read has brought in and not yet used, in ascending order.
    brought: VecDeque<BlockRef<'f>>,
}

impl<'f> UncachedRead<'f> {
    fn new(file: &'f FileCore, bytes: Range<u64>) -> UncachedRead<'f> {
        let stream = Stream::with_windows_up_to(MOST_UNCACHED_WINDOW >> file.block_shift());
        stream.expect(file.blocks_of(bytes), &file.tuning());
        UncachedRead {
            file,
            stream,
            brought: VecDeque::new(),
        }
    }

    /// Returns the block, up to date, or `None` for a hole. Blocks are read in ascending order.
    fn read_block(&mut self, block: u64) -> Result<Option<BlockRef<'f>>, FileError> {
        let file = self.file;
        loop {
            while let Some(held) = self.brought.pop_front_if(|held| held.block <= block) {
                // If this is false, the read has passed the block, or the block was cut off or
                // moved.
                if held.block == block && held.meta().hold.load().is_cached() {
                    self.go_on(&held);
                    file.check_not_reentrant()?;
                    file.wait_filled(&held)?;
                    if held.is_up_to_date() {
                        return Ok(Some(held));
                    }
                }
            }
            match file.lookup(block) {
                Some(held) if held.is_up_to_date() => return Ok(Some(held)),
                Some(held) => {
                    file.check_not_reentrant()?;
                    file.wait_filled(&held)?;
                }
                None => {
                    file.check_not_reentrant()?;
                    if self.fill(block)? == Content::Hole {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Puts the next window in flight if it is due: a block that was brought in is about to be
    /// used.
    fn go_on(&mut self, held: &BlockRef<'f>) {
        let (file, brought) = (self.file, &mut self.brought);
        let keep = |held: BlockRef<'f>| brought.push_back(held.drop_after_use());
        file.go_on(
            held.block,
            &held.meta().uses,
            &self.stream,
            Get::DONTCACHE,
            keep,
        );
    }

    fn fill(&mut self, block: u64) -> Result<Content, FileError> {
        let (file, stream) = (self.file, &self.stream);
        let filled = file.with_room(|| {
            let steady = file.locks.shared();
            let keep = |held: BlockRef<'f>| {
                let at = self
                    .brought
                    .partition_point(|other| other.block < held.block);
                self.brought.insert(at, held.drop_after_use());
            };
            let miss = Miss::of(stream);
            file.fill_absent(block, Get::DONTCACHE, &steady, miss, keep)
        });
        file.ready.wake_due();
        file.cache.run_deferred_if_abandoned();
        filled
    }
}

impl Drop for UncachedRead<'_> {
    fn drop(&mut self) {
        // A block in flight cannot be released before it has landed.
        for held in &self.brought {
            let _ = self.file.wait_filled(held);
        }
    }
}

impl Handle {
    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        let core = &*self.core;
        let bytes = up_to_end(core, offset, buf.len());
        let mut read = UncachedRead::new(core, bytes.clone());
        read_by_blocks(core, buf, bytes, |at, into| {
            match read.read_block(at >> core.block_shift())? {
                None => into.fill(0),
                Some(held) => {
                    let inside = core.inside_block(at) as usize;
                    core.frames().copy_out(held.frame, inside, into);
                }
            }
            Ok(())
        })
    }

    fn scan_uncached(
        self: &Arc<Handle>,
        range: Range<u64>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), FileError> {
        let core = &*self.core;
        let mut read = UncachedRead::new(core, range.clone());
        let mut at = range.start;
        while at < range.end {
            let block_end = at.saturating_add(core.left_in_block(at) as u64);
            let piece = at..block_end.min(range.end);
            let (start, len) = (core.inside_block(at) as usize, (piece.end - at) as usize);
            let size = core.size();
            if piece.end > size {
                return Err(core.past_end(at, len as u64, size));
            }
            at = piece.end;
            match read.read_block(piece.start >> core.block_shift())? {
                None => each(&View::zeros(len)),
                Some(held) => {
                    let view = View::of_frame(&core.pool, held.frame, start..start + len);
                    // Without a view, the block is being written or mapped writable, so it is
                    // needed in the cache; or it has left this frame, or has as many views as can
                    // be counted.
                    each(&view.map_or_else(|| self.view(piece, Wait::Yes), Ok)?);
                }
            }
        }
        Ok(())
    }
}
