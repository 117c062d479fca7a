//! The Linux forms of `sys::file`.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Keep;
use crate::sys::calls::{self, check};
use crate::sys::join_iovecs;
use crate::sys::memory::host_page_size;

/// The flag for a transfer that leaves nothing new in the page cache. The libc crate does not have
/// it yet.
const RWF_DONTCACHE: libc::c_int = 0x80;
/// The system call number of cachestat(2), the same on all architectures except Alpha.
const SYS_CACHESTAT: libc::c_long = 451;
/// The largest number of buffers that one vectored call takes.
const IOV_MAX: usize = 1024;
/// The largest host page. Ranges to drop are widened to multiples of it, because only whole pages
/// are dropped.
const LARGEST_PAGE: u64 = 64 << 10;

/// Whether [`drop_cached`] does anything.
pub(crate) const CAN_DROP: bool = true;

/// Converts an offset for a system call. Returns an error if it would become negative: -1 would
/// mean "at the cursor".
fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Returns whether reads and writes of `file` can leave nothing in the page cache
/// ([`Keep::Nothing`]). That depends on the kernel and the file system.
pub(crate) fn enable_dontcache(file: &File) -> bool {
    // The kernel checks the flag before the offset, so a read at the largest offset touches
    // nothing.
    read_at(file, &mut [0], i64::MAX as u64 - 1, Keep::Nothing).is_ok()
}

/// Returns the flags of a transfer that may leave `keep` in the page cache.
fn flags_of(keep: Keep) -> libc::c_int {
    match keep {
        Keep::Cached => 0,
        Keep::Nothing => RWF_DONTCACHE,
    }
}

/// Reads once, at an offset.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64, keep: Keep) -> io::Result<usize> {
    match keep {
        Keep::Cached => file.read_at(buf, offset),
        Keep::Nothing => read_vectored_at(file, &mut [IoSliceMut::new(buf)], offset, keep),
    }
}

/// Reads once, at an offset, into at most the first 1024 buffers.
pub(crate) fn read_vectored_at(
    file: &File,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    if let ([buf], Keep::Cached) = (&mut *bufs, keep) {
        return file.read_at(buf, offset);
    }
    let bufs = bufs.iter_mut().take(IOV_MAX);
    let bufs = joined(bufs.map(|buf| (buf.as_mut_ptr(), buf.len())));
    let (fd, at, flags) = (file.as_raw_fd(), position(offset)?, flags_of(keep));
    // SAFETY: the caller's borrows keep the buffers writable and ours until the call returns. The
    // descriptor is open as long as `file` is borrowed.
    check(unsafe { libc::preadv2(fd, bufs.as_ptr(), bufs.len() as libc::c_int, at, flags) })
}

/// Writes once, at an offset.
pub(crate) fn write_at(file: &File, buf: &[u8], offset: u64, keep: Keep) -> io::Result<usize> {
    match keep {
        Keep::Cached => file.write_at(buf, offset),
        Keep::Nothing => write_vectored_at(file, &[IoSlice::new(buf)], offset, keep),
    }
}

/// Writes once, at an offset, from at most the first 1024 buffers.
pub(crate) fn write_vectored_at(
    file: &File,
    bufs: &[IoSlice<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    let bufs = bufs.iter().take(IOV_MAX);
    let bufs = joined(bufs.map(|buf| (buf.as_ptr().cast_mut(), buf.len())));
    let (fd, at, flags) = (file.as_raw_fd(), position(offset)?, flags_of(keep));
    // SAFETY: the caller's borrows keep the buffers readable until the call returns, and the kernel
    // only reads them.
    check(unsafe { libc::pwritev2(fd, bufs.as_ptr(), bufs.len() as libc::c_int, at, flags) })
}

/// Returns the buffers in the kernel's form. Buffers that are adjacent in memory are merged,
/// because the kernel looks up the pages of each buffer separately. (Pages of 4 KiB written past
/// the page cache took 1,510 to 1,870 ns each in separate buffers, and 1,330 to 1,700 ns in one
/// buffer.)
fn joined(bufs: impl Iterator<Item = (*mut u8, usize)>) -> Vec<libc::iovec> {
    let iovec = |(begin, len): (*mut u8, usize)| libc::iovec {
        iov_base: begin.cast(),
        iov_len: len,
    };
    let mut iovecs = bufs.map(iovec).collect();
    join_iovecs(&mut iovecs);
    iovecs
}

/// Opens a file again for direct I/O. Fails where the file system has none.
pub(crate) fn open_direct(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options
        .clone()
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // O_NONBLOCK was for the open only. If it stayed set, io_uring would answer EAGAIN to a read
    // that has to wait, on file systems that cannot tell in advance whether a read will wait.
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
    check(set as libc::ssize_t)?;
    Ok(file)
}

/// Returns the alignment in bytes that direct I/O on `file` needs: `Some(0)` if direct I/O is not
/// possible, `None` if the kernel does not say.
pub(crate) fn direct_alignment(file: &File) -> Option<usize> {
    // SAFETY: `statx` consists of plain integers, for which all zeros is a valid value.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags, mask) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the empty path is a C string and `answer` is a whole `statx`. Both outlive the call.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut answer) };
    (result == 0 && answer.stx_mask & mask != 0)
        .then(|| answer.stx_dio_offset_align.max(answer.stx_dio_mem_align) as usize)
}

fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    let (Ok(at), Ok(len)) = (position(offset), position(len)) else {
        return;
    };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed. The call
    // is only advice, so its errors are ignored.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), at, len, advice) };
}

