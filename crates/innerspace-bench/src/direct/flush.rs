//! Flushes lines of memory, as a sync of a direct access file flushes those of its blocks.

/// The unit of flushing in bytes.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Flushes the lines of `bytes` with the best instruction that this processor has, and waits until
/// that is done. Returns whether there is such an instruction.
#[cfg(target_arch = "x86_64")]
pub(super) fn flush_lines(bytes: &[u8]) -> bool {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, _mm_clflush, _mm_sfence};
    use std::sync::OnceLock;

    /// The features that leaf 7 of CPUID reports.
    static FEATURES: OnceLock<u32> = OnceLock::new();
    let features = *FEATURES.get_or_init(|| match __get_cpuid_max(0).0 {
        7.. => __cpuid_count(7, 0).ebx,
        _ => 0,
    });
    let (has_clwb, has_clflushopt) = (features >> 24 & 1 != 0, features >> 23 & 1 != 0);
    let first = bytes.as_ptr().addr() & !(LINE - 1);
    let end = bytes.as_ptr().addr() + bytes.len();
    for line in (first..end).step_by(LINE) {
        let line = bytes.as_ptr().with_addr(line);
        // SAFETY: the line holds a byte of a borrowed slice, and the processor has the instruction,
        // which changes no byte and no register.
        unsafe {
            if has_clwb {
                asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
            } else if has_clflushopt {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            } else {
                _mm_clflush(line);
            }
        }
    }
    // SAFETY: the instruction is in every x86-64 processor.
    unsafe { _mm_sfence() };
    true
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn flush_lines(_: &[u8]) -> bool {
    false
}
