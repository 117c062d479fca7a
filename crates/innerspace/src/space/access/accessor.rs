//! The accessor: the handle through which one thread at a time loads and stores.

use super::forms::forms;
use super::session::{InSession, Session};
use super::single::{Core, Single};
use crate::group::LimitError;
use crate::reclaim::AllocMode;
use crate::space::Explanation;
use crate::space::core::fault::{AccessKind, Fault};
use crate::sys::copy::Scalar;
use crate::{Space, VirtAddr};

/// A handle through which one thread at a time loads and stores in a space, as a processor does in
/// an address space.
///
/// An accessor is owned and `Send`: create one for each thread. Every access returns a value or a
/// [`Fault`], and never raises a signal. A value that crosses a page boundary is loaded in two
/// parts, but stored wholly or not at all (for devices see [`Accessor::store`]). Bytes that other
/// accessors write at the same time are seen old or new; aligned words of up to eight bytes are
/// never torn. Values are in the host's byte order.
///
/// # Without waiting
///
/// Each access has a `try_` form that never waits; a hit costs the same. An access that needs no
/// waiting succeeds: one to a page of zeros, to a cached page of a file, or to a new or copied page
/// for which a frame is free. Any other fails with a [`Fault`] of the kind
/// [`FaultKind::WouldBlock`](crate::space::FaultKind::WouldBlock), and no byte at or after the
/// fault's address is changed. This happens if
///
/// - bytes must be read from a store, or memory must be evicted first;
/// - a block is locked, being written, or, for a store, viewed;
/// - a store through a shared mapping is to a hole;
/// - the mappings are being changed;
/// - a direct-access file must ask its device, or must prepare for a store.
///
/// [`Space::ready`] is a future that waits until the access can be made. A store that would block
/// may leave its block marked as changed, so that the block is written to its file once more than
/// necessary.
///
/// Calls to a [`Device`](crate::space::Device), or to a file with
/// [`OnShrink::Error`](crate::dax::OnShrink::Error), are made as usual, and may take time. Two
/// other things may take a moment. If a group is near its limit, the access takes back charges that
/// other threads hold in stock before it fails for lack of a frame; to do so, it may wait briefly
/// for threads in the middle of a charge. And if only a mapping keeps a direct-access file open,
/// and the mapping is removed during the access, the access closes the file: it gives back the
/// file's blocks, or unmaps and closes the host file.
///
/// # Drop
///
/// Dropping an accessor, even by a panic, leaves nothing behind. An idle accessor delays no other
/// thread.
///
/// ```
/// use innerspace::{MIB, Map, Memory, space::FaultKind};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(16 * MIB)?.create_space()?;
/// let at = space.map(Map::anonymous(8192))?;
/// let mut a = space.accessor()?;
/// a.store(at + 4092, 0x1122_3344_5566_7788_u64)?;    // any alignment, also across pages
/// a.write(at, b"bytes")?;
/// assert_eq!(a.load::<u8>(at + 4)?, b's');
/// let mut buffer = [0; 5];
/// a.read(at, &mut buffer)?;
/// assert_eq!(buffer, *b"bytes");
///
/// let fault = a.load::<u32>(at + 8190).unwrap_err(); // a value; nothing was changed
/// assert_eq!((fault.kind(), fault.address()), (FaultKind::NotMapped, at + 8192));
/// // load of 4 bytes at ...: not mapped; nearest mapping ...
/// println!("{}", a.explain(fault));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Accessor {
    pub(crate) core: Core,
}

impl Accessor {
    /// Creates an accessor of the space, with memory allocated in `mode`.
    pub(crate) fn new(space: &Space, mode: AllocMode) -> Result<Accessor, LimitError> {
        let core = Core::new(&space.0, mode)?;
        Ok(Accessor { core })
    }

    /// Returns the space of this accessor.
    pub fn space(&self) -> Space {
        Space(self.core.space.clone())
    }

