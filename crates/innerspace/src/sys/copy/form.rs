//! The form of the inner loops, and the operations on a range of any alignment in a given form.

use super::pieces::{WORD, get_piece, put_piece, put_private};
use crate::units::PAGE_SIZE;

/// The inner loops on whole words. *Shared* sides are aligned to a word; *private* ones need not
/// be.
///
/// Safety of all: both ranges are valid for `words` words, the source for reads, the destination
/// for writes; they do not overlap; nobody else uses the private one.
pub(super) trait Form {
    /// Shared words to private bytes.
    unsafe fn words_in(dst: *mut u8, src: *const u64, words: usize);
    /// Bytes that are assumed not to change to private bytes, as many as given.
    unsafe fn still_in(dst: *mut u8, src: *const u8, len: usize);
    /// Private bytes to shared words.
    unsafe fn words_out(dst: *mut u64, src: *const u8, words: usize);
    /// Shared words to shared words.
    unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize);
    /// `value` into shared words.
    unsafe fn words_fill(dst: *mut u64, value: u64, words: usize);
    /// Zeros into a page of shared words, aligned to 64 bytes; words that are zero already need not
    /// be stored to.
    unsafe fn page_zero(page: *mut u64) {
        // SAFETY: a page of words, which the caller vouches for.
        unsafe { Self::words_fill(page, 0, PAGE_SIZE / WORD) }
    }
}

/// How many of `len` bytes at `address` stand before the first aligned word; all when there is
/// none.
pub(super) fn head_of(address: *const u8, len: usize) -> usize {
    (address.addr().wrapping_neg() % WORD).min(len)
}

/// The pieces of 1, 2 and 4 bytes, each aligned, that `len < 8` bytes at `address` consist of, as
/// (offset, size) pairs. They cross no aligned word.
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

/// `copy_in` in a given form. Safety: as there, with `dst` private and valid for `len` bytes.
pub(super) unsafe fn copy_in_by<F: Form>(dst: *mut u8, src: *const u8, len: usize) {
    crate::sync::interleave();
    let head = head_of(src, len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: head, words and tail are the parts of a range the caller vouches for; the words begin
    // at an aligned address by the choice of `head`.
    unsafe {
        for (offset, size) in pieces_of(src, head) {
            put_private(dst.add(offset), get_piece(src.add(offset), size), size);
        }
        F::words_in(dst.add(head), src.add(head).cast(), words);
        for (offset, size) in pieces_of(src.add(tail), len - tail) {
            let at = tail + offset;
            put_private(dst.add(at), get_piece(src.add(at), size), size);
        }
    }
}

/// `copy_out` in a given form. Safety: as there, with `src` private and valid for `len` bytes.
pub(super) unsafe fn copy_out_by<F: Form>(dst: *mut u8, src: *const u8, len: usize) {
    crate::sync::interleave();
    let head = head_of(dst, len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: as in `copy_in_by`, with the sides exchanged.
    unsafe {
        for (offset, size) in pieces_of(dst, head) {
            put_piece(dst.add(offset), src.add(offset), size);
        }
        F::words_out(dst.add(head).cast(), src.add(head), words);
        for (offset, size) in pieces_of(dst.add(tail), len - tail) {
            put_piece(dst.add(tail + offset), src.add(tail + offset), size);
        }
    }
}

/// `fill` in a given form. Safety: as there.
pub(super) unsafe fn fill_by<F: Form>(dst: *mut u8, byte: u8, len: usize) {
    crate::sync::interleave();
    let value = [byte; WORD];
    let head = head_of(dst, len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: as in `copy_in_by`; `value` has room for every piece.
    unsafe {
        for (offset, size) in pieces_of(dst, head) {
            put_piece(dst.add(offset), value.as_ptr(), size);
        }
        F::words_fill(dst.add(head).cast(), u64::from_ne_bytes(value), words);
        for (offset, size) in pieces_of(dst.add(tail), len - tail) {
            put_piece(dst.add(tail + offset), value.as_ptr(), size);
        }
    }
}
