//! The description of one access for the lookup.

use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::{PAGE_SIZE, VirtAddr};

/// The kind of one access, and the bytes that it needs. Small, so that passing it to the slow path
/// costs the fast path nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) access: AccessKind,
    /// The size of the value, which a fault reports; 0 for a buffer.
    pub(crate) reported: u8,
    /// The number of bytes to look up, in one page; 0 if the page only needs to be valid for later
    /// accesses.
    size: u16,
    /// The number of pages after this one in which the access continues.
    pub(crate) more: u32,
}

impl What {
    #[inline(always)]
    pub(crate) fn value<T>(access: AccessKind) -> What {
        What {
            size: size_of::<T>() as u16,
            ..What::page(access, size_of::<T>())
        }
    }

    /// Describes an access that only makes a page valid for later accesses. A fault reports a value
    /// of `reported` bytes, or a buffer if that is 0.
    #[inline(always)]
    pub(crate) fn page(access: AccessKind, reported: usize) -> What {
        What {
            access,
            reported: reported as u8,
            size: 0,
            more: 0,
        }
    }

    /// Describes an access of the same kind to `size` bytes of a page, which continues for `rest`
    /// bytes after them.
    #[inline(always)]
    pub(crate) fn part(self, size: usize, rest: usize) -> What {
        debug_assert!(size <= PAGE_SIZE);
        let pages = rest.div_ceil(PAGE_SIZE).min(u32::MAX as usize);
        What {
            size: size as u16,
            more: pages as u32,
            ..self
        }
    }

    /// Returns whether this access uses bytes of the page. If not, it only makes the page valid for
    /// later accesses.
    pub(crate) fn uses_page(self) -> bool {
        self.size > 0
    }

    /// Returns the fault of this access at `at`.
    pub(crate) fn fault(self, kind: FaultKind, at: VirtAddr) -> Fault {
        Fault::new(kind, at, self.access, self.reported.into())
    }

    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        usize::from(self.size)
    }
}
