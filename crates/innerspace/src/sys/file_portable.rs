//! The portable forms of `sys::file`: std's positioned I/O, no holes, and no control of the page
//! cache except on Apple's systems.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

use super::Keep;

/// Whether [`drop_cached`] does anything.
pub(crate) const CAN_DROP: bool = false;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Turns caching off for this descriptor. Returns whether that worked.
pub(crate) fn enable_dontcache(file: &File) -> bool {
    #[cfg(all(target_vendor = "apple", not(miri)))]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) == 0 }
    }
    #[cfg(not(all(target_vendor = "apple", not(miri))))]
    {
        let _ = file;
        false
    }
}

/// Reads once, at an offset.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64, _: Keep) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_at(file, buf, offset);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_read(file, buf, offset);
    #[cfg(not(any(unix, windows)))]
    {
        let _ = (file, buf, offset);
        unsupported()
    }
}

/// Reads once, at an offset, into the first buffer that is not empty.
pub(crate) fn read_vectored_at(
    file: &File,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    bufs.iter_mut()
        .find(|buf| !buf.is_empty())
        .map_or(Ok(0), |buf| read_at(file, buf, offset, keep))
}

/// Writes once, at an offset.
pub(crate) fn write_at(file: &File, buf: &[u8], offset: u64, _: Keep) -> io::Result<usize> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_at(file, buf, offset);
    #[cfg(windows)]
    return std::os::windows::fs::FileExt::seek_write(file, buf, offset);
    #[cfg(not(any(unix, windows)))]
    {
        let _ = (file, buf, offset);
        unsupported()
    }
}

/// Writes once, at an offset, from the first buffer that is not empty.
pub(crate) fn write_vectored_at(
    file: &File,
    bufs: &[IoSlice<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    bufs.iter()
        .find(|buf| !buf.is_empty())
        .map_or(Ok(0), |buf| write_at(file, buf, offset, keep))
}

/// Returns an error: there is no direct I/O here.
pub(crate) fn open_direct(_: &Path, _: &OpenOptions) -> io::Result<File> {
    unsupported()
}

/// Returns 0: there is no direct I/O here.
pub(crate) fn direct_alignment(_: &File) -> Option<usize> {
    Some(0)
}

/// Does nothing: read-ahead is left to the kernel.
pub(crate) fn expect_random(_: &File) {}

/// Does nothing: the page cache is left to the kernel.
pub(crate) fn drop_cached(_: &File, _: u64, _: u64) {}

/// Does nothing: writing out is left to the kernel.
pub(crate) fn start_writeback(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Does nothing: writing out is left to the kernel.
pub(crate) fn wait_writeback(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Returns an error: no holes can be made here.
pub(crate) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
    unsupported()
}

/// Returns `offset` if it is inside the file, because all of a file counts as data here, and `None`
/// otherwise.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    Ok((offset < file.metadata()?.len()).then_some(offset))
}

/// Returns the file's end, because no other holes are known here, or `None` if `offset` is at the
/// end or past it.
pub(crate) fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let len = file.metadata()?.len();
    Ok((offset < len).then_some(len))
}

/// Returns an error: the number of cached pages is unknown here.
pub(crate) fn cached_bytes(_: &File) -> io::Result<u64> {
    unsupported()
}
