//! Accesses that never wait: the `try_` forms.
//!
//! They are the others, by another [`Sectioned`]: the hit is the same, and what is missed is had if
//! that takes no waiting, by the same steps (`fault`). So each access has such a form.
//! `watch_code`, which is more than an access, has none.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use crate::VirtAddr;
use crate::cache::Wait;
use crate::space::access::accessor::Accessor;
use crate::space::access::session::{InSession, Session};
use crate::space::access::single::{Sectioned, Single};
use crate::space::core::error::Fault;
use crate::space::tlb::translator::{Look, Need, Page, Translator};
use crate::sys::copy::{AtomicScalar, Modify, Scalar};

/// As in `S`, but that nothing is waited for.
pub(super) struct AtOnce<S>(PhantomData<S>);

impl<S: Sectioned> Sectioned for AtOnce<S> {
    const WAIT: Wait = Wait::No;

    #[inline(always)]
    fn enter(translator: &mut Translator) {
        S::enter(translator);
    }

    #[inline(always)]
    fn enter_to_hit(translator: &mut Translator) {
        S::enter_to_hit(translator);
    }

    #[inline(always)]
    fn look(translator: &Translator) -> Look<'_> {
        S::look(translator)
    }

    #[inline(always)]
    fn hit<R>(
        translator: &mut Translator,
        of: (u64, usize),
        need: Need,
        act: impl Fn(Page) -> R,
    ) -> Option<R> {
        S::hit(translator, of, need, act)
    }

    #[inline(always)]
    fn order(translator: &mut Translator) {
        S::order(translator);
    }

    #[inline(always)]
    fn leave(translator: &mut Translator) {
        S::leave(translator);
    }

    fn pause(translator: &mut Translator) {
        S::pause(translator);
    }

    fn resume(translator: &mut Translator) {
        S::resume(translator);
    }

    fn suspend(translator: &mut Translator) {
        S::suspend(translator);
    }

    fn unsuspend(translator: &mut Translator) {
        S::unsuspend(translator);
    }
}

/// The read-modify-writes: `name` does `how` as `waiting` does.
macro_rules! try_modify {
    ($mode:ty: $($name:ident is $waiting:ident by $how:ident)*) => {$(
        #[doc = concat!("[`Self::", stringify!($waiting), "`] that never waits.")]
        ///
        /// # Errors
        /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
        #[inline]
        pub fn $name<T: AtomicScalar>(
            &mut self,
            at: VirtAddr,
            operand: T,
            order: Ordering,
        ) -> Result<T, Fault> {
            self.core.modify::<AtOnce<$mode>, T>(at, Modify::$how, operand, order)
        }
    )*};
}

