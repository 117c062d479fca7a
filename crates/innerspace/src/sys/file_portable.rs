//! The portable forms of `sys::file`: std's positioned I/O, no holes, no control of the cache but
//! macOS's.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

use super::Keep;

/// Whether [`drop_cached`] does anything.
pub(crate) const CAN_DROP: bool = false;

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Turns caching off for this descriptor, where that is possible.
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

/// Reads at an offset, once.
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

/// Reads into the first buffer that is not empty at an offset, once.
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

/// Writes at an offset, once.
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

/// Writes the first buffer that is not empty at an offset, once.
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

/// There is no direct I/O here.
pub(crate) fn open_direct(_: &Path, _: &OpenOptions) -> io::Result<File> {
    unsupported()
}

/// There is no direct I/O here.
pub(crate) fn direct_alignment(_: &File) -> Option<usize> {
    Some(0)
}

/// Read-ahead is left alone here.
pub(crate) fn expect_random(_: &File) {}

/// The kernel's cache is left alone here.
pub(crate) fn drop_cached(_: &File, _: u64, _: u64) {}

/// Write-out is left to the kernel here.
pub(crate) fn start_writeback(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Write-out is left to the kernel here.
pub(crate) fn wait_writeback(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// There are no holes here.
pub(crate) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
    unsupported()
}

/// There are no holes here.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    Ok((offset < file.metadata()?.len()).then_some(offset))
}

/// There are no holes here.
pub(crate) fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let len = file.metadata()?.len();
    Ok((offset < len).then_some(len))
}

/// The kernel's cached pages are unknown here.
pub(crate) fn cached_bytes(_: &File) -> io::Result<u64> {
    unsupported()
}
