//! Counts of moves of pages between the levels and a slot of the stock. During a move, pages are
//! charged, but they are in no slot and not in use by a caller. `stock` describes how the counts
//! are used.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::per_thread::Drains;

/// The low half counts the threads that are moving pages, the high half the moves that have ended.
/// The word is not on a cache line that every charge reads.
#[repr(align(128))]
pub(super) struct Moves(AtomicU64);

/// One thread that is moving pages, in the low half.
const MOVING: u64 = 1;

/// One move that has ended, in the high half.
const MOVED: u64 = 1 << 32;

/// An announced move, which ends when this is dropped; see [`Moves::begin`].
pub(super) struct Moving<'a>(&'a Moves);

/// The value that [`Moves::look`] loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Moves {
    pub(super) fn new() -> Moves {
        Moves(AtomicU64::new(0))
    }

    /// Announces that this thread is moving pages, until the result is dropped.
    pub(super) fn begin(&self, drains: &Drains) -> Moving<'_> {
        self.0.fetch_add(MOVING, Ordering::Relaxed);
        // The barrier pairs with that of a thread that begins a drain: one of the two threads sees
        // the other's count.
        drains.light();
        // The fence is for a thread that looks at the counts and has not begun a drain: if it sees
        // this move's batch at the levels, it also sees the announcement. Pairs with the fence in
        // `Stocks::drain_until`.
        fence(Ordering::Release);
        Moving(self)
    }

    /// Loads both counts.
    pub(super) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Returns whether a move is under way, or has ended since `then`.
    pub(super) fn any_since(&self, then: Seen) -> bool {
        let now = self.look();
        now.is_any_under_way() || now.0 / MOVED != then.0 / MOVED
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `look`. A thread that sees the new count finds the slot
        // filled, or the pages off the levels.
        self.0.0.fetch_add(MOVED - MOVING, Ordering::Release);
    }
}

impl Seen {
    pub(super) fn is_any_under_way(self) -> bool {
        self.0 as u32 != 0
    }
}
