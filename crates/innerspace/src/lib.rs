//! mmap with a hard limit, errors instead of SIGBUS, and a fork in microseconds. Over any store, in
//! safe Rust.
//!
//! A [`Memory`] is a memory manager of your own, inside the process: page frames, a page cache,
//! groups with limits, address spaces with faults and copy-on-write, and reclaim.
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
//! let head: View = file.view(0..4096)?;              // &[u8] for as long as you like, whatever happens to the file
//! assert_eq!(head[100], 7);
//!
//! let space = memory.space()?;
//! let at = space.map(Map::file(&file).private().writable())?;
//! let mut a = space.accessor();
//! let x: u64 = a.load(at)?;                          // a failure is an error value, never a signal
//! a.store(at + 8, x + 1)?;                           // copy-on-write: the file keeps its bytes
//! let child = space.fork()?;                         // the same bytes, its own from here on
//! a.store(at + 8, 0_u64)?;
//! assert_eq!(child.accessor().load::<u64>(at + 8)?, x + 1);
//! # Ok(()) }
//! ```
//!
//! # Caveats
//!
//! - **An address is a number.** What a mapping shows is reached through an [`Accessor`], not
//!   through pointers, and not by other processes, foreign code or system calls. Each access costs
//!   a translation. Files that fit in memory on a machine of your own are read faster through mmap.
//! - **The limit is on what a `Memory` uses**: file contents, anonymous pages, page tables, index
//!   nodes, metadata. It is not a limit on the process, and small bookkeeping on the heap (lists of
//!   mappings, of dirty blocks, of waiting futures; tens of bytes each) is outside it, as are the
//!   bytes of a [`MemoryStore`](store::MemoryStore).
//! - **There is no swap.** Anonymous memory and private copies stay until they are unmapped, and
//!   file blocks while they are viewed. When nothing else is left to evict, an operation that needs
//!   memory fails with a [`LimitError`], or a [`Fault`] that is one.
//! - **A [`View`] keeps its whole block in memory.** Over several blocks it is a copy, of at most 2
//!   MiB. A write to a viewed block copies the block: long views on what is written often cost
//!   memory.
//! - **Dropping a file writes back, but makes nothing durable**, and a failure then is heard only
//!   by [`Memory::take_errors`]. Call [`PagedFile::sync_all`], and look at its result. A write that
//!   failed stays dirty and is tried again by the next sync; each handle hears of each failure
//!   once.
//! - **Only views stand still.** [`PagedFile::read_at`], the copying that makes a view over several
//!   blocks, and loads run beside writes of other threads and may see part of one. Loads and stores
//!   of up to 8 bytes at addresses that are multiples of their size are whole.
//! - **A file that others change** is not followed. What is cached stays as it was read; what is
//!   not gives an error that says shrunk or changed. [`PagedFile::invalidate`] looks anew. The lock
//!   that keeps other processes from a writable file is advisory.
//! - **A direct access file over a host file can end the process**: another process that cuts the
//!   host file short takes its bytes from under our mapping, and the next access there is a SIGBUS.
//!   [`OnShrink::Error`] makes it an error, for a system call an access. A [`DaxDevice`] of memory
//!   or memfd cannot be cut. A store on a full disk is an error, but for file systems that copy on
//!   write, and pages that were stored to, written out and read in again by somebody else since:
//!   there it can be a SIGBUS, too.
//! - **A file larger than `ulimit -f` allows** is a signal of the kernel's, SIGXFSZ, to whoever
//!   writes it, and ends the process. Ignore that signal, and it is an error of the write.
//! - **Files bypass the kernel's page cache**, as far as the file system lets them. So a second run
//!   of the program reads the disk again; [`store::CacheMode`] has the other choices.
//! - **A [`Session`] makes others wait.** Eviction, unmap, fork and truncation wait for its next
//!   access or its end. Do not block in one.
//! - **A dropped fork parent can stay charged** in part: what its children still share is freed
//!   with the last of them.
//! - **Not across fork(2).** The child process has neither the memory nor its threads; use a
//!   `Memory` only in the process that made it. In the child its calls are errors
//!   ([`FileError::OtherProcess`] and its like), what it drops stays as it is, and nothing is
//!   written to a file. A view, pin or coalesced translation from before the fork reads as zeros
//!   there.
//! - **An error about a full group is cheap to meet and dear to make**: it counts who holds the
//!   memory. Do not poll with it.
//! - Tested on x86-64 Linux. On aarch64 Linux, macOS, Windows and wasm32 the library is compiled,
//!   not tested.
//!
//! # The parts
//!
//! | to | use |
//! |---|---|
//! | set the limit, and who does the background work | [`Memory`], [`MemoryOptions`], [`Threads`] |
//! | share it out among tenants | [`Group`]: a tree; a scan in one evicts nothing of another |
//! | read and write a file | [`PagedFile`]: [`view`](PagedFile::view), [`scan`](PagedFile::scan), [`array`](PagedFile::array), [`read_at`](PagedFile::read_at), [`block_reader`](PagedFile::block_reader), [`write_at`](PagedFile::write_at), [`cursor`](PagedFile::cursor) |
//! | never wait | the `try_` forms, and [`PagedFile::ready`], a future that needs no runtime |
//! | decide when blocks are written | [`WriteOrder`], [`PagedFile::set_barrier`], [`PagedFile::release_through`], the `sync_` calls |
//! | map bytes that are addressable themselves | [`DaxFile`] on a [`DaxDevice`], and [`Map::direct`] |
//! | keep bytes elsewhere | [`store::Store`]: two methods to read, and a few more to write |
//! | have address spaces | [`Space`] and [`Map`]; an [`Accessor`] for each thread, a [`Session`] for a run of accesses |
//! | copy one in microseconds | [`Space::fork`] |
//! | keep one as it was, go back to it, see what has changed | [`Space::freeze`], [`Space::restore`], [`Space::changed_since`], [`Snapshot`] |
//! | hand pages of one to a device or a system call | [`Space::pin`], [`Pinned`] |
//! | understand a failed access | [`Fault`], 8 bytes and `Copy`; [`Accessor::explain`] says all about it |
//! | see what is going on | [`Memory::stats`], [`Group::stats`], [`PagedFile::stats`], [`Space::stats`]: structs that print themselves |
//!
//! Below them, in layers that import downwards only: `space`, `dax`, `cache`, `store`, `reclaim`,
//! `group`, `frame`, `sync` and `sys`. `ARCHITECTURE.md` in the repository has the way through
//! them; each module's page has its rules.
//!
//! # Sizes
//!
//! | | at least | at most |
//! |---|---|---|
//! | limit of a memory | 256 KiB ([`MINIMUM_LIMIT`]) | what the machine or the container has |
//! | limit of a group | 8 pages, and 2 for each accessor (at least one is assumed) | its parent's limit holds too |
//! | groups | | 65,536, nested 8 deep ([`MAX_DEPTH`]) |
//! | block of a file | 4 KiB, the default | 2 MiB, a power of two |
//! | file | | 2^63 - 1 bytes |
//! | address | 4 KiB, so that null stays an error; page 0 when asked for | 2^48 - 1, or 2^32 - 1 ([`AddressWidth`]) |
//!
//! Pages are 4 KiB, whatever the host's are. A group has to hold a block of its files several times
//! over to work well with them.
//!
//! # Features
//!
//! None is on by default.
//!
//! - `test-util`: `store::FaultyStore`, a store that fails, hangs, tears, loses and rots on order.
//! - `serde`: `Serialize` for the structs of counters.
//! - `layout`: where an accessor keeps its translations, for programs that generate code
//!   (`TranslationLayout`).
//! - `zerocopy_0_8`: loads and stores of a program's own types, by the traits of `zerocopy` 0.8.
#![warn(missing_docs)]

