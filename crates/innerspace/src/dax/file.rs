//! The handle on a direct-access file.

use std::io::ErrorKind;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::time::Duration;

use super::core::{DaxCore, DaxSetup, MAX_SIZE, Parts};
use super::cut::patience;
use super::device::DaxDevice;
use super::entry::Content;
use super::error::{DaxAction, DaxError, DaxFeature};
use super::extents::{IdentityMap, ScatteredMap};
use super::open::HostFile;
use super::stats::DaxStats;
use super::stripes::STRIPES;
use crate::cache::{Cache, Cursor, ErrorCursor, FaultKind, FileAccess, Wait, positioned};
use crate::exec::reentry::FileLocked;
use crate::frame::deadline;
use crate::group::{Group, HeapBytes, MayReclaim};
use crate::store::{Opened, shown_name};
use crate::sync::Arc;
use crate::units::{PAGE_SHIFT, PAGE_SIZE, start_and_end, zeros};

/// The least address space that a writable host file takes by default. With addresses of 47 bits
/// there is room for two thousand such files.
const CAPACITY: u64 = 64 << 30;

/// The heap bytes of one pin in the file's set of pins.
const PIN_BYTES: usize = 56;

/// The bytes of one stripe: a `Stripe` takes two cache lines.
const STRIPE_BYTES: usize = 128;

/// The other bytes that an open file has on the heap: the reference counts of its `Arc`s, its name,
/// and its place in the table of open files.
const OTHER_BYTES: usize = 160;

/// A file whose bytes are directly addressable, without a page cache. A clone refers to the same
/// file.
///
/// [`Map::dax`](crate::Map::dax) maps the device's own bytes into a space. Reading a hole, by
/// mapping or by call, costs no memory; the first store to a hole gives it a block. A store is
/// durable once [`DaxFile::sync_all`] or [`DaxFile::sync_range`] has succeeded. In a child of
/// fork(2), calls that read or change the file fail with [`DaxError::OtherProcess`].
///
/// ```
/// use innerspace::{MIB, Map, Memory, dax::DaxDevice};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(MIB)?;
/// let device = DaxDevice::memory(4 * MIB)?;
/// let file = memory.create_dax_on(&device, "log")?;
/// file.set_len(1024 * MIB)?; // a hole, longer than the device
///
/// let space = memory.create_space()?;
/// let at = space.map(Map::dax(&file).shared().writable())?;
/// let mut a = space.accessor()?;
/// assert_eq!(a.load::<u64>(at + 512 * MIB)?, 0);
/// assert_eq!(space.stats().pages.resident.0, 0);
/// a.store(at + 512 * MIB, 7_u64)?;
/// file.sync_all()?;
/// let mut byte = [0];
/// file.read_at(&mut byte, 512 * MIB)?;
/// assert_eq!(byte, [7]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DaxFile(Arc<Handle>);

/// The state of one handle, which the handle's clones share.
#[derive(Debug)]
struct Handle {
    core: Arc<DaxCore>,
    /// The failed syncs that were reported to this handle.
    cursor: ErrorCursor,
    /// Dropped last of the fields.
    _ending: Ending,
}

/// A guard that, when it is dropped, waits for a grace period and frees retired pages, if the
/// program has already dropped the memory.
#[derive(Debug)]
struct Ending(Arc<Cache>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.flush_if_abandoned();
    }
}

impl DaxFile {
    /// The heap bytes that an open file and its handle use: their structs, the stripes of the
    /// counts, of the dirty ranges and of the extents, and the rest.
    pub(crate) const HEAP: usize =
        size_of::<DaxCore>() + size_of::<Handle>() + 3 * STRIPES * STRIPE_BYTES + OTHER_BYTES;

    /// Creates a handle on an open file.
    pub(crate) fn new(core: Arc<DaxCore>) -> DaxFile {
        let cursor = core.errors.sample();
        let _ending = Ending(core.cache.clone());
        DaxFile(Arc::new(Handle {
            core,
            cursor,
            _ending,
        }))
    }

