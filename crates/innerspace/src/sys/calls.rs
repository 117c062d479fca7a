//! System calls of Linux that several modules make, with their errors as results.

use std::io;
use std::os::fd::RawFd;

/// Converts the result of a system call that returns -1 for an error.
pub(super) fn check(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Maps `len` bytes of memory, or of a file, where nothing is mapped: at `wish`, or elsewhere if
/// the kernel prefers that.
pub(super) fn map(
    wish: *mut u8,
    len: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    fd: RawFd,
) -> io::Result<*mut u8> {
    assert!(flags & libc::MAP_FIXED == 0, "what is mapped there stays");
    // SAFETY: without MAP_FIXED the new mapping touches nothing of ours.
    let start = unsafe { libc::mmap(wish.cast(), len, protection, flags, fd, 0) };
    match start == libc::MAP_FAILED {
        true => Err(io::Error::last_os_error()),
        false => Ok(start.cast()),
    }
}

/// Maps `len` bytes of private memory at an address of the kernel's choice.
pub(super) fn map_private(len: usize, protection: libc::c_int) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map(std::ptr::null_mut(), len, protection, flags, -1)
}

/// Unmaps a range, which may be empty. Safety: the range was mapped by [`map`], and nothing uses
/// it.
pub(super) unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        let result = unsafe { libc::munmap(start.cast(), len) };
        debug_assert_eq!(result, 0, "munmap of {len} bytes at {start:?}");
    }
}

/// Advises the kernel about a range. Safety: the range was mapped by [`map`]. If the advice changes
/// its bytes, nothing uses them.
pub(super) unsafe fn advise(start: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::madvise(start.cast(), len, advice) } as libc::ssize_t).map(drop)
}