#[cfg(not(loom))]
mod cache;
mod dax;
mod exec;
mod frame;
mod group;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
pub mod store;
mod sync;
mod sys;
#[cfg(all(feature = "tables", not(loom)))]
#[doc(hidden)]
pub mod tables;
mod units;

#[cfg(not(loom))]
pub use cache::{
    Array, BlockReader, Cursor, Element, FileAccess, FileError, FileStats, HeldReason, Later,
    LaterCalls, PagedFile, Ready, StoreAction, TimedOut, View, WriteOrder,
};
#[cfg(not(loom))]
pub use dax::{
    DaxAction, DaxDevice, DaxError, DaxFeature, DaxFile, DaxPin, DaxStats, Durability, HoleWrites,
    LaterDaxCalls, OnShrink, PinHolder,
};
#[cfg(not(loom))]
pub use group::{
    Group, GroupError, GroupEvents, GroupStats, GroupWatch, Holders, LimitDetails, LimitError,
    LimitReason, MAX_DEPTH, Pressure,
};
#[cfg(not(loom))]
pub use memory::{
    DirectOpener, FileOpener, Limit, LimitParts, MINIMUM_LIMIT, Memory, MemoryError, MemoryOptions,
    MemoryStats, OpenError, Threads,
};
#[cfg(not(loom))]
pub use reclaim::{EvictionPolicy, MissCurve};
#[cfg(all(feature = "layout", not(any(loom, shuttle))))]
pub use space::TranslationLayout;
#[cfg(not(loom))]
pub use space::{
    AccessKind, Accessor, AddressWidth, Advice, AtFork, CodePage, Device, DeviceError, Explanation,
    Fault, FaultKind, LaterSpaceCalls, Map, MappingInfo, MappingKind, PageStats, PageView, Pinned,
    Protection, Region, Remap, Session, Sharing, Snapshot, SnapshotFileError, Space, SpaceError,
    SpaceOptions, SpaceReady, SpaceStats, VmaLookups,
};
#[cfg(not(loom))]
pub use stats::Totals;
#[cfg(not(loom))]
pub use sys::copy::{AtomicScalar, Scalar};
pub(crate) use units::FrameId;
pub use units::{ByteSize, GIB, Grouped, KIB, MIB, PAGE_SHIFT, PAGE_SIZE, PageCount, VirtAddr};

/// The example of README.md, compiled with the documented examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
