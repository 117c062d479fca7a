//! Mapping, unmapping and changing protections: structural changes, made with the gate closed.

use std::ops::{Bound, Range, RangeBounds};

use super::table::{ADDRESS_BITS, Edit};
use super::vma::{Backing, Protection, Residence, Sharing, Vma};
use super::vma_set::VmaSet;
use super::{Space, SpaceError};
use crate::cache::PagedFile;
use crate::{MIB, PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// The lowest address that can be mapped: a null pointer with a small offset stays an error.
const LOWEST: u64 = 1 << 16;
/// Where ranges of chosen address start.
const CHOSEN: u64 = 0x7f00_0000_0000;
/// The first address that does not exist.
const END: u64 = 1 << ADDRESS_BITS;
const PAGE: u64 = PAGE_SIZE as u64;
/// The largest file offset that can be mapped.
const MAX_OFFSET: u64 = i64::MAX as u64 - END;

/// What to map, and how: a file or anonymous memory. Private and read-only for a file, private and read-write for anonymous
/// memory, at an address of the space's choice, unless said otherwise.
///
/// ```
/// # use innerspace::{Map, Memory, Protection, VirtAddr, MIB};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let space = memory.space()?;
/// let at = space.map(Map::anonymous(64 * 1024))?;
/// let fixed = space.map(Map::anonymous(4096).at(VirtAddr(0x10_0000)).protection(Protection::READ))?;
/// assert_eq!(fixed, VirtAddr(0x10_0000));
/// space.unmap(at, 64 * 1024)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Map {
    what: What,
    protection: Protection,
    sharing: Sharing,
    place: Place,
}

#[derive(Clone, Debug)]
enum What {
    Anonymous {
        len: u64,
    },
    File {
        file: PagedFile,
        offset: u64,
        len: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Chosen,
    Free(VirtAddr),
    Replacing(VirtAddr),
}

impl Map {
    /// Anonymous memory of `len` bytes, rounded up to whole pages: zeros until written, charged as it is written.
    pub fn anonymous(len: u64) -> Map {
        let what = What::Anonymous { len };
        Map {
            what,
            protection: Protection::READ_WRITE,
            sharing: Sharing::Private,
            place: Place::Chosen,
        }
    }

    /// All of a file as long as it is now; see [`Map::range`].
    pub fn file(file: &PagedFile) -> Map {
        let what = What::File {
            file: file.clone(),
            offset: 0,
            len: None,
        };
        Map {
            what,
            protection: Protection::READ,
            sharing: Sharing::Private,
            place: Place::Chosen,
        }
    }

    /// Only these bytes of the file. The start is a multiple of 4096; the end is rounded up to a whole page. A part past the
    /// end of the file can be mapped, and faults until the file has grown. No effect on anonymous memory.
    pub fn range(mut self, bytes: impl RangeBounds<u64>) -> Map {
        if let What::File { offset, len, .. } = &mut self.what {
            *offset = match bytes.start_bound() {
                Bound::Included(&start) => start,
                Bound::Excluded(&start) => start.saturating_add(1),
                Bound::Unbounded => 0,
            };
            *len = match bytes.end_bound() {
                Bound::Included(&end) => Some(end.saturating_add(1).saturating_sub(*offset)),
                Bound::Excluded(&end) => Some(end.saturating_sub(*offset)),
                Bound::Unbounded => None,
            };
        }
        self
    }

    /// Stores go to the file, and are seen by everybody who reads or maps it. Anonymous memory is always private.
    pub fn shared(mut self) -> Map {
        self.sharing = Sharing::Shared;
        self
    }

    /// Stores copy the page; nobody else sees them.
    pub fn private(mut self) -> Map {
        self.sharing = Sharing::Private;
        self
    }

    /// Allows stores besides loads.
    pub fn writable(mut self) -> Map {
        self.protection = self.protection | Protection::READ_WRITE;
        self
    }

