//! The identity of the process. A child of fork(2) has the handles of its parent, but not its
//! threads, and a lock that one of those held stays locked.
//!
//! The process ID is cached in a page of its own, which the kernel clears in a child
//! (MADV_WIPEONFORK, Linux 4.14). A check therefore costs one load. On other Unix systems each
//! check asks the system for the ID.

/// A process, for objects that work only in the process that created them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    id: u32,
    place: remembered::Place,
}

impl Process {
    /// Returns the calling process.
    pub(crate) fn current() -> Process {
        let place = remembered::place();
        Process {
            id: remembered::id(place),
            place,
        }
    }

    /// Returns whether this is the calling process. Returns false in a child of this process.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        remembered::is_current(self.id, self.place)
    }

    /// Returns the process ID.
    pub(crate) fn id(self) -> u32 {
        self.id
    }
}

/// The error for using an object in a process other than the one that created it. Holds the process
/// ID of the creator.
#[derive(Debug, thiserror::Error)]
#[error(
    "this memory belongs to the process that made it (pid {0}); a child of fork(2) cannot use it"
)]
pub(crate) struct OtherProcess(pub(crate) u32);

/// The process ID, cached in a page that the kernel clears in children.
mod remembered {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The address of the cached process ID. The value there is 0 in a child that has not asked for
    /// its ID yet.
    pub(super) type Place = &'static AtomicU32;

    /// The place that is used where pages cannot be cleared in children. It is always 0, so nothing
    /// is cached.
    static NOWHERE: AtomicU32 = AtomicU32::new(0);

    pub(super) fn place() -> Place {
        static PLACE: OnceLock<Place> = OnceLock::new();
        PLACE.get_or_init(|| cleared_page().unwrap_or(&NOWHERE))
    }

    #[inline]
    pub(super) fn is_current(process: u32, place: Place) -> bool {
        // Relaxed: every thread that finds 0 writes the same process ID.
        place.load(Ordering::Relaxed) == process || is_asked(process, place)
    }

    #[cold]
    #[inline(never)]
    fn is_asked(process: u32, place: Place) -> bool {
        id(place) == process
    }

    pub(super) fn id(place: Place) -> u32 {
        let id = match place.load(Ordering::Relaxed) {
            // A platform without processes counts as one process.
            0 if cfg!(not(unix)) => return 0,
            0 => std::process::id(),
            id => return id,
        };
        if !std::ptr::eq(place, &NOWHERE) {
            place.store(id, Ordering::Relaxed);
        }
        id
    }

    #[cfg(not(all(target_os = "linux", not(any(portable, miri, loom, shuttle)))))]
    fn cleared_page() -> Option<Place> {
        None
    }

    #[cfg(all(target_os = "linux", not(any(portable, miri, loom, shuttle))))]
    fn cleared_page() -> Option<Place> {
        use super::super::{calls, memory};
        let len = memory::host_page_size();
        let page = calls::map_private(len, libc::PROT_READ | libc::PROT_WRITE).ok()?;
        // SAFETY: the page was just made, and nothing else knows about it.
        if unsafe { calls::advise(page, len, libc::MADV_WIPEONFORK) }.is_err() {
            // SAFETY: as above; the page is not used again.
            unsafe { calls::unmap(page, len) };
            return None;
        }
        // SAFETY: the page is aligned and all zeros, and stays mapped for ever.
        Some(unsafe { AtomicU32::from_ptr(page.cast()) })
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) mod tests {
    use super::*;

    impl Process {
        /// Returns a process that is not the calling one.
        pub(crate) fn another() -> Process {
            let current = Process::current();
            Process {
                id: current.id ^ 1,
                ..current
            }
        }
    }

    /// Runs `work` in a child of fork(2) and returns its result. `work` must neither allocate nor
    /// take a lock that another thread may hold, because the child has no other threads. The test
    /// fails if a signal ends the child.
    pub(crate) fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the caller answers for the child's actions. The child ends without running a
        // destructor of this process.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            let code = if work() { 0 } else { 1 };
            // SAFETY: the call ends the process.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: the child is ours, and the status lives as long as the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
        libc::WEXITSTATUS(status) == 0
    }

    /// Checks that `end` unmaps nothing in a child. The child first maps memory of its own where
    /// the parent has `len` bytes at `base`; returns whether that memory survives `end`.
    pub(in crate::sys) fn keeps_what_is_there(
        base: *mut u8,
        len: usize,
        end: impl FnOnce(),
    ) -> bool {
        in_child(|| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping, at an address where the child has none.
            let own = unsafe { libc::mmap(base.cast(), len, rights, flags, -1, 0) };
            if own != base.cast() {
                return false;
            }
            end();
            // SAFETY: the call only asks about a range of addresses.
            unsafe { libc::msync(own, len, libc::MS_ASYNC) == 0 }
        })
    }

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        assert!(parent.is_current());
        assert!(in_child(|| {
            let child = Process::current();
            // The answers must be right although the parent's number was cached before the fork.
            !parent.is_current() && child.is_current() && child.id() == std::process::id()
        }));
        assert!(parent.is_current());
    }
}
