//! The Linux forms of `sys::file`.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Keep;

/// Leaves nothing in the page cache that was not there before. The libc crate does not have it
/// yet.
const RWF_DONTCACHE: libc::c_int = 0x80;
/// The number of cachestat(2), the same on all architectures but Alpha.
const SYS_CACHESTAT: libc::c_long = 451;
/// The most buffers one vectored call takes.
const IOV_MAX: usize = 1024;
/// Dropping from the cache takes whole pages: ranges are widened to the largest host page.
const LARGEST_PAGE: u64 = 64 << 10;

/// Whether [`drop_cached`] does anything.
pub(crate) const CAN_DROP: bool = true;

/// The result of a call that answers -1 for an error.
fn check(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// An offset for a system call; -1 would mean "at the cursor".
fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Finds out whether reads and writes of `file` can keep [`Keep::Nothing`] (kernel and file
/// system).
pub(crate) fn enable_dontcache(file: &File) -> bool {
    // The flag is checked before the offset: at the end of any file this touches nothing.
    read_at(file, &mut [0], i64::MAX as u64 - 1, Keep::Nothing).is_ok()
}

/// The flags of a transfer that keeps this.
fn flags_of(keep: Keep) -> libc::c_int {
    match keep {
        Keep::Cached => 0,
        Keep::Nothing => RWF_DONTCACHE,
    }
}

/// Reads at an offset, once.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64, keep: Keep) -> io::Result<usize> {
    if keep == Keep::Cached {
        return file.read_at(buf, offset);
    }
    let iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    let (at, flags) = (position(offset)?, flags_of(keep));
    // SAFETY: `iov` is the one buffer `buf`, which the borrow keeps writable and ours until the
    // call returns; the descriptor is open as long as `file` is borrowed.
    check(unsafe { libc::preadv2(file.as_raw_fd(), &raw const iov, 1, at, flags) })
}

/// Reads into the first buffers (1024 at most) at an offset, once.
pub(crate) fn read_vectored_at(
    file: &File,
    bufs: &mut [IoSliceMut<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    if let [buf] = bufs {
        return read_at(file, buf, offset, keep);
    }
    let count = bufs.len().min(IOV_MAX);
    let bufs = bufs[..count].iter_mut();
    let bufs = joined(bufs.map(|buf| (buf.as_mut_ptr(), buf.len())));
    let (fd, at, flags) = (file.as_raw_fd(), position(offset)?, flags_of(keep));
    // SAFETY: the buffers are the caller's, whose borrows keep them writable and ours until the
    // call returns; the descriptor is open as long as `file` is borrowed.
    check(unsafe { libc::preadv2(fd, bufs.as_ptr(), bufs.len() as libc::c_int, at, flags) })
}

/// Writes at an offset, once.
pub(crate) fn write_at(file: &File, buf: &[u8], offset: u64, keep: Keep) -> io::Result<usize> {
    match keep {
        Keep::Cached => file.write_at(buf, offset),
        Keep::Nothing => write_vectored_at(file, &[IoSlice::new(buf)], offset, keep),
    }
}

/// Writes the first buffers (1024 at most) at an offset, once.
pub(crate) fn write_vectored_at(
    file: &File,
    bufs: &[IoSlice<'_>],
    offset: u64,
    keep: Keep,
) -> io::Result<usize> {
    let bufs = bufs[..bufs.len().min(IOV_MAX)].iter();
    let bufs = joined(bufs.map(|buf| (buf.as_ptr().cast_mut(), buf.len())));
    let (fd, at, flags) = (file.as_raw_fd(), position(offset)?, flags_of(keep));
    // SAFETY: the buffers are the caller's, whose borrows keep them readable until the call
    // returns, and the kernel only reads them.
    check(unsafe { libc::pwritev2(fd, bufs.as_ptr(), bufs.len() as libc::c_int, at, flags) })
}

/// The buffers in the kernel's form. Buffers that are adjacent in memory are merged, since the
/// kernel looks the pages up buffer by buffer. (Pages of 4 KiB written past the page cache took
/// 1,510 to 1,870 ns, and 1,330 to 1,700 in one buffer.)
fn joined(bufs: impl ExactSizeIterator<Item = (*mut u8, usize)>) -> Vec<libc::iovec> {
    let mut joined: Vec<libc::iovec> = Vec::with_capacity(bufs.len());
    for (begin, len) in bufs {
        match joined.last_mut() {
            Some(last) if last.iov_base.addr() + last.iov_len == begin.addr() => {
                last.iov_len += len;
            }
            _ => joined.push(libc::iovec {
                iov_base: begin.cast(),
                iov_len: len,
            }),
        }
    }
    joined
}

/// Opens a file once more for direct I/O; an error where the file system has none.
pub(crate) fn open_direct(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let file = options
        .clone()
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    // O_NONBLOCK was for the open alone. With it io_uring would fail a read that has to wait, by
    // EAGAIN, on file systems that cannot tell beforehand.
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
    check(set as libc::ssize_t)?;
    Ok(file)
}

/// The alignment in bytes that direct I/O on `file` needs, `Some(0)` when it is not possible,
/// `None` when the kernel does not say.
pub(crate) fn direct_alignment(file: &File) -> Option<usize> {
    // SAFETY: statx is plain integers, for which all zeros is a value.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags, mask) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the empty path is a C string and `answer` a whole statx; both outlive the call.
    let result = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut answer) };
    (result == 0 && answer.stx_mask & mask != 0)
        .then(|| answer.stx_dio_offset_align.max(answer.stx_dio_mem_align) as usize)
}

fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    let (Ok(at), Ok(len)) = (position(offset), position(len)) else {
        return;
    };
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed. It is
    // advice, whose errors do not matter.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), at, len, advice) };
}

