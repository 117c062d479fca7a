//! The pool: where frames come from, which group pays for each, and which are evicted when there
//! are none left.
//!
//! **What it is.** One [`Pool`] per memory ties frames, groups and the domain of sections together.
//! The layers above ask it for frames and hand them back. When a group (or the arena) is full, the
//! pool evicts the frames used least.
//!
//! | room | what is in it |
//! |---|---|
//! | [`alloc`] | requests for frames and charges: the hit, the cold path; freeing in runs |
//! | [`background`] | the service thread's steps: watermarks, old dirty blocks |
//! | [`check`] | validation, and the holders of a full group's memory |
//! | [`evict`] | reclaim: passes, clusters, aging, rounds |
//! | [`pool`] | [`Pool`], a set of components; freeing, and the small calls of the layers above |
//! | [`uses`] | the effect of a use of a block on its marks |
//! | [`lists`] | each group's lists, batches, refaults, eviction policies |
//! | [`owners`] | [`Owner`]: the upcall to a file; the registered owners; the shadows they left |
//! | [`defer`] | what waits for a grace period |
//! | [`sampling`] | the miss curve: what a larger or smaller memory would find |
//! | [`scope`] | this thread's state for a pool: calling a store, trying something |
//! | [`watched`] | pages of files that code was fetched from |
//!
//! Rooms use those below them in this table, never those above.
//!
//! **Key types.** [`Pool`]; [`PoolFrame`]: an owned frame with its charge; [`AllocMode`]: how far a
//! request may go; [`Owner`]: a file that can age, clean and evict its frames; [`Retired`]: what
//! may be freed only after a grace period; [`Freeing`]: references dropped in runs.
//!
//! **Lists.** Each group has three: inactive, active, unevictable. New frames collect in batches,
//! one per thread, and move to their list sixteen at a time. `Meta::lru` says where a frame is
//! ([`LruState`](lists)); the flag ACTIVE says which list it is on, or will be put on.
//!
//! ```text
//!            add                 batch full             twice used
//!   None ----------> Batch ----------------> Inactive -------------> Active
//!    ^  ^ remove       | remove                | ^  isolate/put back   | ^
//!    |  +--------------+                       v |                     v |
//!    +-------------------------------------- Isolated <---------------- +
//! ```
//!
//! **Locking.** A group's list mutex is held for a few frames' worth of work, never while an owner
//! is called, a grace period is waited for, or a store is written. Outside it are the mutex of a
//! shared batch, and that of a drain of all batches. `Meta::lru` changes under the list mutex of
//! the frame's group, except when a frame is added, which no other thread can find yet. The retire
//! queue and the owner table have a mutex each, innermost. A frame that reclaim has isolated is
//! named, not held: the owner re-checks under the block's lock that it is still its own.
//!
//! Pairs of operations that meet, and what makes each safe:
//!
//! - `free` or `lru_remove`, and isolation by reclaim: under the list lock `Isolated` becomes
//!   `None`, and putting back skips the frame.
//! - A drain that finds an old number in a batch, or putting back, and the frame's next life on
//!   other lists: state and group are one word (`frame::listing`), read again under the list lock.
//! - `lru_add`, and a drain of all batches: the state is set before the number can be found
//!   (`sync::pending`).
//! - `mark_accessed`, and `lru_remove` or a drain: the caller's hold keeps the frame's life; the
//!   state is checked again under its lock.
//! - `shrink` and `shrink`: a frame is in one reclaimer's hands, by isolation.
//! - Deletion of a group, and `shrink`: lists are never moved; a deleted group's lists are found
//!   through the tree until they are empty.
//!
//! **Neighbours.** Below: `frame`, `group`, `sync`, `stats`. Above: `cache` (registers files as
//! owners), `space`.
//!
//! **Tenants.** A request calls the stores of the files that its own group pays for, or a group
//! below it ([`Io::Of`]), and no others. Of all others it takes clean pages, as `low` and `min`
//! say. What others have not written, or not synced, the background writes: each file in its own
//! lane of the memory's threads, one flush at a time, so that a store that hangs holds its file
//! alone ([`LeftFlush`]). A request that finds nothing else waits for the end of such a flush,
//! three times half a second at most in vain, and is refused then. In a memory without threads the
//! thread that calls `tick` writes for all, and a request does not wait for it.
//!
//! That a group inside its `min` need not wait is the writers' part (`cache/dirty/limits.rs`): they
//! leave unwritten no more than what others are not owed. Owners are called with no lock held and
//! take the locks of blocks by trying, so what a store holds while it hangs is in no request's way.
//!
//! **Not here.** No thread: [`background`] offers the steps, the facade runs them. No swap:
//! anonymous frames are never listed as evictable.

mod alloc;
mod background;
mod check;
mod defer;
mod evict;
mod lists;
mod owners;
mod pool;
mod sampling;
mod scope;
mod uses;
mod watched;

#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use alloc::{AllocMode, Freeing, HeapCharge, PoolFrame, Trial, note_failure};
pub(crate) use background::{LeftFlush, Step};
pub use lists::EvictionPolicy;
pub(crate) use lists::{Evictable, Refault};
pub(crate) use owners::{
    CleanCount, EvictCount, FlushRequest, Io, LeftShadow, Owner, OwnerId, SHADOW_BYTES_PER_FRAME,
};
pub(crate) use pool::{Pool, PoolOptions, Retired};
pub use sampling::MissCurve;
pub(crate) use sampling::SAMPLER_BYTES;
pub(crate) use scope::{StoreScope, Untried};
