//! Files as `FileStore` needs them: positioned I/O that leaves nothing in the kernel's page cache,
//! holes, the pages that the kernel still caches, and the process that holds a lock.
//!
//! | primitive | Linux | elsewhere |
//! |---|---|---|
//! | uncached I/O | `preadv2`, `pwritev2` with `RWF_DONTCACHE` (6.14) | `F_NOCACHE` on macOS |
//! | direct I/O | `O_DIRECT`, alignment from `statx` | none |
//! | drop after use | `sync_file_range`, `posix_fadvise` | none |
//! | holes | `SEEK_DATA`, `SEEK_HOLE`, `fallocate` | none: all is data, a punch writes zeros |
//! | identity | device and inode number | Unix: the same; Windows: unknown |
//! | the holder of a lock | `/proc/locks`, of our PID namespace | unknown |
//! | cached pages | `cachestat` (6.5), else `mincore` | unsupported |
//!
//! On Windows positioned I/O moves the file's cursor, which no code here uses.

#[cfg(all(target_os = "linux", not(miri)))]
#[path = "file_linux.rs"]
mod platform;
#[cfg(not(all(target_os = "linux", not(miri))))]
#[path = "file_portable.rs"]
mod platform;

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::Path;

#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use platform::fallocate;
pub(crate) use platform::{
    CAN_DROP, cached_bytes, direct_alignment, drop_cached, enable_dontcache, expect_random,
    next_data, next_hole, open_direct, punch, read_at, read_vectored_at, start_writeback,
    wait_writeback, write_at, write_vectored_at,
};

/// Returns an error with the same error number, or else the same kind: `io::Error` has no `Clone`.
pub(crate) fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}

/// The bytes of a read or write that may stay in the kernel's page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// Whichever bytes the kernel chooses.
    Cached,
    /// No bytes. Allowed only after [`enable_dontcache`] has said that this works.
    Nothing,
}

/// Sets flags so that an open never waits for the other end of a FIFO and never acquires a
/// terminal.
#[cfg(unix)]
pub(crate) fn without_waiting(options: &mut std::fs::OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
}

/// The properties of an open descriptor that matter to positioned I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedFor {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Whether writes go to the end of the file, whatever their offset (`O_APPEND`).
    pub(crate) appends: bool,
    /// Whether only aligned transfers work.
    pub(crate) direct: bool,
}

/// Returns how a descriptor was opened.
#[cfg(all(unix, not(miri)))]
pub(crate) fn opened_for(file: &File) -> io::Result<OpenedFor> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed; the descriptor is open as long as `file` is borrowed.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let access = flags & libc::O_ACCMODE;
    #[cfg(target_os = "linux")]
    let direct = flags & libc::O_DIRECT != 0;
    #[cfg(not(target_os = "linux"))]
    let direct = false;
    Ok(OpenedFor {
        reads: access != libc::O_WRONLY,
        writes: access != libc::O_RDONLY,
        appends: flags & libc::O_APPEND != 0,
        direct,
    })
}

/// Returns that everything is allowed, because this system does not say how a descriptor was
/// opened. A transfer that is not permitted then fails.
#[cfg(not(all(unix, not(miri))))]
pub(crate) fn opened_for(_: &File) -> io::Result<OpenedFor> {
    Ok(OpenedFor {
        reads: true,
        writes: true,
        appends: false,
        direct: false,
    })
}

/// Returns a path that opens the same file again, whatever the file's own path names by now.
#[cfg(target_os = "linux")]
pub(crate) fn path_again(file: &File) -> Option<std::path::PathBuf> {
    use std::os::fd::AsRawFd;
    Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
}

/// Returns `None`, because this system has no path that names an open file.
#[cfg(not(target_os = "linux"))]
pub(crate) fn path_again(_: &File) -> Option<std::path::PathBuf> {
    None
}

/// Returns the present path of the file, if the system knows it. For a file that was deleted, the
/// system appends ` (deleted)`.
pub(crate) fn path_of(file: &File) -> Option<std::path::PathBuf> {
    std::fs::read_link(path_again(file)?).ok()
}

/// Does nothing, because this system has no FIFOs and no controlling terminals.
#[cfg(not(unix))]
pub(crate) fn without_waiting(_: &mut std::fs::OpenOptions) {}

/// Returns the device and inode numbers, which are equal for two names of one file.
#[cfg(unix)]
pub(crate) fn identity(metadata: &Metadata) -> Option<[u64; 2]> {
    use std::os::unix::fs::MetadataExt;
    Some([metadata.dev(), metadata.ino()])
}

/// Returns `None`, because std gives no device and inode numbers on this system.
#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> Option<[u64; 2]> {
    None
}

/// Returns the size in bytes of the blocks that the file system prefers for I/O, where it is known.
/// Such a block is one or several of the file system's own.
#[cfg(unix)]
pub(crate) fn block_size(metadata: &Metadata) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    Some(metadata.blksize())
}

/// Returns `None`, because std does not give the block size on this system.
#[cfg(not(unix))]
pub(crate) fn block_size(_: &Metadata) -> Option<u64> {
    None
}

/// Names the kind of a file that is neither regular nor a directory, for messages.
#[cfg(unix)]
pub(crate) fn special_kind(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        () if kind.is_fifo() => "FIFO",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "character device",
        () if kind.is_block_device() => "block device",
        () => "special file",
    }
}

/// Names the kind of a file that is neither regular nor a directory, for messages.
#[cfg(not(unix))]
pub(crate) fn special_kind(_: FileType) -> &'static str {
    "special file"
}

