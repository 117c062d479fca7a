//! Bulk operations on shared bytes: bytes that other threads may be writing at the same time.
//!
//! Such bytes are never a `&[u8]`, and memcpy on them would be a data race. The operations here are
//! not data races. Whatever other threads do meanwhile, the operations end, touch nothing outside
//! their range, and access each *aligned word* of shared memory (8 bytes at an address divisible by
//! 8) as a whole. A word that is read is therefore some word that was written, never a mixture
//! (A16).
//!
//! Order between words is not promised. Where one thread hands bytes over to another, instead of
//! racing for them, the handover orders them.
//!
//! Two forms of the inner loops are tested against each other:
//! - [`words::Words`]: relaxed atomic words. This form is portable, and model checkers, Miri and
//!   ThreadSanitizer (`--cfg portable`) understand it.
//! - [`assembly::Assembly`], for x86-64: moves of 64 bytes, aligned on each shared side, where the
//!   processor has them. Otherwise `rep movsq` where both sides are aligned, and moves of words
//!   where they are not. Bytes are filled by `rep stosq`. Ranges of fewer than 32 words use the
//!   portable loops. `rep movsq` is defined as a sequence of moves of 8 bytes, and aligned moves of
//!   8 bytes are atomic. `rep movsb` promises nothing about words, so only [`copy_still`] uses it.
//!
//! Shared bytes are reached through pointers that may write, even where they are only read: the
//! portable form reads by atomics, and an atomic needs a pointer that may write.
//!
//! [`scalar`] has the single loads, stores and read-modify-writes. Neighbours: every layer that
//! moves bytes of frames or of device memory uses this module. It checks no address, because its
//! callers have translated already.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
mod assembly;
mod form;
mod pieces;
mod scalar;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;
mod words;

use form::{Form, copy_by, fill_by};
use pieces::{Source, Target, WORD};
pub use scalar::{AtomicScalar, Scalar};
pub(crate) use scalar::{Modify, compare_exchange, load, load_atomic, modify, store, store_atomic};
#[cfg(all(test, not(shuttle)))]
use words::Words;

use crate::units::PAGE_SIZE;

#[cfg(all(target_arch = "x86_64", not(any(portable, shuttle, miri))))]
use assembly::Assembly as Native;
#[cfg(not(all(target_arch = "x86_64", not(any(portable, shuttle, miri)))))]
use words::Words as Native;

/// Copies shared bytes into private ones.
///
/// # Safety
/// `src` stays valid for reads of `dst.len()` bytes during the call. Others may write them, but
/// only through this module or atomics.
#[inline]
pub(crate) unsafe fn copy_in(dst: &mut [u8], src: *const u8) {
    // SAFETY: the caller's promise for `src`; `dst` is exclusive, so it overlaps nothing shared.
    unsafe { copy_by::<Native, Source>(dst.as_mut_ptr(), src, dst.len()) }
}

/// Copies bytes that are assumed not to change into private bytes that are likely to be in no
/// cache. Makes no promise about words, and is therefore faster where the processor fills cache
/// lines without reading them first. The caller must check afterwards whether the bytes have
/// changed, and if so discard the copy.
///
/// # Safety
/// `src` stays valid for reads of `dst.len()` bytes during the call. Others may write them, but
/// only through this module or atomics.
#[inline]
pub(crate) unsafe fn copy_still(dst: &mut [u8], src: *const u8) {
    crate::sync::interleave();
    // SAFETY: the caller's promise for `src`; `dst` is exclusive, so it overlaps nothing shared.
    unsafe { Native::still_in(dst.as_mut_ptr(), src, dst.len()) }
}

/// Copies private bytes to shared ones.
///
/// # Safety
/// `dst` stays valid for writes of `src.len()` bytes during the call. Others may read and write
/// them, but only through this module or atomics.
#[inline]
pub(crate) unsafe fn copy_out(dst: *mut u8, src: &[u8]) {
    // SAFETY: the caller's promise for `dst`; nothing writes `src` while it is borrowed.
    unsafe { copy_by::<Native, Target>(dst, src.as_ptr(), src.len()) }
}

/// Sets `len` shared bytes to `byte`.
///
/// # Safety
/// `dst` stays valid for writes of `len` bytes during the call. Others may read and write them,
/// but only through this module or atomics.
#[inline]
pub(crate) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { fill_by::<Native>(dst, byte, len) }
}

