//! The flags byte of a frame: eight bits. The operation that clears LOCKED also tells whether
//! WAITERS is set ([`super::lock`]). UPTODATE is next to LOCKED, so that one addition sets UPTODATE
//! and clears LOCKED.
//!
//! Every access is one byte wide, and no code reads the byte together with its neighbours in
//! [`super::meta::Meta`]. The processor could not forward a store of one byte to a wider load, so
//! the load would stall.
//!
//! | bit | name | set by | cleared by |
//! |---|---|---|---|
//! | 0 | LOCKED | `lock` (or its handoff) | `unlock`, `end_read` |
//! | 1 | UPTODATE | `end_read`, or the owner before publishing | the next owner of the frame |
//! | 2 | DIRTY | a writer, under the lock | writeback, locked, after the grace period |
//! | 3 | WRITEBACK | `set_writeback`, under the lock | `end_writeback` |
//! | 4 | REFERENCED | any access | aging |
//! | 5 | ACTIVE | the LRU | the LRU |
//! | 6 | ERROR | `end_read` that failed, a failed write | the next success |
//! | 7 | WAITERS | a waiter | a waker, or the thread that takes the lock with no waiter left |
//!
//! The owner of a frame that is not published yet may set any flag but WAITERS. On a published
//! frame, WAITERS changes under its queue's lock. In a leaf of a page table bit 4 is COALESCED. An
//! accessor sets it, and the thread that makes all accessors forget the leaf clears it. Each does
//! so under the gate's writer mutex. In any node of a page table bit 5 is PINNED. A pin sets it on
//! the path to its pages, and a fork or restore that finds no pinned page in or below the node
//! clears it. Both hold that mutex, too.
//!
//! Outside `frame`, only the atomic setters of [`Flags`] are visible. The plain setter is for
//! frames that no other thread can see ([`super::owned::OwnedFrame`]): I2.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::sync::atomic::{AtomicU8, Ordering};

/// A set of bits of the flags byte.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FlagSet(pub(super) u8);

impl FlagSet {
    /// The empty set.
    pub(crate) const EMPTY: FlagSet = FlagSet(0);
    /// The frame's lock is held.
    pub(crate) const LOCKED: FlagSet = FlagSet(1 << 0);
    /// The bytes are those of the store, or newer.
    pub(crate) const UPTODATE: FlagSet = FlagSet(1 << 1);
    /// The bytes are newer than those of the store.
    pub(crate) const DIRTY: FlagSet = FlagSet(1 << 2);
    /// The bytes are being written to the store and must not change.
    pub(crate) const WRITEBACK: FlagSet = FlagSet(1 << 3);
    /// The frame has been used since the LRU last checked.
    pub(crate) const REFERENCED: FlagSet = FlagSet(1 << 4);
    /// An accessor may have coalesced the leaf. Used for leaves of page tables, which are on no LRU
    /// list.
    pub(crate) const COALESCED: FlagSet = FlagSet::REFERENCED;
    /// The frame is on the active list, or on its way there.
    pub(crate) const ACTIVE: FlagSet = FlagSet(1 << 5);
    /// There may be pinned pages in or below the node. Used for nodes of page tables.
    pub(crate) const PINNED: FlagSet = FlagSet::ACTIVE;
    /// The last read or write of the store failed.
    pub(crate) const ERROR: FlagSet = FlagSet(1 << 6);
    /// A thread may be waiting for LOCKED or WRITEBACK to clear.
    pub(crate) const WAITERS: FlagSet = FlagSet(1 << 7);

    /// The bits that only the lock protocol may change on a published frame.
    pub(super) const PROTOCOL: FlagSet =
        FlagSet(FlagSet::LOCKED.0 | FlagSet::WRITEBACK.0 | FlagSet::WAITERS.0);

