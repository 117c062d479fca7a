//! The bytes of a page that a hit found, and accesses to them.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::sys::copy::{self, AtomicScalar, Modify, Scalar};

/// Bytes of one page, valid until the section of the access that looked them up ends. A hit of
/// `Translator` makes this value, and its use in the same section consumes it; only `Core` passes
/// it on.
#[derive(Debug)]
pub(crate) struct Page(pub(super) NonNull<u8>);

/// Accesses to the bytes. SAFETY of all: the hit found as many bytes as the caller asked for in a
/// page that is valid for the access; the section, which is still open, keeps the page and its
/// validity; other threads may use the bytes at the same time, but only through these functions.
impl Page {
    /// Loads a value of the size that was looked up.
    #[inline(always)]
    pub(crate) fn load<T: Scalar>(self) -> T {
        // SAFETY: see above.
        unsafe { copy::load(self.0.as_ptr()) }
    }

    /// Stores a value.
    #[inline(always)]
    pub(crate) fn store<T: Scalar>(self, value: T) {
        // SAFETY: see above.
        unsafe { copy::store(self.0.as_ptr(), value) }
    }

    /// Loads a value at an aligned address, with this memory order.
    #[inline(always)]
    pub(crate) fn load_atomic<T: AtomicScalar>(self, order: Ordering) -> T {
        // SAFETY: see above; the caller checked the alignment of the address, and a page has the
        // same alignment in the arena.
        unsafe { copy::load_atomic(self.0.as_ptr(), order) }
    }

    /// Stores a value at an aligned address, with this memory order.
    #[inline(always)]
    pub(crate) fn store_atomic<T: AtomicScalar>(self, value: T, order: Ordering) {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::store_atomic(self.0.as_ptr(), value, order) }
    }

    /// Compares and exchanges a value at an aligned address.
    #[inline(always)]
    pub(crate) fn compare_exchange<T: AtomicScalar>(
        self,
        old: T,
        new: T,
        orders: [Ordering; 2],
    ) -> Result<T, T> {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::compare_exchange(self.0.as_ptr(), old, new, orders) }
    }

    /// Modifies a value at an aligned address, and returns the previous value.
    #[inline(always)]
    pub(crate) fn modify<T: AtomicScalar>(self, how: Modify, operand: T, order: Ordering) -> T {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::modify(self.0.as_ptr(), how, operand, order) }
    }

    /// Copies bytes of the page to `to`.
    #[inline(always)]
    pub(crate) fn read(self, to: &mut [u8]) {
        // SAFETY: see above; `to` is the caller's own memory.
        unsafe { copy::copy_in(to, self.0.as_ptr()) }
    }

    /// Copies `from` to the page.
    #[inline(always)]
    pub(crate) fn write(self, from: &[u8]) {
        // SAFETY: see above.
        unsafe { copy::copy_out(self.0.as_ptr(), from) }
    }

    /// Sets `len` bytes of the page to `byte`.
    pub(crate) fn fill(self, byte: u8, len: usize) {
        // SAFETY: see above.
        unsafe { copy::fill(self.0.as_ptr(), byte, len) }
    }
}

/// Returns the value with these bytes, which are in native byte order.
pub(crate) fn from_bytes<T: Scalar>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: the slice has as many bytes as the value, and any bytes are a valid scalar.
    unsafe { copy::load(bytes.as_ptr()) }
}

/// Writes a value's bytes to `bytes`, in native byte order.
pub(crate) fn to_bytes<T: Scalar>(value: T, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: the slice has as many bytes as the value, and is borrowed mutably.
    unsafe { copy::store(bytes.as_mut_ptr(), value) };
}
