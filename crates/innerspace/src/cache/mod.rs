//! Cached files: the bytes of a store, in blocks, in frames of the arena.
//!
//! **What it is.** A [`PagedFile`] is one store with a cache of its own: read, viewed, written,
//! mapped, cut, synced. It is to this library what inode and address space are to a kernel.
//!
//! **Key types.** [`PagedFile`]: a handle. [`FileInner`]: what handles and mappings share; the last
//! one closes the file.
//! [`FileCore`]: its state. [`View`]: immutable bytes. [`LockedBlock`]: a block for a page fault.
//! [`Mappers`]: how the cache takes translations away. [`Cache`]: what the files of one memory share, and the work a
//! service thread does for them.
//!
//! | file | what |
//! |---|---|
//! | `file`, `try_forms`, `options`, `array`, `blocks`, `cursor`, `ready`, `task`, `waiting` | the public side: handle, calls that never wait, choices, typed access, a thread's last blocks, `std::io`, futures of bytes and of calls, and waiting a while for them |
//! | `asked`, `reached`, `core`, `stats`, `service` | what a store says before it is a file, and how calls have it; a file's state; its counters; what files share, and the work done for them |
//! | `index`, `spare_nodes`, `lookup`, `block` | block number to frame, and what it is made of; the one lookup and its flags; guards |
//! | `fill`, `extents`, `stream` | from the store: one read per block, holes, read-ahead |
//! | `view`, `read`, `passing`, `write`, `append`, `new_blocks` | zero-copy and copies; reads that cache nothing; writers that move away from views; at the end of the file; blocks made whole, many at once |
//! | `dirty`, `runs`, `writeback`, `write_depth`, `trouble`, `syncs`, `errors` | what is unwritten, and its order; writing it, several runs at once, less often while that fails; making it durable; who hears of failures |
//! | `truncate`, `punched`, `steady` | taking parts away; what was punched and no sync has covered; who keeps that away |
//! | `calls` | a store must not come back to its file; whose stores are called unasked |
//! | `fault`, `beside`, `mappers`, `owner` | page faults; what they map with their own; mappings, reclaim |
//!
//! **States of a block.** It is absent (no word in the index, or a shadow), or in the index, or
//! kept by views alone:
//!
//! | state | flags | made by | left by |
//! |---|---|---|---|
//! | filling | LOCKED | `create` | `end_read`: clean; a failed read: absent, and every waiter has the error |
//! | clean | UPTODATE | `end_read`, a write that ended well | a write, a write fault: dirty; eviction: absent, with a shadow |
//! | dirty | UPTODATE DIRTY | `mark_dirty`, with an entry in the dirty index | `begin_writes`: writing; removal: absent |
//! | writing | UPTODATE WRITEBACK | `begin_writes`, pinned by a view | the store's answer: clean, or dirty and ERROR again |
//! | viewed-only | UPTODATE, not in the index | a move or removal while viewed | the last view: the frame is free |
//!
//! A block in the index that is not locked is up to date. Whoever removes, moves or evicts a block
//! holds its lock, so a locked block that is in the index stays there (I7). LOCKED and WRITEBACK
//! are waited for in the wait table of `frame`.
//!
//! **Locking**, outermost first: a file's `append` (appends, changes of its length) > `invalidate`
//! (shared by fills and writes, exclusive for truncate, punch, discard, invalidate:
//! [`Steady`](steady::Steady); an append in one step asks under the mutex of the index whether
//! somebody has it) > block locks > the mutex of the index and the dirty index; and, each a leaf
//! within this layer: mapper list, extents, fill errors, store slot, syncs, trouble. Several block
//! locks at once are taken in ascending order, all but the first by `try_lock`, or under
//! `invalidate` exclusive. Frames are allocated with no block lock held, those of read-ahead
//! excepted, which do not wait. The store is called with the locks of blocks being filled, or
//! WRITEBACK bits, and `invalidate`. One sync of a file runs at a time; whoever waits for it holds
//! no block lock.
//!
//! **Operations side by side**: what makes each pair safe. `pairs` runs every one of them from two
//! threads, under real and under shuttle's scheduling; `mapping` has those with stores through a
//! mapping, which need a mapper.
//!
//! | beside | read, view | write | map fault | write back, sync | evict | truncate, punch, discard, invalidate |
//! |---|---|---|---|---|---|---|
//! | read, view | shared holds; of two fills one `create` wins, the other waits for LOCKED | a view moves the writer to another frame; a copy may be torn | a view takes the right to store away (WMAPPED) | both only read: the write holds a view, too | a hold stops `freeze` | the slot, or the frame's tag, is read after the hold is taken (I10); fills: `invalidate` |
//! | write | | block lock | block lock; stores meet as machine words | STABLE waits for WRITEBACK; DIRTY is set under the lock, after the bytes | block lock | `invalidate`; an append in one step: `cutting`, under the mutex of the index |
//! | map fault | | | block lock until installed; holes: the epoch | STABLE; to write: revoke, grace, clear DIRTY, read the bytes | block lock until installed | `invalidate`; block lock; holes: the epoch |
//! | write back, sync | | | | DIRTY is cleared once, under the lock; one sync of a file at a time | DIRTY, WRITEBACK and not synced are busy, asked under the lock | they wait for WRITEBACK; past the end of a cut none begins until it is over (`Cutting`), and a sync waits for that; a punch holds the locks until the store has punched; what is being written counts as kept by invalidate; doubt goes with the block; a lost punch is made again with the file to itself and the blocks locked |
//! | evict | | | | | `try_lock`; `freeze` succeeds once | block lock, and "still in the index?" |
//! | truncate, punch, discard, invalidate | | | | | | `invalidate`, exclusive |
//!
//! **Mapped holes.** A read fault on a hole maps the zero frame, for which there is no block to
//! lock. The fault is given the file's hole epoch, and those of the page's neighbours that are
//! holes as well, and compares it in the section in which it installs them. Whoever makes a block
//! there, or cuts the file, moves the epoch (under the mutex of the index), as the end of each
//! write back does for writers that took a block for a hole; and, if there are mappings, waits for
//! a grace period, revokes, and waits again before bytes change.
//!
//! **Neighbours.** Below: `store` (bytes), `reclaim` (frames and lists; it calls back through
//! `Owner`), `frame`, `group`. Above: `space` maps files and implements [`Mappers`]; the facade
//! opens files, once per store, and runs [`Cache::step`].
//!
//! **Not here.** No thread, no registry of open files, no page tables, no retry of a failed write
//! beyond keeping it dirty.

