//! Views of a snapshot's bytes.

use std::fmt;
use std::ops::Deref;

use super::frozen::Snapshot;
use crate::VirtAddr;
use crate::cache::as_bytes;
use crate::group::{HeapBytes, MayReclaim};
use crate::space::core::address::page_start;
use crate::space::core::fault::{AccessKind, Fault};
use crate::space::table::still::StillPage;
use crate::space::vma::protection::Protection;
use crate::sync::Arc;

/// The size of the two reference counts of an `Arc`.
const ARC_BYTES: usize = 16;

/// Bytes of a snapshot. They stay unchanged even after the snapshot and every space are dropped.
///
/// A view compares and hashes as its bytes do, like a [`View`](crate::View).
///
/// A view inside one private page is the page itself. Any other view is a copy: across pages, of a
/// page of a file, or of memory that was never stored to. The snapshot's group is charged for
/// either. A clone has the same bytes and costs one more reference.
#[derive(Clone)]
pub struct PageView(Arc<Bytes>);

struct Bytes {
    what: What,
    /// The charge for the view's memory, which is given back with the view.
    _heap: HeapBytes,
}

enum What {
    Still(StillPage),
    Copy(Box<[u8]>),
}

impl Deref for PageView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0.what {
            What::Still(page) => page,
            What::Copy(bytes) => bytes,
        }
    }
}

as_bytes!(PageView);

impl fmt::Debug for PageView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageView({} bytes)", self.len())
    }
}

impl Snapshot {
    /// Returns a view of `len` bytes at `at`.
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let at = space.map(Map::anonymous(4096))?;
    /// let mut a = space.accessor()?;
    /// a.write(at, b"as it was")?;
    /// let view = space.freeze()?.view(at, 9)?;
    /// a.write(at, b"changed  ")?;
    /// assert_eq!(view[..], *b"as it was");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be read;
    /// [`FaultKind::Limit`](crate::space::FaultKind::Limit) if the group has no room for the view.
    pub fn view(&self, at: VirtAddr, len: u64) -> Result<PageView, Fault> {
        let space = &*self.0.0;
        let full = |error| space.limit_fault(at, AccessKind::Load, error);
        let own = size_of::<Bytes>() + ARC_BYTES;
        let heap = space.group.charge_heap(own, MayReclaim::Yes);
        let mut heap = heap.map_err(full)?;
        let offset = at.page_offset();
        if len <= (crate::PAGE_SIZE - offset) as u64 {
            let nodes = space.nodes();
            let range = offset..offset + len as usize;
            let page = space.inside(|vmas| {
                // If the page may not be read, the read below reports it.
                let vma = vmas.find_containing(at.0)?;
                if !vma.protection.allows(Protection::READ) {
                    return None;
                }
                nodes.still_page(&space.pool, page_start(at.0), range.clone())
            });
            if let Some(page) = page {
                let what = What::Still(page);
                return Ok(PageView(Arc::new(Bytes { what, _heap: heap })));
            }
        }
        let all = (own as u64).saturating_add(len);
        heap.set(all, MayReclaim::Yes).map_err(full)?;
        let mut bytes = vec![0; len as usize].into_boxed_slice();
        self.accessor().map_err(full)?.read(at, &mut bytes)?;
        let what = What::Copy(bytes);
        Ok(PageView(Arc::new(Bytes { what, _heap: heap })))
    }
}
