//! Copying reads, scans, and prefetching.

use std::convert::Infallible;
use std::ops::{ControlFlow, Range};

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::lookup::block::BlockRef;
use crate::cache::lookup::get::Get;
use crate::cache::read::content::end_of_hole;
use crate::cache::read::fill::Miss;
use crate::cache::read::read_ahead::Stream;
use crate::cache::wait::Wait;
use crate::frame::{FlagSet, Uses};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl Handle {
    /// Copies bytes at `offset` into `buf`, up to the end of the file. Returns the number of bytes
    /// copied.
    pub(crate) fn read_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        wait: Wait,
    ) -> Result<usize, FileError> {
        let core = &*self.core;
        let bytes = up_to_end(core, offset, buf.len());
        let last = bytes.end.saturating_sub(1) >> core.block_shift();
        read_by_blocks(core, buf, bytes, |at, into| {
            let wanted = last - (at >> core.block_shift()) + 1;
            self.read_part(at, into, wait, wanted)
        })
    }

    /// Copies bytes of one block. The caller reads `wanted` blocks one after the other, of which
    /// this is the first.
    #[inline]
    pub(crate) fn read_part(
        &self,
        offset: u64,
        into: &mut [u8],
        wait: Wait,
        wanted: u64,
    ) -> Result<(), FileError> {
        if self.read_hit(offset, into) {
            return Ok(());
        }
        self.read_part_slowly(offset, into, wait, wanted)
    }

    /// Copies bytes of one block, if the block is cached and up to date. Returns whether they were
    /// copied. Values are kept in registers here: loading one back from memory would wait for the
    /// locked instructions before it, and so would the copy.
    #[inline]
    fn read_hit(&self, offset: u64, into: &mut [u8]) -> bool {
        let core = &*self.core;
        let Some(frame) = core.look_up_once(offset >> core.block_shift(), into.len()) else {
            return false;
        };
        let flags = core.frames().meta(frame).flags.load();
        let is_up_to_date = flags.contains(FlagSet::UPTODATE);
        if is_up_to_date {
            let inside = core.inside_block(offset) as usize;
            core.frames().copy_out(frame, inside, into);
            if self.is_new_use(offset, inside, into.len()) {
                core.pool.mark_accessed_at(frame, flags);
                let uses = &core.frames().meta(frame).uses;
                if uses.has(Uses::AHEAD) {
                    // `held` drops the reference even if the store panics when it is given the
                    // requests.
                    let held = BlockRef::new(core, frame, offset >> core.block_shift());
                    core.go_on(held.block, uses, &self.stream, Get::NONE, drop);
                    return true;
                }
            }
        }
        core.put(frame);
        is_up_to_date
    }

    /// Whether a read of `len` bytes is another use of its block. Many consecutive small reads are
    /// one use (P13). A jump begins another use, and so does the beginning of a block.
    #[inline]
    fn is_new_use(&self, offset: u64, inside: usize, len: usize) -> bool {
        // This is only a hint: if two threads read through one handle concurrently, each may be
        // mistaken.
        let end = self.read_end.load(Ordering::Relaxed);
        self.read_end.store(offset + len as u64, Ordering::Relaxed);
        end != offset || inside == 0
    }

    #[cold]
    #[inline(never)]
    fn read_part_slowly(
        &self,
        offset: u64,
        into: &mut [u8],
        wait: Wait,
        wanted: u64,
    ) -> Result<(), FileError> {
        let core = &*self.core;
        core.check_process()?;
        let block = offset >> core.block_shift();
        let miss = Miss::of(&self.stream).wanting(wanted);
        match core.read_block(offset, miss, wait)? {
            None => into.fill(0),
            Some(held) => {
                core.note_found(block, held.frame);
                let inside = core.inside_block(offset) as usize;
                core.frames().copy_out(held.frame, inside, into);
                if self.is_new_use(offset, inside, into.len()) {
                    core.pool.mark_accessed(held.frame);
                }
            }
        }
        Ok(())
    }

    /// Passes all bytes of `range` to `each`, in order, in pieces of at most a block.
    pub(crate) fn scan_all(
        self: &Arc<Handle>,
        range: Range<u64>,
        mut each: impl FnMut(&[u8]),
        wait: Wait,
    ) -> Result<(), FileError> {
        let on = |piece: &[u8]| -> ControlFlow<Infallible> {
            each(piece);
            ControlFlow::Continue(())
        };
        self.scan(range, on, wait).map(|_| ())
    }

    /// Like [`Handle::scan_all`], but stops when `each` breaks, and returns the value that it
    /// breaks with.
    pub(crate) fn scan<B>(
        self: &Arc<Handle>,
        range: Range<u64>,
        mut each: impl FnMut(&[u8]) -> ControlFlow<B>,
        wait: Wait,
    ) -> Result<ControlFlow<B>, FileError> {
        let core = &*self.core;
        if range.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        core.check_process()?;
        if wait == Wait::Yes {
            // A scan counts as a stream from its first miss on.
            self.stream
                .expect(core.blocks_of(range.clone()), &core.tuning());
        }
        let mut left = range;
        while let Some(piece) = next_piece(core, &mut left) {
            let view = self.view(piece, wait)?;
            if let ControlFlow::Break(with) = each(&view) {
                return Ok(ControlFlow::Break(with));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the range of `len` bytes at `offset`, cut at the end of the file.
#[inline(always)]
pub(crate) fn up_to_end(core: &FileCore, offset: u64, len: usize) -> Range<u64> {
    let available = core.size().saturating_sub(offset);
    offset..offset + available.min(len as u64)
}

/// Fills `buf` with the bytes of `range`, calling `part` for the piece of each block. Returns the
/// number of bytes read, which is less than `range` has if the file was cut meanwhile.
#[inline(always)]
pub(crate) fn read_by_blocks(
    core: &FileCore,
    buf: &mut [u8],
    range: Range<u64>,
    mut part: impl FnMut(u64, &mut [u8]) -> Result<(), FileError>,
) -> Result<usize, FileError> {
    let len = (range.end - range.start) as usize;
    let mut done = 0;
    while done < len {
        let at = range.start + done as u64;
        let next = done + (len - done).min(core.left_in_block(at));
        match part(at, &mut buf[done..next]) {
            Ok(()) => done = next,
            // The file was cut meanwhile: the read ends at the file's new end.
            Err(FileError::PastEnd { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Removes from `left` its first piece that is inside one block, and returns that piece.
pub(crate) fn next_piece(core: &FileCore, left: &mut Range<u64>) -> Option<Range<u64>> {
    if left.is_empty() {
        return None;
    }
    let start = left.start;
    left.start = (start.saturating_add(core.left_in_block(start) as u64)).min(left.end);
    Some(start..left.start)
}

/// Reads the blocks of a range into the cache. Skips holes. Ends without an error at the end of the
/// file, or when there is no memory for another block.
pub(crate) fn prefetch(core: &FileCore, blocks: Range<u64>) -> Result<(), FileError> {
    core.check_process()?;
    let stream = Stream::default();
    let mut left = blocks;
    stream.expect(left.clone(), &core.tuning());
    while let Some(block) = left.next() {
        let offset = block << core.block_shift();
        match core.read_block(offset, Miss::of(&stream), Wait::Yes) {
            Ok(Some(_)) => {}
            Ok(None) => {
                left.start = left.start.max(end_of_hole(core, block)).min(left.end);
                stream.expect(left.clone(), &core.tuning());
            }
            // The file has become shorter, or there is no room. This was only a hint.
            Err(FileError::PastEnd { .. } | FileError::Limit(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