mod append;
mod array;
mod asked;
mod beside;
mod block;
mod blocks;
mod calls;
mod core;
mod cursor;
mod dirty;
mod errors;
mod extents;
mod fault;
mod file;
mod fill;
pub(crate) mod index;
mod lookup;
mod mappers;
mod new_blocks;
mod options;
mod owner;
mod passing;
mod punched;
mod reached;
mod read;
mod ready;
mod requests;
mod runs;
mod service;
mod spare_nodes;
mod stats;
mod steady;
mod stream;
mod syncs;
mod task;
mod trouble;
mod truncate;
mod try_forms;
mod validate;
mod view;
mod wait;
mod waiting;
mod write;
mod write_depth;
mod writeback;

pub(crate) use self::core::FileCore;
pub use array::{Array, Element};
pub(crate) use asked::Asked;
pub(crate) use beside::Beside;
pub use blocks::BlockReader;
pub(crate) use calls::with_room;
pub use cursor::Cursor;
pub use dirty::WriteOrder;
pub(crate) use errors::{ErrorCursor, ErrorSequence};
pub use errors::{FileError, HeldReason, StoreAction};
pub(crate) use fault::{FaultKind, FaultPage, Hole, LockedBlock};
pub(crate) use file::FileInner;
pub use file::PagedFile;
pub(crate) use mappers::{MapperId, MapperList, Mappers, Revoke};
pub use options::FileAccess;
pub(crate) use options::FileOptions;
pub use ready::Ready;
pub(crate) use service::{Cache, ErrorHook};
pub(crate) use spare_nodes::SpareNodes;
pub use stats::FileStats;
pub(crate) use stream::Reading;
pub use task::Task;
pub(crate) use task::is_in_task;
pub use view::View;
pub(crate) use wait::Wait;
pub use waiting::TimedOut;
pub(crate) use waiting::wait_for;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod pairs;

#[cfg(all(test, shuttle))]
mod models;
