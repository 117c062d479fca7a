//! Whole words by moves of a cache line, for processors with AVX-512.
//!
//! A string instruction delays the instructions after it: page copies that each followed a look-up
//! with a cache miss waited for one after the other. These moves overlap with their surroundings.
//!
//! **Words stay whole**: the shared side is aligned to 64 bytes, so each move there is one access
//! to one cache line. Where a processor splits it, the parts are not smaller than the 8 bytes of an
//! element.

use std::arch::asm;

use super::form::Form;
use super::pieces::WORD;
use super::words::Words;
use crate::units::PAGE_SIZE;

/// A cache line, in words.
const LINE: usize = 64 / WORD;

/// Whether the processor has these moves, and runs them at full speed. The first processors with
/// AVX-512 lowered their frequency for them; later ones have VBMI2.
#[inline]
pub(super) fn available() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512vbmi2")
}

/// Words up to the next line, of `words`.
fn head_of(shared: *const u64, words: usize) -> usize {
    (shared.addr().wrapping_neg() % 64 / WORD).min(words)
}

/// The loop of those that copy: 256 bytes at a time, then 64. Loads and stores are given; registers
/// 16 and up leave nothing behind that has to be cleaned.
macro_rules! move_lines {
    ($dst:ident, $src:ident, $lines:expr, $load:literal, $store:literal) => {{
        let lines: usize = $lines;
        let (mut dst, mut src): (*mut u8, *const u8) = ($dst.cast(), $src.cast());
        for _ in 0..lines / 4 {
            asm!(
                concat!($load, " zmm16, [{src}]"),
                concat!($load, " zmm17, [{src} + 64]"),
                concat!($load, " zmm18, [{src} + 128]"),
                concat!($load, " zmm19, [{src} + 192]"),
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
                concat!($load, " zmm16, [{src}]"),
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

/// [`Form::words_in`]. Safety: as there, and [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words_in(dst: *mut u8, src: *const u64, words: usize) {
    let head = head_of(src, words);
    let lines = (words - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail are the parts of the two ranges the caller vouches for.
    unsafe {
        Words::words_in(dst, src, head);
        let (to, from) = (dst.add(head * WORD), src.add(head));
        move_lines!(to, from, lines, "vmovdqa64", "vmovdqu64");
        Words::words_in(dst.add(tail * WORD), src.add(tail), words - tail);
    }
}

/// [`Form::words_out`]. Safety: as there, and [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words_out(dst: *mut u64, src: *const u8, words: usize) {
    let head = head_of(dst, words);
    let lines = (words - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: as above.
    unsafe {
        Words::words_out(dst, src, head);
        let (to, from) = (dst.add(head), src.add(head * WORD));
        move_lines!(to, from, lines, "vmovdqu64", "vmovdqa64");
        Words::words_out(dst.add(tail), src.add(tail * WORD), words - tail);
    }
}

/// [`Form::words_across`] for sides at the same place in their lines. Safety: as there, and
/// [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize) {
    debug_assert!((dst.addr() ^ src.addr()).is_multiple_of(64));
    let head = head_of(dst, words);
    let lines = (words - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: as above.
    unsafe {
        Words::words_across(dst, src, head);
        let (to, from) = (dst.add(head), src.add(head));
        move_lines!(to, from, lines, "vmovdqa64", "vmovdqa64");
        Words::words_across(dst.add(tail), src.add(tail), words - tail);
    }
}

/// Copies bytes to lines of 64 without reading these first or caching them. Not ordered with other
/// stores: see [`super::Streaming`]. Safety: both ranges are valid for `lines` lines, `dst` is
/// aligned to one, and nobody else uses them; and [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream_lines(dst: *mut u8, src: *const u8, lines: usize) {
    debug_assert!(dst.addr().is_multiple_of(64));
    // SAFETY: reads and writes the ranges that the caller vouches for.
    unsafe { move_lines!(dst, src, lines, "vmovdqu64", "vmovntdq") }
}

/// [`Form::words_fill`]. Safety: as there, and [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words_fill(dst: *mut u64, value: u64, words: usize) {
    let head = head_of(dst, words);
    let lines = (words - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail are the parts of the range the caller vouches for.
    unsafe {
        Words::words_fill(dst, value, head);
        let mut to = dst.add(head);
        for _ in 0..lines / 4 {
            asm!(
                "vpbroadcastq zmm16, {value}",
                "vmovdqa64 [{to}], zmm16",
                "vmovdqa64 [{to} + 64], zmm16",
                "vmovdqa64 [{to} + 128], zmm16",
                "vmovdqa64 [{to} + 192], zmm16",
                to = in(reg) to,
                value = in(reg) value,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
            to = to.add(4 * LINE);
        }
        for _ in 0..lines % 4 {
            asm!(
                "vpbroadcastq zmm16, {value}",
                "vmovdqa64 [{to}], zmm16",
                to = in(reg) to,
                value = in(reg) value,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
            to = to.add(LINE);
        }
        Words::words_fill(dst.add(tail), value, words - tail);
    }
}

/// [`Form::page_zero`]: stores only to the blocks of 256 bytes that are not clear.
///
/// Frames that come back are usually mostly clear where programs touch little of a page. Reading a
/// line costs less than writing it, both in a near cache and in memory, which need not be written
/// back; and the processor fetches ahead lines that are read, not lines that are only written.
/// Safety: as there, and [`available`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn page_zero(page: *mut u64) {
    debug_assert!(page.addr().is_multiple_of(64));
    for quarter in 0..PAGE_SIZE / 256 {
        // SAFETY: reads and writes 256 bytes of the page, which the caller vouches for.
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