/// Turns the kernel's read-ahead off, because it would cache bytes that nothing asked for.
pub(crate) fn expect_random(file: &File) {
    advise(file, 0, 0, libc::POSIX_FADV_RANDOM);
}

/// Drops the clean pages of a range from the kernel's cache. A `len` of 0 means to the file's end.
pub(crate) fn drop_cached(file: &File, offset: u64, len: u64) {
    let begin = offset - offset % LARGEST_PAGE;
    let end = offset.saturating_add(len).next_multiple_of(LARGEST_PAGE);
    advise(
        file,
        begin,
        if len == 0 { 0 } else { end - begin },
        libc::POSIX_FADV_DONTNEED,
    );
}

fn sync_range(file: &File, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
    let (at, len) = (offset as libc::off64_t, len as libc::off64_t);
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
    check(unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, flags) } as libc::ssize_t)?;
    Ok(())
}

/// Begins to write a range out, without waiting. A `len` of 0 means to the file's end. Durability
/// also needs a sync.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) -> io::Result<()> {
    sync_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes a range out and waits for it. A `len` of 0 means to the file's end. Durability also needs
/// a sync.
pub(crate) fn wait_writeback(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, offset, len, flags)
}

/// Makes a hole of `len` bytes; `len` must not be 0. Returns `Unsupported` where the file system
/// has no holes.
pub(crate) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, offset, len)
}

/// Calls fallocate(2), and repeats the call if a signal interrupts it.
pub(crate) fn fallocate(file: &File, mode: libc::c_int, offset: u64, len: u64) -> io::Result<()> {
    let (fd, at, len) = (file.as_raw_fd(), position(offset)?, position(len)?);
    loop {
        // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
        match check(unsafe { libc::fallocate(fd, mode, at, len) } as libc::ssize_t) {
            Ok(_) => return Ok(()),
            // A signal handler interrupted the call.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Finds the next data or hole by lseek(2), or returns `None` if none follows. Moves the file's
/// cursor, which no other code uses.
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let Ok(at) = position(offset) else {
        return Ok(None);
    };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Returns the first offset at or after `offset` with data, or `None` if there is none.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, libc::SEEK_DATA)
}

/// Returns the first offset at or after `offset` in a hole, where the file's end counts as a hole.
/// Returns `None` if `offset` is at the end or past it.
pub(crate) fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, libc::SEEK_HOLE)
}

/// Returns the number of bytes of `file` in the page cache, in whole host pages.
pub(crate) fn cached_bytes(file: &File) -> io::Result<u64> {
    match cachestat(file.as_raw_fd()) {
        Err(error) if is_missing(&error, || cachestat(NO_FILE)) => mincore(file),
        pages => Ok(pages? * host_page_size() as u64),
    }
}

/// A number that no descriptor can have.
const NO_FILE: RawFd = -1;

/// Returns whether `error` means that cachestat(2) is not available.
///
/// EPERM has two causes. A filter of system calls may refuse cachestat with it. The kernel also
/// returns it for a file that we may not write, for which mincore(2) would say that all of it is
/// cached. A call without a file tells them apart: the kernel answers it with another error.
fn is_missing(error: &io::Error, without_file: impl FnOnce() -> io::Result<u64>) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => true,
        Some(libc::EPERM) => {
            without_file().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
        }
        _ => false,
    }
}

