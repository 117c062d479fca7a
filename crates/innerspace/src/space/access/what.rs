//! What one access needs.

use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::tlb::translator::Need;
use crate::{PAGE_SIZE, VirtAddr};

/// What one access needs. Small, so that passing it to the slow path costs the fast path nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) access: AccessKind,
    /// The size of the value, which a fault reports; 0 for a buffer.
    pub(crate) reported: u8,
    /// The bytes to look up, in one page; 0 if the page has to be valid for later accesses.
    size: u16,
    /// The number of pages after this one to which the access goes on.
    pub(crate) more: u32,
}

impl What {
    #[inline(always)]
    pub(crate) fn value<T>(access: AccessKind) -> What {
        What {
            access,
            reported: size_of::<T>() as u8,
            size: size_of::<T>() as u16,
            more: 0,
        }
    }

    /// Describes an access to a part of a value that crosses a page end. Only the page's validity
    /// is wanted, and it has to last until the store.
    pub(crate) fn part_of<T>(access: AccessKind) -> What {
        What {
            size: 0,
            ..What::value::<T>(access)
        }
    }

    /// Describes an access to those bytes of a value that lie in one page. The value has `whole`
    /// bytes and crosses a page end.
    pub(crate) fn piece(access: AccessKind, size: usize, whole: usize) -> What {
        What {
            access,
            reported: whole as u8,
            size: size as u16,
            more: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn is_buffer(self) -> bool {
        self.reported == 0
    }

    /// Returns whether this access uses the bytes itself.
    pub(crate) fn uses_page(self) -> bool {
        self.size > 0
    }

    #[inline(always)]
    pub(crate) fn buffer(access: AccessKind, size: usize) -> What {
        debug_assert!(size <= PAGE_SIZE);
        What {
            access,
            reported: 0,
            size: size as u16,
            more: 0,
        }
    }

    /// Returns the same needs for an access that goes on for this many bytes after the page.
    #[inline(always)]
    pub(crate) fn with_more(self, bytes: usize) -> What {
        let pages = bytes.div_ceil(PAGE_SIZE).min(u32::MAX as usize);
        What {
            more: pages as u32,
            ..self
        }
    }

    /// Returns the fault of such an access at `at`.
    pub(crate) fn fault(self, kind: FaultKind, at: VirtAddr) -> Fault {
        Fault::new(kind, at, self.access, self.reported.into())
    }

    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        usize::from(self.size)
    }

    #[inline(always)]
    pub(crate) fn need(self) -> Need {
        match self.access {
            AccessKind::Load => Need::Read,
            AccessKind::Fetch => Need::Fetch,
            AccessKind::Store | AccessKind::Exchange => Need::Write,
        }
    }
}
