//! The kernel's means for the same tasks: mappings, files in memory, and children.
//!
//! These functions do little besides the call, because all of their work is measured with the
//! contender.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::translation::HostPages;

/// The bytes of a page, of the library and of the kernel.
pub(crate) const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// A mapping by the kernel, unmapped on drop. At first its bytes are zeros, or those of the file.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut libc::c_void,
    mapped: usize,
    first: *mut u8,
    bytes: usize,
}

// SAFETY: the region owns its range, and all shared access to it is by atomics or by slices
// borrowed from the region.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn map(bytes: usize, flags: libc::c_int, file: libc::c_int) -> io::Result<*mut libc::c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, file, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start)
}

impl Region {
    /// Maps private anonymous memory, aligned to 2 MiB, of which nothing is resident.
    pub(crate) fn anonymous(bytes: usize, host: HostPages) -> io::Result<Region> {
        let mapped = bytes + HUGE;
        let start = map(mapped, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        let region = Region {
            start,
            mapped,
            first: start.map_addr(|at| at.next_multiple_of(HUGE)).cast(),
            bytes,
        };
        region.advise(match host {
            HostPages::Base => libc::MADV_NOHUGEPAGE,
            HostPages::Huge => libc::MADV_HUGEPAGE,
        });
        Ok(region)
    }

    /// Maps the first `bytes` of a file, shared.
    pub(crate) fn shared(file: &File, bytes: usize) -> io::Result<Region> {
        let start = map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        Ok(Region {
            start,
            mapped: bytes,
            first: start.cast(),
            bytes,
        })
    }

    /// Keeps the region from children of fork(2).
    pub(crate) fn keep_from_children(&self) {
        self.advise(libc::MADV_DONTFORK);
    }

    /// Advises the kernel not to read the pages around a requested one.
    pub(crate) fn expect_random(&self) {
        self.advise(libc::MADV_RANDOM);
    }

    /// Advises the kernel to read well ahead of the requested page.
    pub(crate) fn expect_sequential(&self) {
        self.advise(libc::MADV_SEQUENTIAL);
    }

    /// Writes the stores to a shared region to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is ours, and none of it changes.
        if unsafe { libc::msync(self.start, self.mapped, libc::MS_SYNC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Gives advice, which the kernel may refuse if it has no use for it.
    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the range is ours, and none of the advice given here changes what is in it.
        unsafe { libc::madvise(self.first.cast(), self.bytes, advice) };
    }

    /// Returns the bytes of a region to which nobody writes during the borrow.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, initialised by the kernel, and written only by `bytes_mut` and
        // `write_every`, which borrow the region mutably.
        unsafe { std::slice::from_raw_parts(self.first, self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.bytes) }
    }

    /// Loads 8 bytes as a program with a raw pointer does: without a check.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and at least 8 below the region's length.
    #[inline(always)]
    pub(crate) unsafe fn load(&self, offset: u64) -> u64 {
        // SAFETY: inside the region and aligned, by the caller.
        unsafe { (*self.first.add(offset as usize).cast::<AtomicU64>()).load(Ordering::Relaxed) }
    }

    /// Loads 8 bytes at a multiple of 8 inside the region.
    pub(crate) fn load_checked(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes as u64 & !7);
        // SAFETY: as just checked.
        unsafe { self.load(offset) }
    }

    /// Loads 8 bytes at each multiple of `stride`, and returns their sum.
    pub(crate) fn read_every(&self, stride: usize) -> u64 {
        assert!(stride.is_multiple_of(8));
        // SAFETY: each offset is a multiple of 8 below the end, and regions end at a multiple of 8.
        let load = |at: usize| unsafe { self.load(at as u64) };
        (0..self.bytes)
            .step_by(stride)
            .fold(0, |sum, at| sum.wrapping_add(load(at)))
    }

