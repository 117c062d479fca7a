//! mmap with a hard limit, errors instead of SIGBUS, and a fork in microseconds, over any store,
//! with a safe API.
//!
//! A [`Memory`] is a memory manager of your own inside the process. It has page frames, a page
//! cache, groups with limits, address spaces with faults and copy-on-write, and reclaim. A
//! [store](store::Store) is where the bytes of a file live: a disk, object storage, or your own
//! code.
//!
//! ```
//! use innerspace::{MIB, Map, Memory, View};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.bin");
//! # std::fs::write(&path, vec![7; MIB as usize])?;
//! let memory = Memory::with_limit(64 * MIB)?;
//! let file = memory.open(&path)?;
//! let head: View = file.view(0..4096)?;    // &[u8] that never changes, even if the file does
//! assert_eq!(head[100], 7);
//!
//! let space = memory.create_space()?;
//! let at = space.map(Map::file(&file).private().writable())?;
//! let mut a = space.accessor()?;
//! let x: u64 = a.load(at)?;                // a failure is an error value, never a signal
//! a.store(at + 8, x + 1)?;                 // copy-on-write: the file keeps its bytes
//! let child = space.fork()?;               // starts with the same bytes, changes only its own
//! a.store(at + 8, 0_u64)?;
//! assert_eq!(child.accessor()?.load::<u64>(at + 8)?, x + 1);
//! # Ok(()) }
//! ```
//!
//! # Caveats
//!
//! - **An address is a number.** Only an [`Accessor`] reaches the bytes of a mapping. Pointers,
//!   other processes, foreign code and system calls do not, except for pages that are pinned
//!   ([`Space::pin`]). Each access costs a translation. If your files fit in memory and nothing
//!   else needs the machine, mmap reads them faster.
//! - **The limit covers what a `Memory` uses**: file contents, anonymous pages, page tables, index
//!   nodes, the metadata of frames, and the heap memory of handles, files, spaces and futures. It
//!   does not limit the process. The lists of dirty blocks (tens of bytes for each block) are
//!   outside the limit, and so are the bytes of a [`MemoryStore`](store::MemoryStore).
//! - **With `mlockall` a `Memory` takes several times its limit.** It reserves about four times as
//!   many addresses as it has frames. Addresses without a frame take no memory, with two
//!   exceptions: the process locks all of its memory, or the host's pages are larger than 4 KiB.
//! - **There is no swap.** Anonymous memory and private copies stay until they are unmapped, and
//!   file blocks stay while they are viewed. When nothing else is left to evict, an operation that
//!   needs memory fails with a [`LimitError`]. An access through an [`Accessor`] fails with a
//!   [`Fault`], and [`Accessor::explain`] tells you the `LimitError` behind it.
//! - **A [`View`] keeps in memory the whole of every block that it touches.** (A block is a file's
//!   unit of caching, of 4 KiB to 2 MiB.) A view of several blocks is one slice, of any length that
//!   fits in the limit. If the blocks are not contiguous in memory, the first such view moves them
//!   together. A write to a viewed block copies the block, so a view that is kept for a long time
//!   costs memory if its data is often written.
//! - **Dropping a file writes it back, but makes nothing durable.** If that write fails, only
//!   [`Memory::take_errors`] and the hook of [`Memory::set_error_hook`] report it. So call
//!   [`PagedFile::sync_all`] first, and check its result. Data whose write failed stays dirty, and
//!   the next sync tries again. Each handle reports each failure once.
//! - **Most reads may see part of a concurrent write.** This is so for [`PagedFile::read_at`], for
//!   loads, and for a view of several blocks while it is being taken. A view of one block never
//!   shows part of a write, nor do loads of up to 8 bytes at addresses that are multiples of their
//!   size. Once taken, no view changes.
//! - **If another program changes a file, cached blocks stay as they were read.** A later read of
//!   blocks that are not cached fails, and says that the file shrank or changed.
//!   ([`Store::version`](store::Store::version) says how soon, and when a change may be missed.)
//!   [`PagedFile::invalidate`] makes the cache read the file anew. The lock that keeps other
//!   processes away from a writable file is advisory.
//! - **A direct-access file over a host file can end the process.** A [`DaxFile`] is mapped with no
//!   cache in between. If another process cuts the host file short, the bytes under the mapping go
//!   away, and the next access to them raises a SIGBUS. [`OnShrink::Error`] turns that into an
//!   error, at the price of a system call per access. A [`DaxDevice`] of memory or memfd cannot be
//!   cut. On a full disk, a store through a mapping fails with an error, except in two cases, in
//!   which it raises a SIGBUS. One is a file on a copy-on-write file system. The other is a page
//!   that was stored to before, that the system then wrote out and dropped, and that another
//!   program has made the system read in again.
//! - **A write beyond `ulimit -f`** raises the kernel's SIGXFSZ, which ends the process. If you
//!   ignore that signal, the write fails with an error instead.
//! - **Files bypass the kernel's page cache**, as far as the file system lets them, so a second run
//!   of the program reads the disk again. [`store::CacheMode`] has the other choices.
//! - **An open [`Session`] makes other threads wait.** A session is a run of accesses by one
//!   thread. An unmap or fork of its space has to wait for the session's next access, or for its
//!   end. So does a sync or truncation of a file that is mapped there; eviction passes over pages
//!   that the session may hold. So do not sleep in a session, or wait in it for another thread.
//! - **Dropping a space does not free what it shares with its forks.** The space's group pays for
//!   that as long as a fork uses it.
//! - **A `Memory` does not work across fork(2).** The child process has neither the memory nor its
//!   threads; use a `Memory` only in the process that created it. In the child, calls return errors
//!   ([`FileError::OtherProcess`] and the like), dropping a handle changes nothing, and no file is
//!   written. Views and pins from before the fork(2) read as zeros there, and so do translations
//!   that generated code has kept (feature `layout`).
//! - **The error for a full group is expensive to build**, because it counts what holds the memory.
//!   Do not retry in a loop to learn when there is room; [`Group::watch`] tells you.
//! - The library is tested on x86-64 Linux. For aarch64 Linux, macOS, Windows and wasm32 it is
//!   compiled but not tested. On wasm32 there are no host files: opening one fails.
//!
//! # The parts
//!
//! - set the limit, and choose who does the background work: [`Memory`], [`MemoryBuilder`],
//!   [`Threads`]
//! - divide the limit among tenants (the users or jobs of the program) with a tree of [`Group`]s: a
//!   scan in one group evicts nothing of another. `SECURITY.md` in the repository says what a
//!   hostile tenant can do to the others, and what it cannot
//! - read and write a file: [`PagedFile`], with [`view`](PagedFile::view),
//!   [`scan`](PagedFile::scan), [`array`](PagedFile::array), [`read_at`](PagedFile::read_at),
//!   [`block_reader`](PagedFile::block_reader), [`chunks`](PagedFile::chunks),
//!   [`scatter`](PagedFile::scatter), [`write_at`](PagedFile::write_at),
//!   [`cursor`](PagedFile::cursor)
//! - never wait: the `try_` forms, and [`PagedFile::ready`], a future that works in any executor
//! - make any call in the background: [`PagedFile::defer`], [`Space::defer`] and [`DaxFile::defer`]
//!   each return a [`Task`], which is a future
//! - decide when blocks are written: [`WriteOrder`], [`PagedFile::set_barrier`],
//!   [`PagedFile::release_through`], the `sync_` calls
//! - map memory that needs no cache: a [`DaxFile`] on a [`DaxDevice`], with [`Map::dax`]
//! - keep bytes elsewhere by implementing [`store::Store`]: two methods to read, and a few more to
//!   write
//! - use address spaces: [`Space`] and [`Map`]; an [`Accessor`] for each thread, a [`Session`] for
//!   a run of accesses
//! - copy a space in microseconds: [`Space::fork`]
//! - freeze a space, restore it, see what has changed: [`Space::freeze`], [`Space::restore`],
//!   [`Space::changed_since`], [`Snapshot`]
//! - hand a space's pages to a device or a system call: [`Space::pin`], [`Pinned`]
//! - understand a failed access: [`Fault`], a `Copy` value of 8 bytes, for which
//!   [`Accessor::explain`] gives the details
//! - see what is going on: [`Memory::stats`], [`Group::stats`], [`PagedFile::stats`],
//!   [`Space::stats`]; the structs implement `Display`
//!
//! The code is in layers, and each layer imports only from those after it in this list: `memory`,
//! `space`, `dax`, `cache`, `store`, `reclaim`, `group`, `frame`, `exec`; then `stats`, `sync` and
//! `sys`, which may use each other. `ARCHITECTURE.md` in the repository shows how a call passes
//! through them; each module's page has its rules.
//!
//! # Sizes
//!
//! | | at least | at most |
//! |---|---|---|
//! | limit of a memory | 256 KiB ([`MINIMUM_LIMIT`]) | what the machine or the container has |
//! | limit of a group | 8 pages and 2 for each accessor, at least 10 | any; its parent's applies |
//! | groups | | 65,536, 8 deep ([`MAX_DEPTH`]); at most 4,096 below any group except the root |
//! | block of a file | 4 KiB, the default | 2 MiB, a power of two |
//! | file | | 2^63 - 1 bytes |
//! | address | 4 KiB; 0 on request | 2^48 - 1, or 2^32 - 1 ([`AddressWidth`]) |
//!
//! The first page of addresses is mapped only if a program asks for it, so an access to null is an
//! error.
//!
//! Pages are 4 KiB, whatever the host's page size is. A group works well only if its limit is
//! several times the block size of its files.
//!
//! # Features
//!
//! `io-uring` is on by default; the others are not.
//!
//! - `io-uring`: background reads use io_uring(7) on Linux. Without the feature, or where the
//!   kernel refuses io_uring, threads make the reads.
//! - `test-util`: `store::FaultyStore`, a store that on demand fails or hangs, tears or loses
//!   writes, or flips bits.
//! - `serde`: `Serialize` for the structs of counters.
//! - `bytes_1`: a [`View`] as `Bytes`, without a copy; a [`ScatterView`](file::ScatterView) as
//!   `Buf`.
//! - `stable_deref_trait_1`: `StableDeref` for views, for crates such as yoke and ouroboros.
//! - `tracing_0_1`: `tracing` events about memories, groups, files and lost writes.
//! - `layout`: where an accessor keeps its address translations (`TranslationLayout`), for programs
//!   that generate machine code.
//! - `zerocopy_0_8`: loads and stores of a program's own types, through the traits of `zerocopy`
//!   0.8.
//!
//! [`AddressWidth`]: space::AddressWidth
//! [`DaxDevice`]: dax::DaxDevice
//! [`Fault`]: space::Fault
//! [`FileError::OtherProcess`]: file::FileError::OtherProcess
//! [`LimitError`]: group::LimitError
//! [`MAX_DEPTH`]: group::MAX_DEPTH
//! [`OnShrink::Error`]: dax::OnShrink::Error
//! [`Pinned`]: space::Pinned
//! [`Session`]: space::Session
//! [`Snapshot`]: space::Snapshot
//! [`WriteOrder`]: file::WriteOrder

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![warn(clippy::return_self_not_must_use)]
#![cfg_attr(
    not(all(
        feature = "io-uring",
        target_os = "linux",
        target_arch = "x86_64",
        not(any(loom, shuttle, miri, portable))
    )),
    allow(
        dead_code,
        unused_imports,
        reason = "other builds have parts of the layers only"
    )
)]

