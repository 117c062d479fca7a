//! The bytes of published frames: writing, filling and copying them, and what makes each of these
//! sound.
//!
//! | type | relies on | gives |
//! |---|---|---|
//! | [`Pinned`](super::Pinned) | a view in the hold word | `&[u8]` that never changes |
//! | [`Writing`] | the WRITER bit: no view is alive and none can be taken | stores |
//! | [`Filling`] | LOCKED and not UPTODATE: no other thread reads the bytes | `&mut [u8]` |
//! | [`Frames::copy_out`] | a reference | a copy: possibly torn, never undefined |
//!
//! The cache decides when each of these may be taken. This module only keeps slices and stores
//! apart. Accesses through page-table translations use the primitives of `sys`. They may overlap
//! with [`Writing`] and [`Frames::copy_out`], but not with a slice, because a view forbids write
//! translations (WMAPPED).

use std::io::IoSliceMut;
use std::ops::Range;

use super::pinned::ViewOwner;
use super::{FlagSet, Frames, ReadEnd};
use crate::sync::Arc;
use crate::sys::copy;
use crate::units::{FrameId, PAGE_SIZE};

/// The right to store to a cached block that has no views. Its holder has the block's lock.
pub(crate) struct Writing<'f> {
    frames: &'f Frames,
    frame: FrameId,
}

impl<'f> Writing<'f> {
    /// Starts writing. Returns `None` while the block has views.
    pub(crate) fn begin(frames: &'f Frames, frame: FrameId) -> Option<Writing<'f>> {
        let meta = frames.meta(frame);
        let both = FlagSet::LOCKED | FlagSet::UPTODATE;
        debug_assert!(
            meta.flags.load().contains(both),
            "I7: {frame:?} is written without its lock"
        );
        // Not `then_some`: it would make the guard even on failure, and dropping that guard would
        // end the write of another thread.
        (meta.hold.try_begin_write()).then(|| Writing { frames, frame })
    }

    /// Stores `bytes` at `offset` in the block.
    ///
    /// # Panics
    /// If the bytes reach beyond the block.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.frames.bytes_of(self.frame, offset, bytes.len());
        // SAFETY: `to` is inside the block, of which no slice exists (WRITER excludes views).
        // `bytes` is a slice, so it does not overlap the block.
        unsafe { copy::copy_out(to, bytes) }
    }

    /// Stores zeros into `range` of the block.
    ///
    /// # Panics
    /// If the range reaches beyond the block.
    pub(crate) fn zero(&mut self, range: Range<usize>) {
        let len = range.end - range.start;
        let start = self.frames.bytes_of(self.frame, range.start, len);
        // SAFETY: as in `write`.
        unsafe { copy::fill(start, 0, len) }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.frames.meta(self.frame).hold.end_write();
    }
}

/// The right to fill a block that was published locked and not up to date. Other threads can find
/// the block, but not read it.
pub(crate) struct Filling<'f> {
    frames: &'f Frames,
    frame: FrameId,
}

impl<'f> Filling<'f> {
    /// Takes over the right to fill. The caller has just published the frame locked, and adopts it
    /// only once.
    ///
    /// # Panics
    /// If the block is not locked, or is up to date.
    pub(crate) fn adopt(frames: &'f Frames, frame: FrameId) -> Filling<'f> {
        check_filled(frames, frame);
        Filling { frames, frame }
    }

    /// Returns the block's bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let size = PAGE_SIZE << self.frames.meta(self.frame).order();
        // SAFETY: the bytes are inside the arena. While the block is locked and not up to date only
        // the filler uses its bytes: `Pinned` and the callers of `copy_out` check UPTODATE, and
        // translations are made only of up-to-date blocks. `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.frames.host(self.frame), size) }
    }

    /// Ends the filling: sets UPTODATE and unlocks in one step.
    pub(crate) fn finish(self) {
        self.frames.lock_of(self.frame).end_read(ReadEnd::Filled);
    }
}

/// Panics unless the block is being filled: locked, and not up to date.
fn check_filled(frames: &Frames, block: FrameId) {
    let flags = frames.meta(block).flags.load();
    let right = flags.contains(FlagSet::LOCKED) && !flags.contains(FlagSet::UPTODATE);
    assert!(right, "I7: {block:?} is not being filled: {flags:?}");
}

