//! The portable form: relaxed atomic words, with smaller atomics at the ends of a range.
//!
//! The language leaves atomics of different sizes that race on the same bytes undefined; every
//! processor we know of defines them, and they arise here only where two users race with ranges
//! that are not aligned alike, or with typed accesses of another size.

use std::sync::atomic::{AtomicU64, Ordering};

use super::form::{Form, copy_in_by};
use super::pieces::{WORD, accessed};

/// Relaxed atomic words.
#[derive(Debug)]
pub(super) struct Words;

/// Reads the shared word at `address`. Safety: aligned, valid for reads, never accessed plainly.
#[inline(always)]
unsafe fn get_word(address: *const u64) -> u64 {
    accessed(address.cast(), WORD);
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(address.cast_mut()).load(Ordering::Relaxed) }
}

/// Writes the shared word at `address`. Safety: aligned, valid for writes, never accessed plainly.
#[inline(always)]
unsafe fn put_word(address: *mut u64, value: u64) {
    accessed(address.cast(), WORD);
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(address).store(value, Ordering::Relaxed) }
}

/// Lets a model look at a bulk operation that is half done.
#[inline(always)]
fn halfway(word: usize, words: usize) {
    if cfg!(shuttle) && word == words / 2 {
        crate::sync::interleave();
    }
}

impl Form for Words {
    unsafe fn still_in(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise. Word by word: a plain copy would race with a thread that
        // writes them after all.
        unsafe { copy_in_by::<Words>(dst, src, len) }
    }

    #[inline]
    unsafe fn words_in(dst: *mut u8, src: *const u64, words: usize) {
        for i in 0..words {
            halfway(i, words);
            // SAFETY: the trait's promise covers the first `words` words of both ranges.
            unsafe {
                dst.add(i * WORD)
                    .cast::<u64>()
                    .write_unaligned(get_word(src.add(i)))
            }
        }
    }

    #[inline]
    unsafe fn words_out(dst: *mut u64, src: *const u8, words: usize) {
        for i in 0..words {
            halfway(i, words);
            // SAFETY: as above.
            unsafe { put_word(dst.add(i), src.add(i * WORD).cast::<u64>().read_unaligned()) }
        }
    }

    #[inline]
    unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize) {
        for i in 0..words {
            halfway(i, words);
            // SAFETY: as above.
            unsafe { put_word(dst.add(i), get_word(src.add(i))) }
        }
    }

    #[inline]
    unsafe fn words_fill(dst: *mut u64, value: u64, words: usize) {
        for i in 0..words {
            halfway(i, words);
            // SAFETY: as above.
            unsafe { put_word(dst.add(i), value) }
        }
    }
}