    /// Allows exactly this.
    pub fn protection(mut self, protection: Protection) -> Map {
        self.protection = protection;
        self
    }

    /// At this address, a multiple of 4096, where nothing may be mapped.
    pub fn at(mut self, address: VirtAddr) -> Map {
        self.place = Place::Free(address);
        self
    }

    /// At this address, in place of whatever is mapped there.
    pub fn replacing(mut self, address: VirtAddr) -> Map {
        self.place = Place::Replacing(address);
        self
    }

    fn len(&self) -> u64 {
        match &self.what {
            What::Anonymous { len } => *len,
            What::File { file, offset, len } => {
                len.unwrap_or_else(|| file.inner().size().saturating_sub(*offset))
            }
        }
    }

    fn place_address(&self) -> VirtAddr {
        match self.place {
            Place::Chosen => VirtAddr(CHOSEN),
            Place::Free(at) | Place::Replacing(at) => at,
        }
    }

    /// The mapping without its address, checked as far as that goes.
    fn to_vma(&self) -> Result<Vma, SpaceError> {
        let at = self.place_address();
        let wanted = self.len();
        if wanted == 0 {
            return Err(SpaceError::Empty { what: "map", at });
        }
        let too_long = || SpaceError::OutOfRange {
            what: "map",
            at,
            len: wanted,
            end: END,
        };
        let len = wanted
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len <= END)
            .ok_or_else(too_long)?;
        let everything = Protection::READ_WRITE | Protection::EXECUTE;
        let (backing, ceiling, sharing) = match &self.what {
            What::Anonymous { .. } => (Backing::Anonymous, everything, Sharing::Private),
            What::File { file, offset, .. } => {
                if offset % PAGE != 0 {
                    let at = VirtAddr(*offset);
                    return Err(SpaceError::Unaligned {
                        what: "map of a file from an offset",
                        at,
                    });
                }
                if *offset > MAX_OFFSET {
                    return Err(too_long());
                }
                let file = file.inner().clone();
                let read_only = self.sharing == Sharing::Shared && !file.writable();
                let ceiling = match read_only {
                    true => Protection::READ | Protection::EXECUTE,
                    false => everything,
                };
                if !ceiling.allows(self.protection) {
                    let mapping = file.name().to_string();
                    return Err(SpaceError::Forbidden {
                        mapping,
                        wanted: self.protection,
                    });
                }
                (
                    Backing::File {
                        file,
                        first_page: offset >> PAGE_SHIFT,
                    },
                    ceiling,
                    self.sharing,
                )
            }
        };
        Ok(Vma {
            start: 0,
            end: len,
            protection: self.protection,
            ceiling,
            sharing,
            residence: Residence::Pageable,
            backing,
        })
    }
}

/// Checks `at..at + len` and makes it whole pages.
fn checked_range(what: &'static str, at: VirtAddr, len: u64) -> Result<Range<u64>, SpaceError> {
    if len == 0 {
        return Err(SpaceError::Empty { what, at });
    }
    if !at.is_page_aligned() {
        return Err(SpaceError::Unaligned { what, at });
    }
    let end = len
        .checked_next_multiple_of(PAGE)
        .and_then(|len| at.0.checked_add(len));
    match end {
        Some(end) if end <= END => Ok(at.0..end),
        _ => Err(SpaceError::OutOfRange {
            what,
            at,
            len,
            end: END,
        }),
    }
}

