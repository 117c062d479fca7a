//! A range that grows and shrinks at its end, like the heap of `brk`.

use super::map::Map;
use crate::space::core::error::SpaceError;
use crate::space::core::space::Space;
use crate::space::vma::area::Backing;
use crate::space::vma::protection::Protection;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
use crate::{PAGE_SIZE, VirtAddr};

/// Anonymous memory whose end can be moved, up to a length that was reserved at the start.
///
/// The reserve is address space and costs no memory. The region belongs to its space, and stays
/// when this handle is dropped: it is unmapped like any mapping. A clone is another handle on the
/// same region.
///
/// The space's mappings decide the region's length. A restore brings back the length at the time of
/// the snapshot (in whole pages, unless it is the length set last). Pages at the region's end that
/// were protected from every access, or unmapped, are no longer in it.
///
/// ```
/// use innerspace::{KIB, MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.create_space()?;
/// let heap = space.create_region(64 * MIB)?;
/// assert_eq!(heap.set_len(10 * KIB)?, heap.start() + 10 * KIB);
/// let mut a = space.accessor()?;
/// a.store(heap.start() + 8 * KIB, 1_u64)?;
/// heap.set_len(0)?;
/// assert!(a.load::<u64>(heap.start()).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Region {
    space: Space,
    start: VirtAddr,
    /// The number of bytes reserved, in whole pages.
    most: u64,
    last: Arc<Last>,
}

/// State that the handles of a region share.
#[derive(Debug, Default)]
struct Last {
    /// The length that was set last, exactly as asked for. It is the region's length as long as the
    /// mappings give the region that many pages.
    len: AtomicU64,
    /// Serialises moves of the end.
    moving: Mutex<()>,
}

/// Rounds the length up to whole pages.
fn whole(len: u64) -> u64 {
    len.next_multiple_of(PAGE_SIZE as u64)
}

impl Region {
    /// Returns an empty region of up to `most` bytes, which are reserved from `start` on.
    pub(super) fn new(space: &Space, start: VirtAddr, most: u64) -> Region {
        Region {
            space: space.clone(),
            start,
            most: whole(most),
            last: Arc::default(),
        }
    }

    /// Returns the first address.
    pub fn start(&self) -> VirtAddr {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        let (last, (pages, _)) = (self.last.len.load(Ordering::Relaxed), self.pages());
        match whole(last) == pages {
            true => last,
            false => pages,
        }
    }

    /// Returns the region's length, and the length of its range up to the first part that was
    /// unmapped or no longer maps anonymous memory. Both are in bytes, and multiples of the page
    /// size. The space's mappings decide both; the difference is the reserve that is left.
    fn pages(&self) -> (u64, u64) {
        let range = self.start.0..self.start.0 + self.most;
        self.space.0.inside(|vmas| {
            // The search ends where something was unmapped, because anything may be mapped after
            // that.
            let run = vmas.run(&range);
            let own = run.take_while(|vma| matches!(vma.backing, Backing::Anonymous));
            let (mut usable, mut reserved) = (0, 0);
            for vma in own {
                reserved = vma.end.min(range.end) - range.start;
                if vma.protection != Protection::NONE {
                    usable = reserved;
                }
            }
            (usable, reserved)
        })
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves the end of the region and returns it. Added pages are zeros; pages that are cut off
    /// are dropped. Where the end stays in the same page, the page keeps its bytes.
    ///
    /// # Errors
    /// [`SpaceError::NoRoom`] beyond the reserve; [`SpaceError::NotMapped`] where the reserve was
    /// unmapped, whatever is mapped there now; [`SpaceError::Limit`]. Nothing is changed then.
    pub fn set_len(&self, len: u64) -> Result<VirtAddr, SpaceError> {
        if len > self.most {
            return Err(SpaceError::NoRoom { len });
        }
        // A callback of the space is refused: the call from which it comes may hold `moving`.
        self.space
            .0
            .check_live("moving the end of a region", self.start, len)?;
        let _moving = self.last.moving.lock();
        let ((old, reserved), new) = (self.pages(), whole(len));
        if old < new {
            if new > reserved {
                return Err(SpaceError::NotMapped {
                    what: "moving the end of a region",
                    at: self.start + old,
                    len: new - old,
                });
            }
            let added = self.start.0 + old..self.start.0 + new;
            if self.space.0.is_empty(&added) {
                let (at, len) = (self.start + old, new - old);
                self.space.protect(at, len, Protection::READ_WRITE)?;
            } else {
                // The range still has pages that were protected from every access, so zeros are
                // mapped in their place.
                let zeros = Map::anonymous(new - old).replacing(self.start + old);
                self.space.map(zeros)?;
            }
        } else if new < old {
            let reserved = Map::anonymous(old - new).protection(Protection::NONE);
            self.space.map(reserved.replacing(self.start + new))?;
        }
        self.last.len.store(len, Ordering::Relaxed);
        Ok(self.start + len)
    }
}
