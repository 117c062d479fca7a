//! Reads without caching (DONTCACHE): bytes that are needed once leave no blocks behind.
//!
//! A cached block is used where it is, and not marked. A block that nobody has used since it was
//! read ahead ([`Uses::AHEAD`]) does not stay. The block that such a read brings in counts as read
//! ahead, too. After the read has used one of these, it is evicted without a shadow, unless it was
//! used in another way meanwhile: marked by a use, held, viewed, mapped or written.
//!
//! Two cases are decided by the frame's word at the moment of the eviction, since there is no bit
//! left to remember more. A block that was only prefetched meanwhile is unmarked at that moment,
//! and is evicted. If two of these reads use a block at the same time, both hold it, and the one
//! that would evict it takes the other for a use: the block stays.

use std::ops::{Range, RangeBounds};

use crate::cache::PagedFile;
use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::read::copy::{next_piece, read_by_blocks, up_to_end};
use crate::cache::read::fill::{Miss, Present};
use crate::cache::read::read_ahead::Stream;
use crate::cache::read::view::View;
use crate::cache::read::window::MOST_UNCACHED_WINDOW;
use crate::cache::wait::Wait;
use crate::cache::write::write_at::end_operation;
use crate::frame::Uses;
use crate::sync::Arc;

impl PagedFile {
    /// Like [`PagedFile::read_at`], for bytes that are needed once: a block that was not cached
    /// before is not cached afterwards, unless it was read in another way, viewed, mapped or
    /// written meanwhile. A prefetch meanwhile is not enough, and a block that was read ahead
    /// counts as not cached until somebody has used it. A block that is in use at the very moment
    /// at which this read drops it also stays, even if the user is a read of this kind: two reads
    /// that go over the same bytes at the same time may leave blocks in the cache, which are
    /// evicted like all others.
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
    /// at a time (each is 1 MiB or a thirty-second of the limit, whichever is less), or for one
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
    /// The blocks that are still to be read.
    left: Range<u64>,
}

impl<'f> UncachedRead<'f> {
    fn new(file: &'f FileCore, bytes: Range<u64>) -> UncachedRead<'f> {
        let stream = Stream::with_windows_up_to(MOST_UNCACHED_WINDOW >> file.block_shift());
        let left = file.blocks_of(bytes);
        stream.expect(left.clone(), &file.tuning());
        UncachedRead { file, stream, left }
    }

    /// Reads the block with the byte at `offset`, which comes after all earlier ones.
    fn read_block(&mut self, offset: u64) -> Result<Present<'f>, FileError> {
        let present = (self.file).read_block(offset, Miss::uncached(&self.stream), Wait::Yes)?;
        self.left.start = (offset >> self.file.block_shift()) + 1;
        Ok(present)
    }
}

impl Drop for UncachedRead<'_> {
    fn drop(&mut self) {
        // In a child of fork(2), no thread lets the blocks land.
        if self.file.check_process().is_err() {
            return;
        }
        // If the read did not come to its end, these blocks may have been read ahead for it.
        let windows = (2 * MOST_UNCACHED_WINDOW) >> self.file.block_shift();
        for block in self.left.clone().take(windows as usize) {
            let held = self.file.lookup(block);
            if let Some(held) = held.filter(|held| held.meta().uses.clear(Uses::AHEAD)) {
                // A block in flight cannot be released before it has landed.
                let _ = self.file.wait_filled(&held);
                drop(held.drop_after_use());
            }
        }
    }
}

impl Handle {
    fn read_uncached(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        let core = &*self.core;
        let bytes = up_to_end(core, offset, buf.len());
        let mut read = UncachedRead::new(core, bytes.clone());
        read_by_blocks(core, buf, bytes, |at, into| {
            match read.read_block(at)? {
                Present::Hole => into.fill(0),
                Present::Block(held) => {
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
        let mut left = range;
        while let Some(piece) = next_piece(core, &mut left) {
            let (len, size) = ((piece.end - piece.start) as usize, core.size());
            if piece.end > size {
                return Err(core.past_end(piece.start, len as u64, size));
            }
            match read.read_block(piece.start)? {
                Present::Hole => each(&View::zeros(len)),
                Present::Block(held) => {
                    let start = core.inside_block(piece.start) as usize;
                    let view = View::of_frame(&core.pool, held.frame, start..start + len);
                    // The block is being written, or mapped writable, so it is needed in the cache.
                    each(&view.map_or_else(|| self.view(piece, Wait::Yes), Ok)?);
                }
            }
        }
        Ok(())
    }
}
