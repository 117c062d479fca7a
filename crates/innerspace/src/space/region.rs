//! A range that grows and shrinks at its end, like the heap that brk moves.

use super::map::Map;
use super::vma::Protection;
use super::{Space, SpaceError};
use crate::{PAGE_SIZE, VirtAddr};

/// Anonymous memory whose end can be moved, up to a length that is reserved when it is made.
///
/// The reserve is address space and costs no memory. The region belongs to its space, and stays when this handle is
/// dropped: it is unmapped like any mapping.
///
/// ```
/// use innerspace::{KIB, MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.space()?;
/// let mut heap = space.region(64 * MIB)?;
/// assert_eq!(heap.set_len(10 * KIB)?, heap.start() + 10 * KIB);
/// let mut a = space.accessor();
/// a.store(heap.start() + 8 * KIB, 1_u64)?;
/// heap.set_len(0)?;
/// assert!(a.load::<u64>(heap.start()).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Region {
    space: Space,
    start: VirtAddr,
    /// What is reserved, in whole pages.
    most: u64,
    /// As asked for.
    len: u64,
}

impl Space {
    /// Reserves `most` bytes (rounded up to whole pages), at an address of the space's choice, for a region that is empty at
    /// first.
    ///
    /// # Errors
    /// As for [`Space::map`].
    pub fn region(&self, most: u64) -> Result<Region, SpaceError> {
        let start = self.map(Map::anonymous(most).protection(Protection::NONE))?;
        Ok(Region {
            space: self.clone(),
            start,
            most: most.next_multiple_of(PAGE_SIZE as u64),
            len: 0,
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
        self.len
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Moves its end and returns it. What is added is zeros; what is cut off is gone, by whole pages.
    ///
    /// # Errors
    /// [`SpaceError::NoRoom`] beyond what was reserved; [`SpaceError::Limit`]. Nothing is changed.
    pub fn set_len(&mut self, len: u64) -> Result<VirtAddr, SpaceError> {
        if len > self.most {
            return Err(SpaceError::NoRoom { len });
        }
        let pages = |len: u64| len.next_multiple_of(PAGE_SIZE as u64);
        let (old, new) = (pages(self.len), pages(len));
        if old < new {
            self.space
                .protect(self.start + old, new - old, Protection::READ_WRITE)?;
        } else if new < old {
            let reserved = Map::anonymous(old - new).protection(Protection::NONE);
            self.space.map(reserved.replacing(self.start + new))?;
        }
        self.len = len;
        Ok(self.start + len)
    }
}
