//! The portable form: relaxed atomic words, with smaller atomics at the ends of a range.
//!
//! The language leaves atomics of different sizes that race on the same bytes undefined; every
//! processor we know of defines them, and they arise here only where two users race with ranges that
//! are not aligned alike, or with typed accesses of another size.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Form;

/// The unit that is never torn, in bytes.
pub(super) const WORD: usize = 8;

/// Relaxed atomic words.
#[derive(Debug)]
pub(super) struct Words;

/// Reads the shared word at `address`. Safety: aligned, valid for reads, never accessed plainly.
#[inline(always)]
unsafe fn get_word(address: *const u64) -> u64 {
    // A mutant that reads the two halves one after the other.
    // mutant: A16
    #[cfg(mutant = "A16")]
    {
        let half = address.cast::<u32>();
        // SAFETY: the word's two halves, both inside it and aligned.
        let halves = unsafe {
            [
                AtomicU32::from_ptr(half.cast_mut()).load(Ordering::Relaxed),
                AtomicU32::from_ptr(half.add(1).cast_mut()).load(Ordering::Relaxed),
            ]
        };
        // SAFETY: two words of 32 bits are one of 64, in memory order.
        unsafe { std::mem::transmute::<[u32; 2], u64>(halves) }
    }
    // SAFETY: the caller's promise.
    #[cfg(not(mutant = "A16"))]
    unsafe {
        AtomicU64::from_ptr(address.cast_mut()).load(Ordering::Relaxed)
    }
}

/// Writes the shared word at `address`. Safety: aligned, valid for writes, never accessed plainly.
#[inline(always)]
unsafe fn put_word(address: *mut u64, value: u64) {
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

/// Reads `count` shared bytes, at most 8, one by one; the first is the lowest of the result.
///
/// Safety: `address` is valid for reads of `count` bytes that others may race with.
unsafe fn get_bytes(address: *const u8, count: usize) -> u64 {
    (0..count).rev().fold(0, |value, i| {
        // SAFETY: `i < count`.
        value << 8 | u64::from(unsafe { get_piece(address.add(i), 1) }[0])
    })
}

/// Writes the lowest `count` bytes of `value`, at most 8, one by one, the lowest first.
///
/// Safety: `address` is valid for writes of `count` bytes that others may race with.
unsafe fn put_bytes(address: *mut u8, value: u64, count: usize) {
    for (i, byte) in value.to_le_bytes().iter().enumerate().take(count) {
        // SAFETY: `i < count`.
        unsafe { put_piece(address.add(i), byte, 1) }
    }
}

/// Copies between shared ranges that are aligned differently: every aligned word of the source is
/// read once, every aligned word of the destination written once, each composed from two neighbours.
///
/// Safety: as for [`super::copy_shared`], and the two addresses differ modulo 8.
pub(super) unsafe fn copy_shifted(dst: *mut u8, src: *const u8, len: usize) {
    let head = super::head_of(dst, len);
    // SAFETY: head, words and tail are the parts of a range the caller vouches for.
    unsafe { put_bytes(dst, get_bytes(src, head), head) };
    let words = (len - head) / WORD;
    // Of each source word, `low` bytes still belong to the destination word under way.
    let (low, end) = ((src.addr() + head) % WORD, src.addr() + len);
    let high = WORD - low;
    // SAFETY: `head <= len`.
    let (mut from, mut to) = unsafe { (src.add(head), dst.add(head)) };
    // What has been read and not yet written: `held` bytes of a source word.
    let (mut carry, mut held) = (0, 0);
    if words > 0 {
        // SAFETY: a destination word's worth of bytes is there, more than `high`.
        (carry, held) = unsafe { (get_bytes(from, high), high) };
    }
    for word in 0..words {
        halfway(word, words);
        // SAFETY: `from + high` is the next aligned source word; it is read whole where all of it is
        // in the range, else only the `low` bytes that the destination word needs. `to` is aligned.
        unsafe {
            let next = from.add(high);
            let whole = next.addr() + WORD <= end;
            let value = if whole {
                get_word(next.cast()).to_le()
            } else {
                get_bytes(next, low)
            };
            put_word(to.cast(), (carry | value << (8 * high)).to_le());
            (carry, held) = if whole {
                (value >> (8 * low), high)
            } else {
                (0, 0)
            };
            (from, to) = (from.add(WORD), to.add(WORD));
        }
    }
    let tail = len - head - words * WORD;
    let first = held.min(tail);
    // SAFETY: `from` and `to` have `tail` bytes left; the first of them are in hand.
    unsafe {
        put_bytes(to, carry, first);
        put_bytes(
            to.add(first),
            get_bytes(from.add(first), tail - first),
            tail - first,
        );
    }
}
