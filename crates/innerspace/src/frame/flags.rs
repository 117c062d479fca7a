//! The flags byte of a frame: eight bits. The lock bit and the waiters bit are placed so that
//! unlocking needs only the sign of the byte ([`super::lock`]).
//!
//! Every access is one byte wide. After an access of another width to the same word the processor
//! could not forward the store and would stall. So no code reads the byte together with its
//! neighbours in [`super::meta::Meta`].
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
//! WAITERS changes under its queue's lock. In a leaf of a page table bit 4 is COALESCED. An
//! accessor sets it, and the thread that makes all accessors forget the leaf clears it. Both hold
//! the gate's writer mutex then.
//!
//! [`Flags`] has only atomic setters for all users. The plain setter is visible in `frame` only. It
//! is for frames that no other thread can see ([`super::owned::OwnedFrame`]): I2.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sys::lock_byte;

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
    /// The frame was used since the LRU last checked.
    pub(crate) const REFERENCED: FlagSet = FlagSet(1 << 4);
    /// An accessor may have the leaf coalesced. Used for leaves of page tables, which are on no LRU
    /// list.
    pub(crate) const COALESCED: FlagSet = FlagSet::REFERENCED;
    /// The frame is on the active list, or on its way there.
    pub(crate) const ACTIVE: FlagSet = FlagSet(1 << 5);
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

// The primitives of `sys` use the same bits. They also assert that WAITERS is the sign of the byte.
const _: () = assert!(FlagSet::LOCKED.0 == lock_byte::LOCKED);
const _: () = assert!(FlagSet::UPTODATE.0 == lock_byte::UPTODATE);
const _: () = assert!(FlagSet::WAITERS.0 == lock_byte::WAITERS);

/// The flags byte in a frame's metadata, with atomic setters only.
pub(crate) struct Flags(AtomicU8);

impl Flags {
    /// Makes a byte with the bits `set`. Ordinary builds use zeroed memory instead.
    #[cfg(any(loom, shuttle))]
    pub(super) fn new(set: FlagSet) -> Flags {
        Flags(AtomicU8::new(set.0))
    }

    /// Returns the present bits. Acquire: a thread that sees UPTODATE also sees the bytes. Pairs
    /// with the release in `end_read` and in [`Flags::set`].
    #[inline]
    pub(crate) fn load(&self) -> FlagSet {
        FlagSet(self.0.load(Ordering::Acquire))
    }

    /// Sets bits. Release: a thread that sees a bit also sees everything done before it was set.
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

    /// Sets bits and returns the previous ones.
    pub(crate) fn test_and_set(&self, set: FlagSet) -> FlagSet {
        set.check_not_of_lock();
        FlagSet(self.0.fetch_or(set.0, Ordering::AcqRel))
    }

    /// Clears bits and returns the previous ones.
    pub(crate) fn test_and_clear(&self, set: FlagSet) -> FlagSet {
        set.check_not_of_lock();
        FlagSet(self.0.fetch_and(!set.0, Ordering::AcqRel))
    }

    /// Stores the byte plainly, for a frame that no other thread can see (I2).
    #[inline]
    pub(super) fn store_owned(&self, set: FlagSet) {
        self.0.store(set.0, Ordering::Relaxed);
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
