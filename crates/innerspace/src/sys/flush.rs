//! Flushing of cache lines: what was stored at an address is sent on from the cache to the medium
//! behind it.
//!
//! On memory that survives a power cut, stores are durable once their cache lines are flushed and a
//! fence has waited for that. The processor is asked once which instruction it has:
//!
//! | instruction | the line stays cached | ordered with other flushes |
//! |---|---|---|
//! | `clwb` | it may | by the fence alone |
//! | `clflushopt` | no | by the fence alone |
//! | `clflush` | no | one after the other |
//! | none: elsewhere, Miri, `--cfg portable` | | |
//!
//! Where there is none, [`flush`] does nothing and returns false. Then only msync(2) makes a
//! mapping durable. (aarch64 has such instructions, but whether a line cleaned by them is durable
//! differs from machine to machine; msync(2) is right on all of them.)
//!
//! This module does not know the kind of memory. Flushing ordinary memory is harmless and costs the
//! same.

use std::ops::Range;

use crate::sync::OnceLock;

/// The unit of flushing in bytes. A processor with smaller lines counts as having no instruction.
pub(crate) const LINE: usize = 64;

/// The way in which lines are flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flusher {
    /// Writes a line back, and may let it stay in the cache.
    Clwb,
    /// Writes a line back and drops it.
    ClflushOpt,
    /// Writes a line back and drops it, once the previous flush has finished.
    Clflush,
    /// The processor has no such instruction.
    Nothing,
}

impl Flusher {
    /// Returns the best way to flush on this processor.
    #[inline]
    pub(crate) fn best() -> Flusher {
        static BEST: OnceLock<Flusher> = OnceLock::new();
        *BEST.get_or_init(|| Flusher::available()[0])
    }

    /// Flushes the lines that hold a byte of the range. Returns whether there is an instruction for
    /// it; only then are the lines durable after a [`fence`].
    ///
    /// # Safety
    /// The range stays mapped during the call. Other threads may read and write it.
    #[inline]
    pub(crate) unsafe fn flush(self, address: *const u8, len: usize) -> bool {
        if self == Flusher::Nothing {
            return false;
        }
        for line in lines(address.addr(), len) {
            // SAFETY: the line holds a byte of the range, and no page begins or ends inside a line.
            unsafe { self.flush_line(address.with_addr(line)) };
        }
        true
    }
}

/// Iterates over the addresses of the lines that hold a byte of the range.
pub(crate) fn lines(address: usize, len: usize) -> impl Iterator<Item = usize> {
    line_range(address as u64, len as u64)
        .step_by(LINE)
        .map(|line| line as usize)
}

/// Returns the range widened to whole lines. An empty range stays empty.
pub(crate) fn line_range(start: u64, len: u64) -> Range<u64> {
    let line = LINE as u64;
    let first = start - start % line;
    if len == 0 {
        return first..first;
    }
    first..(start + len).next_multiple_of(line)
}

/// Flushes with the best instruction of this processor; see [`Flusher::flush`].
///
/// # Safety
/// As for [`Flusher::flush`].
#[inline]
pub(crate) unsafe fn flush(address: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise is the same.
    unsafe { Flusher::best().flush(address, len) }
}

#[cfg(all(target_arch = "x86_64", not(any(portable, miri))))]
mod platform {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _mm_sfence};

    use super::{Flusher, LINE};

    impl Flusher {
        /// Returns the forms that the processor has, best first. The list is never empty.
        pub(crate) fn available() -> Vec<Flusher> {
            let basic = __cpuid(1);
            // The processor gives the size in units of 8 bytes.
            let line = (basic.ebx >> 8 & 0xFF) as usize * 8;
            let more = match __get_cpuid_max(0).0 {
                7.. => __cpuid_count(7, 0).ebx,
                _ => 0,
            };
            let has = [
                (Flusher::Clwb, more >> 24 & 1 != 0),
                (Flusher::ClflushOpt, more >> 23 & 1 != 0),
                (Flusher::Clflush, basic.edx >> 19 & 1 != 0),
            ];
            has.into_iter()
                .filter(|(_, has)| *has && line >= LINE)
                .map(|(flusher, _)| flusher)
                .chain([Flusher::Nothing])
                .collect()
        }

        /// Flushes one line.
        ///
        /// Safety: the line is mapped, and the processor has the instruction.
        #[inline(always)]
        pub(super) unsafe fn flush_line(self, line: *const u8) {
            // SAFETY: the caller's promise; the instructions change no byte and no register. The
            // compiler assumes that they may access memory, so stores before them stay before them.
            unsafe {
                match self {
                    Flusher::Clwb => {
                        asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    Flusher::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    Flusher::Clflush => {
                        asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    Flusher::Nothing => {}
                }
            }
        }
    }

    /// Waits for the flushes of this thread, and for its stores that bypass the caches.
    #[inline]
    pub(crate) fn fence() {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(portable, miri)))))]
mod platform {
    use super::Flusher;

    impl Flusher {
        /// Returns the forms that the processor has, best first. The list is never empty.
        pub(crate) fn available() -> Vec<Flusher> {
            vec![Flusher::Nothing]
        }

        /// Does nothing, because there is no instruction.
        pub(super) unsafe fn flush_line(self, _: *const u8) {}
    }

    /// Does nothing, because no flush was begun.
    pub(crate) fn fence() {}
}

pub(crate) use platform::fence;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_an_unaligned_range_is_flushed_and_no_other() {
        for address in (0x1_0000..0x1_0000 + 3 * LINE).step_by(7) {
            for len in (0..5 * LINE).step_by(3) {
                let mut expected: Vec<usize> = (address..address + len)
                    .map(|byte| byte & !(LINE - 1))
                    .collect();
                expected.dedup();
                let flushed: Vec<usize> = lines(address, len).collect();
                assert_eq!(flushed, expected, "{len} bytes at {address:#x}");
            }
        }
    }

    #[test]
    fn flushing_changes_no_byte_by_any_instruction() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i * 7) as u8).collect();
        for flusher in Flusher::available() {
            for range in [0..10_000, 1..2, 63..65, 100..9_999, 5..5] {
                let part = &bytes[range];
                // SAFETY: the range is a part of a vector that is borrowed.
                let flushed = unsafe { flusher.flush(part.as_ptr(), part.len()) };
                fence();
                assert_eq!(flushed, flusher != Flusher::Nothing);
            }
            assert!((0..10_000_u32).all(|i| bytes[i as usize] == (i * 7) as u8));
        }
    }

    #[test]
    fn the_best_is_the_first_that_there_is() {
        let available = Flusher::available();
        assert_eq!(Flusher::best(), available[0]);
        assert_eq!(available.last(), Some(&Flusher::Nothing));
        // Every x86-64 processor has the oldest of the instructions.
        let expected = cfg!(all(target_arch = "x86_64", not(any(portable, miri))));
        assert_eq!(available.contains(&Flusher::Clflush), expected);
    }
}