    /// Returns whether every bit of `other` is in this set.
    #[inline]
    pub(crate) const fn contains(self, other: FlagSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any bit of `other` is in this set.
    #[inline]
    pub(crate) const fn intersects(self, other: FlagSet) -> bool {
        self.0 & other.0 != 0
    }

    #[inline(always)]
    fn check_not_of_lock(self) {
        debug_assert!(
            !self.intersects(FlagSet::PROTOCOL),
            "{self:?} belongs to the lock protocol"
        );
    }
}

impl BitOr for FlagSet {
    type Output = FlagSet;

    fn bitor(self, other: FlagSet) -> FlagSet {
        FlagSet(self.0 | other.0)
    }
}

impl BitOrAssign for FlagSet {
    fn bitor_assign(&mut self, other: FlagSet) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for FlagSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = [
            "LOCKED",
            "UPTODATE",
            "DIRTY",
            "WRITEBACK",
            "REFERENCED",
            "ACTIVE",
            "ERROR",
            "WAITERS",
        ];
        let mut names = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| (self.0 >> bit) & 1 != 0);
        match names.next() {
            None => f.write_str("-")?,
            Some((_, first)) => f.write_str(first)?,
        }
        names.try_for_each(|(_, name)| write!(f, "|{name}"))
    }
}

// WAITERS is above the two bits that unlocking changes. Adding LOCKED turns LOCKED without UPTODATE
// into UPTODATE without LOCKED, and carries no further.
const _: () = assert!(FlagSet::WAITERS.0 == i8::MIN as u8);
const _: () = assert!(FlagSet::LOCKED.0 < FlagSet::WAITERS.0);
const _: () = assert!(FlagSet::UPTODATE.0 < FlagSet::WAITERS.0);
const _: () = assert!(FlagSet::LOCKED.0 + FlagSet::LOCKED.0 == FlagSet::UPTODATE.0);

/// The flags byte in a frame's metadata, with atomic setters only.
pub(crate) struct Flags(AtomicU8);

impl Flags {
    /// Makes a byte with the bits `set`. Ordinary builds use zeroed memory instead.
    #[cfg(any(loom, shuttle))]
    pub(super) fn new(set: FlagSet) -> Flags {
        Flags(AtomicU8::new(set.0))
    }

    /// Returns the current bits. Acquire: a thread that sees UPTODATE also sees the bytes. Pairs
    /// with the release in `end_read` and in [`Flags::set`].
    #[inline]
    pub(crate) fn load(&self) -> FlagSet {
        FlagSet(self.0.load(Ordering::Acquire))
    }

    /// Sets bits. Release: a thread that sees a bit by [`Flags::load`] also sees everything done
    /// before it was set.
    #[inline]
    pub(crate) fn set(&self, set: FlagSet) {
        set.check_not_of_lock();
        self.0.fetch_or(set.0, Ordering::Release);
    }

    /// Clears bits. Release, as in [`Flags::set`].
    #[inline]
    pub(crate) fn clear(&self, set: FlagSet) {
        set.check_not_of_lock();
        self.0.fetch_and(!set.0, Ordering::Release);
    }

    /// Sets bits. Returns all bits that were set before.
    pub(crate) fn test_and_set(&self, set: FlagSet) -> FlagSet {
        set.check_not_of_lock();
        FlagSet(self.0.fetch_or(set.0, Ordering::AcqRel))
    }

    /// Clears bits. Returns all bits that were set before.
    pub(crate) fn test_and_clear(&self, set: FlagSet) -> FlagSet {
        set.check_not_of_lock();
        FlagSet(self.0.fetch_and(!set.0, Ordering::AcqRel))
    }

    /// Stores the byte plainly, for a frame that no other thread can see (I2).
    #[inline]
    pub(super) fn store_owned(&self, set: FlagSet) {
        self.0.store(set.0, Ordering::Relaxed);
    }

    /// Clears LOCKED, which must be set. Returns the previous bits; if WAITERS is among them, a
    /// thread may be waiting. Release: pairs with the Acquire of the next holder.
    ///
    /// Subtracts LOCKED, which takes one instruction that also gives the old value. For an atomic
    /// `and` whose result is used, the compiler makes a loop of compare-exchanges.
    #[inline(always)]
    pub(super) fn unlock(&self) -> FlagSet {
        FlagSet(self.0.fetch_sub(FlagSet::LOCKED.0, Ordering::Release))
    }

