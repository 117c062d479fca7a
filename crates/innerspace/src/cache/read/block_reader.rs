//! A reader for one thread that returns to the same few blocks: it remembers them, and finds them
//! without the index.
//!
//! The reader holds a reference to each of the last 16 blocks, so a frame is not reused while its
//! block is remembered. The CACHED bit of the frame's hold word says whether the frame still is the
//! file's block: an operation that removes the block from the file, or moves it, clears the bit
//! before it returns. A hit therefore needs neither the index nor a section, and takes no reference
//! of its own.

use std::fmt;
use std::ops::Range;

use arrayvec::ArrayVec;

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::file::handle::PagedFile;
use crate::cache::lookup::block::BlockRef;
use crate::cache::read::copy::{read_by_blocks, up_to_end};
use crate::cache::read::fill::Miss;
use crate::cache::read::view::View;
use crate::cache::wait::Wait;
use crate::reclaim::Trial;
use crate::sync::atomic::Ordering;
use crate::units::FrameId;

/// The most blocks that a reader remembers.
const RECENT: usize = 16;

/// Looks up blocks of a file for one thread, and remembers the last 16: a small read from one of
/// these costs no search and no write to shared memory. Use it when reads return to the same few
/// blocks, such as the upper nodes of a tree.
///
/// Created by [`PagedFile::block_reader`]. Remembered blocks stay in memory and stay charged: up to
/// 16, or fewer if the reader finds no memory for another. Drop or [`clear`](BlockReader::clear)
/// the reader if it will not be used for a while.
///
/// ```
/// # use innerspace::{MIB, Memory, store::MemoryStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.file_options().open_store(MemoryStore::from_bytes(&[7; 100_000]))?;
/// let mut blocks = file.block_reader();
/// let mut key = [0; 8];
/// blocks.read_at(&mut key, 4096)?;
/// assert_eq!(key, [7; 8]);
/// assert_eq!(blocks.view_block(24)?.len(), 100_000 - 24 * 4096);
/// # Ok(()) }
/// ```
pub struct BlockReader {
    file: PagedFile,
    recent: Recent,
}

/// The remembered blocks and their frames, the most recently used first. Each entry holds a
/// reference to its frame.
struct Recent(ArrayVec<(u64, FrameId), RECENT>);

impl PagedFile {
    /// Returns a reader that looks up blocks for one thread, and remembers the last 16.
    pub fn block_reader(&self) -> BlockReader {
        let readers = &self.core().blocks.block_readers;
        readers.fetch_add(1, Ordering::Relaxed);
        BlockReader {
            file: self.clone(),
            recent: Recent(ArrayVec::new()),
        }
    }
}

impl BlockReader {
    /// Reads up to `buf.len()` bytes at `offset`: fewer at the end of the file, 0 past it. Each
    /// read counts as one use of every block that it touches.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_at`].
    pub fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        self.read(buf, offset, Wait::Yes)
    }

    /// Like [`BlockReader::read_at`], but never waits. If this would block, use
    /// [`PagedFile::ready`] to wait.
    ///
    /// # Errors
    /// The errors of [`BlockReader::read_at`], and [`FileError::WouldBlock`], in which case `buf`
    /// may be partly filled.
    pub fn try_read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        self.read(buf, offset, Wait::No)
    }

    #[inline(always)]
    fn read(&mut self, buf: &mut [u8], offset: u64, wait: Wait) -> Result<usize, FileError> {
        let handle = self.file.handle();
        let core = &*handle.core;
        let bytes = up_to_end(core, offset, buf.len());
        read_by_blocks(core, buf, bytes, |at, into| {
            match self.recent.find(handle, at >> core.block_shift(), wait)? {
                Some(frame) => core
                    .frames()
                    .copy_out(frame, core.inside_block(at) as usize, into),
                None => into.fill(0),
            }
            Ok(())
        })
    }

    /// Returns a view of one block. The view of the file's last block ends where the file ends.
    ///
    /// # Errors
    /// The errors of [`PagedFile::view`].
    pub fn view_block(&mut self, block: u64) -> Result<View, FileError> {
        self.view_waiting(block, Wait::Yes)
    }

    /// Like [`BlockReader::view_block`], but never waits. If this would block, use
    /// [`PagedFile::ready`] to wait.
    ///
    /// # Errors
    /// The errors of [`BlockReader::view_block`], and [`FileError::WouldBlock`].
    pub fn try_view_block(&mut self, block: u64) -> Result<View, FileError> {
        self.view_waiting(block, Wait::No)
    }

    #[inline(always)]
    fn view_waiting(&mut self, block: u64, wait: Wait) -> Result<View, FileError> {
        let handle = self.file.handle();
        let core = &handle.core;
        let size = core.size();
        let bytes = bytes_of_block(core, block, size)?;
        let len = (bytes.end - bytes.start) as usize;
        match self.recent.find(handle, block, wait)? {
            None => Ok(View::zeros(len)),
            Some(frame) => match View::of_frame(&core.pool, frame, 0..len) {
                Some(view) => Ok(view),
                // The block is being written, is mapped writable, has left this frame, or has as
                // many views as can be counted.
                None => handle.view(bytes, wait),
            },
        }
    }

    /// Forgets all blocks.
    pub fn clear(&mut self) {
        let core = &self.file.handle().core;
        let oldest_first = self.recent.0.drain(..).rev();
        if core.check_process().is_ok() {
            oldest_first.for_each(|(_, frame)| core.put(frame));
        }
    }
}

