//! The metadata of all frames: one array, zeroed by the host as it is touched.

use std::io;
use std::ops::Deref;

use super::meta::Meta;
#[cfg(not(any(loom, shuttle)))]
use crate::sys::memory::Mapping;

/// One [`Meta`] a frame. A mapping of its own: an allocator would clear it by hand, all at once.
#[cfg(not(any(loom, shuttle)))]
#[derive(Debug)]
pub(super) struct MetaArray {
    memory: Mapping,
    len: usize,
}

/// The model checkers' atomics are not plain integers: each is made in its own right.
#[cfg(any(loom, shuttle))]
#[derive(Debug)]
pub(super) struct MetaArray(Box<[Meta]>);

#[cfg(not(any(loom, shuttle)))]
impl MetaArray {
    /// The metadata of `len` frames, all zero.
    pub(super) fn new(len: usize) -> io::Result<MetaArray> {
        let bytes = len
            .checked_mul(size_of::<Meta>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::new(bytes)?;
        memory.advise_dont_fork();
        memory.advise_huge();
        Ok(MetaArray { memory, len })
    }
}

#[cfg(any(loom, shuttle))]
impl MetaArray {
    /// The metadata of `len` frames, all zero.
    pub(super) fn new(len: usize) -> io::Result<MetaArray> {
        Ok(MetaArray((0..len).map(|_| Meta::new()).collect()))
    }
}

impl Deref for MetaArray {
    type Target = [Meta];

    #[cfg(not(any(loom, shuttle)))]
    #[inline(always)]
    fn deref(&self) -> &[Meta] {
        // SAFETY: the mapping holds `len` times the size of a `Meta`, is aligned to 4096, lives as long as `self` and is
        // nobody else's. `Meta` is integers in atomics: the host's zero bytes are valid in each and mean what
        // `Meta::new` says, and everybody changes them through `&`.
        unsafe { std::slice::from_raw_parts(self.memory.base().cast(), self.len) }
    }

    #[cfg(any(loom, shuttle))]
    fn deref(&self) -> &[Meta] {
        &self.0
    }
}
