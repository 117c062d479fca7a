//! Frames: the memory itself, and what holds and locks each part of it.
//!
//! A [`Frames`] is one arena of 4 KiB frames, each with a cache line of metadata. It gives out
//! blocks of 1 to 512 frames as [`OwnedFrame`]s. An owned frame is set up with plain stores and
//! then published. From then on other threads name it by its number, its hold word keeps it from
//! being freed, and it changes only through atomics.
//!
//! - `frames`: the layer's interface: the frames of one arena, and the check of all of them
//! - `arena`: the mapping; numbers to addresses and back
//! - `buddy`, `magazine`, `stack`: free blocks; each thread's free single frames, and the reserve;
//!   the stack in a magazine
//! - `meta`, `zeroed_array`: a frame's metadata, one cache line; the array of all of them
//! - `flags`, `hold`: the flags byte and the hold word
//! - `listing`, `list`: a frame's place on the LRU lists; lists threaded through the metadata
//! - `tag`, `lookaside`: a frame's tag, which names its block and file; the places where blocks
//!   were last found
//! - `owned`: a frame that no other thread can see
//! - `marks`: hot blocks: all their marks of use are set, so a view checks only the hold word
//! - `pinned`, `writing`: slices of published frames, and stores to them; the hold word keeps the
//!   two apart
//! - `detached`: views of blocks that have left their files
//! - `window`: runs of consecutive addresses for frames
//! - `huge`: the parts of the arena that may have huge pages
//! - `row`: a view of consecutive blocks
//! - `lock`, `wait_table`: the lock bit, the writeback bit, and the threads that wait for them
//!
//! **States of a frame** (I1):
//!
//! | state | meaning |
//! |---|---|
//! | free | in a buddy list or a magazine, or never given out |
//! | owned | taken by one thread, which alone can reach it |
//! | published | cached, anonymous, table or index node, as `Kind` says |
//! | viewed-only | published, in no file, kept by views |
//! | zero | frame 0, the zero frame: never written, counted, charged, listed or freed (I4) |
//!
//! `alloc` makes a free frame owned, and [`OwnedFrame::publish`] makes an owned frame published.
//! [`Hold::freeze`](hold::Hold::freeze) makes a published frame owned again, so that it can be
//! freed. [`Frames::free`] takes any frame that is not held.
//!
//! **Locks**, all innermost: the mutex of a wait-table queue; the mutex of a shared magazine, and
//! inside it that of the buddy lists. No foreign code (a waker, a destructor) runs while one of
//! them is held. A thread's own magazine has no lock (`sync::per_thread`).
//!
//! **Neighbours.** Below: `sys` (mapping, copying), `sync`. Above: `group` charges, `reclaim`
//! combines allocation with charges and keeps the LRU lists, and `cache` and `space` use the
//! frames. This layer does not know files, groups or spaces, never waits for memory, and reclaims
//! nothing.

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod buddy;
mod detached;
mod flags;
#[cfg(not(loom))]
mod frames;
mod hold;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod list;
mod listing;
mod lock;
#[cfg(not(loom))]
mod lookaside;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
mod magazine;
mod marks;
mod meta;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod pinned;
#[cfg(not(loom))]
mod row;
mod stack;
pub(crate) mod tag;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
mod wait_table;
#[cfg(not(loom))]
mod window;
#[cfg(not(loom))]
mod writing;
#[cfg(not(loom))]
mod zeroed_array;

#[cfg(not(loom))]
pub(crate) use arena::FrameOffset;
#[cfg(not(loom))]
pub(crate) use buddy::MAX_ORDER;
pub(crate) use flags::FlagSet;
#[cfg(not(loom))]
pub(crate) use frames::{ArenaError, ArenaOptions, Frames};
#[cfg(all(test, not(loom), not(shuttle)))]
pub(crate) use hold::touched;
pub(crate) use hold::{Dropped, Hold, HoldState, PutView};
#[cfg(not(loom))]
pub(crate) use list::{End, FrameList};
pub(crate) use listing::Listing;
pub(crate) use lock::{ReadEnd, deadline};
#[cfg(not(loom))]
pub(crate) use lookaside::LOOKASIDE_BYTES_PER_FRAME;
#[cfg(not(loom))]
pub(crate) use magazine::{HALF, Source};
pub(crate) use meta::{Kind, Meta, Uses};
#[cfg(not(loom))]
pub(crate) use owned::OwnedFrame;
#[cfg(not(loom))]
pub(crate) use pinned::{Pinned, ViewOwner};
#[cfg(not(loom))]
pub(crate) use row::Row;
pub(crate) use tag::{HeldOf, TAGGED_BYTES, Tag, Tags};
pub(crate) use wait_table::{Bit, Sleeper};
#[cfg(not(loom))]
pub(crate) use window::Window;
#[cfg(not(loom))]
pub(crate) use writing::{Filling, Fills, Writing};
