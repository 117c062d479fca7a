//! Arrays with an element for each frame. The host zeroes them as they are touched.

use std::io;
#[cfg(not(shuttle))]
use std::marker::PhantomData;
use std::ops::Deref;

use super::meta::Meta;
use crate::sync::raw::AtomicU32;
#[cfg(not(shuttle))]
use crate::sys::memory::Mapping;

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

// SAFETY: it consists of integers in atomics, which all change through `&`. All zeros are the value
// that `Meta::new` makes.
unsafe impl Zeroed for Meta {
    #[cfg(shuttle)]
    fn zeroed() -> Meta {
        Meta::new()
    }
}

// SAFETY: it is an integer in an atomic.
unsafe impl Zeroed for AtomicU32 {
    #[cfg(shuttle)]
    fn zeroed() -> AtomicU32 {
        AtomicU32::new(0)
    }
}

/// Elements that are zeros at first. They have a mapping of their own, because an allocator would
/// clear all of them itself at once.
#[cfg(not(shuttle))]
#[derive(Debug)]
pub(super) struct ZeroedArray<T> {
    memory: Mapping,
    len: usize,
    _of: PhantomData<T>,
}

/// Elements that are made one by one, because the model checkers' atomics are not plain integers.
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

#[cfg(shuttle)]
impl<T: Zeroed> ZeroedArray<T> {
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