    /// Creates an empty file on `device`. Several files may share a device.
    ///
    /// # Errors
    /// [`DaxError::Unsupported`] if the device is a host file's, which has no blocks to give.
    pub(crate) fn on_device(
        cache: &Arc<Cache>,
        group: &Group,
        device: &DaxDevice,
        name: &str,
        setup: DaxSetup,
    ) -> Result<DaxFile, DaxError> {
        let name = shown_name(name);
        if device.blocks().is_none() {
            let text = "the device is a host file's";
            let error = std::io::Error::new(ErrorKind::Unsupported, text);
            let name = name.into();
            return Err(DaxError::unsupported(name, DaxFeature::Allocating, error));
        }
        let parts = Parts {
            name: name.into(),
            device: device.clone(),
            extents: Box::new(ScatteredMap::new(device)),
            size: 0,
            most: MAX_SIZE,
            host: None,
        };
        let setup = DaxSetup {
            access: FileAccess::ReadWrite,
            ..setup
        };
        Ok(DaxFile::new(DaxCore::new(cache, group, parts, setup)))
    }

    /// Creates a file over a host file's own bytes. The host file was opened for the access that
    /// `setup` names. If it is to be emptied, that is done last.
    pub(crate) fn over_host(
        cache: &Arc<Cache>,
        group: &Group,
        locked: Opened<'_>,
        setup: DaxSetup,
    ) -> Result<DaxFile, DaxError> {
        let (host, opening) = HostFile::new(locked)?;
        let size = host.len.get();
        let capacity = match setup.access {
            FileAccess::ReadOnly => size,
            FileAccess::ReadWrite => match setup.capacity {
                Some(bytes) => bytes.max(size),
                None => CAPACITY.max(size.saturating_mul(4)),
            },
        };
        let device = DaxDevice::host_file(&host, capacity)?;
        opening.empty(&host.file)?;
        let parts = Parts {
            name: host.name.clone(),
            extents: Box::new(IdentityMap::new(host.clone())),
            size,
            most: device.len(),
            device,
            host: Some(host),
        };
        Ok(DaxFile::new(DaxCore::new(cache, group, parts, setup)))
    }

    pub(crate) fn core(&self) -> &Arc<DaxCore> {
        &self.0.core
    }

    /// Returns the name that messages use.
    pub fn name(&self) -> &str {
        self.0.core.name()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.0.core.size()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the file is open for reading only, or for writing too.
    pub fn access(&self) -> FileAccess {
        match self.0.core.writable() {
            true => FileAccess::ReadWrite,
            false => FileAccess::ReadOnly,
        }
    }

    /// Returns the group to which the file's entries are charged.
    pub fn group(&self) -> &Group {
        self.0.core.group()
    }

    /// Returns the device that has the file's bytes.
    pub fn device(&self) -> &DaxDevice {
        &self.0.core.parts.device
    }

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file. Holes read as
    /// zeros, and nothing is allocated for them.
    ///
    /// # Errors
    /// [`DaxError::Io`]. [`DaxError::Shrank`] for bytes that another process has cut off: always
    /// with [`OnShrink::Error`](crate::dax::OnShrink::Error), otherwise only if the host is asked
    /// about them.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DaxError> {
        self.0.core.read_at(buf, offset, Wait::Yes)
    }

    /// Reads exactly `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The errors of [`DaxFile::read_at`], and [`DaxError::PastEnd`].
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DaxError> {
        let got = self.read_at(buf, offset)?;
        self.0.core.check_whole(got, buf, offset)
    }

    /// Writes all of `buf` at `offset`, and lengthens the file if needed. Bytes written before an
    /// error stay.
    ///
    /// # Errors
    /// [`DaxError::DeviceFull`], [`DaxError::ReadOnly`], [`DaxError::TooLong`],
    /// [`DaxError::Limit`], [`DaxError::Io`]; over a host file, [`DaxError::Shrank`] and
    /// [`DaxError::Unsupported`].
    pub fn write_at(&self, mut buf: &[u8], mut offset: u64) -> Result<(), DaxError> {
        loop {
            let done = self.0.core.write_at(buf, offset)?;
            buf = &buf[done..];
            offset += done as u64;
            if buf.is_empty() {
                return Ok(());
            }
        }
    }

