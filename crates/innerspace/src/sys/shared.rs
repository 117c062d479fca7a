//! Bytes of a file at an address: shared mappings of files, and files that are in memory.
//!
//! A [`SharedMapping`] may be larger than its file, so that the file can grow under it. Touching
//! bytes past the file's end, or a hole while the file system is full, raises SIGBUS. The caller
//! prevents both; for holes it calls [`allocate`] first.
//!
//! | | Linux | elsewhere |
//! |---|---|---|
//! | shared mapping | mmap(2), `MAP_SYNC` asked for first | `Unsupported` |
//! | write out | msync(2) | |
//! | mark pages as changed again | madvise(2), `MADV_POPULATE_WRITE` | |
//! | room for stores to mapped pages | the same | |
//! | a file in memory | memfd_create(2), sealed | `Unsupported` |
//! | blocks ahead of writes | fallocate(2) | `Unsupported` |
//!
//! Before Linux 5.14, pages are marked as changed by a store of their present value ([`touch`]),
//! and nothing makes room.
//!
//! Holes are found and made by [`super::file`].

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) mod faulty;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use super::memory::host_page_size;
use super::process::Process;

/// The accesses that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// The point from which stores to a mapping are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Synchronous {
    /// Once their cache lines are flushed: the file's medium itself is mapped (`MAP_SYNC`).
    Yes,
    /// Once msync(2) has returned: the page cache is mapped.
    No,
}

/// A shared mapping of a file from its start, at an address that is a multiple of 2 MiB. Dropping
/// it unmaps the range, but only in the process that created it.
///
/// It gives out addresses, not slices: its owner decides which bytes may be touched.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    synchronous: Synchronous,
    maker: Process,
}

// SAFETY: a mapping is a range of addresses with no tie to a thread. Its methods are system calls.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `len` bytes of `file`, whatever its present length. A child of fork(2) lacks
    /// the mapping.
    ///
    /// # Errors
    /// `InvalidInput` if `len` is 0 or does not fit in the address space; otherwise the system's
    /// error, which is `Unsupported` if the file system has no shared mappings.
    pub(crate) fn new(file: &File, len: usize, rights: Rights) -> io::Result<SharedMapping> {
        if len == 0 || len > isize::MAX as usize - 2 * super::memory::HUGE_PAGE {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let (base, synchronous) = platform::map(file, len, rights)?;
        Ok(SharedMapping {
            base,
            len,
            synchronous,
            maker: Process::current(),
        })
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns how stores become durable.
    pub(crate) fn synchronous(&self) -> Synchronous {
        self.synchronous
    }

    /// Returns the range, extended down to the beginning of a host page. Panics if the range is not
    /// inside the mapping.
    fn widen(&self, range: Range<usize>) -> Range<usize> {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {range:?} of a mapping of {} bytes",
            self.len
        );
        range.start / host_page_size() * host_page_size()..range.end
    }

    /// Makes the bytes of the range durable, with the metadata needed to find them again. The range
    /// holds offsets and is widened to whole pages. Its part past the file's end is skipped. For an
    /// empty range this does nothing, and checks nothing.
    ///
    /// # Errors
    /// If the system could not write. The system may not report the same failure again.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn sync(&self, range: Range<usize>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
        faulty::ask(faulty::Call::Sync, range.clone())?;
        platform::sync(self.base, self.widen(range))
    }

    /// Makes the system treat the pages of the range as changed, as if a byte of each page had been
    /// stored to with its present value. The range consists of whole pages; where the system's
    /// pages are larger, those are marked as a whole.
    ///
    /// If the file has become shorter meanwhile, the result is an error and not a signal. The pages
    /// before the file's end are then marked.
    ///
    /// # Errors
    /// The system's error. `Unsupported` where the system cannot mark pages; then use [`touch`].
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn touch(&self, range: Range<usize>) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
        faulty::ask(faulty::Call::Touch, range.clone())?;
        platform::touch(self.base, self.widen(range))
    }

    /// Ensures that stores to the pages of the range (whole pages) raise no signal, where the
    /// system can tell that in advance. A page that has its own block may still need room for its
    /// neighbours: ext4 needs it for the holes in a large folio.
    ///
    /// # Errors
    /// `StorageFull` if a store would raise a signal for any reason, because the system does not
    /// report the reason. Otherwise the system's error.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) fn make_storable(&self, range: Range<usize>) -> io::Result<()> {
        let made = || {
            #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
            faulty::ask(faulty::Call::Room, range.clone())?;
            platform::touch(self.base, self.widen(range.clone()))
        };
        match made() {
            // The system lacks the advice that is used here. Such a system has no large folios in
            // files of ext4 either.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            Err(error) if platform::would_signal(&error) => Err(io::ErrorKind::StorageFull.into()),
            made => made,
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // A child of fork(2) lacks the mapping, and may have another one in its place.
        if self.maker.is_current() {
            // SAFETY: `map` made the range with this length in this process, and its owner is gone.
            unsafe { platform::unmap(self.base, self.len) }
        }
    }
}

