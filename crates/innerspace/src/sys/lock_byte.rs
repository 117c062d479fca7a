//! The byte of a page's flags that carries its lock, and two operations on that byte. Each must be
//! one instruction.
//!
//! ```text
//!   bit 0  LOCKED    a thread owns the page's content and state
//!   bit 1  UPTODATE  the content has arrived
//!   bit 7  WAITERS   a thread may be waiting for a bit of this page to clear
//! ```
//!
//! Unlocking almost never finds a waiter, so checking for one must cost nothing. Bit 7 is the sign
//! of the byte, and the locked operation that clears bit 0 leaves the sign in the processor's
//! flags. The compiler cannot express this: if the result of an atomic `and` is used, it makes a
//! loop of compare-exchanges of it. Hence the assembly, next to a portable form.
//!
//! All atomics on this byte are one byte wide. A wider operation on the word around it would delay
//! the next narrow one, because the processor could not forward the store.
//!
//! Setting LOCKED, the wait table and the rules for callers belong to the page lock
//! (`frame/lock.rs`), not to this module.

use crate::sync::atomic::{AtomicU8, Ordering};

/// The page is locked.
pub(crate) const LOCKED: u8 = 1 << 0;
/// The page's content has arrived.
pub(crate) const UPTODATE: u8 = 1 << 1;
/// A thread may be waiting for a bit of this page to clear.
pub(crate) const WAITERS: u8 = 1 << 7;

// The sign of the byte is WAITERS, and LOCKED is below it. Adding LOCKED turns LOCKED without
// UPTODATE into UPTODATE without LOCKED, and carries no further.
const _: () = assert!(WAITERS == i8::MIN as u8);
const _: () = assert!(LOCKED < WAITERS && UPTODATE < WAITERS);
const _: () = assert!(LOCKED + LOCKED == UPTODATE);

/// Whether the WAITERS bit was found set, so that a waiter may have to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "waiters that are not woken sleep on"]
pub(crate) enum Contention {
    /// No thread waits.
    None,
    /// A thread may wait: the wait table has to be checked.
    Waiters,
}

impl Contention {
    #[inline(always)]
    fn of(waiters: bool) -> Contention {
        if waiters {
            Contention::Waiters
        } else {
            Contention::None
        }
    }
}

/// Clears LOCKED and returns whether a thread may wait, in one atomic operation (release).
///
/// An unlocked page stays unlocked.
///
/// # Panics
/// In debug builds, if the page is not locked.
#[inline(always)]
pub(crate) fn unlock(byte: &AtomicU8) -> Contention {
    debug_assert!(
        byte.load(Ordering::Relaxed) & LOCKED != 0,
        "unlock of an unlocked page"
    );
    clear::<LOCKED>(byte)
}

/// Clears `BITS` and returns whether a thread may wait, in one atomic operation (release).
#[inline(always)]
pub(crate) fn clear<const BITS: u8>(byte: &AtomicU8) -> Contention {
    const {
        assert!(
            BITS & WAITERS == 0,
            "the bit that is asked for cannot be cleared"
        )
    };
    #[cfg(all(target_arch = "x86_64", not(any(portable, loom, shuttle, miri))))]
    let waiters = {
        let sign: u8;
        // SAFETY: the instruction is a locked operation on a live atomic byte. Assembly that may
        // touch memory is a compiler barrier and the locked operation is a full one, so nothing
        // moves out of the locked region.
        unsafe {
            std::arch::asm!(
                "lock and byte ptr [{byte}], {keep}",
                "sets {sign}",
                byte = in(reg) byte.as_ptr(),
                keep = const !BITS as i8,
                sign = out(reg_byte) sign,
                options(nostack),
            );
        }
        sign != 0
    };
    #[cfg(not(all(target_arch = "x86_64", not(any(portable, loom, shuttle, miri)))))]
    let waiters = byte.fetch_and(!BITS, Ordering::Release) & WAITERS != 0;
    Contention::of(waiters)
}

