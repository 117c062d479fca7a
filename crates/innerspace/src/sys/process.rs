//! The identity of the process. A child of fork(2) has the handles of its parent, but neither its
//! threads nor its locks.
//!
//! The number of the process is kept in a page of its own, which the kernel clears in a child
//! (MADV_WIPEONFORK, Linux 4.14). A check therefore costs one load. On other systems it is a system
//! call.

/// A process, for objects that work only in the process that made them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns the calling process.
    #[inline]
    pub(crate) fn current() -> Process {
        Process(remembered::id())
    }

    /// Returns whether this is the calling process. False in a child of it.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self == Process::current()
    }

    /// Returns the system's number for the process.
    pub(crate) fn id(self) -> u32 {
        self.0
    }
}

/// The error for a process that uses objects of the process with this number.
#[derive(Debug, thiserror::Error)]
#[error(
    "this memory belongs to the process that made it (pid {0}); a child of fork(2) cannot use it"
)]
pub(crate) struct OtherProcess(pub(crate) u32);

#[cfg(all(target_os = "linux", not(any(portable, miri, loom, shuttle))))]
mod remembered {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The page with the number, which is 0 in a child that has not asked yet. `None` if the kernel
    /// cannot clear pages in children.
    static PLACE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

    #[inline]
    pub(super) fn id() -> u32 {
        let Some(place) = *PLACE.get_or_init(place) else {
            return std::process::id();
        };
        // Relaxed: every thread that finds 0 writes the same number.
        match place.load(Ordering::Relaxed) {
            0 => ask(place),
            id => id,
        }
    }

    #[cold]
    fn ask(place: &AtomicU32) -> u32 {
        let id = std::process::id();
        place.store(id, Ordering::Relaxed);
        id
    }

    fn place() -> Option<&'static AtomicU32> {
        let len = super::super::memory::host_page_size();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the page was just made, and nothing else knows about it.
        if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: as above; the page is not used again.
            unsafe { libc::munmap(page, len) };
            return None;
        }
        // SAFETY: the page is aligned and all zeros, and stays mapped for ever.
        Some(unsafe { AtomicU32::from_ptr(page.cast()) })
    }
}

#[cfg(not(all(target_os = "linux", not(any(portable, miri, loom, shuttle)))))]
mod remembered {
    /// Returns the system's number for the process. A platform without processes counts as one
    /// process.
    pub(super) fn id() -> u32 {
        match cfg!(unix) {
            true => std::process::id(),
            false => 0,
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) mod tests {
    use super::*;

    /// Runs `work` in a child of fork(2) and returns its result. `work` must neither allocate nor
    /// take a lock that another thread may hold, because the child has no other threads. The test
    /// fails if the child ends in any other way.
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
            // The result must be the same although the number was remembered before the fork.
            !parent.is_current() && child.is_current() && child.id() == std::process::id()
        }));
        assert!(parent.is_current());
    }
}
