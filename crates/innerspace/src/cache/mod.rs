//! Cached files: the bytes of a store, in blocks, in frames of the arena.
//!
//! **What it is.** A [`PagedFile`] is one store with a cache of its own: read, viewed, written,
//! mapped, cut, synced. It is to this library what inode and address space are to a kernel.
//!
//! **Key types.** [`PagedFile`]: a handle. [`FileInner`]: shared by handles and mappings; the last
//! one closes the file. [`FileCore`]: its state, in components. [`View`]: immutable bytes.
//! [`LockedBlock`]: a block for a page fault. [`Mappers`]: how the cache takes translations away.
//! [`Cache`]: shared by the files of one memory, with the work that a service thread does for them.
//!
//! - `core`: a file's state: identity, store, blocks, writes, locks, counters; the checks at the
//!   start of a call
//! - `index`, `lookup`: block number to frame; the one lookup, its flags, guards on what it finds,
//!   and batches of them
//! - `read`: from the store: holes, one read per block, requests in flight, read-ahead; views and
//!   copies
//! - `write`: writers that move away from views, appends, new blocks made whole
//! - `dirty`: unwritten blocks and their order; writing them back, syncs, punches to repeat,
//!   backing off from a failing store
//! - `map`: page faults and fault-around; mappers; eviction
//! - `truncate`: taking parts of a file away
//! - `file`, `ready`, `task`, `try_forms`, `waiting`: the public side: handle, choices, typed
//!   access, `std::io`, futures, and calls that never wait
//! - `service`: state that the files of a memory share; the work done for them
//! - `errors`: errors, and how handles hear of them
//!
//! **States of a block.** It is absent (no word in the index, or a shadow), or in the index, or
//! kept by views alone:
//!
//! - *filling* (LOCKED): made by `create`. `end_read` makes it clean; after a failed read it is
//!   absent, and every waiter gets the error.
//! - *clean* (UPTODATE): made by `end_read`, or a write that ended well. A write or a write fault
//!   makes it dirty; eviction makes it absent, and leaves a shadow.
//! - *dirty* (UPTODATE, DIRTY): made by `mark_dirty`, with an entry in the dirty index.
//!   `begin_writes` makes it writing; removal makes it absent.
//! - *writing* (UPTODATE, WRITEBACK): made by `begin_writes`, and pinned by a view. The store's
//!   answer makes it clean, or dirty and ERROR again.
//! - *viewed-only* (UPTODATE, not in the index): moved or removed while viewed. The last view frees
//!   the frame.
//!
//! A block in the index that is not locked is up to date. A block is removed, moved or evicted
//! under its lock, so a locked block that is in the index stays there (I7). LOCKED and WRITEBACK
//! are waited for in the wait table of `frame`.
//!
//! **Locking**, outermost first: a file's `append` (appends, changes of its length) > `invalidate`
//! (shared by fills and writes, exclusive for truncate, punch, discard, invalidate:
//! [`InvalidateGuard`](self::core::locks::InvalidateGuard); an append in one step checks under the
//! mutex of the index whether it is held) > block locks > the mutex of the index and the dirty
//! index; and, each a leaf within this layer: mapper list, extents, fill errors, store slot, syncs,
//! backoff. Several block locks at once are taken in ascending order, all but the first by
//! `try_lock`, or under `invalidate` exclusive. Frames are allocated with no block lock held, those
//! of read-ahead excepted, which do not wait. The store is called with the locks of blocks being
//! filled, or WRITEBACK bits, and `invalidate`. One sync of a file runs at a time; its waiters hold
//! no block lock.
//!
//! **Operations side by side**: what makes each pair safe is in `docs/protocols/pairs.md`. `pairs`
//! runs every one of them from two threads, under real and under shuttle's scheduling; `mapping`
//! has those with stores through a mapping, which need a mapper.
//!
//! **Mapped holes.** A read fault on a hole maps the zero frame, for which there is no block to
//! lock. The file's hole epoch takes the place of the lock (`docs/protocols/cuts.md`). The fault is
//! given it with those of the page's neighbours that are holes as well, and compares it in the
//! section in which it installs them.
//!
//! **Neighbours.** Below: `store` (bytes), `reclaim` (frames and lists; it calls back through
//! `Owner`), `frame`, `group`. Above: `space` maps files and implements [`Mappers`]; the facade
//! opens files, once per store, and runs [`Cache::step`].
//!
//! **Not here.** No thread, no registry of open files, no page tables, no retry of a failed write
//! beyond keeping it dirty.

mod core;
mod dirty;
mod errors;
mod file;
pub(crate) mod index;
mod lookup;
mod map;
mod read;
mod ready;
mod service;
mod task;
mod truncate;
mod try_forms;
mod wait;
mod waiting;
mod write;

pub(crate) use self::core::FileCore;
pub(crate) use self::core::gate::with_room;
pub(crate) use self::core::store_probe::StoreProbe;
pub use dirty::index::WriteOrder;
pub(crate) use errors::{ErrorCursor, ErrorSequence};
pub use errors::{FileError, HeldReason, StoreAction};
pub use file::array::{Array, Element};
pub(crate) use file::closing::Released;
pub use file::cursor::Cursor;
pub(crate) use file::cursor::Positioned;
pub(crate) use file::handle::FileInner;
pub use file::handle::{CloseError, PagedFile};
pub use file::options::FileAccess;
pub(crate) use file::options::FileOptions;
pub use file::stats::FileStats;
pub(crate) use index::spare_nodes::SpareNodes;
pub(crate) use map::fault::{FaultKind, FaultPage, Hole, LockedBlock};
pub(crate) use map::fault_around::FaultAround;
pub(crate) use map::mappers::{MapperId, MapperList, Mappers, Revoke};
pub use read::block_reader::BlockReader;
pub(crate) use read::read_ahead::Reading;
pub use read::scatter::{Chunks, ScatterView};
pub use read::view::View;
pub use ready::Ready;
pub(crate) use service::{Cache, ErrorHook};
pub use task::Task;
pub(crate) use wait::Wait;
pub use waiting::TimedOut;
pub(crate) use waiting::wait_for;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod models;