/// The accesses that never wait, for accessors and for sessions.
macro_rules! tries {
    ($type:ty, $mode:ty) => {
        /// Accesses that never wait, each as the one without `try_`; a hit costs the same.
        ///
        /// What takes no waiting is done: a page of zeros, a new page or a copy where a frame is
        /// free, a page of a file that is cached. What would take some is a [`Fault`] of the kind
        /// [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock), with no byte changed at and
        /// after its address: what a store has to be asked for; memory that has to be evicted
        /// first; a block that somebody has locked, that is being written, or that is viewed, for a
        /// store; a store to a hole; a change of the mappings that is under way; what a direct
        /// access file has to ask its device, or to prepare for a store.
        /// [`Space::ready`](crate::Space::ready) is a future that waits for it. A store that would
        /// block may leave its block marked as changed, so that it is written to its file once more
        /// than it had to be.
        ///
        /// The calls of a [`Device`](crate::Device), or of a file with
        /// [`OnShrink::Error`](crate::OnShrink::Error), are made as ever, and take what they take.
        /// Two more things are done rather than refused. Where a group is near its limit, what
        /// other threads have charged ahead is taken back before a frame is refused: that waits a
        /// moment for those in the middle of a charge. And where a direct access file was kept open
        /// by nothing but a mapping that somebody unmaps during the access, the access closes it:
        /// gives its blocks back, or unmaps and closes the host file.
        impl $type {
            /// [`Self::load`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_load<T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
                self.load_here::<AtOnce<$mode>, T>(at)
            }

            /// [`Self::fetch`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_fetch<T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
                self.core.fetch::<AtOnce<$mode>, T>(at)
            }

            /// [`Self::store`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_store<T: Scalar>(&mut self, at: VirtAddr, value: T) -> Result<(), Fault> {
                self.store_here::<AtOnce<$mode>, T>(at, value)
            }

            /// [`Self::read`] that never waits: what comes before the fault's address is in
            /// `buffer`.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_read(&mut self, at: VirtAddr, buffer: &mut [u8]) -> Result<(), Fault> {
                self.core.read::<AtOnce<$mode>>(at, buffer)
            }

            /// [`Self::write`] that never waits: what comes before the fault's address is written.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_write(&mut self, at: VirtAddr, bytes: &[u8]) -> Result<(), Fault> {
                self.core.write::<AtOnce<$mode>>(at, bytes)
            }

            /// [`Self::fill`] that never waits: what comes before the fault's address is set.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            pub fn try_fill(&mut self, at: VirtAddr, byte: u8, len: usize) -> Result<(), Fault> {
                self.core.fill::<AtOnce<$mode>>(at, byte, len)
            }

            /// [`Self::copy`] that never waits: what was copied before the fault stays.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            pub fn try_copy(
                &mut self,
                to: VirtAddr,
                from: VirtAddr,
                len: usize,
            ) -> Result<(), Fault> {
                self.core.copy::<AtOnce<$mode>>(to, from, len)
            }

            /// [`Self::compare`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            pub fn try_compare(
                &mut self,
                at: VirtAddr,
                bytes: &[u8],
            ) -> Result<std::cmp::Ordering, Fault> {
                self.core.compare::<AtOnce<$mode>>(at, bytes)
            }

            /// [`Self::load_atomic`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_load_atomic<T: AtomicScalar>(
                &mut self,
                at: VirtAddr,
                order: Ordering,
            ) -> Result<T, Fault> {
                self.core.load_atomic::<AtOnce<$mode>, T>(at, order)
            }

            /// [`Self::store_atomic`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_store_atomic<T: AtomicScalar>(
                &mut self,
                at: VirtAddr,
                value: T,
                order: Ordering,
            ) -> Result<(), Fault> {
                self.core.store_atomic::<AtOnce<$mode>, T>(at, value, order)
            }

            /// [`Self::compare_exchange`] that never waits.
            ///
            /// # Errors
            /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
            #[inline]
            pub fn try_compare_exchange<T: AtomicScalar>(
                &mut self,
                at: VirtAddr,
                old: T,
                new: T,
                success: Ordering,
                failure: Ordering,
            ) -> Result<Result<T, T>, Fault> {
                let orders = [success, failure];
                self.core
                    .compare_exchange::<AtOnce<$mode>, T>(at, [old, new], orders)
            }

            try_modify! { $mode:
                try_swap is swap by Swap
                try_fetch_add is fetch_add by Add
                try_fetch_sub is fetch_sub by Subtract
                try_fetch_and is fetch_and by And
                try_fetch_or is fetch_or by Or
                try_fetch_xor is fetch_xor by Xor
                try_fetch_min is fetch_min by Min
                try_fetch_max is fetch_max by Max
            }
        }
    };
}

tries!(Accessor, Single);
tries!(Session<'_>, InSession);

/// The accesses of an accessor alone.
impl Accessor {
    /// [`Accessor::gather`] that never waits: no store is asked, and what comes before the fault's
    /// address, in the order given, is in its buffer. [`Accessor::gather`] in a
    /// [`Task`](crate::Task) has all that is missing asked for together.
    ///
    /// # Errors
    /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock).
    pub fn try_gather(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Fault> {
        self.core.gather::<AtOnce<Single>>(reads)
    }

    /// [`Accessor::copy_from`] that never waits, in neither space: what was copied before the fault
    /// stays.
    ///
    /// # Errors
    /// As there, and [`FaultKind::WouldBlock`](crate::FaultKind::WouldBlock) of either space.
    pub fn try_copy_from(
        &mut self,
        to: VirtAddr,
        source: &mut Accessor,
        from: VirtAddr,
        len: usize,
    ) -> Result<(), Fault> {
        let source = &mut source.core;
        self.core.copy_from::<AtOnce<Single>>(to, source, from, len)
    }
}
