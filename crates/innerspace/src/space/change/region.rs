//! A range that grows and shrinks at its end, like the heap that brk moves.

use super::map::Map;
use crate::space::core::error::SpaceError;
use crate::space::core::space::Space;
use crate::space::vma::area::Backing;
use crate::space::vma::protection::Protection;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
use crate::{PAGE_SIZE, VirtAddr};

/// Anonymous memory whose end can be moved, up to a length that is reserved when it is made.
///
/// The reserve is address space and costs no memory. The region belongs to its space, and stays
/// when this handle is dropped: it is unmapped like any mapping. Clones are handles of the same
/// region.
///
/// The space's mappings decide its length: a restore brings back the length of the snapshot's time
/// (in whole pages, unless it is the one set last), and pages at its end that were protected from
/// every access, or unmapped, are no longer in it.
///
/// ```
/// use innerspace::{KIB, MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.space()?;
/// let mut heap = space.region(64 * MIB)?;
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
    /// The bytes reserved, in whole pages.
    most: u64,
    last: Arc<Last>,
}

/// State that the handles of a region share.
#[derive(Debug, Default)]
struct Last {
    /// The length that was set last, as asked for: it holds as long as the space has so many pages
    /// of the region.
    len: AtomicU64,
    /// Serialises moves of the end.
    moving: Mutex<()>,
}

/// The length in whole pages.
fn whole(len: u64) -> u64 {
    len.next_multiple_of(PAGE_SIZE as u64)
}

impl Space {
    /// Reserves `most` bytes (rounded up to whole pages), at an address of the space's choice, for
    /// a region that is empty at first.
    ///
    /// # Errors
    /// As for [`Space::map`].
    pub fn region(&self, most: u64) -> Result<Region, SpaceError> {
        let start = self.map(Map::anonymous(most).protection(Protection::NONE))?;
        Ok(Region {
            space: self.clone(),
            start,
            most: whole(most),
            last: Arc::default(),
        })
    }
}

impl Region {
    /// Its first address.
    pub fn start(&self) -> VirtAddr {
        self.start
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        let (last, pages) = (self.last.len.load(Ordering::Relaxed), self.pages());
        match whole(last) == pages {
            true => last,
            false => pages,
        }
    }

    /// The length in whole pages, by the space's mappings: the reserve is behind it.
    fn pages(&self) -> u64 {
        let range = self.start.0..self.start.0 + self.most;
        self.space.0.inside(|tables| {
            // Only up to the place where something was unmapped: the range behind that may be
            // anything.
            let mut end = range.start;
            let parts = tables.vmas.overlapping(&range).take_while(|vma| {
                let follows = vma.start <= end && matches!(vma.backing, Backing::Anonymous);
                end = vma.end;
                follows
            });
            let usable = parts.filter(|vma| vma.protection != Protection::NONE);
            usable
                .last()
                .map_or(0, |vma| vma.end.min(range.end) - range.start)
        })
    }

    /// The pages from its start on that nothing else was mapped over.
    fn reserved(&self) -> u64 {
        let range = self.start.0..self.start.0 + self.most;
        self.space.0.inside(|tables| {
            let mut end = range.start;
            for vma in tables.vmas.overlapping(&range) {
                if vma.start > end || !matches!(vma.backing, Backing::Anonymous) {
                    break;
                }
                end = vma.end;
            }
            end.min(range.end) - range.start
        })
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Moves its end and returns it. Added bytes are zeros; pages that are cut off are gone.
    ///
    /// # Errors
    /// [`SpaceError::NoRoom`] beyond what was reserved; [`SpaceError::NotMapped`] where the reserve
    /// was unmapped, whatever is mapped there now; [`SpaceError::Limit`]. Nothing is changed.
    pub fn set_len(&mut self, len: u64) -> Result<VirtAddr, SpaceError> {
        if len > self.most {
            return Err(SpaceError::NoRoom { len });
        }
        // A callback of the space would wait for the call that it works for.
        self.space
            .0
            .check_live("moving the end of a region", self.start, len)?;
        let _moving = self.last.moving.lock();
        let (old, new) = (self.pages(), whole(len));
        if old < new {
            if new > self.reserved() {
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
                // Some pages were protected from every access.
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
