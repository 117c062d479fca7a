//! What to map, and how: the choices of a program, checked and made a mapping without an address.

use std::ops::{Bound, RangeBounds};

use crate::cache::{PagedFile, Reading};
use crate::dax::{DaxFile, DaxRef};
use crate::reclaim::Pool;
use crate::space::core::address::ADDRESS_BITS;
use crate::space::core::error::SpaceError;
use crate::space::vma::area::{Backing, MappedFile, Residence, Vma};
use crate::space::vma::device::{Device, DeviceRef};
use crate::space::vma::protection::{Protection, Sharing};
use crate::sync::Arc;
use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// Where ranges start whose address the space chooses, if it has that many addresses.
pub(crate) const CHOSEN: u64 = 0x7f00_0000_0000;

/// The first address that does not exist, in the widest space.
const END: u64 = 1 << ADDRESS_BITS;
const PAGE: u64 = PAGE_SIZE as u64;
/// The largest offset at which a file can end.
pub(crate) const LAST_OFFSET: u64 = i64::MAX as u64;
/// The largest file offset that can be mapped.
const MAX_OFFSET: u64 = LAST_OFFSET - END;

/// What to map, and how: a file or anonymous memory. Private and read-only for a file, private and
/// read-write for anonymous memory, at an address of the space's choice, unless said otherwise.
///
/// ```
/// # use innerspace::{Map, Memory, Protection, VirtAddr, MIB};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let space = memory.space()?;
/// let at = space.map(Map::anonymous(64 * 1024))?;
/// let map = Map::anonymous(4096).at(VirtAddr(0x10_0000));
/// let fixed = space.map(map.protection(Protection::READ))?;
/// assert_eq!(fixed, VirtAddr(0x10_0000));
/// space.unmap(at, 64 * 1024)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Map {
    what: What,
    protection: Protection,
    sharing: Sharing,
    pub(crate) place: Place,
    pub(crate) null: Null,
    pub(crate) population: Population,
}

/// Whether page 0 may be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Null {
    KeptFree,
    Mapped,
}

/// When the pages are brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Population {
    OnDemand,
    Eager,
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
    Direct {
        file: DaxFile,
        offset: u64,
        len: Option<u64>,
    },
    Device {
        device: DeviceRef,
        len: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Chosen,
    Free(VirtAddr),
    Replacing(VirtAddr),
}

impl Map {
    /// Anonymous memory of `len` bytes, rounded up to whole pages: zeros until written, charged as
    /// it is written.
    pub fn anonymous(len: u64) -> Map {
        let what = What::Anonymous { len };
        Map {
            what,
            protection: Protection::READ_WRITE,
            sharing: Sharing::Private,
            place: Place::Chosen,
            null: Null::KeptFree,
            population: Population::OnDemand,
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
            null: Null::KeptFree,
            population: Population::OnDemand,
        }
    }

    /// All of a direct access file as long as it is now; see [`Map::range`]. Of a host file opened
    /// with [`OnShrink::Error`](crate::OnShrink::Error), every load and store is a call, atomic
    /// ones too: no atomic read-modify-write, no execution, and no private mapping.
    pub fn direct(file: &DaxFile) -> Map {
        let what = What::Direct {
            file: file.clone(),
            offset: 0,
            len: None,
        };
        Map {
            what,
            protection: Protection::READ,
            sharing: Sharing::Private,
            place: Place::Chosen,
            null: Null::KeptFree,
            population: Population::OnDemand,
        }
    }

    /// A device of `len` bytes, rounded up to whole pages: loads and stores there are calls of
    /// `device`, never cached. Shared with forks, readable and writable, never executable. An `Arc`
    /// of a device is a device, too: keep a clone to look at it.
    ///
    /// ```
    /// use innerspace::{Device, DeviceError, MIB, Map, Memory};
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
    /// let space = Memory::with_limit(4 * MIB)?.space()?;
    /// let at = space.map(Map::device(Counter(AtomicU32::new(0)), 4096))?;
    /// let mut a = space.accessor()?;
    /// assert_eq!((a.load::<u32>(at)?, a.load::<u32>(at)?), (0, 1));
    /// let refused = a.store(at, 7_u32).unwrap_err();
    /// assert!(a.explain(refused).to_string().ends_with("a counter cannot be set"));
    /// # Ok(()) }
    /// ```
    pub fn device(device: impl Device, len: u64) -> Map {
        let device = DeviceRef::new(device);
        Map {
            what: What::Device { device, len },
            protection: Protection::READ_WRITE,
            sharing: Sharing::Shared,
            place: Place::Chosen,
            null: Null::KeptFree,
            population: Population::OnDemand,
        }
    }

