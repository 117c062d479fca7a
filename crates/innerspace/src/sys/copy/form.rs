//! The forms of the inner loops, and the operations on a range of any alignment in a given form.

use super::pieces::{Shared, Target, WORD};
use crate::units::PAGE_SIZE;

/// The inner loops on whole words. *Shared* sides are aligned to a word; *private* sides need not
/// be.
///
/// Safety of all methods: both ranges are valid for `words` words, the source for reads and the
/// destination for writes. They do not overlap. Nothing else uses the private one.
pub(super) trait Form {
    /// Copies words, where the side `S` is the shared one.
    unsafe fn words<S: Shared>(dst: *mut u8, src: *const u8, words: usize);
    /// Copies `len` bytes, which are assumed not to change, to private memory.
    unsafe fn still_in(dst: *mut u8, src: *const u8, len: usize);
    /// Copies shared words to shared words.
    unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize);
    /// Stores `value` to shared words.
    unsafe fn words_fill(dst: *mut u64, value: u64, words: usize);
    /// Sets a page of shared words, aligned to 64 bytes, to zero. Words that are zero already need
    /// not be stored to.
    unsafe fn page_zero(page: *mut u64) {
        // SAFETY: the range is a page of words, for which the caller vouches.
        unsafe { Self::words_fill(page, 0, PAGE_SIZE / WORD) }
    }

    /// Returns whether [`Form::stream_page`] may be called. The portable form, whose copy is a
    /// plain one, always allows it.
    fn streams() -> bool {
        true
    }
    /// Copies a page of bytes to a page that is aligned to 64 bytes and that nothing else uses. See
    /// [`super::Streaming`].
    unsafe fn stream_page(dst: *mut u8, src: *const u8) {
        // SAFETY: the caller's promise.
        unsafe { dst.copy_from_nonoverlapping(src, PAGE_SIZE) }
    }

    /// Prefetches a cache line that is to be read soon.
    fn prefetch(_address: *const u8) {}
    /// Prefetches a cache line that is to be written soon.
    fn prefetch_to_write(_address: *const u8) {}
}

/// Returns how many of `len` bytes at `address` are before the first aligned word. If there is no
/// aligned word, that is all of them.
pub(super) fn head_of(address: *const u8, len: usize) -> usize {
    (address.addr().wrapping_neg() % WORD).min(len)
}

/// Divides `len < 8` bytes at `address` into aligned pieces of 1, 2 and 4 bytes, and returns them
/// as (offset, size) pairs. No piece crosses an aligned word.
fn pieces_of(address: *const u8, len: usize) -> impl Iterator<Item = (usize, usize)> {
    debug_assert!(address.addr() % WORD + len <= WORD);
    let mut offset = 0;
    std::iter::from_fn(move || {
        let left = len - offset;
        if left == 0 {
            return None;
        }
        let aligned_to = 1 << (address.addr() + offset).trailing_zeros().min(2);
        let fits = 1 << left.ilog2().min(2);
        let piece = (offset, aligned_to.min(fits));
        offset += piece.1;
        Some(piece)
    })
}

/// Copies `len` bytes by the loops of the form `F`. Safety: both ranges are valid for `len` bytes.
/// Others use the side `S` by atomics only, and nothing else uses the other side.
pub(super) unsafe fn copy_by<F: Form, S: Shared>(dst: *mut u8, src: *const u8, len: usize) {
    crate::sync::interleave();
    let shared = S::of(dst, src);
    let head = head_of(shared, len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: head, words and tail are the parts of a range for which the caller vouches. `head` is
    // chosen so that the words begin at an aligned address.
    unsafe {
        for (offset, size) in pieces_of(shared, head) {
            S::piece(dst.add(offset), src.add(offset), size);
        }
        F::words::<S>(dst.add(head), src.add(head), words);
        for (offset, size) in pieces_of(shared.add(tail), len - tail) {
            S::piece(dst.add(tail + offset), src.add(tail + offset), size);
        }
    }
}

/// Fills `len` bytes by the loops of the form `F`. Safety: as for `copy_by`.
pub(super) unsafe fn fill_by<F: Form>(dst: *mut u8, byte: u8, len: usize) {
    crate::sync::interleave();
    let value = [byte; WORD];
    let head = head_of(dst, len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: as in `copy_by`; `value` has room for every piece.
    unsafe {
        for (offset, size) in pieces_of(dst, head) {
            Target::piece(dst.add(offset), value.as_ptr(), size);
        }
        F::words_fill(dst.add(head).cast(), u64::from_ne_bytes(value), words);
        for (offset, size) in pieces_of(dst.add(tail), len - tail) {
            Target::piece(dst.add(tail + offset), value.as_ptr(), size);
        }
    }
}
