//! Copies of one aligned piece of shared memory, of 1, 2, 4 or 8 bytes.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The size in bytes of the unit that is never torn.
pub(super) const WORD: usize = 8;

/// Records a shared access of the portable form in tests. Does nothing in other builds.
#[inline(always)]
fn accessed(address: *const u8, size: usize) {
    #[cfg(test)]
    trace::record(address.addr(), size);
    #[cfg(not(test))]
    let _ = (address, size);
}

/// The side of a copy that is shared with others. The other side is private.
pub(super) trait Shared {
    /// Returns the address of the shared side.
    fn of(dst: *mut u8, src: *const u8) -> *const u8;

    /// Copies `size` bytes (1, 2, 4 or 8) as one access to the shared side.
    ///
    /// Safety: the shared side is aligned to `size`, and others use it by atomics only. Nothing
    /// else uses the private side. Both are valid for `size` bytes.
    unsafe fn piece(dst: *mut u8, src: *const u8, size: usize);
}

/// A copy of shared bytes into private ones.
pub(super) struct Source;

/// A copy of private bytes to shared ones.
pub(super) struct Target;

impl Shared for Source {
    #[inline(always)]
    fn of(_: *mut u8, src: *const u8) -> *const u8 {
        src
    }

    #[inline(always)]
    unsafe fn piece(dst: *mut u8, src: *const u8, size: usize) {
        accessed(src, size);
        let (to2, to4, to8) = (dst.cast::<u16>(), dst.cast::<u32>(), dst.cast::<u64>());
        let src = src.cast_mut();
        // SAFETY: the caller's promise.
        unsafe {
            match size {
                1 => dst.write(AtomicU8::from_ptr(src).load(Relaxed)),
                2 => to2.write_unaligned(AtomicU16::from_ptr(src.cast()).load(Relaxed)),
                4 => to4.write_unaligned(AtomicU32::from_ptr(src.cast()).load(Relaxed)),
                _ => to8.write_unaligned(AtomicU64::from_ptr(src.cast()).load(Relaxed)),
            }
        }
    }
}

impl Shared for Target {
    #[inline(always)]
    fn of(dst: *mut u8, _: *const u8) -> *const u8 {
        dst
    }

    #[inline(always)]
    unsafe fn piece(dst: *mut u8, src: *const u8, size: usize) {
        accessed(dst, size);
        let (of2, of4, of8) = (src.cast::<u16>(), src.cast::<u32>(), src.cast::<u64>());
        // SAFETY: the caller's promise.
        unsafe {
            match size {
                1 => AtomicU8::from_ptr(dst).store(src.read(), Relaxed),
                2 => AtomicU16::from_ptr(dst.cast()).store(of2.read_unaligned(), Relaxed),
                4 => AtomicU32::from_ptr(dst.cast()).store(of4.read_unaligned(), Relaxed),
                _ => AtomicU64::from_ptr(dst.cast()).store(of8.read_unaligned(), Relaxed),
            }
        }
    }
}

/// A record of the shared accesses that a thread makes in the portable form, for tests to check.
#[cfg(test)]
pub(super) mod trace {
    use std::cell::RefCell;

    std::thread_local! {
        /// The (address, size) of each access, in order. `None` while no test records.
        static ACCESSES: RefCell<Option<Vec<(usize, usize)>>> = const { RefCell::new(None) };
    }

    pub(crate) fn record(address: usize, size: usize) {
        ACCESSES.with_borrow_mut(|accesses| {
            if let Some(accesses) = accesses {
                accesses.push((address, size));
            }
        });
    }

    /// Runs `work` and returns the shared accesses it made, in order.
    #[cfg(all(not(loom), not(shuttle)))]
    pub(crate) fn of(work: impl FnOnce()) -> Vec<(usize, usize)> {
        ACCESSES.set(Some(Vec::new()));
        work();
        ACCESSES.take().unwrap_or_default()
    }
}
