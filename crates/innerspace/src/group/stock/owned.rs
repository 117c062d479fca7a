//! Slots that one thread changes with plain loads and stores, and that others may yet empty.
//!
//! The owner says that it is at its slots, and looks whether somebody wants to empty them; who wants to says so, and looks whether the
//! owner is there. That is Dekker's once more, and the asymmetric barrier (`sys::barrier`) makes the owner's side free:
//!
//! ```text
//!   owner                        drainer
//!   busy := 1                    draining + 1
//!   (light)                      (heavy)
//!   draining = 0? else leave     wait until busy = 0
//!   read and write slots         read and change slots (compare-and-swap: there may be two)
//!   busy := 0, Release           draining - 1, Release
//! ```
//!
//! Either the owner sees `draining` and leaves, or the drainer sees `busy` and waits: never are both at the slots. Who comes second sees
//! what the first did: the drainer by its Acquire of `busy`, the owner by its Acquire of `draining`, which is 0 again only after the
//! last drainer's subtraction (each continues the release sequence of those before). The owner sees as well what the drainer did
//! before it came, deleting the group for one: that stands before the heavy barrier, and so does the fence in the owner's place or the
//! owner's section ended before it.
//!
//! The owner is at its slots for some ten instructions, takes no lock there and calls nothing. A drainer therefore waits only for an
//! owner that lost its processor in between. Where membarrier is refused both sides are fences, and the owner's costs what a
//! compare-and-swap would.
//!
//! *The owner* is the thread whose number the stripe has (`stats::thread_number`: no two living threads have the same, and a number
//! is handed on under a mutex). Threads beyond [`OWNED`] share other stripes, by compare-and-swap.

use std::ops::Deref;

use super::WAYS;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;
use crate::sys::barrier::{self, BarrierMode};

/// Threads that have slots of their own. Few where each look at a slot is dear.
pub(in crate::group) const OWNED: usize = if cfg!(loom) {
    2
} else if cfg!(miri) {
    4
} else {
    32
};

/// The slots of one thread, on a line of their own.
#[repr(align(128))]
pub(super) struct Owned {
    /// Whether the owner is at its slots. Written by the owner alone.
    busy: AtomicU32,
    pub(super) slots: [AtomicU32; WAYS],
}

impl Owned {
    pub(super) fn new() -> Owned {
        Owned {
            busy: AtomicU32::new(0),
            slots: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The owner's slots, until the result is dropped; `None` while somebody empties slots. The owner takes no lock meanwhile.
    #[inline(always)]
    pub(super) fn enter(&self, drains: &Drains) -> Option<AtSlots<'_>> {
        self.busy.store(1, Ordering::Relaxed);
        let slots = AtSlots(self);
        drains.mode.light();
        // Acquire: pairs with the end of a drain.
        (drains.count.load(Ordering::Acquire) == 0).then_some(slots)
    }
}

/// See [`Owned::enter`].
pub(super) struct AtSlots<'a>(&'a Owned);

impl Deref for AtSlots<'_> {
    type Target = [AtomicU32; WAYS];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU32; WAYS] {
        &self.0.slots
    }
}

impl Drop for AtSlots<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with `Drains::begin`.
        self.0.busy.store(0, Ordering::Release);
    }
}

/// Who is emptying slots now. Read by every charge, so on a line of its own.
#[repr(align(128))]
pub(super) struct Drains {
    count: AtomicU32,
    mode: BarrierMode,
}

impl Drains {
    pub(super) fn new() -> Drains {
        Drains {
            count: AtomicU32::new(0),
            mode: barrier::mode(),
        }
    }

    /// Whether anybody is.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Until the result is dropped no owner is at its slots.
    pub(super) fn begin<'a>(&'a self, owned: &[Owned]) -> Draining<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let draining = Draining(self);
        self.mode.heavy();
        // mutant: M5 (loom: loom_draining_beside_charges_neither_loses_nor_doubles_a_page)
        if cfg!(not(mutant = "M5")) {
            for one in owned {
                // Acquire: pairs with the drop of `AtSlots`.
                while one.busy.load(Ordering::Acquire) != 0 {
                    thread::yield_now();
                }
            }
        }
        draining
    }
}

/// See [`Drains::begin`].
pub(super) struct Draining<'a>(&'a Drains);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        // Release: pairs with the load in `Owned::enter`.
        self.0.count.fetch_sub(1, Ordering::Release);
    }
}