    /// Runs `work` with one section kept open over its accesses, which saves two stores at each
    /// access. See [`Session`].
    ///
    /// # Panics
    /// Panics if the thread is ending and its thread-locals are being dropped.
    ///
    /// ```
    /// # use innerspace::{Map, Memory, MIB};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let at = space.map(Map::anonymous(64 * 1024))?;
    /// let mut a = space.accessor()?;
    /// let sum = a.session(|a| {
    ///     let mut sum = 0;
    ///     for i in 0..8192 {
    ///         sum += a.load::<u64>(at + i * 8)?;
    ///     }
    ///     Ok::<u64, innerspace::space::Fault>(sum)
    /// })?;
    /// assert_eq!(sum, 0);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn session<R>(&mut self, work: impl FnOnce(&mut Session<'_>) -> R) -> R {
        work(&mut Session::new(&mut self.core))
    }

    /// Explains a fault, as [`Space::explain`] does.
    pub fn explain(&self, fault: Fault) -> Explanation {
        self.core.space.explain(fault)
    }
}

forms! { Accessor, Single; Session<'_>, InSession => {
    /// Loads a value at any alignment.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be loaded.
    fn load, try_load<T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        self.core.load::<M, T>(at, AccessKind::Load)
    }

    /// Loads a value at any alignment, as an instruction fetch does: the mapping must allow
    /// execution.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be fetched.
    fn fetch, try_fetch<T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        self.core.load::<M, T>(at, AccessKind::Fetch)
    }

    /// Stores a value at any alignment, wholly or not at all.
    ///
    /// If a value lies in two pages, nothing is stored until both are known to accept it. But a
    /// [`Device`](crate::space::Device) can refuse only when it is called. If one part of the value
    /// is in memory, the device is called first, and memory is unchanged if the device refuses. If
    /// both parts go to devices, the second may refuse after the first has accepted its part. A
    /// guarded direct-access file ([`OnShrink::Error`](crate::dax::OnShrink::Error)) counts as a
    /// device here. If a value lies in two of its pages, the part in the upper page is stored
    /// first: a truncated file then takes all of the value or nothing. Changes to the file, or by
    /// another thread to the mapping, during the device's call are not taken into account.
    ///
    /// # Errors
    /// The [`Fault`] of the first byte that cannot be stored.
    fn store, try_store<T: Scalar>(&mut self, at: VirtAddr, value: T) -> Result<(), Fault> {
        self.core.store::<M, T>(at, value)
    }

    /// Copies bytes out of the space into `buffer`.
    ///
    /// # Errors
    /// A [`Fault`] with the address of the first byte that could not be read;
    /// everything before it is in `buffer`.
    fn read, try_read(&mut self, at: VirtAddr, buffer: &mut [u8]) -> Result<(), Fault> {
        self.core.read::<M>(at, buffer)
    }

    /// Copies bytes into the space.
    ///
    /// # Errors
    /// A [`Fault`] with the address of the first byte that could not be written; everything before
    /// it is written.
    fn write, try_write(&mut self, at: VirtAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.core.write::<M>(at, bytes)
    }

    /// Sets `len` bytes at `at` to `byte`.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn fill, try_fill(&mut self, at: VirtAddr, byte: u8, len: usize) -> Result<(), Fault> {
        self.core.fill::<M>(at, byte, len)
    }

    /// Copies `len` bytes from `from` to `to`, inside the space. The ranges may overlap, as for
    /// `memmove`.
    ///
    /// # Errors
    /// A [`Fault`] with the address that could not be read or written. Bytes already copied stay.
    fn copy_within, try_copy_within(
        &mut self,
        from: VirtAddr,
        len: usize,
        to: VirtAddr,
    ) -> Result<(), Fault> {
        self.core.copy::<M>(to, from, len)
    }

    /// Compares bytes of the space with `bytes`, lexicographically, as slices are compared.
    ///
    /// # Errors
    /// A [`Fault`] with the address of the first byte that could not be read, if all bytes before
    /// it are equal.
    fn compare, try_compare(
        &mut self,
        at: VirtAddr,
        bytes: &[u8],
    ) -> Result<std::cmp::Ordering, Fault> {
        self.core.compare::<M>(at, bytes)
    }
} }
