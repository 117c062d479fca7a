//! Copies of whole words by moves of a cache line, for processors with AVX-512.
//!
//! A string instruction delays the instructions after it: where each of several page copies
//! followed a look-up with a cache miss, the copies waited for one another. These moves overlap
//! with the instructions around them.
//!
//! **Words stay whole**: the shared side is aligned to 64 bytes, so each move there is one access
//! to one cache line. If a processor splits it, the parts have at least the 8 bytes of an element.

use std::arch::asm;

use super::form::Form;
use super::pieces::{Shared, WORD};
use super::words::Words;
use crate::units::PAGE_SIZE;

/// Returns whether the processor has these moves and runs them at full speed. The first processors
/// with AVX-512 lowered their frequency for them; later processors also have VBMI2, by which this
/// function recognises them.
#[inline]
pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vbmi2")
}

/// Moves 64 bytes with each instruction, 256 bytes in each round, with the given store. Registers
/// from zmm16 on leave no upper halves behind that would have to be cleared.
macro_rules! move_lines {
    ($dst:expr, $src:expr, $lines:expr, $store:literal) => {{
        let (mut dst, mut src, lines): (*mut u8, *const u8, usize) = ($dst, $src, $lines);
        for _ in 0..lines / 4 {
            asm!(
                "vmovdqu64 zmm16, [{src}]",
                "vmovdqu64 zmm17, [{src} + 64]",
                "vmovdqu64 zmm18, [{src} + 128]",
                "vmovdqu64 zmm19, [{src} + 192]",
                concat!($store, " [{dst}], zmm16"),
                concat!($store, " [{dst} + 64], zmm17"),
                concat!($store, " [{dst} + 128], zmm18"),
                concat!($store, " [{dst} + 192], zmm19"),
                src = in(reg) src,
                dst = in(reg) dst,
                out("zmm16") _,
                out("zmm17") _,
                out("zmm18") _,
                out("zmm19") _,
                options(nostack, preserves_flags),
            );
            (dst, src) = (dst.add(256), src.add(256));
        }
        for _ in 0..lines % 4 {
            asm!(
                "vmovdqu64 zmm16, [{src}]",
                concat!($store, " [{dst}], zmm16"),
                src = in(reg) src,
                dst = in(reg) dst,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
            (dst, src) = (dst.add(64), src.add(64));
        }
    }};
}

/// Copies words as [`Form::words`] does. Safety: as there, and the moves are [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words<S: Shared>(dst: *mut u8, src: *const u8, words: usize) {
    let to_line = S::of(dst, src).addr().wrapping_neg() % 64 / WORD;
    let head = to_line.min(words);
    let lines = (words - head) * WORD / 64;
    let (at, tail) = (head * WORD, head * WORD + lines * 64);
    // SAFETY: head, lines and tail are the parts of the two ranges for which the caller vouches.
    unsafe {
        Words::words::<S>(dst, src, head);
        move_lines!(dst.add(at), src.add(at), lines, "vmovdqu64");
        Words::words::<S>(dst.add(tail), src.add(tail), words - tail / WORD);
    }
}

/// Copies as [`Form::stream_page`] does, with stores that are not ordered with others. Safety: as
/// there, and the moves are [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream_page(dst: *mut u8, src: *const u8) {
    debug_assert!(dst.addr().is_multiple_of(64));
    // SAFETY: the moves read and write the two pages for which the caller vouches.
    unsafe { move_lines!(dst, src, PAGE_SIZE / 64, "vmovntdq") }
}

/// Clears a page as [`Form::page_zero`] does, and stores only to the blocks of 256 bytes that are
/// not clear.
///
/// Recycled frames are usually mostly clear where programs touch little of a page. Reading a line
/// costs less than writing it, both in a near cache and in memory, because the line need not be
/// written back. The processor also fetches ahead lines that are read, but not lines that are only
/// written.
///
/// Safety: as for [`Form::page_zero`], and the moves are [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn page_zero(page: *mut u64) {
    debug_assert!(page.addr().is_multiple_of(64));
    for quarter in 0..PAGE_SIZE / 256 {
        // SAFETY: the instructions read and write 256 bytes of the page for which the caller
        // vouches.
        unsafe {
            asm!(
                "vmovdqa64 zmm16, [{to}]",
                "vmovdqa64 zmm17, [{to} + 64]",
                "vporq zmm17, zmm17, [{to} + 128]",
                "vpternlogq zmm16, zmm17, [{to} + 192], 0xfe", // zmm16 | zmm17 | memory
                "vptestmq {any}, zmm16, zmm16",
                "kortestw {any}, {any}",
                "jz 2f",
                "vpxorq zmm16, zmm16, zmm16",
                "vmovdqa64 [{to}], zmm16",
                "vmovdqa64 [{to} + 64], zmm16",
                "vmovdqa64 [{to} + 128], zmm16",
                "vmovdqa64 [{to} + 192], zmm16",
                "2:",
                to = in(reg) page.add(quarter * (256 / WORD)),
                any = out(kreg) _,
                out("zmm16") _,
                out("zmm17") _,
                options(nostack),
            );
        }
    }
}
