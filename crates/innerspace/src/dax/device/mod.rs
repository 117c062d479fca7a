//! Devices: bytes at an address, and how they are made durable.
//!
//! Other threads may read and write every byte of a device at any time, through mappings, pins or
//! file calls. So a device is shared memory in the sense of `sys::copy`, and is accessed only by
//! copies.
//!
//! A device over a host file is as long as the file may become. The caller, which knows the file,
//! must touch only bytes before the file's end, and of those only bytes of allocated blocks.

#[cfg(test)]
mod faulty_power;
#[cfg(test)]
mod forgetful;

use std::{fmt, io};

use super::error::{DaxAction, DaxError, DaxFeature};
use super::extents::Blocks;
use super::open::HostFile;
use crate::sync::Arc;
use crate::sys::flush::Flusher;
use crate::sys::memory::Mapping;
use crate::sys::shared::{self, Rights, SharedMapping, Synchronous};
use crate::sys::{copy, flush};
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageCount};

/// How bytes of a device become durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Durability {
    /// The library has to flush cache lines. The device is memory (and as durable as memory is), or
    /// the file's medium itself is mapped (`MAP_SYNC`).
    Lines,
    /// The host has to write: its page cache is mapped, not the medium.
    HostSync,
}

/// A range of bytes that the process can address, and that holds the contents of direct-access
/// files. A clone refers to the same device.
///
/// ```
/// use innerspace::{MIB, dax::{DaxDevice, Durability}};
///
/// let device = DaxDevice::memory(4 * MIB)?;
/// assert_eq!(device.len(), 4 * MIB);
/// assert_eq!(device.durability(), Durability::Lines);
/// let error = DaxDevice::memory(5000).unwrap_err();
/// assert_eq!(error.to_string(), "a device of 5,000 bytes is not a whole number of pages of 4096");
/// # Ok::<(), innerspace::dax::DaxError>(())
/// ```
#[derive(Clone)]
pub struct DaxDevice(Arc<DeviceInner>);

struct DeviceInner {
    /// The name, for messages.
    name: Arc<str>,
    bytes: Bytes,
    durability: Durability,
    /// The free blocks. `None` for a host file, whose file system keeps track of them.
    blocks: Option<Blocks>,
    /// The bytes that a power cut would leave, in tests of power cuts.
    #[cfg(test)]
    power: Option<faulty_power::PowerCut>,
    /// A host that writes the device out, and fails on demand.
    #[cfg(test)]
    host: Option<forgetful::Host>,
}

/// The mapping of the device. The bytes stay at their address as long as the device lives.
enum Bytes {
    Memory(Mapping),
    Shared(SharedMapping),
}

#[allow(
    clippy::len_without_is_empty,
    reason = "a device has at least one page"
)]
impl DaxDevice {
    /// Creates a device of `len` bytes of ordinary memory, which the system provides when it is
    /// first written. The device does not count towards the limit of any [`Memory`](crate::Memory).
    ///
    /// # Errors
    /// [`DaxError::DeviceTooSmall`] if `len` is less than a page of 4096 bytes;
    /// [`DaxError::DeviceNotPages`] if it is not a whole number of pages; [`DaxError::Io`] if the
    /// system cannot map that much memory.
    pub fn memory(len: u64) -> Result<DaxDevice, DaxError> {
        let mapping = memory(len)?;
        Ok(DaxDevice::new("memory device", Bytes::Memory(mapping)))
    }

    /// Creates a device like [`DaxDevice::memory`], but asks the system for huge pages.
    ///
    /// # Errors
    /// As for [`DaxDevice::memory`].
    pub fn huge_pages(len: u64) -> Result<DaxDevice, DaxError> {
        let mapping = memory(len)?;
        mapping.advise_huge();
        Ok(DaxDevice::new("memory device", Bytes::Memory(mapping)))
    }

    /// Creates a device in a sealed memory file of the system, which no process can shrink or grow.
    ///
    /// # Errors
    /// The errors of [`DaxDevice::memory`], and [`DaxError::Unsupported`] if the system has no such
    /// files.
    pub fn memfd(len: u64) -> Result<DaxDevice, DaxError> {
        let size = check_len(len)?;
        let name: Arc<str> = "memfd device".into();
        let shared = shared::sealed_memory(c"innerspace", len)
            .and_then(|file| SharedMapping::new(&file, size, Rights::ReadWrite));
        match shared {
            // The file has no name: the mapping alone keeps it alive. Its seals prevent shrinking
            // and growing.
            Ok(shared) => Ok(DaxDevice::new(&name, Bytes::Shared(shared))),
            Err(error) => Err(cannot_map(&name, DaxFeature::SealedMemory, error)),
        }
    }

