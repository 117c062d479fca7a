//! Arrays whose elements are zeros at first: the metadata of frames, and the lookaside tables. The
//! host provides the pages of an array as they are touched.

use std::io;
#[cfg(not(shuttle))]
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use super::meta::Meta;
use crate::sync::raw::AtomicU32;
#[cfg(not(shuttle))]
use crate::sys::memory::{HUGE_PAGE, Mapping, Pages};

/// A type that can be an element of a zeroed array.
///
/// # Safety
/// Zero bytes are a valid value of the type, and its alignment is at most 4096. It has nothing to
/// drop, and any thread may use it.
pub(super) unsafe trait Zeroed: Sync {
    /// Returns the value that zero bytes stand for.
    #[cfg(shuttle)]
    fn zeroed() -> Self;
}

// SAFETY: `Meta` consists of integers in atomics, which all change through `&`. All zeros are the
// value that `Meta::new` makes.
unsafe impl Zeroed for Meta {
    #[cfg(shuttle)]
    fn zeroed() -> Meta {
        Meta::new()
    }
}

// SAFETY: an `AtomicU32` is an integer, for which zero is a valid value.
unsafe impl Zeroed for AtomicU32 {
    #[cfg(shuttle)]
    fn zeroed() -> AtomicU32 {
        AtomicU32::new(0)
    }
}

/// An array whose elements are all zeros at first. It has a mapping of its own, because an
/// allocator would clear all of the memory at once.
#[cfg(not(shuttle))]
#[derive(Debug)]
pub(super) struct ZeroedArray<T> {
    memory: Mapping,
    len: usize,
    _of: PhantomData<T>,
}

/// An array whose elements are made one by one, because the model checkers' atomics are not plain
/// integers.
#[cfg(shuttle)]
#[derive(Debug)]
pub(super) struct ZeroedArray<T>(Box<[T]>);

#[cfg(not(shuttle))]
impl<T: Zeroed> ZeroedArray<T> {
    /// Makes an array of `len` elements, all zero.
    pub(super) fn new(len: usize) -> io::Result<ZeroedArray<T>> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::new(bytes)?;
        memory.advise_wipe_on_fork();
        memory.advise_huge();
        Ok(ZeroedArray {
            memory,
            len,
            _of: PhantomData,
        })
    }
}

#[cfg(not(shuttle))]
impl<T> ZeroedArray<T> {
    /// Asks the host for small pages from the element `first` on, because few of the elements there
    /// will be in use. Begins at the next boundary of a huge page.
    pub(super) fn keep_small_from(&self, first: usize) {
        let start = (first * size_of::<T>()).next_multiple_of(HUGE_PAGE);
        if start < self.memory.len() {
            let rest = start..self.memory.len();
            self.memory.advise_pages(rest, Pages::Small);
        }
    }

    /// Gives the memory of elements back to the host, which makes them zeros again. Elements in
    /// pages that the range covers only in part stay as they are. No thread may be using these
    /// elements. (A thread that follows a wrong guess may still read them; it finds the old bytes
    /// or zeros.)
    pub(super) fn discard(&self, elements: Range<usize>) {
        let size = size_of::<T>();
        self.memory
            .discard(elements.start * size..elements.end * size);
    }
}

#[cfg(shuttle)]
impl<T: Zeroed> ZeroedArray<T> {
    pub(super) fn keep_small_from(&self, _: usize) {}

    pub(super) fn discard(&self, _: Range<usize>) {}

    /// Makes an array of `len` elements, all zero.
    pub(super) fn new(len: usize) -> io::Result<ZeroedArray<T>> {
        Ok(ZeroedArray((0..len).map(|_| T::zeroed()).collect()))
    }
}

impl<T: Zeroed> Deref for ZeroedArray<T> {
    type Target = [T];

    #[cfg(not(shuttle))]
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` times the size of a `T`, is aligned to 4096, lives as
        // long as `self` and belongs to nothing else. Its zeros are valid values (`Zeroed`).
        unsafe { std::slice::from_raw_parts(self.memory.base().cast(), self.len) }
    }

    #[cfg(shuttle)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod for_tests {
    use super::*;

    impl<T: Zeroed> ZeroedArray<T> {
        /// Returns the number of pages in which some byte is not zero. No other thread uses the
        /// array.
        pub(crate) fn pages_in_use(&self) -> usize {
            let bytes = self.len * size_of::<T>();
            // SAFETY: the mapping has as many bytes, all initialised, and the test changes none
            // meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(self.memory.base(), bytes) };
            let pages = bytes.chunks(crate::PAGE_SIZE);
            pages
                .filter(|page| page.iter().any(|byte| *byte != 0))
                .count()
        }
    }
}
