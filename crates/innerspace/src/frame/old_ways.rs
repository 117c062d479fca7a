//! The old ways beside the new, chosen at run time for the published tables. Built with the feature
//! `tables` alone, which no default or release build has.

use std::sync::atomic::{AtomicU8, Ordering};

/// How a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlock {
    /// One atomic operation, whose sign says whether anybody waits.
    OneOperation,
    /// The lock bit is cleared, and then the waiters bit tested in the byte that was just changed.
    ClearThenTest,
    /// The lock bit is cleared, and then the wait queue looked at, whether anybody waits or not.
    ClearThenLook,
}

/// When a page that is created by an access gets its accessed mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Before anybody can see it, by a plain store.
    BeforePublish,
    /// Afterwards, by an atomic operation.
    AfterPublish,
}

/// What a mapping of a file shows where the file has a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoleRead {
    /// The common zero frame.
    ZeroFrame,
    /// A page of zeros of its own, in the cache.
    CachedPage,
}

static UNLOCK: AtomicU8 = AtomicU8::new(0);
static MARK: AtomicU8 = AtomicU8::new(0);
static HOLE_READ: AtomicU8 = AtomicU8::new(0);

/// Has every lock of the process released in this way from now on.
pub fn set_unlock(way: Unlock) {
    UNLOCK.store(way as u8, Ordering::Relaxed);
}

/// Has every page of the process marked in this way from now on.
pub fn set_mark(way: Mark) {
    MARK.store(way as u8, Ordering::Relaxed);
}

/// Has every hole of a cached file that is read through a mapping shown in this way from now on.
/// While a hole is mapped as the zero frame, it must not be changed: the old way knows of no such
/// mapping.
pub fn set_hole_read(way: HoleRead) {
    HOLE_READ.store(way as u8, Ordering::Relaxed);
}

pub(super) fn unlock_way() -> Unlock {
    match UNLOCK.load(Ordering::Relaxed) {
        0 => Unlock::OneOperation,
        1 => Unlock::ClearThenTest,
        _ => Unlock::ClearThenLook,
    }
}

pub(crate) fn mark_way() -> Mark {
    match MARK.load(Ordering::Relaxed) {
        0 => Mark::BeforePublish,
        _ => Mark::AfterPublish,
    }
}

pub(crate) fn hole_read_way() -> HoleRead {
    match HOLE_READ.load(Ordering::Relaxed) {
        0 => HoleRead::ZeroFrame,
        _ => HoleRead::CachedPage,
    }
}