/// Turns the kernel's read-ahead off: it would cache bytes that were not asked for.
pub(crate) fn expect_random(file: &File) {
    advise(file, 0, 0, libc::POSIX_FADV_RANDOM);
}

/// Drops the clean pages of a range from the kernel's cache; `len` 0 means to the end.
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

/// Begins to write a range out, without waiting; `len` 0 means to the end. Durability needs a sync.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) -> io::Result<()> {
    sync_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes a range out and waits for it; `len` 0 means to the end. Durability needs a sync.
pub(crate) fn wait_writeback(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, offset, len, flags)
}

/// Makes a hole of `len` > 0 bytes; `Unsupported` where the file system has none.
pub(crate) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (fd, at, len) = (file.as_raw_fd(), position(offset)?, position(len)?);
    loop {
        // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
        match check(unsafe { libc::fallocate(fd, mode, at, len) } as libc::ssize_t) {
            Ok(_) => return Ok(()),
            // A signal's handler ran in the middle.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Moves the cursor, which nothing uses; `None` past the last byte of the kind.
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

/// The first offset at or after `offset` with data; `None` when there is none.
pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, libc::SEEK_DATA)
}

/// The first offset at or after `offset` in a hole, the end counting as one; `None` past the end.
pub(crate) fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, libc::SEEK_HOLE)
}

/// Bytes of `file` in the page cache, in whole host pages.
pub(crate) fn cached_bytes(file: &File) -> io::Result<u64> {
    match cachestat(file.as_raw_fd()) {
        Err(error) if is_missing(&error, || cachestat(NO_FILE)) => mincore(file),
        pages => Ok(pages? * host_page()?),
    }
}

/// No descriptor can have this number.
const NO_FILE: RawFd = -1;

/// Whether `error` means that cachestat(2) is not available. A filter of system calls may refuse
/// it by EPERM; so does the kernel, of a file that we may not write (of which mincore(2) would say
/// that all of it is there). Without a file, the kernel says something else.
fn is_missing(error: &io::Error, without_file: impl FnOnce() -> io::Result<u64>) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => true,
        Some(libc::EPERM) => {
            without_file().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
        }
        _ => false,
    }
}

fn host_page() -> io::Result<u64> {
    // SAFETY: no memory is passed.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// Host pages in the page cache, by cachestat(2).
fn cachestat(fd: RawFd) -> io::Result<u64> {
    // struct cachestat_range { off, len }, where len 0 means to the end; struct cachestat begins
    // with the number of cached pages and has five words.
    let range = [0u64; 2];
    let mut answer = [0u64; 5];
    // SAFETY: the kernel reads two words from `range` and writes five to `answer`; both live here.
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

/// Bytes in the page cache, by mapping the file and asking mincore(2).
fn mincore(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(0);
    }
    let page = host_page()?;
    let mut resident = vec![0u8; len.div_ceil(page as usize)];
    let (prot, flags, fd) = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `at` is the mapping of `len` bytes made above, and `resident` has a byte for each of
    // its pages. Its memory is never touched, so that a file cut short meanwhile does no harm.
    let result = unsafe { libc::mincore(at, len, resident.as_mut_ptr()) };
    let result = check(result as libc::ssize_t);
    // SAFETY: the mapping was made above and nothing points into it.
    unsafe { libc::munmap(at, len) };
    result?;
    Ok(resident.iter().filter(|&&state| state & 1 != 0).count() as u64 * page)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const LEN: u64 = 1 << 20;

    /// Other users of the page cache, need of memory above all, can interfere once.
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
        // SAFETY: the call has filled it.
        let kind = unsafe { about.assume_init() }.f_type;
        [libc::TMPFS_MAGIC as _, RAMFS_MAGIC as _].contains(&kind)
    }

    #[test]
    fn cachestat_and_mincore_agree() {
        // The page cache has everything of a file in memory that is not in swap, from where a read
        // brings it back.
        let file = crate::sys::shared::sealed_memory(c"cached", LEN).unwrap();
        file.write_all_at(&vec![7; LEN as usize], 0).unwrap();
        let agree = || {
            read_all(&file);
            let by_cachestat = match cachestat(file.as_raw_fd()) {
                Ok(pages) => pages * host_page().unwrap(),
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
        // Where files are kept in memory, the cache is the file itself.
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
        // The kernel's answer, if it is asked.
        let alone = cachestat(NO_FILE).unwrap_err().raw_os_error();
        let known = [libc::EBADF, libc::ENOSYS, libc::EPERM];
        assert!(known.map(Some).contains(&alone), "{alone:?}");
    }
}
