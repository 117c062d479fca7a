//! The portable form: relaxed atomic words, with smaller atomics at the ends of a range.
//!
//! The language leaves atomics of different sizes that race on the same bytes undefined; every
//! processor we know of defines them, and they arise here only where two users race with ranges
//! that are not aligned alike, or with typed accesses of another size.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Form;

/// The unit that is never torn, in bytes.
pub(super) const WORD: usize = 8;

/// Relaxed atomic words.
#[derive(Debug)]
pub(super) struct Words;

/// In tests, the shared accesses of this form can be recorded; elsewhere this is nothing.
#[inline(always)]
fn accessed(address: *const u8, size: usize) {
    #[cfg(test)]
    super::trace::record(address.addr(), size);
    #[cfg(not(test))]
    let _ = (address, size);
}

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
        // SAFETY: the caller's promise. Word by word: a plain copy would be a race with who writes
        // them after all.
        unsafe { super::copy_in_by::<Words>(dst, src, len) }
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

/// Reads an aligned shared piece of `size` bytes (1, 2 or 4) as one access; the rest is zero.
///
/// Safety: `address` is aligned to `size` and valid for reads that others may race with.
#[inline(always)]
pub(super) unsafe fn get_piece(address: *const u8, size: usize) -> [u8; 4] {
    accessed(address, size);
    let address = address.cast_mut();
    let mut piece = [0; 4];
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => piece[0] = AtomicU8::from_ptr(address).load(Ordering::Relaxed),
            2 => {
                let half = AtomicU16::from_ptr(address.cast()).load(Ordering::Relaxed);
                piece[..2].copy_from_slice(&half.to_ne_bytes());
            }
            _ => {
                piece = AtomicU32::from_ptr(address.cast())
                    .load(Ordering::Relaxed)
                    .to_ne_bytes()
            }
        }
    }
    piece
}

/// Writes `size` bytes (1, 2 or 4) from private memory to an aligned shared piece as one access.
///
/// Safety: `address` is aligned to `size` and valid for writes that others may race with; `from` is
/// valid for reads of `size` bytes that nobody writes.
#[inline(always)]
pub(super) unsafe fn put_piece(address: *mut u8, from: *const u8, size: usize) {
    accessed(address, size);
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => AtomicU8::from_ptr(address).store(from.read(), Ordering::Relaxed),
            2 => AtomicU16::from_ptr(address.cast())
                .store(from.cast::<u16>().read_unaligned(), Ordering::Relaxed),
            _ => AtomicU32::from_ptr(address.cast())
                .store(from.cast::<u32>().read_unaligned(), Ordering::Relaxed),
        }
    }
}

/// Writes the first `size` bytes (1, 2 or 4) of a piece to private memory at any alignment.
///
/// Safety: `address` is valid for writes of `size` bytes, and nobody else uses them.
#[inline(always)]
pub(super) unsafe fn put_private(address: *mut u8, piece: [u8; 4], size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => address.write(piece[0]),
            2 => address.cast::<[u8; 2]>().write([piece[0], piece[1]]),
            _ => address.cast::<[u8; 4]>().write(piece),
        }
    }
}