/// Sets the 4096 shared bytes at `dst` to zero. Words that are zero already may be skipped.
///
/// # Safety
/// As for [`fill`] with 4096 bytes, and `dst` is aligned to 64.
#[inline]
pub(crate) unsafe fn zero_page(dst: *mut u8) {
    debug_assert!(dst.addr().is_multiple_of(64));
    crate::sync::interleave();
    // SAFETY: the caller's promise is the same.
    unsafe { Native::page_zero(dst.cast()) }
}

/// Copies the 4096 shared bytes at `src` to `dst`.
///
/// # Safety
/// `src` stays valid for reads and `dst` for writes of 4096 bytes during the call. The two do not
/// overlap, and both are aligned to 8. Others may read and write both, but only through this module
/// or atomics.
#[inline]
pub(crate) unsafe fn copy_page(dst: *mut u8, src: *const u8) {
    debug_assert!(dst.cast::<u64>().is_aligned() && src.cast::<u64>().is_aligned());
    // SAFETY: the caller's promise is the same.
    unsafe { Native::words_across(dst.cast(), src.cast(), PAGE_SIZE / WORD) }
}

/// Copies pages past the caches: the destination is not read first, and nothing is displaced from
/// the caches. Such stores are not ordered with any others until their own thread executes a fence.
/// Dropping this value, which is not `Send`, executes the fence. While it lives, the copies must
/// neither be read nor published. (No test can tell whether the fence is there.)
#[must_use = "the copies are complete when this is dropped"]
#[derive(Debug)]
pub(crate) struct Streaming(PhantomData<*mut ()>);

impl Streaming {
    /// Begins to copy. Returns `None` where the processor cannot store whole lines past the caches,
    /// because stores of parts of lines gain nothing. Where there is no assembly, the copies are
    /// plain ones.
    #[inline]
    pub(crate) fn begin() -> Option<Streaming> {
        Native::streams().then_some(Streaming(PhantomData))
    }

    /// Copies a page of bytes.
    ///
    /// # Safety
    /// `dst` is valid for writes of 4096 bytes and aligned to 64. Until `self` is dropped, nothing
    /// uses those bytes, not even the caller. `self` must be dropped.
    #[inline]
    pub(crate) unsafe fn copy_page(&self, dst: *mut u8, src: &[u8; PAGE_SIZE]) {
        // SAFETY: the caller's promise; `self` exists only if [`Form::streams`] allows the call.
        unsafe { Native::stream_page(dst, src.as_ptr()) }
    }
}

impl Drop for Streaming {
    #[inline]
    fn drop(&mut self) {
        super::flush::fence();
    }
}

/// Prefetches the cache lines of the first `BYTES` bytes, which are to be read soon. For a page
/// that is to be copied some hundred instructions later, a quarter is enough: the processor then
/// fetches ahead by itself.
///
/// Intel's processors do so up to the end of a page of 4 KiB. There is one exception: since Ivy
/// Bridge, they have a next-page prefetcher. When accesses approach the end of a page in sequence,
/// it begins to fetch the page at the next address. So a page anywhere else must be prefetched by
/// the program. The source is the Intel 64 and IA-32 Architectures Optimization Reference Manual:
/// it describes the prefetchers of the first two levels of cache, and that of Ivy Bridge.
#[inline(always)]
pub(crate) fn prefetch<const BYTES: usize>(address: *const u8) {
    for offset in (0..BYTES).step_by(64) {
        Native::prefetch(address.wrapping_add(offset));
    }
}

/// Prefetches the cache lines of the first `BYTES` bytes, which are to be written soon. A page that
/// is written while another one is copied is prefetched as a whole: stores to lines that are in no
/// cache wait for each other, and the processor hardly fetches ahead across a page's end (see
/// [`prefetch`]).
#[inline(always)]
pub(crate) fn prefetch_to_write<const BYTES: usize>(address: *const u8) {
    for offset in (0..BYTES).step_by(64) {
        Native::prefetch_to_write(address.wrapping_add(offset));
    }
}

/// A quarter of a page, which is about as much as a processor fetches at a time. Further prefetches
/// would wait until some lines have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quarter {
    First,
    Second,
    Third,
    Fourth,
}

impl Quarter {
    /// Prefetches this quarter of a page that is to be written soon.
    #[inline(always)]
    pub(crate) fn prefetch_to_write(self, page: *const u8) {
        const BYTES: usize = PAGE_SIZE / 4;
        prefetch_to_write::<BYTES>(page.wrapping_add(self as usize * BYTES));
    }
}