    /// Writes all of `buf` at the end of the file, and returns its offset. No other append or
    /// [`DaxFile::set_len`] comes between the bytes. A concurrent write past the end may write to
    /// the same offsets.
    ///
    /// There is no `try_` form: a write that lengthens the file may wait.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, dax::DaxDevice};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::with_limit(MIB)?;
    /// let log = memory.create_dax_on(&DaxDevice::memory(4 * MIB)?, "log")?;
    /// assert_eq!((log.append(b"one, ")?, log.append(b"two")?), (0, 5));
    /// assert_eq!(log.read_to_vec(..)?, b"one, two");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`DaxFile::write_at`]. Bytes written before an error stay.
    pub fn append(&self, buf: &[u8]) -> Result<u64, DaxError> {
        self.0.core.append(buf)
    }

    /// Returns a position in the file with [`std::io::Read`], [`std::io::Write`] and
    /// [`std::io::Seek`].
    pub fn cursor(&self) -> Cursor<DaxFile> {
        Cursor::new(self.clone())
    }

    /// Reads the bytes of a range, which must be wholly inside the file, into a new vector.
    ///
    /// There is no `try_` form: [`DaxFile::try_read_exact_at`] reads into a buffer.
    ///
    /// # Errors
    /// The errors of [`DaxFile::read_exact_at`]; [`DaxError::BadRange`]; [`DaxError::Io`] of the
    /// kind `OutOfMemory`.
    pub fn read_to_vec(&self, range: impl RangeBounds<u64>) -> Result<Vec<u8>, DaxError> {
        let Range { start, end } = self.bytes(&range)?;
        let len = end - start;
        if end > self.len() {
            return Err(self.0.core.past_end(start, len));
        }
        let no_memory = || ErrorKind::OutOfMemory.into();
        let bytes = zeros(len).ok_or_else(no_memory);
        let mut bytes = bytes.map_err(self.0.core.failed(DaxAction::Read, start))?;
        self.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// Shortens or lengthens the file; new bytes are a hole. Once this has returned, no access
    /// reads or writes pages that were cut off. Shortening waits up to ten seconds for pins of the
    /// pages that lose bytes; in a [`Task`](crate::Task) it does not wait. If shortening fails, the
    /// length is unchanged, but some of the bytes past `len` may be zeros already.
    ///
    /// There is no `try_` form: a cut waits until no access uses the pages it removes, and any
    /// change of a host file's length is a call to the host.
    ///
    /// # Errors
    /// [`DaxError::Busy`] if a pin stays, without waiting if this thread made it;
    /// [`DaxError::ReadOnly`], [`DaxError::TooLong`], [`DaxError::Limit`], [`DaxError::Io`]; over a
    /// host file, [`DaxError::Shrank`] and [`DaxError::Unsupported`].
    pub fn set_len(&self, len: u64) -> Result<(), DaxError> {
        self.set_len_within(len, patience())
    }

    /// Sets the length like [`DaxFile::set_len`], but waits for pins for at most `patience`.
    ///
    /// # Errors
    /// The errors of [`DaxFile::set_len`].
    pub fn set_len_within(&self, len: u64, patience: Duration) -> Result<(), DaxError> {
        // All attempts have one deadline.
        let (core, until) = (&self.0.core, deadline(patience));
        core.check_process()?;
        core.with_room(|| core.set_len(len, until))
    }

    /// Zeroes bytes, and gives whole pages of them back to the device. The length is unchanged, and
    /// the part of the range past the end is ignored. Waits for pins as [`DaxFile::set_len`] does.
    /// If this fails in the middle, some of the bytes may be zeros already, and the others are
    /// unchanged.
    ///
    /// There is no `try_` form, for the reasons given at [`DaxFile::set_len`].
    ///
    /// # Errors
    /// The errors of [`DaxFile::set_len`], and [`DaxError::BadRange`].
    pub fn punch(&self, bytes: impl RangeBounds<u64>) -> Result<(), DaxError> {
        let bytes = self.bytes(&bytes)?;
        let (core, until) = (&self.0.core, deadline(patience()));
        core.check_process()?;
        core.with_room(|| core.punch(bytes.clone(), until))
    }

    /// Makes all stores durable: flushes the cache lines of dirty blocks, or makes the host write
    /// them.
    ///
    /// There is no `try_` form of this call or of [`DaxFile::sync_range`]: a sync waits until the
    /// stores under way are over, or for the host.
    ///
    /// # Errors
    /// [`DaxError::Io`]: stores that could not be made durable stay dirty, and the next sync tries
    /// again. Each failure is reported once to each handle (opened separately, not cloned). So this
    /// can fail because of an earlier sync by another handle, although everything is durable by
    /// now.
    pub fn sync_all(&self) -> Result<(), DaxError> {
        self.sync_range(..)
    }

    /// Does the same as [`DaxFile::sync_all`], which costs no more here: a direct-access file keeps
    /// no timestamps. The call exists because [`PagedFile`](crate::PagedFile) has it.
    ///
    /// # Errors
    /// The errors of [`DaxFile::sync_all`].
    pub fn sync_data(&self) -> Result<(), DaxError> {
        self.sync_all()
    }

    /// Does what [`DaxFile::sync_all`] does, for the pages or blocks of 2 MiB that contain these
    /// bytes. Others may become durable too.
    ///
    /// # Errors
    /// The errors of [`DaxFile::sync_all`], and [`DaxError::BadRange`].
    pub fn sync_range(&self, bytes: impl RangeBounds<u64>) -> Result<(), DaxError> {
        let core = &self.0.core;
        core.check_process()?;
        let done = core.sync_bytes(self.clip(&bytes)?);
        // The check also marks the failure that this call has just met as reported to this handle.
        let heard = core.errors.check(&self.0.cursor);
        done.and(heard)
    }

    /// Forgets which clean pages are holes and which have blocks, so that the next access asks the
    /// host file again. Dirty pages stay.
    ///
    /// There is no `try_` form, because the call waits for a grace period.
    ///
    /// # Errors
    /// [`DaxError::Io`], [`DaxError::BadRange`].
    pub fn invalidate(&self, bytes: impl RangeBounds<u64>) -> Result<(), DaxError> {
        let bytes = self.clip(&bytes)?;
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        self.0.core.check_process()?;
        self.0.core.invalidate(pages)
    }

    /// Gives foreign code (a DMA engine, a codec, a system call) the addresses of the device at
    /// which these bytes are. Holes get blocks, and the whole range counts as dirty while it is
    /// pinned. A truncate or punch of the range waits for the pin to end, with the exceptions and
    /// the time limit that [`DaxFile::set_len`] names.
    ///
    /// # Errors
    /// [`DaxError::PastEnd`], [`DaxError::BadRange`], [`DaxError::DeviceFull`],
    /// [`DaxError::ReadOnly`], [`DaxError::Limit`], [`DaxError::Io`]; over a host file,
    /// [`DaxError::Shrank`] and [`DaxError::Unsupported`].
    pub fn pin(&self, bytes: impl RangeBounds<u64>) -> Result<DaxPin, DaxError> {
        let bytes = self.bytes(&bytes)?;
        let core = &self.0.core;
        core.check_writable(bytes.start)?;
        self.pin_charged(MayReclaim::Yes, || {
            core.with_room(|| self.pin_pages(bytes.clone(), Wait::Yes))
        })
    }

    /// Makes a pin by calling `pin`, charges the file's group for it, and returns it. If the group
    /// is full, no pin stays.
    pub(super) fn pin_charged(
        &self,
        may: MayReclaim,
        pin: impl FnOnce() -> Result<DaxPin, DaxError>,
    ) -> Result<DaxPin, DaxError> {
        let group = self.0.core.group();
        let heap = group.charge_heap(PIN_BYTES, may)?;
        let mut pin = pin()?;
        let parts = pin.parts.capacity() * size_of::<(u64, u64)>();
        pin.heap = [Some(heap), Some(group.charge_heap(parts, may)?)];
        Ok(pin)
    }

    pub(super) fn pin_pages(&self, bytes: Range<u64>, wait: Wait) -> Result<DaxPin, DaxError> {
        let core = &self.0.core;
        let _layout = core.share_layout(bytes.start, wait)?;
        let _holding = FileLocked::begin();
        if bytes.end > core.size() {
            return Err(core.past_end(bytes.start, bytes.end - bytes.start));
        }
        let pages = match bytes.is_empty() {
            true => 0..0, // an empty range has no page, wherever it is
            false => bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64),
        };
        // The pin is registered first. A sync that looks for pins later leaves the pages dirty. A
        // sync that looked earlier has the entries locked. This thread waits for that sync, and
        // then makes the entries dirty again.
        let mut pin = DaxPin {
            id: core.pins.add(pages.clone()),
            file: core.clone(),
            bytes,
            parts: Vec::new(),
            heap: [None, None],
            _ending: Ending(core.cache.clone()),
        };
        let mut page = pages.start;
        while page < pages.end {
            let mut locked = core.lock_page(page, FaultKind::Write, wait)?;
            core.make_block(&mut locked, page, wait)?;
            let Content::Block(block) = locked.content() else {
                unreachable!("made above");
            };
            let covered = locked.pages();
            let end = covered.end.min(pages.end);
            pin.add_part(page..end, block + (page - covered.start));
            page = end;
        }
        Ok(pin)
    }