impl Space {
    /// Maps a file or anonymous memory and returns its first address.
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`], [`SpaceError::NoRoom`],
    /// [`SpaceError::Overlaps`] (with [`Map::at`]), [`SpaceError::Forbidden`] (a shared writable mapping of a file opened
    /// read-only), [`SpaceError::Limit`]. Nothing is changed.
    pub fn map(&self, map: Map) -> Result<VirtAddr, SpaceError> {
        let space = &self.0;
        space.check_live("map")?;
        let mut vma = map.to_vma()?;
        let len = vma.end;
        let mut writer = space.gate.write();
        let range = place(&writer.vmas, map.place, len)?;
        (vma.start, vma.end) = (range.start, range.end);
        let changed = space.change(&mut writer, &range, Some(Edit::Detach), |vmas| {
            vmas.put(vma)
        });
        drop(writer);
        space.finish(changed?);
        Ok(VirtAddr(range.start))
    }

    /// Unmaps `len` bytes (rounded up to whole pages) at `at`. Parts that are not mapped are passed over. When this returns,
    /// no access reads or writes what was there; dirty shared pages stay in their file.
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`], [`SpaceError::Limit`] (a partly
    /// unmapped shared table is copied). Nothing is changed.
    pub fn unmap(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let space = &self.0;
        space.check_live("unmap")?;
        let range = checked_range("unmap", at, len)?;
        let mut writer = space.gate.write();
        if writer.vmas.overlapping(&range).next().is_none() {
            return Ok(());
        }
        let changed = space.change(&mut writer, &range, Some(Edit::Detach), |vmas| {
            vmas.remove(&range)
        });
        drop(writer);
        space.finish(changed?);
        Ok(())
    }

    /// Sets the protection of `len` bytes (rounded up to whole pages) at `at`. When this returns, no access does what is
    /// forbidden now.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Forbidden`] for what the file's opening
    /// rules out; otherwise as [`Space::unmap`]. Nothing is changed.
    pub fn protect(
        &self,
        at: VirtAddr,
        len: u64,
        protection: Protection,
    ) -> Result<(), SpaceError> {
        let space = &self.0;
        space.check_live("protect")?;
        let range = checked_range("protect", at, len)?;
        let mut writer = space.gate.write();
        let vmas = &writer.vmas;
        if !vmas.covers(&range) {
            return Err(SpaceError::NotMapped {
                what: "protect",
                at,
                len,
            });
        }
        for vma in vmas.overlapping(&range) {
            if !vma.ceiling.allows(protection) {
                let mapping = vma.to_string();
                return Err(SpaceError::Forbidden {
                    mapping,
                    wanted: protection,
                });
            }
        }
        let may_read = |vma: &Vma| vma.protection.allows(Protection::READ);
        let more_read = !vmas.overlapping(&range).all(may_read);
        let edit = match (
            protection.allows(Protection::READ),
            protection.allows(Protection::WRITE),
        ) {
            (false, _) => Some(Edit::Forbid),
            // Forks share the tables and still forbid reading.
            (true, _) if more_read => Some(Edit::Part),
            (true, false) => Some(Edit::ForbidWrite),
            // Nothing to take away: accesses find out by faulting.
            (true, true) => None,
        };
        let changed = space.change(&mut writer, &range, edit, |vmas| {
            vmas.update(&range, |part| part.protection = protection)
        });
        drop(writer);
        space.finish(changed?);
        Ok(())
    }
}

/// Where a mapping of `len` bytes goes.
fn place(vmas: &VmaSet, place: Place, len: u64) -> Result<Range<u64>, SpaceError> {
    match place {
        Place::Chosen => {
            // A large mapping starts with a leaf, so that its tables and forks are few.
            let align = if len >= 2 * MIB { 2 * MIB } else { PAGE };
            let at = vmas
                .gap(CHOSEN, END, len, align)
                .or_else(|| vmas.gap(LOWEST, END, len, PAGE));
            let at = at.ok_or(SpaceError::NoRoom { len })?;
            Ok(at..at + len)
        }
        Place::Free(at) | Place::Replacing(at) => {
            let range = checked_range("map", at, len)?;
            if at.0 < LOWEST {
                return Err(SpaceError::OutOfRange {
                    what: "map",
                    at,
                    len,
                    end: END,
                });
            }
            let mapping = vmas.overlapping(&range).next().map(Vma::to_string);
            match (place, mapping) {
                (Place::Free(_), Some(mapping)) => Err(SpaceError::Overlaps { at, len, mapping }),
                _ => Ok(range),
            }
        }
    }
}