/// Returns whether an error number means that the device failed, and not the request.
pub(crate) fn is_device_error(number: i32) -> bool {
    #[cfg(unix)]
    return matches!(number, libc::EIO | libc::ENXIO | libc::ENODEV | libc::EBADMSG)
        // EUCLEAN and EREMOTEIO, which other systems do not have.
        || (cfg!(target_os = "linux") && matches!(number, 117 | 121));
    // ERROR_NOT_READY, ERROR_CRC, ERROR_GEN_FAILURE, ERROR_IO_DEVICE, ERROR_DISK_OPERATION_FAILED.
    #[cfg(windows)]
    return matches!(number, 21 | 23 | 31 | 1117 | 1127);
    #[cfg(not(any(unix, windows)))]
    {
        let _ = number;
        false
    }
}

/// Returns the ID of the process that holds a `flock` on the file with this device and inode
/// number, if the system reports it. It does not for a process outside our PID namespace, or on
/// file systems whose locks have a device number other than the one that `stat` returns (btrfs).
pub(crate) fn lock_holder(identity: [u64; 2]) -> Option<u32> {
    lock_holder_by(Path::new("/proc"), identity)
}

/// Does what [`lock_holder`] does, with the proc file system mounted at `proc`. The process IDs
/// there are those of the PID namespace for which it was mounted, which may differ from ours. The
/// answer is trusted only if `proc` knows this process by our own ID.
///
/// The kernel returns the list in pieces, and finds its place again by line number. If a lock is
/// released between two pieces, a line is skipped. The buffer is therefore large enough to read
/// most lists in one piece, and the list is read up to `LOOKS` times.
fn lock_holder_by(proc: &Path, identity: [u64; 2]) -> Option<u32> {
    const LOOKS: usize = 4;
    let called = std::fs::read_link(proc.join("self")).ok()?;
    if called != Path::new(&std::process::id().to_string()) {
        return None;
    }
    (0..LOOKS).find_map(|_| {
        let mut locks = String::with_capacity(64 << 10);
        let mut list = File::open(proc.join("locks")).ok()?;
        list.read_to_string(&mut locks).ok()?;
        holder_in(&locks, identity)
    })
}

/// Finds the holder in text such as `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
fn holder_in(locks: &str, [device, inode]: [u64; 2]) -> Option<u32> {
    // Unpacks the device number as the kernel packs it, see makedev(3).
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        // The line of a waiting process has `->` in its second column.
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, of, ..] if of == file => pid.parse().ok().filter(|&p| p > 0),
            _ => None,
        }
    })
}

/// Returns the number of bytes of the file at `path` in the kernel's page cache, in whole host
/// pages.
pub(crate) fn cached_bytes_of(path: &Path) -> io::Result<u64> {
    cached_bytes(&File::open(path)?)
}

/// Creates a folder for tests next to their executable, which is on a disk, while `/tmp` may be in
/// memory.
#[cfg(test)]
pub(crate) fn disk_dir() -> tempfile::TempDir {
    let executable = std::env::current_exe().unwrap();
    tempfile::tempdir_in(executable.parent().unwrap()).unwrap()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_among_other_locks_and_waiters() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fe:00:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 33 fe:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 44 fe:00:77 0 EOF\n\
                     4: -> FLOCK  ADVISORY  WRITE 55 fe:00:77 0 EOF\n";
        assert_eq!(holder_in(locks, [0xfe00, 77]), Some(44));
        assert_eq!(holder_in(locks, [0xfe00, 79]), None);
        let waiting_alone = "4: -> FLOCK  ADVISORY  WRITE 55 fe:00:77 0 EOF\n";
        assert_eq!(holder_in(waiting_alone, [0xfe00, 77]), None);
        let other_namespace = "4: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF\n";
        assert_eq!(holder_in(other_namespace, [0xfe00, 77]), None);
        let wide_minor = "1: FLOCK  ADVISORY  WRITE 9 00:123:5 0 EOF\n";
        assert_eq!(holder_in(wide_minor, [0x10_0023, 5]), Some(9));
    }

    #[cfg(all(unix, not(any(loom, miri))))]
    #[test]
    fn a_list_with_the_numbers_of_another_pid_namespace_is_not_believed() {
        let proc = tempfile::tempdir().unwrap();
        let (us, link) = (std::process::id(), proc.path().join("self"));
        let locks = format!("1: FLOCK  ADVISORY  WRITE {us} fe:00:77 0 EOF\n");
        std::fs::write(proc.path().join("locks"), locks).unwrap();
        let ask = || lock_holder_by(proc.path(), [0xfe00, 77]);
        assert_eq!(ask(), None, "nobody says whose numbers these are");
        std::os::unix::fs::symlink((us + 1).to_string(), &link).unwrap();
        assert_eq!(ask(), None);
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(us.to_string(), &link).unwrap();
        assert_eq!(ask(), Some(us));
    }

    #[cfg(all(unix, not(any(loom, miri))))]
    #[test]
    fn the_holder_is_found_while_other_locks_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let create = |name: String| File::create(folder.path().join(name)).unwrap();
        let held = create("held".into());
        held.try_lock().unwrap();
        let identity = identity(&held.metadata().unwrap()).unwrap();
        let Some(holder) = lock_holder(identity) else {
            return; // the system does not tell
        };
        assert_eq!(holder, std::process::id());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let others =
                            [0, 1, 2, 3, 4, 5, 6, 7].map(|n| create(format!("{thread}.{n}")));
                        // One of the files may still be locked by a child process that another test
                        // has just made.
                        others.iter().for_each(|other| drop(other.try_lock()));
                    }
                });
            }
            let missed = (0..3000)
                .filter(|_| lock_holder(identity).is_none())
                .count();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }
}