    /// Creates a device over the first `capacity` bytes of a host file, rounded up to whole pages;
    /// the file may be shorter.
    ///
    /// # Errors
    /// [`DaxError::Unsupported`] if the file system has no shared mappings; [`DaxError::Io`] if the
    /// capacity is too large, or the mapping fails for another reason.
    pub(crate) fn host_file(host: &HostFile, capacity: u64) -> Result<DaxDevice, DaxError> {
        let rights = if host.writable() {
            Rights::ReadWrite
        } else {
            Rights::Read
        };
        let capacity = capacity.max(1).checked_next_multiple_of(PAGE_SIZE as u64);
        let shared = capacity
            .and_then(|capacity| usize::try_from(capacity).ok())
            .ok_or_else(|| io::ErrorKind::FileTooLarge.into())
            .and_then(|capacity| SharedMapping::new(&host.file, capacity, rights))
            .map_err(|error| cannot_map(&host.name, DaxFeature::SharedMapping, error))?;
        let durable =
            shared.synchronous() == Synchronous::Yes && Flusher::best() != Flusher::Nothing;
        let durability = match durable {
            true => Durability::Lines,
            false => Durability::HostSync,
        };
        let (name, bytes) = (host.name.clone(), Bytes::Shared(shared));
        Ok(DaxDevice::made(name, bytes, durability, None))
    }

    /// Creates a device with blocks of its own.
    fn new(name: &str, bytes: Bytes) -> DaxDevice {
        let blocks = Blocks::new(bytes.len() as u64 >> PAGE_SHIFT);
        DaxDevice::made(name.into(), bytes, Durability::Lines, Some(blocks))
    }

    fn made(
        name: Arc<str>,
        bytes: Bytes,
        durability: Durability,
        blocks: Option<Blocks>,
    ) -> DaxDevice {
        DaxDevice(Arc::new(DeviceInner {
            name,
            bytes,
            durability,
            blocks,
            #[cfg(test)]
            power: None,
            #[cfg(test)]
            host: None,
        }))
    }