    /// Returns statistics of the file. Walks all entries, so the cost grows with their number.
    pub fn stats(&self) -> DaxStats {
        DaxStats::of(&self.0.core)
    }

    /// Clips a range to the file's current length: an open end is the end of the file.
    fn clip(&self, range: &impl RangeBounds<u64>) -> Result<Range<u64>, DaxError> {
        let Range { start, end } = self.bytes(range)?;
        let end = end.min(self.len());
        Ok(start.min(end)..end)
    }

    /// Returns the bytes that `range` means: an open end is the end of the file.
    pub(super) fn bytes(&self, range: &impl RangeBounds<u64>) -> Result<Range<u64>, DaxError> {
        let (start, end) = start_and_end(range);
        let end = end.unwrap_or_else(|| self.len().max(start));
        match start <= end {
            true => Ok(start..end),
            false => Err(DaxError::BadRange {
                file: self.0.core.parts.name.clone(),
                start,
                end,
            }),
        }
    }
}

positioned!(DaxFile);

/// Bytes of a direct-access file that foreign code may use; see [`DaxFile::pin`]. Dropping the
/// pin unpins them.
///
/// Reading or writing through the addresses is `unsafe`. The caller makes sure that no other access
/// to the same bytes, through a mapping, a call or another pin, runs at the same time.
#[derive(Debug)]
#[must_use = "the bytes are unpinned when this is dropped"]
pub struct DaxPin {
    file: Arc<DaxCore>,
    id: u64,
    bytes: Range<u64>,
    /// The parts of the range on the device, in the file's order: for each, its first page on the
    /// device and its number of pages.
    parts: Vec<(u64, u64)>,
    /// The charges for the pin in the file's set of pins, and for `parts`.
    heap: [Option<HeapBytes>; 2],
    /// Dropped last of the fields.
    _ending: Ending,
}

