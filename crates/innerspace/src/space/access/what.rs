//! What one access asks for.

use crate::space::core::error::{AccessKind, Fault, FaultKind};
use crate::space::tlb::translator::Need;
use crate::{PAGE_SIZE, VirtAddr};

/// Small, so that the way to the slow path costs the fast one nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct What {
    pub(crate) access: AccessKind,
    /// Bytes to name in a fault; 0: a buffer.
    pub(crate) reported: u8,
    /// Bytes to look up, in one page; 0: the page is to be valid for accesses to come.
    size: u16,
    /// Pages behind it that the access goes on to.
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

    /// A part of a value that crosses a page end: only the page's validity is wanted, and it has to
    /// last.
    pub(crate) fn part_of<T>(access: AccessKind) -> What {
        What {
            size: 0,
            ..What::value::<T>(access)
        }
    }

    /// Bytes of one page of a value of `whole` bytes that crosses a page end.
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

    /// Whether the bytes are used at once.
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

    /// The same, for an access that goes on for so many bytes behind the page.
    #[inline(always)]
    pub(crate) fn with_more(self, bytes: usize) -> What {
        let pages = bytes.div_ceil(PAGE_SIZE).min(u32::MAX as usize);
        What {
            more: pages as u32,
            ..self
        }
    }

    /// The fault of such an access, at `at`.
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