/// Returns the number of host pages in the page cache, by cachestat(2).
fn cachestat(fd: RawFd) -> io::Result<u64> {
    // `range` is struct cachestat_range { off, len }, where a len of 0 means to the end. `answer`
    // is struct cachestat, five words that begin with the number of cached pages.
    let range = [0u64; 2];
    let mut answer = [0u64; 5];
    // SAFETY: the kernel reads two words from `range` and writes five to `answer`. Both are locals
    // here.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd,
            range.as_ptr(),
            answer.as_mut_ptr(),
            0 as libc::c_uint,
        )
    };
    check(result as libc::ssize_t)?;
    Ok(answer[0])
}

/// Returns how many bytes of the file are in the kernel's page cache: maps the file and asks
/// mincore(2).
fn mincore(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(0);
    }
    let page = host_page_size();
    let mut resident = vec![0u8; len.div_ceil(page)];
    let (prot, flags, fd) = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    let at = calls::map(std::ptr::null_mut(), len, prot, flags, fd)?;
    // SAFETY: `at` is the mapping of `len` bytes made above, and `resident` has a byte for each of
    // its pages. The mapped memory is never touched, so a file that is truncated meanwhile does no
    // harm.
    let result = unsafe { libc::mincore(at.cast(), len, resident.as_mut_ptr()) };
    let result = check(result as libc::ssize_t);
    // SAFETY: the mapping was made above and nothing points into it.
    unsafe { calls::unmap(at, len) };
    result?;
    Ok(resident.iter().filter(|&&state| state & 1 != 0).count() as u64 * page as u64)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 20;

    /// The number of attempts. Other uses of the page cache can make one fail, and so can a
    /// shortage of memory.
    const TRIES: usize = 100;

    fn read_all(file: &File) {
        file.read_exact_at(&mut vec![0; LEN as usize], 0).unwrap();
    }

    fn is_in_memory(file: &File) -> bool {
        const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;
        let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the kernel writes a `statfs`, for which there is room.
        check(unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } as libc::ssize_t)
            .unwrap();
        // SAFETY: the call has filled the structure.
        let kind = unsafe { about.assume_init() }.f_type;
        [libc::TMPFS_MAGIC as _, RAMFS_MAGIC as _].contains(&kind)
    }

    #[test]
    fn cachestat_and_mincore_agree() {
        // A file in memory is in the page cache as a whole, except for what is in swap. The read
        // brings that back.
        let file = crate::sys::shared::sealed_memory(c"cached", LEN).unwrap();
        file.write_all_at(&vec![7; LEN as usize], 0).unwrap();
        let agree = || {
            read_all(&file);
            let by_cachestat = match cachestat(file.as_raw_fd()) {
                Ok(pages) => pages * host_page_size() as u64,
                Err(error) => {
                    assert!(is_missing(&error, || cachestat(NO_FILE)), "{error}");
                    LEN
                }
            };
            (by_cachestat, mincore(&file).unwrap()) == (LEN, LEN)
        };
        assert!((0..TRIES).any(|_| agree()));
    }

    #[test]
    fn dropping_empties_the_cache() {
        let dir = super::super::disk_dir();
        let path = dir.path().join("cached");
        std::fs::write(&path, vec![7; LEN as usize]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // A file that is kept in memory exists in the page cache only, so nothing can be dropped.
        let left = if is_in_memory(&file) { LEN } else { 0 };
        let drops = || {
            read_all(&file);
            drop_cached(&file, 0, 0);
            cached_bytes(&file).unwrap() == left
        };
        assert!((0..TRIES).any(|_| drops()));
    }

    #[test]
    fn a_filter_that_refuses_cachestat_is_told_from_a_file_that_is_refused() {
        let error = io::Error::from_raw_os_error;
        let missing = |of, alone| is_missing(&error(of), || Err(error(alone)));
        assert!(missing(libc::ENOSYS, libc::ENOSYS));
        assert!(missing(libc::EPERM, libc::EPERM));
        assert!(!missing(libc::EPERM, libc::EBADF));
        assert!(!missing(libc::EBADF, libc::EPERM));
        // The kernel's own answer, if no filter answers first.
        let alone = cachestat(NO_FILE).unwrap_err().raw_os_error();
        let known = [libc::EBADF, libc::ENOSYS, libc::EPERM];
        assert!(known.map(Some).contains(&alone), "{alone:?}");
    }
}
