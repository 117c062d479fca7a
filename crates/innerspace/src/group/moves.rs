//! Pages on their way to a slot of the stock or off the levels: charged, in no slot, and not yet
//! the caller's. See `stock` for their use.

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::per_thread::Drains;

/// Low half: threads that have such pages. High half: how often some have arrived. On a line apart
/// from those that every charge reads.
#[repr(align(128))]
pub(super) struct Moves(AtomicU64);

/// One thread that moves pages.
const MOVING: u64 = 1;

/// One move that is over.
const MOVED: u64 = 1 << 32;

/// See [`Moves::begin`].
pub(super) struct Moving<'a>(&'a Moves);

/// The state that [`Moves::look`] saw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Moves {
    pub(super) fn new() -> Moves {
        Moves(AtomicU64::new(0))
    }

    /// Announces that this thread moves pages, until the result is dropped.
    pub(super) fn begin(&self, drains: &Drains) -> Moving<'_> {
        self.0.fetch_add(MOVING, Ordering::Relaxed);
        // Towards a drain that begins: one of the two sees the other's count.
        drains.light();
        // Towards a thread that only looks: a batch that it sees at the levels was announced
        // before. Pairs with the fence in `drain_until`.
        fence(Ordering::Release);
        Moving(self)
    }

    /// Loads the threads that move pages, and how often some have arrived.
    pub(super) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    /// Whether pages move, or have moved since `then`.
    pub(super) fn any_since(&self, then: Seen) -> bool {
        let now = self.look();
        now.is_any_under_way() || now.0 / MOVED != then.0 / MOVED
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `look`. A thread that sees this finds the slot filled,
        // or the pages off the levels.
        self.0.0.fetch_add(MOVED - MOVING, Ordering::Release);
    }
}

impl Seen {
    pub(super) fn is_any_under_way(self) -> bool {
        self.0 as u32 != 0
    }
}
