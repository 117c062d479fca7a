//! Platform primitives: the only place for system calls, assembly and code for one processor.
//!
//! Each primitive stands next to a portable form that needs nothing but std. Both pass the same
//! tests:
//!
//! | module | x86-64 Linux | portable |
//! |---|---|---|
//! | [`barrier`] | compiler fence / membarrier(2) | `SeqCst` fence on both sides |
//! | [`copy`] | moves of a cache line, string instructions, plain moves | relaxed atomic words |
//! | `file` | uncached I/O, holes, the holder of a lock | positioned I/O of std |
//! | `flush` | clwb, clflushopt, clflush | nothing, and says so |
//! | [`memory`] | mmap(2), madvise(2), /proc, control groups | the allocator; /proc if present |
//! | `process` | getpid(2), once a process | getpid(2) each time; without Unix a constant |
//! | `ring` | io_uring(7), with the feature `io-uring` | none: a system call for each transfer |
//! | `shared` | shared mappings, memfd_create(2), fallocate(2) | unsupported |
//!
//! The portable forms are used on other platforms, under the model checkers and Miri, and with
//! `--cfg portable`. The build for ThreadSanitizer passes that flag, because the tool sees neither
//! assembly nor lone fences.
//!
//! Locking: only `ring` has mutexes. Neighbours: `sync` provides the atomics. This layer does not
//! know of frames, cached files or spaces.

pub(crate) mod barrier;
#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod calls;
#[cfg(not(loom))]
pub(crate) mod copy;
#[cfg(not(loom))]
pub(crate) mod file;
#[cfg(not(loom))]
pub(crate) mod flush;
#[cfg(not(loom))]
pub(crate) mod memory;
pub(crate) mod process;
#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
))]
pub(crate) mod ring;
#[cfg(not(loom))]
pub(crate) mod shared;

/// Keeps the compiler from merging the end of this path with that of another path that does the
/// same with other addresses. If they were merged, both would compute their addresses in full, and
/// one of them would jump to the other. Emits no instruction.
#[inline(always)]
pub(crate) fn stay_apart() {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    // SAFETY: the assembly contains no instruction.
    unsafe {
        std::arch::asm!("", options(readonly, nostack, preserves_flags));
    }
}

/// Merges buffers that are adjacent in memory.
#[cfg(all(target_os = "linux", not(any(loom, miri))))]
fn join_iovecs(iovecs: &mut Vec<libc::iovec>) {
    iovecs.dedup_by(|next, last| {
        let follows = last.iov_base.addr() + last.iov_len == next.iov_base.addr();
        if follows {
            last.iov_len += next.iov_len;
        }
        follows
    });
}