/// Ends a successful read: sets UPTODATE and clears LOCKED in one atomic operation (release), and
/// returns whether a thread may wait. No reader ever sees the page unlocked and not up to date.
///
/// The operation adds LOCKED to the byte. Unlike an exclusive or, the addition also gives the old
/// value in one instruction, so every build notices a wrong call.
///
/// # Panics
/// If the page was not locked, or was up to date already.
#[inline(always)]
pub(crate) fn end_read(byte: &AtomicU8) -> Contention {
    let before = byte.fetch_add(LOCKED, Ordering::Release);
    assert!(
        before & (LOCKED | UPTODATE) == LOCKED,
        "the end of a read of a page that is not being read: {before:#010b}"
    );
    Contention::of(before & WAITERS != 0)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const DIRTY: u8 = 1 << 3;

    #[test]
    fn every_byte_is_cleared_and_tells_of_waiters() {
        for before in 0..=u8::MAX {
            let after = |form: fn(&AtomicU8) -> bool| {
                let byte = AtomicU8::new(before);
                let waiters = form(&byte);
                (byte.into_inner(), waiters)
            };
            let told = before & WAITERS != 0;
            let ours = |byte: &AtomicU8| clear::<LOCKED>(byte) == Contention::Waiters;
            assert_eq!(after(ours), (before & !LOCKED, told));
            let ours = |byte: &AtomicU8| clear::<{ LOCKED | DIRTY }>(byte) == Contention::Waiters;
            assert_eq!(after(ours), (before & !(LOCKED | DIRTY), told));
        }
    }

    // spec: L16
    #[test]
    #[cfg_attr(debug_assertions, should_panic = "unlock of an unlocked page")]
    fn unlocking_an_unlocked_page_is_never_a_silent_lock() {
        let byte = AtomicU8::new(UPTODATE);
        assert_eq!(unlock(&byte), Contention::None);
        assert_eq!(byte.into_inner(), UPTODATE);
    }

    #[test]
    fn a_read_ends_unlocked_and_up_to_date() {
        let byte = AtomicU8::new(LOCKED | DIRTY);
        assert_eq!(end_read(&byte), Contention::None);
        assert_eq!(byte.into_inner(), UPTODATE | DIRTY);
        let byte = AtomicU8::new(LOCKED | WAITERS);
        assert_eq!(end_read(&byte), Contention::Waiters);
        assert_eq!(byte.into_inner(), UPTODATE | WAITERS);
    }

    #[test]
    #[should_panic = "not being read"]
    fn the_end_of_a_read_of_an_unlocked_page_is_noticed() {
        let _ = end_read(&AtomicU8::new(0));
    }

    #[test]
    #[should_panic = "not being read"]
    fn the_end_of_a_second_read_is_noticed() {
        let _ = end_read(&AtomicU8::new(LOCKED | UPTODATE));
    }

    /// The release build's `unlock`, as a function that is not inlined.
    #[cfg(all(target_arch = "x86_64", not(any(portable, miri))))]
    #[inline(never)]
    extern "sysv64" fn unlock_alone(byte: &AtomicU8) -> bool {
        clear::<LOCKED>(byte) == Contention::Waiters
    }

    /// A function with a call that disappears in an optimised build.
    #[cfg(all(target_arch = "x86_64", not(any(portable, miri))))]
    #[inline(never)]
    extern "sysv64" fn call_alone(byte: u64) -> u64 {
        #[inline]
        fn same(byte: u64) -> u64 {
            byte
        }
        same(byte)
    }

    /// Returns the bytes of a function's code, up to its return.
    #[cfg(all(target_arch = "x86_64", not(any(portable, miri))))]
    fn code_of(code: *const u8) -> Vec<u8> {
        const RETURN: u8 = 0xC3;
        // SAFETY: the code of a function is readable, and is read no further than its return.
        (0..64)
            .map(|i| unsafe { code.add(i).read() })
            .take_while(|byte| *byte != RETURN)
            .collect()
    }

    // spec: L1
    #[cfg(all(target_arch = "x86_64", not(any(portable, miri))))]
    #[test]
    fn unlock_is_one_locked_instruction() {
        // lock and byte ptr [rdi], 0xfe: the address is the first argument, which is in that
        // register already.
        const LOCK_AND: [u8; 4] = [0xF0, 0x80, 0x27, 0xFE];
        const CALL: u8 = 0xE8;
        if code_of(call_alone as *const u8).contains(&CALL) {
            return eprintln!("left out: a build without optimisation");
        }
        let code = code_of(unlock_alone as *const u8);
        assert!(
            code.windows(4).any(|window| window == LOCK_AND),
            "{code:x?}"
        );
        let locks = code.iter().filter(|byte| **byte == LOCK_AND[0]).count();
        assert_eq!(locks, 1, "{code:x?}");
        // Checks that nothing jumps: neither short (7x, E0-E3, EB), nor near (E9, 0F 8x).
        let jumps = code
            .iter()
            .filter(|byte| matches!(**byte, 0x70..=0x7F | 0xE0..=0xE3 | 0xE9 | 0xEB));
        assert_eq!(jumps.count(), 0, "{code:x?}");
        assert!(!unlock_alone(&AtomicU8::new(LOCKED)) && unlock_alone(&AtomicU8::new(WAITERS)));
    }
}
