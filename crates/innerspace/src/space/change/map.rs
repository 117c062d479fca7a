//! A program's choices about a mapping, which are checked and turned into a `Vma` without an
//! address.

use std::ops::{Range, RangeBounds};

use crate::cache::{PagedFile, Reading};
use crate::dax::{DaxFile, DaxRef};
use crate::reclaim::Pool;
use crate::space::core::address::ADDRESS_BITS;
use crate::space::core::error::SpaceError;
use crate::space::core::space::SpaceInner;
use crate::space::vma::area::{Backing, MappedFile, Residence, Vma};
use crate::space::vma::device::{Device, DeviceRef};
use crate::space::vma::protection::{Protection, Sharing};
use crate::space::vma::set::VmaSet;
use crate::sync::Arc;
use crate::units::start_and_end;
use crate::{MIB, PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// The address from which a wide space first looks for a free range.
const CHOSEN: u64 = 0x7f00_0000_0000;

/// The lowest address that the space chooses, used if no range is free above [`CHOSEN`] or
/// [`CHOSEN_NARROW`]. It is above 0, so that a null pointer with a small offset is an error.
const LOWEST: u64 = 1 << 16;
/// The address from which a narrow space first looks: its addresses end below [`CHOSEN`].
const CHOSEN_NARROW: u64 = 0x4000_0000;
/// The end of the widest space: the first address past its last.
const END: u64 = 1 << ADDRESS_BITS;
const PAGE: u64 = PAGE_SIZE as u64;
/// The largest offset at which a file can end.
pub(crate) const LAST_OFFSET: u64 = i64::MAX as u64;
/// The largest file offset at which a mapping can begin, so that it ends by [`LAST_OFFSET`]
/// whatever its length.
const MAX_OFFSET: u64 = LAST_OFFSET - END;

/// Describes a mapping of a file, a device or anonymous memory. By default, a file is mapped
/// private and read-only, anonymous memory private and read-write, and a device shared and
/// read-write, at an address that the space chooses.
///
/// ```
/// # use innerspace::{Map, Memory, VirtAddr, MIB, space::Protection};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let space = memory.create_space()?;
/// let at = space.map(Map::anonymous(64 * 1024))?;
/// let map = Map::anonymous(4096).at(VirtAddr(0x10_0000));
/// let fixed = space.map(map.protection(Protection::READ))?;
/// assert_eq!(fixed, VirtAddr(0x10_0000));
/// space.unmap(at, 64 * 1024)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it only has the choices"]
pub struct Map {
    what: What,
    /// The offset in the file at which the mapping begins; 0 if no file is mapped.
    offset: u64,
    /// The number of bytes; `None` for all of a file from the offset on.
    len: Option<u64>,
    protection: Protection,
    sharing: Sharing,
    place: Place,
    null: Null,
    pub(crate) population: Population,
}

/// Whether page 0 may be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Null {
    KeptFree,
    Mapped,
}

/// Whether the pages are brought in when they are used, or while mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Population {
    OnDemand,
    Eager,
}

#[derive(Clone, Debug)]
enum What {
    Anonymous,
    File(PagedFile),
    Direct(DaxFile),
    Device(DeviceRef),
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Chosen,
    Free(VirtAddr),
    Replacing(VirtAddr),
}

impl Map {
    /// Describes anonymous memory of `len` bytes, rounded up to whole pages. Its pages are zeros
    /// until they are stored to, and are charged then.
    pub fn anonymous(len: u64) -> Map {
        let (protection, sharing) = (Protection::READ_WRITE, Sharing::Private);
        Map::of(What::Anonymous, Some(len), protection, sharing)
    }

    /// Describes a mapping of all of a file, with the length that the file has when it is mapped;
    /// for a part of it see [`Map::range`].
    pub fn file(file: &PagedFile) -> Map {
        let what = What::File(file.clone());
        Map::of(what, None, Protection::READ, Sharing::Private)
    }

    /// Describes a mapping of all of a direct-access file, with the length that the file has when
    /// it is mapped; for a part of it see [`Map::range`]. If it is a host file opened with
    /// [`OnShrink::Error`](crate::dax::OnShrink::Error), every load and store is a call, atomic
    /// ones too. Atomic read-modify-writes, execution, and stores to a private mapping are then
    /// refused.
    pub fn dax(file: &DaxFile) -> Map {
        let what = What::Direct(file.clone());
        Map::of(what, None, Protection::READ, Sharing::Private)
    }