impl Recent {
    /// Finds the frame of a block, marks it used once, and makes it the most recent one. Returns
    /// `None` for a hole.
    fn find(
        &mut self,
        handle: &Handle,
        block: u64,
        wait: Wait,
    ) -> Result<Option<FrameId>, FileError> {
        let core = &handle.core;
        let known = self.0.iter().position(|(known, _)| *known == block);
        let is_cached = |frame| core.frames().meta(frame).hold.load().is_cached();
        let frame = match known {
            Some(at) if is_cached(self.0[at].1) => {
                self.0[..=at].rotate_right(1);
                self.0[0].1
            }
            stale => {
                core.check_process()?;
                if let Some(at) = stale {
                    core.put(self.0.remove(at).1);
                }
                let Some(held) = self.seek_with_room(handle, block, wait)? else {
                    return Ok(None);
                };
                if self.0.len() == RECENT {
                    self.forget_oldest(core);
                }
                let (frame, block) = held.into_parts();
                self.0.insert(0, (block, frame));
                frame
            }
        };
        core.pool.mark_accessed(frame);
        Ok(Some(frame))
    }

    /// Finds a block that is not remembered. If there is no memory for it, forgets remembered
    /// blocks, the oldest first.
    fn seek_with_room<'h>(
        &mut self,
        handle: &'h Handle,
        block: u64,
        wait: Wait,
    ) -> Result<Option<BlockRef<'h>>, FileError> {
        let core = &handle.core;
        loop {
            let trial = Trial::begin(&core.pool);
            let offset = block << core.block_shift();
            let sought = core.read_block(offset, Miss::of(&handle.stream), wait);
            if !matches!(sought, Err(FileError::Limit(_))) {
                trial.forget();
                return sought;
            }
            if !self.forget_oldest(core) {
                return sought;
            }
            trial.forget();
        }
    }

    /// Forgets the block whose last use was longest ago. Returns false if none is remembered.
    fn forget_oldest(&mut self, core: &FileCore) -> bool {
        let oldest = self.0.pop();
        oldest.map(|(_, frame)| core.put(frame)).is_some()
    }
}

/// Returns the byte range of a block in a file of `size` bytes, or an error if the block is past
/// the end.
fn bytes_of_block(core: &FileCore, block: u64, size: u64) -> Result<Range<u64>, FileError> {
    let start = block.saturating_mul(core.block_bytes());
    let end = start.saturating_add(core.block_bytes()).min(size);
    if start >= end {
        return Err(core.past_end(start, core.block_bytes(), size));
    }
    Ok(start..end)
}

impl Drop for BlockReader {
    fn drop(&mut self) {
        self.clear();
        // Relaxed: only `validate` reads the count, and no other call is running then.
        let readers = &self.file.core().blocks.block_readers;
        readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BlockReader({} blocks of {})",
            self.recent.0.len(),
            self.file.name()
        )
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl BlockReader {
        /// Returns the remembered blocks, the most recent first.
        pub(crate) fn remembered(&self) -> Vec<u64> {
            self.recent.0.iter().map(|(block, _)| *block).collect()
        }
    }
}
