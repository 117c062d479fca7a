//! The kernel's means for the same tasks: mmap, madvise, fork, and its figures about memory.
//!
//! This is the only module with `unsafe`, which the contenders require. If a system lacks a call,
//! the function returns an error or `None`, and the tour reports that this was not measured.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Duration;

#[cfg(all(feature = "sqlite", unix))]
pub(crate) use self::unix::raise_file_limit;
#[cfg(unix)]
pub(crate) use self::unix::{
    Mapping, drop_cache, fork_and_write, have_large_files_refused, leave_no_core, signal_of,
};

/// Returns the greatest amount of physical memory that this process has used, in bytes (VmHWM).
/// Linux only.
pub(crate) fn peak_resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(unix)]
mod unix {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::ptr;
    use std::time::Instant;

    use super::*;

    /// A file mapped read-only by mmap(2).
    #[derive(Debug)]
    pub(crate) struct Mapping {
        start: *mut libc::c_void,
        len: usize,
    }

    impl Mapping {
        /// Maps the first `len` bytes of a file.
        pub(crate) fn new(file: &File, len: u64) -> io::Result<Mapping> {
            let len = usize::try_from(len).map_err(io::Error::other)?;
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            // SAFETY: the kernel chooses the address, so nothing that is mapped is replaced; the
            // file is open.
            let start =
                unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            Ok(Mapping { start, len })
        }

        /// Returns the bytes of a range. An access past the end of a file that was cut short ends
        /// the process.
        pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
            assert!(range.start <= range.end && range.end <= self.len);
            // SAFETY: the range is inside the mapping, by the assertion. mmap requires of all its
            // users that nobody changes the file meanwhile, which no user can promise. This is used
            // in short-lived processes that do nothing else.
            unsafe {
                let start = self.start.cast::<u8>().add(range.start);
                std::slice::from_raw_parts(start, range.len())
            }
        }

        /// Gives the pages of a range back. `range.start` is a multiple of the page size.
        pub(crate) fn drop_pages(&self, range: Range<usize>) -> io::Result<()> {
            assert!(range.start <= range.end && range.end <= self.len);
            // SAFETY: inside the mapping, by the assertion; pages of a shared file mapping are read
            // again when used.
            let done = unsafe {
                let start = self.start.cast::<u8>().add(range.start);
                libc::madvise(start.cast(), range.len(), libc::MADV_DONTNEED)
            };
            check(done)
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: our own mapping; slices of it borrow `self`.
            unsafe { libc::munmap(self.start, self.len) };
        }
    }

    fn check(result: libc::c_int) -> io::Result<()> {
        match result {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Has the kernel forget the pages of a file that it caches, so that each contender starts from
    /// the disk.
    pub(crate) fn drop_cache(file: &File) -> io::Result<()> {
        // Data that is not yet written would stay.
        let _ = file.sync_all();
        #[cfg(target_os = "linux")]
        // SAFETY: takes a descriptor, which is open, and numbers.
        unsafe {
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        Ok(())
    }

    /// Forks this process; the child writes one byte of `memory`, reads it back and ends. Returns
    /// how long fork(2) took.
    pub(crate) fn fork_and_write(memory: &mut [u8], at: usize, value: u8) -> io::Result<Duration> {
        let before = memory[at];
        let start = Instant::now();
        // SAFETY: the child only touches memory and ends, so it needs no lock that another thread
        // might have held.
        let child = unsafe { libc::fork() };
        if child == 0 {
            memory[at] = value;
            let code = i32::from(memory[at] != value);
            // SAFETY: this ends the child; nothing of the parent's is run or flushed twice.
            unsafe { libc::_exit(code) };
        }
        let took = start.elapsed();
        check(child)?;
        let mut status = 0;
        // SAFETY: waits for our own child; `status` is valid memory.
        check(unsafe { libc::waitpid(child, &mut status, 0) })?;
        if status != 0 || memory[at] != before {
            return Err(io::Error::other(
                "a forked process did not keep its own byte",
            ));
        }
        Ok(took)
    }

    /// Ignores the signal for a file larger than `ulimit -f` allows. It would end this process and
    /// leave its folder behind; when ignored, the write fails instead.
    pub(crate) fn have_large_files_refused() {
        // SAFETY: ignores a signal for which there is no handler.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }

    /// Raises the number of files that this process may have open to the most that the system
    /// allows it, and returns that number.
    #[cfg(feature = "sqlite")]
    pub(crate) fn raise_file_limit() -> io::Result<u64> {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is valid memory.
        check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
        Ok(limit.rlim_cur)
    }

    /// Makes sure that a death by signal, which is expected, leaves no core file.
    pub(crate) fn leave_no_core() {
        #[cfg(target_os = "linux")]
        // SAFETY: the call takes numbers, and sets an attribute of this process.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        }
    }

    /// Returns the name of the signal that ended a process.
    pub(crate) fn signal_of(status: ExitStatus) -> Option<String> {
        let signal = status.signal()?;
        Some(match signal {
            libc::SIGBUS => "SIGBUS".to_owned(),
            other => format!("signal {other}"),
        })
    }
}

#[cfg(not(unix))]
pub(crate) use self::elsewhere::*;

/// Stands in where the system has nothing to compare with.
#[cfg(not(unix))]
mod elsewhere {
    use super::*;

    fn unsupported<T>() -> io::Result<T> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[derive(Debug)]
    pub(crate) struct Mapping;

    impl Mapping {
        pub(crate) fn new(_: &File, _: u64) -> io::Result<Mapping> {
            unsupported()
        }

        pub(crate) fn bytes(&self, _: Range<usize>) -> &[u8] {
            &[]
        }

        pub(crate) fn drop_pages(&self, _: Range<usize>) -> io::Result<()> {
            unsupported()
        }
    }

    pub(crate) fn drop_cache(_: &File) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn fork_and_write(_: &mut [u8], _: usize, _: u8) -> io::Result<Duration> {
        unsupported()
    }

    pub(crate) fn have_large_files_refused() {}

    pub(crate) fn leave_no_core() {}

    pub(crate) fn signal_of(_: std::process::ExitStatus) -> Option<String> {
        None
    }
}