    /// Describes a mapping of a device of `len` bytes: loads and stores there are calls to
    /// `device`, never cached. The mapping is shared with forks, readable and writable, never
    /// executable. An `Arc` of a device is a device too: keep a clone to have access to it.
    ///
    /// A mapping takes whole pages of addresses. An access that goes beyond `len` is a fault of the
    /// kind [`FaultKind::PastDevice`](crate::space::FaultKind::PastDevice), and the device is not
    /// called. A second device cannot be mapped in the same page: map one device that divides the
    /// offsets between the two.
    ///
    /// ```
    /// use innerspace::{MIB, Map, Memory, space::{Device, DeviceError}};
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// /// Counts how often it is read.
    /// struct Counter(AtomicU32);
    ///
    /// impl Device for Counter {
    ///     fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
    ///         let count = self.0.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
    ///         let bytes = bytes.as_mut_array::<4>().ok_or(DeviceError::new("4 bytes"))?;
    ///         *bytes = count;
    ///         Ok(())
    ///     }
    ///
    ///     fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
    ///         Err(DeviceError::new("a counter cannot be set"))
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let at = space.map(Map::device(Counter(AtomicU32::new(0)), 4096))?;
    /// let mut a = space.accessor()?;
    /// assert_eq!((a.load::<u32>(at)?, a.load::<u32>(at)?), (0, 1));
    /// let refused = a.store(at, 7_u32).unwrap_err();
    /// assert!(a.explain(refused).to_string().ends_with("a counter cannot be set"));
    /// # Ok(()) }
    /// ```
    pub fn device(device: impl Device, len: u64) -> Map {
        let what = What::Device(DeviceRef::new(device, len));
        Map::of(what, Some(len), Protection::READ_WRITE, Sharing::Shared)
    }

    fn of(what: What, len: Option<u64>, protection: Protection, sharing: Sharing) -> Map {
        Map {
            what,
            offset: 0,
            len,
            protection,
            sharing,
            place: Place::Chosen,
            null: Null::KeptFree,
            population: Population::OnDemand,
        }
    }

    /// Maps only these bytes of the file. The start is a multiple of 4096; the end is rounded up to
    /// a whole page. A part past the end of the file can be mapped, and faults until the file has
    /// grown. No effect on anonymous memory or devices.
    pub fn range(mut self, bytes: impl RangeBounds<u64>) -> Map {
        if let What::File(_) | What::Direct(_) = self.what {
            let (start, end) = start_and_end(&bytes);
            self.offset = start;
            self.len = end.map(|end| end.saturating_sub(start));
        }
        self
    }

    /// Makes stores go to the file, so that they are visible wherever the file is read or mapped.
    /// Anonymous memory has no file, and [`Space::map`](crate::Space::map) refuses it
    /// ([`SpaceError::SharedAnonymous`]).
    pub fn shared(mut self) -> Map {
        self.sharing = Sharing::Shared;
        self
    }

    /// Makes a store copy its page first, so that only this space sees the store. No effect on a
    /// device, whose mapping is always shared.
    pub fn private(mut self) -> Map {
        self.sharing = Sharing::Private;
        self
    }

    /// Allows stores as well as loads.
    pub fn writable(mut self) -> Map {
        self.protection = self.protection | Protection::READ_WRITE;
        self
    }

    /// Allows exactly these accesses.
    pub fn protection(mut self, protection: Protection) -> Map {
        self.protection = protection;
        self
    }

    /// Maps at this address, a multiple of 4096. The range there must be free.
    pub fn at(mut self, address: VirtAddr) -> Map {
        self.place = Place::Free(address);
        self
    }

    /// Maps at this address, in place of whatever is mapped there.
    pub fn replacing(mut self, address: VirtAddr) -> Map {
        self.place = Place::Replacing(address);
        self
    }

    /// Allows the mapping to contain page 0. Without this, page 0 is refused, so that a null
    /// pointer is an error.
    pub fn with_null(mut self) -> Map {
        self.null = Null::Mapped;
        self
    }

    /// Brings in all pages while mapping, as [`Space::populate`](crate::space::Space::populate)
    /// does. If that fails, nothing stays mapped, and a mapping that was replaced is gone.
    pub fn populated(mut self) -> Map {
        self.population = Population::Eager;
        self
    }

    pub(crate) fn len(&self) -> u64 {
        let size = || match &self.what {
            What::File(file) => file.inner().size(),
            What::Direct(file) => file.len(),
            What::Anonymous | What::Device(_) => 0,
        };
        self.len
            .unwrap_or_else(|| size().saturating_sub(self.offset))
    }

    /// Returns the address that errors of the mapping name, in a space with this end.
    pub(crate) fn place_address(&self, end: u64) -> VirtAddr {
        match self.place {
            Place::Chosen => VirtAddr(first_chosen(end)),
            Place::Free(at) | Place::Replacing(at) => at,
        }
    }