#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
pub mod dax;
#[cfg(loom)]
#[path = "dax/loom.rs"]
mod dax;
#[cfg(not(loom))]
pub mod error;
mod exec;
#[cfg(not(loom))]
pub mod file;
mod frame;
#[cfg(not(loom))]
pub mod group;
#[cfg(loom)]
#[path = "group/loom.rs"]
mod group;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
pub mod space;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
pub mod store;
mod sync;
mod sys;
#[cfg(not(loom))]
mod texts;
mod units;

#[cfg(not(loom))]
pub use cache::{PagedFile, Task, TimedOut, View};
#[cfg(not(loom))]
pub use dax::DaxFile;
#[cfg(not(loom))]
pub use group::Group;
#[cfg(not(loom))]
pub use memory::{
    DaxOpener, FileOpener, Limit, LimitParts, MINIMUM_LIMIT, Memory, MemoryBuilder, MemoryError,
    MemoryStats, OpenError, Threads,
};
#[cfg(not(loom))]
pub use reclaim::{EvictionPolicy, MissCurve};
#[cfg(not(loom))]
pub use space::{Accessor, Map, Space};
#[cfg(not(loom))]
pub use stats::Totals;
pub(crate) use units::FrameId;
pub use units::{
    ByteSize, GIB, Grouped, KIB, MIB, PAGE_SHIFT, PAGE_SIZE, PageCount, ParseVirtAddrError,
    VirtAddr,
};

/// The example in README.md, compiled along with the other documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