    /// Stores 8 bytes at each multiple of `stride`.
    pub(crate) fn write_every(&mut self, stride: usize, value: u64) {
        assert!(stride.is_multiple_of(8));
        for at in (0..self.bytes).step_by(stride) {
            // SAFETY: as for `read_every`, and borrowed mutably. The store is volatile, so that
            // none is left out.
            unsafe { self.first.add(at).cast::<u64>().write_volatile(value) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned; nothing borrows from the region any more.
        unsafe { libc::munmap(self.start, self.mapped) };
    }
}

/// Gives pages of anonymous memory back to the kernel. From then on their bytes are zeros.
pub(crate) fn discard(pages: &mut [u8]) -> io::Result<()> {
    // SAFETY: the bytes are borrowed mutably, and zeros are as good as any.
    let result =
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_DONTNEED) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Creates an empty file in memory, as on tmpfs.
pub(crate) fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string; the call makes a new descriptor.
    let file = unsafe { libc::memfd_create(c"innerspace-bench".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Keeps the calling thread on one of the processors that it may run on: `number`, modulo how many
/// there are. Otherwise a thread that runs for a millisecond may be done before the kernel has
/// moved it away from another thread's processor.
pub(crate) fn stay_on_processor(number: usize) -> io::Result<()> {
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of bits, all of them 0.
    let mut allowed = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: the pointer is to a set of ours, of this size.
    if unsafe { libc::sched_getaffinity(0, bytes, &raw mut allowed) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is below that of the bits of a set.
    let is_allowed = |processor: &usize| unsafe { libc::CPU_ISSET(*processor, &allowed) };
    let allowed = (0..libc::CPU_SETSIZE as usize).filter(is_allowed);
    let allowed: Vec<usize> = allowed.collect();
    // SAFETY: as above.
    let mut one = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: as above; a thread that runs may run somewhere.
    unsafe { libc::CPU_SET(allowed[number % allowed.len()], &mut one) };
    // SAFETY: as above.
    if unsafe { libc::sched_setaffinity(0, bytes, &raw const one) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A child of fork(2), waited for on drop.
#[derive(Debug)]
pub(crate) struct Child {
    process: libc::pid_t,
    /// The end of the pipe at whose closing the child ends.
    hold: Option<io::PipeWriter>,
}

impl Child {
    /// Calls fork(2), with a child that ends immediately.
    #[inline]
    pub(crate) fn ends_at_once() -> io::Result<Child> {
        // SAFETY: the child calls nothing but `_exit`, which is allowed whatever other threads held
        // at the fork.
        let process = unsafe { libc::fork() };
        if process == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Child {
            process,
            hold: None,
        })
    }

    /// Calls fork(2), with a child that stores a value at each of these multiples of 8 in its copy
    /// of the region, and ends.
    pub(crate) fn that_stores(
        region: &mut Region,
        places: impl Iterator<Item = u64>,
        value: u64,
    ) -> io::Result<Child> {
        // SAFETY: the child only stores and calls `_exit`, both allowed after a fork in a process
        // with threads.
        let process = unsafe { libc::fork() };
        if process == 0 {
            for place in places {
                assert!(place.is_multiple_of(8) && place < region.bytes as u64);
                // SAFETY: inside the region, aligned, and the child's own copy.
                unsafe {
                    region
                        .first
                        .add(place as usize)
                        .cast::<u64>()
                        .write_volatile(value);
                }
            }
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Child {
            process,
            hold: None,
        })
    }

    /// Calls fork(2), with a child that stays until this is dropped.
    pub(crate) fn that_stays() -> io::Result<Child> {
        let (read, write) = io::pipe()?;
        // SAFETY: the child only calls `close`, `read` and `_exit`, all allowed after a fork in a
        // process with threads.
        let process = unsafe { libc::fork() };
        if process == 0 {
            // SAFETY: as above; the byte is the child's own, and its copies of the descriptors end
            // with the child.
            unsafe {
                libc::close(write.as_raw_fd());
                let mut byte = 0u8;
                libc::read(read.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0)
            }
        }
        if process < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Child {
            process,
            hold: Some(write),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.hold = None;
        // SAFETY: waits for a child of ours that nobody else waits for.
        unsafe { libc::waitpid(self.process, ptr::null_mut(), 0) };
    }
}
