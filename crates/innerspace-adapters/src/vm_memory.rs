//! Guest memory of rust-vmm over pinned pages of a space.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use innerspace::{
    Space, VirtAddr,
    space::{AtFork, Pinned, SpaceError},
};
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::Error as GuestMemoryError;
use vm_memory::{
    GuestAddress, GuestMemoryRegion, GuestMemoryRegionBytes, GuestRegionCollection, GuestUsize,
    MemoryRegionAddress, VolatileSlice,
};

/// Pages of a space that lie in a row in the process, as a region of guest memory. The pages stay
/// pinned, and charged, as long as a region of the pin lives.
///
/// The guest's physical addresses are the addresses in the space. Accessors of the space see what
/// devices write here, and the other way round; a fork of the space copies the pages.
///
/// ```
/// use innerspace::{MIB, Map, Memory};
/// use innerspace_adapters::vm_memory::guest_memory;
/// use vm_memory::{Bytes, GuestAddress};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(8 * MIB)?.create_space()?;
/// let at = space.map(Map::anonymous(MIB))?;
/// let guest = guest_memory(&space, at, MIB)?;
/// guest.write_obj(7_u32, GuestAddress(at.0 + 4094))?;      // across two pages
/// assert_eq!(space.accessor()?.load::<u32>(at + 4094)?, 7);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PinnedRegion {
    start: GuestAddress,
    host: AtomicPtr<u8>,
    len: usize,
    _pin: Arc<Pinned>,
}

/// Pins `len` bytes at `at`, and returns them as guest memory.
///
/// # Errors
/// The errors of [`Space::pin`].
#[expect(
    clippy::missing_panics_doc,
    reason = "a pin has pieces, in order and apart"
)]
pub fn guest_memory(
    space: &Space,
    at: VirtAddr,
    len: u64,
) -> Result<GuestRegionCollection<PinnedRegion>, SpaceError> {
    let pin = Arc::new(space.pin(at, len, AtFork::Copy)?);
    let mut start = GuestAddress(pin.start().0);
    let mut regions = Vec::new();
    for (host, len) in pin.pieces() {
        regions.push(PinnedRegion {
            start,
            host: AtomicPtr::new(host.as_ptr()),
            len,
            _pin: pin.clone(),
        });
        start.0 += len as u64;
    }
    Ok(GuestRegionCollection::from_regions(regions).expect("the pieces are in order"))
}

impl GuestMemoryRegion for PinnedRegion {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.len as GuestUsize
    }

    fn start_addr(&self) -> GuestAddress {
        self.start
    }

    fn bitmap(&self) -> BS<'_, ()> {}

    fn get_host_address(&self, address: MemoryRegionAddress) -> Result<*mut u8, GuestMemoryError> {
        let address = self
            .check_address(address)
            .ok_or(GuestMemoryError::InvalidBackendAddress)?;
        let host = self.host.load(Ordering::Relaxed);
        Ok(host.wrapping_add(address.0 as usize))
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_, BS<'_, ()>>, GuestMemoryError> {
        let end = usize::try_from(offset.0)
            .ok()
            .and_then(|at| at.checked_add(count));
        if end.is_none_or(|end| end > self.len) {
            return Err(GuestMemoryError::InvalidBackendAddress);
        }
        let host = self.host.load(Ordering::Relaxed);
        let start = host.wrapping_add(offset.0 as usize);
        // SAFETY: the pin, which this region keeps, keeps the `len` bytes at `host` readable and
        // writable at this address, and the range was just checked to be inside them. The library
        // itself reads and writes pages by accesses that may race.
        Ok(unsafe { VolatileSlice::new(start, count) })
    }
}

impl GuestMemoryRegionBytes for PinnedRegion {}
