//! Atomic accesses with a memory order.
//!
//! The order applies to all accesses through spaces, by any thread, and to everything else that
//! these threads do, as for an atomic in memory. An address must be a multiple of the value's size.

use std::sync::atomic::Ordering;

use super::accessor::Accessor;
use super::forms::forms;
use super::session::{InSession, Session};
use super::single::{Core, Sectioned, Single};
use crate::VirtAddr;
use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::tlb::page::Page;
use crate::sys::copy::{AtomicScalar, Modify};

/// Panics if an atomic load with this order would panic. Called before the section is opened,
/// because a panic inside would leave the section open.
#[inline(always)]
fn check_load(order: Ordering) {
    let releases = matches!(order, Ordering::Release | Ordering::AcqRel);
    assert!(
        !releases,
        "an atomic load, or a failed exchange, cannot release"
    );
}

/// Panics if an atomic store with this order would panic.
#[inline(always)]
fn check_store(order: Ordering) {
    let acquires = matches!(order, Ordering::Acquire | Ordering::AcqRel);
    assert!(!acquires, "an atomic store cannot acquire");
}

impl Core {
    #[inline(always)]
    pub(crate) fn load_atomic<S: Sectioned, T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        order: Ordering,
    ) -> Result<T, Fault> {
        check_load(order);
        let loaded = self.aligned::<S, T, T>(at, AccessKind::Load, |page| page.load_atomic(order));
        loaded.or_else(|fault| self.load_elsewhere::<S, T>(at, fault))
    }

    #[inline(always)]
    pub(crate) fn store_atomic<S: Sectioned, T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        value: T,
        order: Ordering,
    ) -> Result<(), Fault> {
        check_store(order);
        let act = |page: Page| page.store_atomic(value, order);
        let stored = self.aligned::<S, T, ()>(at, AccessKind::Store, act);
        stored.or_else(|fault| self.store_elsewhere::<S, T>(at, value, fault))
    }

    #[inline(always)]
    pub(crate) fn compare_exchange<S: Sectioned, T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        [old, new]: [T; 2],
        orders: [Ordering; 2],
    ) -> Result<Result<T, T>, Fault> {
        check_load(orders[1]);
        let act = |page: Page| page.compare_exchange(old, new, orders);
        let done = self.aligned::<S, T, _>(at, AccessKind::Exchange, act);
        done.map_err(|fault| self.device_exchange(fault))
    }

    #[inline(always)]
    pub(crate) fn modify<S: Sectioned, T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        how: Modify,
        operand: T,
        order: Ordering,
    ) -> Result<T, Fault> {
        let act = |page: Page| page.modify(how, operand, order);
        let done = self.aligned::<S, T, T>(at, AccessKind::Exchange, act);
        done.map_err(|fault| self.device_exchange(fault))
    }

    #[inline(always)]
    fn aligned<S: Sectioned, T, R>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
        act: impl Fn(Page) -> R,
    ) -> Result<R, Fault> {
        if !at.0.is_multiple_of(size_of::<T>() as u64) {
            return Err(Fault::new(
                FaultKind::Misaligned,
                at,
                access,
                size_of::<T>(),
            ));
        }
        self.access_value::<S, T, R>(at, access, act)
    }
}

forms! { Accessor, Single; Session<'_>, InSession => {
    /// Loads a value atomically.
    ///
    /// # Errors
    /// A [`Fault`]; [`FaultKind::Misaligned`] unless `at` is a multiple of the size.
    fn load_atomic, try_load_atomic
        panics "Panics if the order releases, as the atomics of the standard library do."
        <T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        order: Ordering,
    ) -> Result<T, Fault> {
        self.core.load_atomic::<M, T>(at, order)
    }

    /// Stores a value atomically.
    ///
    /// # Errors
    /// As for [`Self::load_atomic`].
    fn store_atomic, try_store_atomic
        panics "Panics if the order acquires, as the atomics of the standard library do."
        <T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        value: T,
        order: Ordering,
    ) -> Result<(), Fault> {
        self.core.store_atomic::<M, T>(at, value, order)
    }

    /// Replaces the value with `new` if it is `old`, in one atomic step. The inner result is the
    /// previous value: `Ok` if it was replaced; `Err` if it was not `old`, in which case it was
    /// loaded with the order `failure`.
    ///
    /// # Errors
    /// A [`Fault`]; [`FaultKind::Misaligned`] unless `at` is a multiple of the size. Devices do not
    /// support this access.
    fn compare_exchange, try_compare_exchange
        panics "Panics if `failure` releases, as the atomics of the standard library do."
        <T: AtomicScalar>(
        &mut self,
        at: VirtAddr,
        old: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Result<T, T>, Fault> {
        let orders = [success, failure];
        self.core.compare_exchange::<M, T>(at, [old, new], orders)
    }
} }

/// Defines the read-modify-write accesses. `$how` is the variant of [`Modify`].
macro_rules! modifies {
    ($($(#[$doc:meta])* $name:ident, $try_name:ident: $how:ident;)+) => {
        forms! { Accessor, Single; Session<'_>, InSession => { $(
            $(#[$doc])*
            ///
            /// # Errors
            /// As for [`Self::compare_exchange`].
            fn $name, $try_name<T: AtomicScalar>(
                &mut self,
                at: VirtAddr,
                operand: T,
                order: Ordering,
            ) -> Result<T, Fault> {
                self.core.modify::<M, T>(at, Modify::$how, operand, order)
            }
        )+ } }
    };
}

modifies! {
    /// Stores `operand` in one atomic step, and returns the previous value.
    swap, try_swap: Swap;
    /// Adds `operand` in one atomic step, wrapping on overflow, and returns the previous value.
    fetch_add, try_fetch_add: Add;
    /// Subtracts `operand` in one atomic step, wrapping on overflow, and returns the previous
    /// value.
    fetch_sub, try_fetch_sub: Subtract;
    /// Clears the bits that are clear in `operand`, in one atomic step, and returns the previous
    /// value.
    fetch_and, try_fetch_and: And;
    /// Sets the bits that are set in `operand`, in one atomic step, and returns the previous value.
    fetch_or, try_fetch_or: Or;
    /// Flips the bits that are set in `operand`, in one atomic step, and returns the previous
    /// value.
    fetch_xor, try_fetch_xor: Xor;
    /// Replaces the value with `operand` if that is smaller, in one atomic step, and returns the
    /// previous value.
    fetch_min, try_fetch_min: Min;
    /// Replaces the value with `operand` if that is larger, in one atomic step, and returns the
    /// previous value.
    fetch_max, try_fetch_max: Max;
}