    /// Only these bytes of the file. The start is a multiple of 4096; the end is rounded up to a
    /// whole page. A part past the end of the file can be mapped, and faults until the file has
    /// grown. No effect on anonymous memory.
    pub fn range(mut self, bytes: impl RangeBounds<u64>) -> Map {
        if let What::File { offset, len, .. } | What::Direct { offset, len, .. } = &mut self.what {
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

    /// Stores go to the file, and are seen by everybody who reads or maps it. Anonymous memory is
    /// always private.
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

    /// Allows page 0 if the address is there. Without this, page 0 is refused, so that a null
    /// pointer stays an error.
    pub fn with_null(mut self) -> Map {
        self.null = Null::Mapped;
        self
    }

    /// Brings in all pages at once, as [`Space::populate`](crate::space::Space::populate) does
    /// after mapping. If that fails, nothing stays mapped, and what was there before is gone.
    pub fn populated(mut self) -> Map {
        self.population = Population::Eager;
        self
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.what {
            What::Anonymous { len } | What::Device { len, .. } => *len,
            What::File { file, offset, len } => {
                len.unwrap_or_else(|| file.inner().size().saturating_sub(*offset))
            }
            What::Direct { file, offset, len } => {
                len.unwrap_or_else(|| file.len().saturating_sub(*offset))
            }
        }
    }

    pub(crate) fn place_address(&self) -> VirtAddr {
        match self.place {
            Place::Chosen => VirtAddr(CHOSEN),
            Place::Free(at) | Place::Replacing(at) => at,
        }
    }

    /// The mapping without its address, checked as far as that goes.
    pub(crate) fn to_vma(&self, end: u64) -> Result<Vma, SpaceError> {
        let at = self.place_address();
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
        let everything = Protection::READ_WRITE | Protection::EXECUTE;
        let (backing, ceiling, sharing) = match &self.what {
            What::Anonymous { .. } => (Backing::Anonymous, everything, Sharing::Private),
            What::Device { device, .. } => {
                let device = device.clone();
                let backing = Backing::Device {
                    device,
                    first_page: 0,
                };
                self.check_ceiling(Protection::READ_WRITE, "device", &backing)?;
                (backing, Protection::READ_WRITE, Sharing::Shared)
            }
            What::File { file, offset, .. } => {
                let writable = file.inner().writable();
                let file = MappedFile::Cached(file.inner().clone());
                self.file_backing(file, writable, *offset, too_long)?
            }
            What::Direct { file, offset, .. } if file.core().is_guarded() => {
                self.guarded_backing(file, *offset, too_long)?
            }
            What::Direct { file, offset, .. } => {
                let writable = file.core().writable();
                let file = MappedFile::Direct(DaxRef::new(file.core().clone()));
                self.file_backing(file, writable, *offset, too_long)?
            }
        };
        Ok(Vma {
            start: 0,
            end: len,
            protection: self.protection,
            ceiling,
            sharing,
            residence: Residence::Pageable,
            reading: Reading::Normal,
            backing,
        })
    }
}

type Backed = (Backing, Protection, Sharing);

impl Map {
    fn check_offset(offset: u64, too_long: impl FnOnce() -> SpaceError) -> Result<u64, SpaceError> {
        if !offset.is_multiple_of(PAGE) {
            let at = VirtAddr(offset);
            return Err(SpaceError::Unaligned {
                what: "map of a file from an offset",
                at,
            });
        }
        match offset > MAX_OFFSET {
            true => Err(too_long()),
            false => Ok(offset >> PAGE_SHIFT),
        }
    }

    fn file_backing(
        &self,
        file: MappedFile,
        writable: bool,
        offset: u64,
        too_long: impl FnOnce() -> SpaceError,
    ) -> Result<Backed, SpaceError> {
        let first_page = Map::check_offset(offset, too_long)?;
        let read_only = self.sharing == Sharing::Shared && !writable;
        let ceiling = match read_only {
            true => Protection::READ | Protection::EXECUTE,
            false => Protection::READ_WRITE | Protection::EXECUTE,
        };
        let name = file.name().clone();
        let backing = Backing::File { file, first_page };
        self.check_ceiling(ceiling, &name, &backing)?;
        Ok((backing, ceiling, self.sharing))
    }

    /// A guarded file is mapped as a device is: each access is a call, and a part that another
    /// process has cut off is an error.
    fn guarded_backing(
        &self,
        file: &DaxFile,
        offset: u64,
        too_long: impl FnOnce() -> SpaceError,
    ) -> Result<Backed, SpaceError> {
        let first_page = Map::check_offset(offset, too_long)?;
        let writable = file.core().writable();
        let ceiling = match (self.sharing, writable) {
            (Sharing::Shared, true) => Protection::READ_WRITE,
            _ => Protection::READ,
        };
        let device = DeviceRef::guarded(file);
        let backing = Backing::Device { device, first_page };
        self.check_ceiling(ceiling, file.name(), &backing)?;
        Ok((backing, ceiling, Sharing::Shared))
    }

    /// A file of another memory has other grace periods: pages that it takes away could still be in
    /// use here.
    pub(crate) fn check_memory(&self, pool: &Arc<Pool>) -> Result<(), SpaceError> {
        let (own, file) = match &self.what {
            What::Anonymous { .. } | What::Device { .. } => return Ok(()),
            What::File { file, .. } => (file.inner().is_in(pool), file.inner().name()),
            What::Direct { file, .. } => (file.core().is_in(pool), file.core().name()),
        };
        match own {
            true => Ok(()),
            false => Err(SpaceError::OtherMemorysFile {
                file: file.to_string(),
            }),
        }
    }

    fn check_ceiling(
        &self,
        ceiling: Protection,
        name: &str,
        backing: &Backing,
    ) -> Result<(), SpaceError> {
        let mapping = match self.place {
            _ if ceiling.allows(self.protection) => return Ok(()),
            Place::Chosen => name.to_owned(),
            Place::Free(at) | Place::Replacing(at) => format!("{name} at {at}"),
        };
        Err(SpaceError::Forbidden {
            mapping,
            wanted: self.protection,
            reason: backing.rules_out(self.protection),
        })
    }
}
