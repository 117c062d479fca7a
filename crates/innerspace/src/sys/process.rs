//! Which process this is: a child of fork(2) has the handles of its parent, but neither its memory nor its locks.

/// A process; of interest to what is undone by its maker alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(#[cfg(unix)] u32);

impl Process {
    /// The calling process.
    pub(crate) fn current() -> Process {
        Process(
            #[cfg(unix)]
            std::process::id(),
        )
    }

    /// Whether it is the calling process, not its parent.
    pub(crate) fn is_current(self) -> bool {
        self == Process::current()
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
pub(crate) mod tests {
    use super::*;

    /// Whether `work` says so in a child of fork(2), where it must neither allocate nor take a lock that other threads have: they are not
    /// there. The test fails if the child ends in another way.
    pub(crate) fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: what the child does is the caller's business, and it ends without a destructor of this process.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            let code = if work() { 0 } else { 1 };
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) }
        }
        let mut status = 0;
        // SAFETY: the child is ours, and the place lives as long as the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
        libc::WEXITSTATUS(status) == 0
    }

    /// In a child that has something of its own where the parent has `len` bytes at `base`, whether that survives `end`.
    pub(in crate::sys) fn keeps_what_is_there(
        base: *mut u8,
        len: usize,
        end: impl FnOnce(),
    ) -> bool {
        in_child(|| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: a new mapping, where the child has none.
            let own = unsafe { libc::mmap(base.cast(), len, rights, flags, -1, 0) };
            if own != base.cast() {
                return false;
            }
            end();
            // SAFETY: asks about a range of addresses.
            unsafe { libc::msync(own, len, libc::MS_ASYNC) == 0 }
        })
    }

    #[test]
    fn a_child_is_another_process() {
        let parent = Process::current();
        assert!(parent.is_current());
        assert!(in_child(|| !parent.is_current()));
    }
}