    /// Sets UPTODATE, which must be clear, and clears LOCKED, which must be set. Returns the
    /// previous bits. Release, as in [`Flags::unlock`]. This is one atomic operation, so no thread
    /// ever sees only one of the two changes.
    #[inline(always)]
    pub(super) fn end_read(&self) -> FlagSet {
        FlagSet(self.0.fetch_add(FlagSet::LOCKED.0, Ordering::Release))
    }

    /// Returns the byte itself, for the lock protocol.
    #[inline]
    pub(super) fn byte(&self) -> &AtomicU8 {
        &self.0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_in_one_step_that_tells_of_waiters() {
        for before in (0..=u8::MAX).map(FlagSet) {
            if !before.contains(FlagSet::LOCKED) {
                continue;
            }
            let flags = Flags(AtomicU8::new(before.0));
            assert_eq!(flags.unlock(), before);
            assert_eq!(flags.load().0, before.0 & !FlagSet::LOCKED.0);
            if !before.contains(FlagSet::UPTODATE) {
                let flags = Flags(AtomicU8::new(before.0));
                assert_eq!(flags.end_read(), before);
                let after = (before | FlagSet::UPTODATE).0 & !FlagSet::LOCKED.0;
                assert_eq!(flags.load().0, after);
            }
        }
    }

    /// The release build's `unlock`, as a function that is not inlined.
    #[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
    #[inline(never)]
    extern "sysv64" fn unlock_alone(flags: &Flags) -> bool {
        flags.unlock().contains(FlagSet::WAITERS)
    }

    /// A function with a call that disappears in an optimised build.
    #[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
    #[inline(never)]
    extern "sysv64" fn call_alone(byte: u64) -> u64 {
        #[inline]
        fn same(byte: u64) -> u64 {
            byte
        }
        same(byte)
    }

    /// Returns the bytes of a function's code, up to its return.
    #[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
    fn code_of(code: *const u8) -> Vec<u8> {
        const RETURN: u8 = 0xC3;
        // SAFETY: the code of a function is readable, and is read no further than its return.
        (0..64)
            .map(|i| unsafe { code.add(i).read() })
            .take_while(|byte| *byte != RETURN)
            .collect()
    }

    // spec: L1
    // Left out of portable builds. They are the ones run under ThreadSanitizer, which adds calls
    // and jumps to the code.
    #[cfg(all(target_arch = "x86_64", not(portable), not(miri)))]
    #[test]
    fn unlock_is_one_locked_instruction() {
        // lock xadd byte ptr [rdi], al: the address is the first argument, which is in that
        // register already.
        const LOCK_XADD: [u8; 4] = [0xF0, 0x0F, 0xC0, 0x07];
        const CALL: u8 = 0xE8;
        if code_of(call_alone as *const u8).contains(&CALL) {
            return eprintln!("left out: a build without optimisation");
        }
        let code = code_of(unlock_alone as *const u8);
        assert!(
            code.windows(4).any(|window| window == LOCK_XADD),
            "{code:x?}"
        );
        let locks = code.iter().filter(|byte| **byte == LOCK_XADD[0]).count();
        assert_eq!(locks, 1, "{code:x?}");
        // Checks that nothing jumps: neither short (7x, E0-E3, EB), nor near (E9, 0F 8x).
        let jumps = code
            .iter()
            .filter(|byte| matches!(**byte, 0x70..=0x7F | 0xE0..=0xE3 | 0xE9 | 0xEB));
        assert_eq!(jumps.count(), 0, "{code:x?}");
        let locked = |more: FlagSet| Flags(AtomicU8::new((FlagSet::LOCKED | more).0));
        assert!(!unlock_alone(&locked(FlagSet::DIRTY)) && unlock_alone(&locked(FlagSet::WAITERS)));
    }
}
