//! Cached files: the bytes of stores, kept block by block in frames of the arena.
//!
//! **What it is.** A [`PagedFile`] is one store and its cache. It can be read, viewed, written,
//! mapped, cut and synced. It corresponds to an inode and its `address_space` in Linux.
//!
//! **Key types.** [`PagedFile`]: a handle. [`FileInner`]: shared by handles and mappings; dropping
//! the last one closes the file. [`FileCore`]: the file's state, in components. [`View`]: immutable
//! bytes. [`LockedBlock`]: a block for a page fault. [`Mappers`]: the upcall by which the cache
//! revokes translations. [`Cache`]: shared by the files of one memory, with the work that a service
//! thread does for them.
//!
//! - `core`: a file's state: identity, store, blocks, writes, locks, counters; the checks at the
//!   start of a call
//! - `index`, `lookup`: block number to frame; the one lookup, its flags, the guards on blocks that
//!   it finds, and batches of these
//! - `read`: bytes from the store: holes, one read per block, requests in flight, read-ahead; views
//!   and copies
//! - `write`: writes, which move viewed blocks to new frames; appends; new blocks that a write
//!   fills as a whole
//! - `dirty`: unwritten blocks and their order; writeback, syncs, repeating punches that a failed
//!   sync may have undone, backing off from a failing store
//! - `map`: page faults and fault-around; mappers; eviction
//! - `truncate`: removing parts of a file
//! - `file`, `ready`, `task`, `try_forms`, `waiting`: the public side: handle, options, typed
//!   access, `std::io`, futures, and calls that never wait
//! - `service`: the state that the files of a memory share, and the work done for all of them
//! - `errors`, `wait`: errors, and how they are reported to handles; whether a call may wait
//!
//! **States of a block.** A block is absent (the index has no word for it, or only a shadow), or in
//! the index, or kept by views alone:
//!
//! - *filling* (LOCKED): made by `create`. `end_read` makes it clean; after a failed read it is
//!   absent, and its waiters get the error or fill it again.
//! - *clean* (UPTODATE): made by `end_read`, or by a writeback that succeeded. A write or a write
//!   fault makes it dirty; eviction makes it absent, and leaves a shadow.
//! - *dirty* (UPTODATE, DIRTY): made by `mark_dirty`, or by a writer as a new block, with an entry
//!   in the dirty index. `begin_writes` makes it writing; removal makes it absent.
//! - *writing* (UPTODATE, WRITEBACK): made by `begin_writes`, and pinned by a view. A writeback
//!   that succeeds makes it clean. One that fails makes it dirty again, and sets ERROR.
//! - *viewed-only* (UPTODATE, not in the index): moved or removed while viewed. The last view frees
//!   the frame.
//!
//! A block that is in the index and not locked is up to date. A block is removed, moved or evicted
//! only under its lock, so a locked block that is in the index stays there (I7). Threads wait in
//! the wait table of `frame` for LOCKED and WRITEBACK to end.
//!
//! **Locking**, outermost first: a file's `append` (appends, changes of its length, discard,
//! invalidate) > `invalidate` (shared by fills and writes, exclusive for truncate, punch, discard,
//! invalidate: [`InvalidateGuard`](self::core::locks::InvalidateGuard)) > block locks > the mutex
//! of the index and the dirty index. An append of one new page does not take `invalidate`, but
//! checks under the mutex of the index whether another thread holds `invalidate` exclusively. The
//! mapper list, extents, fill errors, store handle, syncs and backoff each have an innermost lock.
//! Several block locks are taken in ascending order, all but the first by `try_lock`, unless
//! `invalidate` is held exclusively. Frames are allocated with no block lock held. The exception is
//! frames for blocks that are read ahead, or along with another block: allocating these never calls
//! a store. A call to the store may be made with `invalidate` held, and while blocks are locked for
//! filling or for a punch, or have WRITEBACK set. Syncs of a file run one at a time; threads that
//! wait for one hold no block lock.
//!
//! **Concurrent operations**: why each pair is safe is in `docs/protocols/pairs.md`. The test and
//! the models named `pairs` run every pair from two threads, under real and under shuttle's
//! scheduling. Pairs with stores through a mapping need a mapper, and are in the tests `mapping`.
//!
//! **Mapped holes.** A read fault on a hole maps the zero frame, so there is no block to lock. The
//! file's hole epoch takes the place of the lock (`docs/protocols/cuts.md`). A fault reads the
//! epoch before it looks up which pages are holes. In the section in which it maps them, it checks
//! that the epoch is unchanged.
//!
//! **Neighbours.** Below: `store` (bytes), `reclaim` (frames and LRU lists; it calls back through
//! `Owner`), `frame`, `group`. Above: `space` maps files and implements [`Mappers`]; the facade
//! opens files, once per store, and runs [`Cache::step`].
//!
//! **Not here.** No thread, no table that keeps a store from being opened twice, no page tables. A
//! write that failed is not retried at once: its block stays dirty for a later attempt.

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
pub use crate::store::FileAccess;
pub use dirty::index::WriteOrder;
pub(crate) use errors::{ErrorCursor, ErrorSequence};
pub use errors::{FileError, HeldReason, StoreAction};
pub use file::array::{Array, Element};
pub use file::close::CloseError;
pub use file::cursor::Cursor;
pub(crate) use file::cursor::{Positioned, positioned};
pub use file::handle::PagedFile;
pub(crate) use file::inner::FileInner;
pub(crate) use file::options::FileOptions;
pub(crate) use file::released::Released;
pub use file::stats::FileStats;
pub(crate) use index::spare_nodes::SpareNodes;
pub(crate) use map::fault::{
    FaultKind, FaultPage, Hole, LockedBlock, fault_block, has_page_in, hole_still, is_dirty_in,
};
pub(crate) use map::fault_around::FaultAround;
pub(crate) use map::mappers::{MapperId, MapperList, Mappers, Revoke};
pub(crate) use read::as_bytes::as_bytes;
pub use read::block_reader::BlockReader;
pub use read::read_ahead::Reading;
pub use read::scatter::{Chunks, ScatterView};
pub use read::view::View;
pub use ready::Ready;
pub(crate) use service::{Cache, ErrorHook};
pub use task::Task;
pub(crate) use task::call_and_drop;
pub(crate) use wait::Wait;
pub use waiting::TimedOut;
pub(crate) use waiting::wait_for;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod models;