/// Creates a file of `len` bytes in memory, without a name. No process can shrink or grow it, so a
/// mapping of it never reaches past its end.
///
/// # Errors
/// The system's error. `Unsupported` where there are no such files.
pub(crate) fn sealed_memory(name: &std::ffi::CStr, len: u64) -> io::Result<File> {
    platform::sealed_memory(name, len)
}

/// Ensures that stores to the range find room: holes in it get blocks of zeros. The file's length
/// does not change.
///
/// # Errors
/// `StorageFull` if there is no room. `Unsupported` where the file system cannot allocate.
/// Otherwise the system's error.
pub(crate) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    #[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
    faulty::ask(
        faulty::Call::Allocate,
        offset as usize..(offset + len) as usize,
    )?;
    platform::allocate(file, offset, len)
}

/// Stores a byte's present value to it in one step, so that the system treats its page as changed.
/// The compiler may turn an atomic operation into a load if it knows that the operation changes
/// nothing. Assembly, or an operand that the compiler does not know, prevents that.
///
/// # Safety
/// The byte stays mapped for stores during the call. Other threads may read and write it.
pub(crate) unsafe fn touch(byte: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise; the byte keeps its value.
    unsafe {
        std::arch::asm!("lock or byte ptr [{}], 0", in(reg) byte, options(nostack))
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let nothing = std::hint::black_box(0);
        // SAFETY: as above.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(byte) }
            .fetch_or(nothing, std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod platform {
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::super::calls;
    use super::super::file::fallocate;
    use super::super::memory::{HUGE_PAGE, host_page_size};
    use super::{File, NonNull, Range, Rights, Synchronous, io};

    /// The most attempts that [`map_aligned`] makes. Each is in vain if another mapping takes the
    /// address meanwhile.
    const TRIES: usize = 1000;

    /// Maps the start of `file` at a multiple of 2 MiB.
    pub(super) fn map(
        file: &File,
        len: usize,
        rights: Rights,
    ) -> io::Result<(NonNull<u8>, Synchronous)> {
        let whole = len.next_multiple_of(host_page_size());
        // MAP_SHARED_VALIDATE makes the kernel refuse flags that it does not know, and MAP_SYNC
        // where the medium itself is not mapped.
        let direct = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
        let (base, synchronous) = match map_aligned(file, whole, rights, direct) {
            Ok(base) => (base, Synchronous::Yes),
            Err(error) if refuses_sync(&error) => {
                let base = map_aligned(file, whole, rights, libc::MAP_SHARED);
                (base.map_err(unsupported)?, Synchronous::No)
            }
            Err(error) => return Err(error),
        };
        // SAFETY: the range was just mapped. The advice is about children, and changes nothing
        // here.
        let _ = unsafe { calls::advise(base.as_ptr(), whole, libc::MADV_DONTFORK) };
        Ok((base, synchronous))
    }

    /// Returns whether the error is that of a kernel or a file system without MAP_SYNC.
    fn refuses_sync(error: &io::Error) -> bool {
        matches!(
            error.raw_os_error(),
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
        )
    }

    /// Translates ENODEV, mmap(2)'s answer where the file system has no such mappings.
    fn unsupported(error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ENODEV) => io::Error::new(io::ErrorKind::Unsupported, error),
            _ => error,
        }
    }

    /// Maps at a place that was free a moment ago. Repeats that until the kernel gives an address
    /// that is a multiple of 2 MiB, at most [`TRIES`] times.
    ///
    /// The address is only a hint: the mapping that found the place free is unmapped first. Keeping
    /// it and mapping over it (MAP_FIXED) would be wrong. An attempt that fails may already have
    /// unmapped the place, and the next attempt would replace whatever was mapped there meanwhile.
    fn map_aligned(
        file: &File,
        len: usize,
        rights: Rights,
        sharing: libc::c_int,
    ) -> io::Result<NonNull<u8>> {
        let protection = match rights {
            Rights::Read => libc::PROT_READ,
            Rights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = sharing | libc::MAP_NORESERVE;
        let fd = file.as_raw_fd();
        for _ in 0..TRIES {
            let at = calls::map(free_address(len)?, len, protection, flags, fd)?;
            match NonNull::new(at) {
                Some(base) if base.addr().get().is_multiple_of(HUGE_PAGE) => return Ok(base),
                // SAFETY: the mapping was just made, and nothing else knows of it.
                _ => unsafe { calls::unmap(at, len) },
            }
        }
        Err(io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// Returns an address that is a multiple of 2 MiB and at which `len` bytes were free during the
    /// call, with room for the kernel to align the mapping.
    fn free_address(len: usize) -> io::Result<*mut u8> {
        let room = len + 2 * HUGE_PAGE;
        let start = calls::map_private(room, libc::PROT_NONE)?;
        // SAFETY: the mapping was just made, and nothing else knows of it.
        unsafe { calls::unmap(start, room) };
        Ok(start.with_addr(start.addr().next_multiple_of(HUGE_PAGE)))
    }

    /// Unmaps a mapping. Safety: both arguments come from one call to [`map`], and nothing uses the
    /// range.
    pub(super) unsafe fn unmap(base: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { calls::unmap(base.as_ptr(), len.next_multiple_of(host_page_size())) }
    }

    pub(super) fn sync(base: NonNull<u8>, range: Range<usize>) -> io::Result<()> {
        // SAFETY: the range is inside the mapping, as the caller has checked. No byte changes.
        let result = unsafe {
            let start = base.as_ptr().add(range.start);
            libc::msync(start.cast(), range.len(), libc::MS_SYNC)
        };
        calls::check(result as libc::ssize_t).map(drop)
    }

    pub(super) fn touch(base: NonNull<u8>, range: Range<usize>) -> io::Result<()> {
        loop {
            // SAFETY: the range is inside the mapping, as the caller has checked. No byte changes.
            let touched = unsafe {
                let start = base.as_ptr().add(range.start);
                calls::advise(start, range.len(), libc::MADV_POPULATE_WRITE)
            };
            let Err(error) = touched else {
                return Ok(());
            };
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::EINVAL) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, error));
                }
                _ => return Err(error),
            }
        }
    }

    /// Returns whether [`touch`] failed because an access would have raised SIGBUS.
    pub(super) fn would_signal(error: &io::Error) -> bool {
        error.raw_os_error() == Some(libc::EFAULT)
    }

    pub(super) fn sealed_memory(name: &std::ffi::CStr, len: u64) -> io::Result<File> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string that outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        calls::check(fd as libc::ssize_t)?;
        // SAFETY: the descriptor is new, and nothing else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no memory is passed; the descriptor is open.
        calls::check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } as libc::ssize_t)?;
        Ok(file)
    }

    pub(super) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
        fallocate(file, libc::FALLOC_FL_KEEP_SIZE, offset, len)
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod platform {
    use super::{File, NonNull, Range, Rights, Synchronous, io};

    fn unsupported<T>(what: &str) -> io::Result<T> {
        let text = format!("{what} are made on Linux alone");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    pub(super) fn map(_: &File, _: usize, _: Rights) -> io::Result<(NonNull<u8>, Synchronous)> {
        unsupported("shared mappings")
    }

    /// Does nothing. Safety: never called, since nothing was mapped.
    pub(super) unsafe fn unmap(_: NonNull<u8>, _: usize) {}

    pub(super) fn sync(_: NonNull<u8>, _: Range<usize>) -> io::Result<()> {
        unsupported("shared mappings")
    }

    pub(super) fn touch(_: NonNull<u8>, _: Range<usize>) -> io::Result<()> {
        unsupported("shared mappings")
    }

    pub(super) fn would_signal(_: &io::Error) -> bool {
        false
    }

    pub(super) fn sealed_memory(_: &std::ffi::CStr, _: u64) -> io::Result<File> {
        unsupported("files in memory")
    }

    pub(super) fn allocate(_: &File, _: u64, _: u64) -> io::Result<()> {
        unsupported("blocks ahead of writes")
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
mod tests;