    /// Returns the mapping as one at address 0, after the checks that need neither its address nor
    /// the space's `Memory`.
    pub(crate) fn to_vma(&self, end: u64) -> Result<Vma, SpaceError> {
        let at = self.place_address(end);
        let wanted = self.len();
        if wanted == 0 {
            return Err(SpaceError::Empty { what: "map", at });
        }
        let too_long = || SpaceError::OutOfRange {
            what: "map",
            at,
            len: wanted,
            end: VirtAddr(end),
        };
        let len = wanted
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len <= end)
            .ok_or_else(too_long)?;
        if !self.offset.is_multiple_of(PAGE) {
            let (what, at) = ("map of a file from an offset", VirtAddr(self.offset));
            return Err(SpaceError::Unaligned { what, at });
        }
        if self.offset > MAX_OFFSET {
            return Err(too_long());
        }
        let of_file = |writable: bool| match self.sharing == Sharing::Shared && !writable {
            true => Protection::READ | Protection::EXECUTE,
            false => Protection::READ_WRITE | Protection::EXECUTE,
        };
        let (backing, ceiling, sharing) = match &self.what {
            What::Anonymous if self.sharing == Sharing::Shared => {
                return Err(SpaceError::SharedAnonymous { at, len });
            }
            What::Anonymous => (Backing::Anonymous, of_file(true), Sharing::Private),
            What::Device(device) => {
                let backing = Backing::Device(device.clone());
                (backing, Protection::READ_WRITE, Sharing::Shared)
            }
            What::File(file) => {
                let ceiling = of_file(file.inner().writable());
                let file = MappedFile::Cached(file.inner().clone());
                (Backing::File(file), ceiling, self.sharing)
            }
            What::Direct(file) if file.core().is_guarded() => {
                // The file is mapped as a device: each access is a call, which fails for a part
                // that another process has cut off. Only a shared mapping allows stores.
                let shared = self.sharing == Sharing::Shared;
                let ceiling = match shared && file.core().writable() {
                    true => Protection::READ_WRITE,
                    false => Protection::READ,
                };
                let backing = Backing::Device(DeviceRef::guarded(file));
                (backing, ceiling, Sharing::Shared)
            }
            What::Direct(file) => {
                let ceiling = of_file(file.core().writable());
                let file = MappedFile::Direct(DaxRef::new(file.core().clone()));
                (Backing::File(file), ceiling, self.sharing)
            }
        };
        self.check_ceiling(ceiling, &backing)?;
        Ok(Vma {
            start: 0,
            end: len,
            protection: self.protection,
            ceiling,
            sharing,
            residence: Residence::Pageable,
            reading: Reading::Normal,
            backing,
            first_page: self.offset >> PAGE_SHIFT,
        })
    }

    /// Returns an error for a file of another memory. That memory has its own grace periods, so
    /// pages that it takes from the file could still be in use here.
    pub(crate) fn check_memory(&self, pool: &Arc<Pool>) -> Result<(), SpaceError> {
        let (own, file) = match &self.what {
            What::Anonymous | What::Device(_) => return Ok(()),
            What::File(file) => (file.inner().is_in(pool), file.inner().name()),
            What::Direct(file) => (file.core().is_in(pool), file.core().name()),
        };
        match own {
            true => Ok(()),
            false => Err(SpaceError::OtherMemorysFile {
                file: file.to_string(),
            }),
        }
    }

    fn check_ceiling(&self, ceiling: Protection, backing: &Backing) -> Result<(), SpaceError> {
        let mapping = match self.place {
            _ if ceiling.allows(self.protection) => return Ok(()),
            Place::Chosen => backing.to_string(),
            Place::Free(at) | Place::Replacing(at) => format!("{backing} at {at}"),
        };
        Err(SpaceError::Forbidden {
            mapping,
            wanted: self.protection,
            reason: backing.rules_out(self.protection),
        })
    }
}

/// Returns the first address that a space with this end tries when it chooses one.
fn first_chosen(end: u64) -> u64 {
    if CHOSEN < end { CHOSEN } else { CHOSEN_NARROW }
}

/// Returns the start of a free range of `len` bytes.
pub(super) fn free_place(vmas: &VmaSet, end: u64, len: u64) -> Result<u64, SpaceError> {
    // A large mapping starts at the beginning of a leaf, so that its tables, and their copies by
    // forks, are few.
    let align = if len >= 2 * MIB { 2 * MIB } else { PAGE };
    vmas.gap(first_chosen(end), end, len, align)
        .or_else(|| vmas.gap(LOWEST, end, len, PAGE))
        .ok_or(SpaceError::NoRoom { len })
}

/// Returns an error if the address is in page 0.
pub(super) fn check_lowest(what: &'static str, at: VirtAddr) -> Result<(), SpaceError> {
    match at.0 < PAGE {
        true => Err(SpaceError::NullPage { what, at }),
        false => Ok(()),
    }
}

/// Chooses the range of a mapping of `len` bytes, or checks the range that was asked for.
pub(super) fn place(
    space: &SpaceInner,
    vmas: &VmaSet,
    map: &Map,
    len: u64,
) -> Result<Range<u64>, SpaceError> {
    match map.place {
        Place::Chosen => {
            let at = free_place(vmas, space.end(), len)?;
            Ok(at..at + len)
        }
        Place::Free(at) | Place::Replacing(at) => {
            let range = space.range("map", at, len)?;
            if map.null == Null::KeptFree {
                check_lowest("map", at)?;
            }
            let mapping = vmas.overlapping(&range).next().map(Vma::to_string);
            match (map.place, mapping) {
                (Place::Free(_), Some(mapping)) => Err(SpaceError::Overlaps { at, len, mapping }),
                _ => Ok(range),
            }
        }
    }
}