impl DaxPin {
    /// Returns the pinned bytes, by their offsets in the file.
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }

    fn add_part(&mut self, pages: Range<u64>, device_page: u64) {
        let len = pages.end - pages.start;
        match self.parts.last_mut() {
            Some((first, count)) if *first + *count == device_page => *count += len,
            _ => self.parts.push((device_page, len)),
        }
    }

    /// Returns the address and length of each piece, in the file's order. They are valid as long as
    /// the pin lives.
    #[expect(clippy::missing_panics_doc, reason = "a device is not at address 0")]
    pub fn pieces(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        let mut skip = self.bytes.start % PAGE_SIZE as u64;
        let mut left = self.bytes.end - self.bytes.start;
        let device = &self.file.parts.device;
        self.parts.iter().map(move |(page, count)| {
            let len = ((count << PAGE_SHIFT) - skip).min(left);
            let address = device.host(*page) + skip;
            left -= len;
            skip = 0;
            let address = std::ptr::with_exposed_provenance_mut(address as usize);
            (
                NonNull::new(address).expect("a device is not at address 0"),
                len as usize,
            )
        })
    }
}

impl Drop for DaxPin {
    fn drop(&mut self) {
        // Pages that were stored to through the pin are still dirty, because a sync leaves pinned
        // pages dirty.
        self.file.pins.remove(self.id);
    }
}