/// The right to fill blocks that were published locked and not up to date, as a value that may
/// outlive the call that made it and go to another thread. Dropping it does not change the blocks.
pub(crate) struct Fills<K: ViewOwner> {
    owner: Arc<K>,
    /// The blocks' first frames, in the order of the blocks.
    blocks: Vec<FrameId>,
    /// The size of each block.
    block_bytes: usize,
}

impl<K: ViewOwner> Fills<K> {
    /// Takes over the right to fill. The caller has published the blocks locked, and adopts them
    /// only once.
    ///
    /// # Panics
    /// If a block is not locked, is up to date or has another size.
    pub(crate) fn adopt(owner: &Arc<K>, blocks: Vec<FrameId>, block_bytes: usize) -> Fills<K> {
        for block in &blocks {
            check_filled(owner.frames(), *block);
            let order = owner.frames().meta(*block).order();
            assert_eq!(PAGE_SIZE << order, block_bytes, "{block:?}");
        }
        Fills {
            owner: owner.clone(),
            blocks,
            block_bytes,
        }
    }

    /// Returns the blocks' first frames.
    pub(crate) fn blocks(&self) -> &[FrameId] {
        &self.blocks
    }

    /// Returns the number of bytes of all blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len() * self.block_bytes
    }

    /// Returns the bytes of a range of the concatenated blocks, in as few pieces as their addresses
    /// allow.
    ///
    /// # Panics
    /// If the range reaches beyond the blocks.
    pub(crate) fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>> {
        assert!(bytes.end <= self.len(), "outside the blocks");
        let mut slices: Vec<IoSliceMut<'_>> = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let first = at / self.block_bytes;
            let inside = at % self.block_bytes;
            let pages = (self.block_bytes / PAGE_SIZE) as u32;
            let neighbours = self.blocks[first..]
                .windows(2)
                .take_while(|pair| pair[0].0 + pages == pair[1].0);
            let whole = (neighbours.count() + 1) * self.block_bytes;
            let len = (whole - inside).min(bytes.end - at);
            let start = self.owner.frames().host(self.blocks[first]);
            // SAFETY: the owner keeps the arena. The bytes are inside it, because the frames of
            // these blocks are consecutive. While a block is locked and not up to date only its
            // filler uses its bytes (see `Filling`), and that is this value. `&mut self`, and
            // ranges that do not overlap, make these the only slices.
            let slice = unsafe { std::slice::from_raw_parts_mut(start.add(inside), len) };
            slices.push(IoSliceMut::new(slice));
            at += len;
        }
        slices
    }
}

impl Frames {
    /// Returns the address of the byte at `offset` in the block at `frame`. The caller wants `len`
    /// bytes from there on.
    ///
    /// # Panics
    /// If these bytes reach beyond the block.
    fn bytes_of(&self, frame: FrameId, offset: usize, len: usize) -> *mut u8 {
        let size = PAGE_SIZE << self.meta(frame).order();
        assert!(offset <= size && len <= size - offset, "outside the block");
        self.host(frame).wrapping_add(offset)
    }

    /// Fills `into` with bytes of the block at `frame`, from `offset` on. The caller holds the
    /// block and found it up to date. Bytes that are written meanwhile may be torn.
    ///
    /// # Panics
    /// If the bytes reach beyond the block.
    pub(crate) fn copy_out(&self, frame: FrameId, offset: usize, into: &mut [u8]) {
        debug_assert!(
            self.meta(frame).flags.load().contains(FlagSet::UPTODATE),
            "{frame:?} is not filled"
        );
        // SAFETY: the bytes are inside the arena; `into` is an exclusive slice, so it is not part
        // of the arena.
        unsafe { copy::copy_in(into, self.bytes_of(frame, offset, into.len())) }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Frames {
        /// Stores to a block as a page-table translation would, with no guard at all.
        pub(crate) fn store_for_test(&self, frame: FrameId, offset: usize, bytes: &[u8]) {
            // SAFETY: the bytes are inside the arena, and the test holds a translation that allows
            // stores.
            unsafe { copy::copy_out(self.bytes_of(frame, offset, bytes.len()), bytes) }
        }
    }
}
