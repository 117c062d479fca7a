//! The x86-64 form of the loops. Short ranges go through the portable loops, which compile to plain
//! moves. Long ranges go through moves of a whole cache line, where the processor has them
//! ([`wide`]).

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};

use super::form::Form;
use super::pieces::{Shared, Target, WORD};
use super::wide;
use super::words::Words;
use crate::units::PAGE_SIZE;

/// The form that uses moves of 64 bytes and string instructions.
#[derive(Debug)]
pub(super) struct Assembly;

/// The length in words from which a string instruction is faster despite its start-up cost. (At 256
/// bytes both ways take 12 ns.)
const STRING_WORDS: usize = 32;

impl Form for Assembly {
    #[inline]
    unsafe fn words<S: Shared>(dst: *mut u8, src: *const u8, words: usize) {
        // SAFETY: the trait's promise is the same. The wide moves are used only where the processor
        // has them.
        unsafe {
            if words >= STRING_WORDS && wide::available() {
                return wide::words::<S>(dst, src, words);
            }
            if words >= STRING_WORDS && (dst.addr() | src.addr()).is_multiple_of(WORD) {
                return move_words(dst, src, words);
            }
            Words::words::<S>(dst, src, words);
        }
    }

    #[inline]
    unsafe fn still_in(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the instruction reads and writes `len` bytes, for which the caller vouches. The
        // direction flag is clear at every assembly block.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rdi") dst => _,
                inout("rsi") src => _,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize) {
        let are_lines = (dst.addr() | src.addr() | (words * WORD)).is_multiple_of(64);
        // SAFETY: the trait's promise is the same. The wide moves are used only where the processor
        // has them.
        unsafe {
            if are_lines && wide::available() {
                // Each move is one access to one cache line on both sides, and no words are left.
                wide::words::<Target>(dst.cast(), src.cast(), words);
            } else if words >= STRING_WORDS {
                move_words(dst.cast(), src.cast(), words);
            } else {
                Words::words_across(dst, src, words);
            }
        }
    }

    #[inline]
    unsafe fn words_fill(dst: *mut u64, value: u64, words: usize) {
        if words < STRING_WORDS {
            // SAFETY: the trait's promise is the same.
            return unsafe { Words::words_fill(dst, value, words) };
        }
        // SAFETY: the instruction writes `words` words at `dst`, which the trait's promise covers.
        // The direction flag is clear at every assembly block.
        unsafe {
            asm!(
                "rep stosq",
                inout("rcx") words => _,
                inout("rdi") dst => _,
                in("rax") value,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline]
    unsafe fn page_zero(page: *mut u64) {
        // SAFETY: the trait's promise is the same. The wide moves are used only where the processor
        // has them.
        unsafe {
            if wide::available() {
                wide::page_zero(page);
            } else {
                Assembly::words_fill(page, 0, PAGE_SIZE / WORD);
            }
        }
    }

    #[inline]
    fn streams() -> bool {
        wide::available() // stores of parts of lines gain nothing
    }

    #[inline]
    unsafe fn stream_page(dst: *mut u8, src: *const u8) {
        // SAFETY: the trait's promise; pages are streamed only if the processor has the moves.
        unsafe { wide::stream_page(dst, src) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch accesses no memory, and every address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn prefetch_to_write(address: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) }
    }
}

/// Copies whole words by the string instruction. Safety: both ranges as for [`Form`].
#[inline(always)]
unsafe fn move_words(dst: *mut u8, src: *const u8, words: usize) {
    // SAFETY: the instruction reads and writes `words` words, for which the caller vouches. The
    // direction flag is clear at every assembly block.
    unsafe {
        asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}