    /// Returns the size in bytes; for a host file, the size to which the file can grow.
    pub fn len(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    /// Returns how the bytes become durable.
    pub fn durability(&self) -> Durability {
        self.0.durability
    }

    /// Returns the size in pages.
    pub(crate) fn pages(&self) -> u64 {
        self.len() >> PAGE_SHIFT
    }

    /// Returns the device's blocks; `None` for a host file.
    pub(crate) fn blocks(&self) -> Option<&Blocks> {
        self.0.blocks.as_ref()
    }

    /// Returns the number of free pages; 0 for a host file, whose file system does not say.
    pub fn free_pages(&self) -> PageCount {
        PageCount(self.blocks().map_or(0, Blocks::free))
    }

    /// Returns the address of a page, as a number whose provenance is exposed. It stays the same as
    /// long as the device lives.
    ///
    /// # Panics
    /// Panics if the device has no such page.
    #[inline]
    pub(crate) fn host(&self, page: u64) -> u64 {
        assert!(
            page < self.pages(),
            "page {page} of a device of {}",
            self.pages()
        );
        self.0.bytes.base().expose_provenance() as u64 + (page << PAGE_SHIFT)
    }

    /// Returns the address of `len` bytes at `offset`. Panics if they are not all inside the
    /// device.
    #[inline]
    fn address(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} of a device of {}",
            self.len()
        );
        // SAFETY: the offset is inside the mapping or at its end.
        unsafe { self.0.bytes.base().add(offset as usize) }
    }

    /// Copies bytes out of the device.
    ///
    /// # Panics
    /// Panics if the range is not inside the device. So do the functions below that take an offset.
    #[inline]
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.address(offset, to.len() as u64);
        // SAFETY: the range is inside the mapping, which lives as long as `self`; other threads
        // access it only by `sys::copy`.
        unsafe { copy::copy_in(to, from) }
    }

    /// Copies bytes into the device.
    #[inline]
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        let to = self.address(offset, from.len() as u64);
        // SAFETY: as in `read`.
        unsafe { copy::copy_out(to, from) }
    }

    /// Prefetches the first quarter of the page at `offset`, which is about to be written.
    #[inline]
    pub(crate) fn prefetch_page(&self, offset: u64) {
        copy::prefetch::<{ PAGE_SIZE / 4 }>(self.address(offset, 1));
    }

    /// Sets bytes to zero.
    pub(crate) fn zero(&self, offset: u64, len: u64) {
        let to = self.address(offset, len);
        // SAFETY: as in `read`.
        unsafe { copy::fill(to, 0, len as usize) }
    }

    /// Makes the host treat pages as changed without a store to them; see
    /// [`SharedMapping::touch`].
    ///
    /// # Errors
    /// The errors of [`SharedMapping::touch`].
    pub(crate) fn touch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.address(offset, len);
        #[cfg(test)]
        if let Some(host) = &self.0.host {
            (offset..offset + len)
                .step_by(PAGE_SIZE)
                .for_each(|page| host.touched(page));
        }
        match &self.0.bytes {
            Bytes::Memory(_) => Ok(()), // there is no host
            Bytes::Shared(shared) => shared.touch(offset as usize..(offset + len) as usize),
        }
    }

    /// Makes the host provide room for stores to pages that are about to be mapped or written; see
    /// [`SharedMapping::make_storable`].
    ///
    /// # Errors
    /// The errors of [`SharedMapping::make_storable`].
    pub(crate) fn make_storable(&self, offset: u64, len: u64) -> io::Result<()> {
        self.address(offset, len);
        match (self.0.durability, &self.0.bytes) {
            (Durability::HostSync, Bytes::Shared(shared)) => {
                shared.make_storable(offset as usize..(offset + len) as usize)
            }
            _ => Ok(()), // the blocks themselves are mapped
        }
    }

    /// Makes the host treat one page as changed, by storing the current value of one of its bytes.
    /// That raises a signal if the file has become shorter meanwhile.
    pub(crate) fn touch_by_store(&self, offset: u64) {
        let at = self.address(offset, 1);
        // SAFETY: as in `read`; the byte does not change.
        unsafe { shared::touch(at) }
    }

    /// Begins to make a range durable, in whole lines or pages. It is durable after a
    /// [`fence`](DaxDevice::fence) by this thread.
    ///
    /// # Errors
    /// The host's error, if the host has to write.
    #[inline]
    pub(crate) fn flush(&self, offset: u64, len: u64) -> io::Result<()> {
        let from = self.address(offset, len);
        #[cfg(test)]
        if let Some(power) = &self.0.power {
            power.flush(self, offset, len);
        }
        #[cfg(test)]
        if let Some(host) = &self.0.host {
            return host.sync(self, offset, len);
        }
        match (self.0.durability, &self.0.bytes) {
            (Durability::HostSync, Bytes::Shared(shared)) => {
                shared.sync(offset as usize..(offset + len) as usize)
            }
            _ => {
                // SAFETY: the range is inside the mapping, which lives as long as `self`. If the
                // processor has no instruction to flush, the device is memory that does not outlive
                // the process, and nothing has to be flushed.
                unsafe { flush::flush(from, len as usize) };
                Ok(())
            }
        }
    }

    /// Waits until all that this thread has flushed is durable.
    ///
    /// # Errors
    /// None today; reserved for devices that can fail here.
    #[inline]
    pub(crate) fn fence(&self) -> io::Result<()> {
        flush::fence();
        #[cfg(test)]
        if let Some(power) = &self.0.power {
            power.fence();
        }
        Ok(())
    }
}

impl Bytes {
    #[inline]
    fn base(&self) -> *mut u8 {
        match self {
            Bytes::Memory(mapping) => mapping.base(),
            Bytes::Shared(mapping) => mapping.base(),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Bytes::Memory(mapping) => mapping.len(),
            Bytes::Shared(mapping) => mapping.len(),
        }
    }
}

impl fmt::Debug for DaxDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaxDevice")
            .field("name", &self.0.name)
            .field("len", &self.len())
            .field("durability", &self.0.durability)
            .finish_non_exhaustive()
    }
}

fn check_len(len: u64) -> Result<usize, DaxError> {
    if len < PAGE_SIZE as u64 {
        return Err(DaxError::DeviceTooSmall { len });
    }
    if !len.is_multiple_of(PAGE_SIZE as u64) {
        return Err(DaxError::DeviceNotPages { len });
    }
    // A length that does not fit in a `usize` is refused by the system in any case.
    Ok(usize::try_from(len).unwrap_or(usize::MAX))
}

fn memory(len: u64) -> Result<Mapping, DaxError> {
    let mapping = Mapping::new(check_len(len)?)
        .map_err(|error| DaxError::io(&"memory device".into(), DaxAction::Map, 0, error))?;
    mapping.advise_wipe_on_fork();
    Ok(mapping)
}

/// Returns the error for a mapping that failed: [`DaxError::Unsupported`] if the system lacks the
/// feature, otherwise [`DaxError::Io`].
fn cannot_map(file: &Arc<str>, what: DaxFeature, error: io::Error) -> DaxError {
    if error.kind() == io::ErrorKind::Unsupported {
        return DaxError::unsupported(file.clone(), what, error);
    }
    DaxError::io(file, DaxAction::Map, 0, error)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
