//! Frames: the memory itself, the holds on each part of it, and the lock of each part.
//!
//! A [`Frames`] is one arena of 4 KiB frames with a metadata line each. It hands out blocks of 1 to
//! 512 frames as [`OwnedFrame`]s, which are filled and set up with plain stores and then published;
//! from then on a frame is named by its number, kept by its hold word, and changed through atomics
//! alone.
//!
//! - `frames`: the layer's interface for the frames of one arena, and the check of all of it
//! - `arena`: the mapping; numbers to addresses and back
//! - `buddy`, `magazine`, `stack`: free blocks; free single frames per thread, and their stack; the
//!   reserve
//! - `meta`, `zeroed_array`: one cache line per frame; all of them
//! - `flags`, `hold`, `listing`, `list`: the flags byte, the hold word and the LRU's word in it;
//!   lists threaded through it
//! - `tag`, `lookaside`: a frame's tag, which names its block and file; where blocks were last
//!   found
//! - `owned`, `singles`: a frame that no other thread can see; several of them at once
//! - `marks`: hot blocks: a use makes no mark, and a view looks at the hold word alone
//! - `pinned`: slices and stores on published frames, kept apart by the hold word
//! - `detached`: views of blocks that have left their files
//! - `lock`, `wait_table`: the lock bit, the writeback bit, and their waiters
//!
//! **States of a frame** (I1): free (in a buddy list or a magazine), owned, published (cached,
//! anonymous, table, index node; told by `Kind`), viewed-only (published, in no file, with views),
//! zero. `alloc` makes a free frame owned, and [`OwnedFrame::publish`] an owned one published.
//! [`Hold::freeze`](hold::Hold::freeze) makes a published frame owned again, so that it can be
//! freed. [`Frames::free`] takes any frame with an empty hold word. Frame 0 is the zero frame:
//! never written, counted, charged, listed or freed (I4).
//!
//! **Locks**, all innermost: a queue of the wait table; a magazine that threads share, and inside
//! it the buddy lists. No foreign code (a waker, a drop) runs with one of them held. A thread's own
//! magazine has no lock (`sync::per_thread`).
//!
//! **Neighbours.** Below: `sys` (mapping, copying, the unlock primitive), `sync`. Above: `group`
//! charges, `reclaim` wraps allocation with charges and keeps the LRU lists, `cache` and `space`
//! use the frames. This layer does not know files, groups or spaces, never waits for memory, and
//! reclaims nothing.

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
mod singles;
mod stack;
pub(crate) mod tag;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
mod wait_table;
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
pub(crate) use hold::{Dropped, HoldState, PutView};
#[cfg(not(loom))]
pub(crate) use list::FrameList;
pub(crate) use listing::Listing;
#[cfg(not(loom))]
pub(crate) use lock::WaitResult;
pub(crate) use lock::{ReadEnd, deadline};
#[cfg(not(loom))]
pub(crate) use lookaside::LOOKASIDE_BYTES_PER_FRAME;
#[cfg(not(loom))]
pub(crate) use magazine::{HALF, Source};
pub(crate) use meta::{Kind, Meta, Uses};
#[cfg(not(loom))]
pub(crate) use owned::OwnedFrame;
#[cfg(not(loom))]
pub(crate) use pinned::{
    Filling, Fills, Grip, Guessed, Here, Pinned, Taken, Try, ViewOwner, Writing,
};
#[cfg(not(loom))]
pub(crate) use singles::{MOST as MOST_SINGLES, Singles};
pub(crate) use tag::{HeldOf, TAGGED_BYTES, Tag, Tags};
pub(crate) use wait_table::{Bit, SleepEnd, Sleeper};
