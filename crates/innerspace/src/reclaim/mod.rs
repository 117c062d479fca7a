//! The pool: where frames come from, who pays, which are given up when there are none.
//!
//! **What it is.** One [`Pool`] per memory ties frames, groups and the domain of sections together.
//! The layers above ask it for frames and hand them back; when a group (or the arena) is full, the
//! pool evicts what was used least.
//!
//! **Key types.** [`Pool`]; [`PoolFrame`]: an owned frame with its charge; [`AllocMode`]: how far a
//! request may go; [`Owner`]: the upcall to whoever can age, clean and evict a frame (a file);
//! [`Retired`]: what may be freed only after a grace period; [`deferred`]: what may be done only
//! where no lock is held; [`Freeing`]: references dropped in runs.
//!
//! **Lists.** Each group has three: inactive, active, unevictable. New frames collect in batches,
//! one per thread, and are moved to their list sixteen at a time ([`batch`]). `Meta::lru` says
//! where a frame is ([`Place`](lru::Place)); the flag ACTIVE says which list it is on, or will be
//! put on.
//!
//! ```text
//!            add                 batch full             twice used
//!   None ----------> Batch ----------------> Inactive -------------> Active
//!    ^  ^ remove       | remove                | ^  isolate/put back   | ^
//!    |  +--------------+                       v |                     v |
//!    +-------------------------------------- Isolated <---------------- +
//! ```
//!
//! **Policy** ([`policy`]): what a second use does, which list gives, what becomes of a frame at
//! the tail; two lists (the default) or S3-FIFO. **Miss curve** ([`miss_curve`]): what a larger or
//! smaller memory would find, from a sample.
//!
//! **Refaults** ([`workingset`]): what an evicted block leaves in its index, so that its return
//! says something. [`shadows`] bounds them: half as many as there are frames, the oldest dropped
//! first.
//!
//! **Accessed state** ([`accessed`]): inactive -> inactive, referenced -> active -> active,
//! referenced. Reclaim goes the other way.
//!
//! **Locking.** A group's list mutex, held for a few frames' worth of work, never while an owner is
//! called, a grace period is waited for, or a store is written; outside it the mutex of a batch
//! that threads share, or of who drains all batches. `Meta::lru` changes under the list mutex of
//! the frame's group, but for a frame that comes: that is in nobody's way. The retire queue and the
//! owner table have a mutex each, innermost. A frame that reclaim has isolated is named, not held:
//! the owner re-checks under the block's lock that it is still its own.
//!
//! | operation | beside | made safe by |
//! |---|---|---|
//! | `free`, `lru_remove` | isolation by reclaim | list lock: `Isolated` becomes `None`, put-back then passes the frame over |
//! | who finds a frame by its number in a batch, or isolated it | the frame's next life, on other lists | `frame::listing`: place and group are one word, read again under the list lock |
//! | `lru_add` | drain of all batches | `sync::pending`: the place is set before the number is there to be found |
//! | `mark_accessed` | `lru_remove`, drain | the caller's hold keeps the frame's life; the place is checked again under its lock |
//! | `shrink` | `shrink` | isolation: a frame is in one reclaimer's hands |
//! | group deletion | `shrink` | lists are never moved; a deleted group's lists are found through the tree until they are empty |
//!
//! **Neighbours.** Below: `frame`, `group`, `sync`, `stats`. Above: `cache` (registers files as
//! owners), `space`.
//!
//! **Not here.** No thread: `background` offers the steps, the facade runs them. No swap: anonymous
//! frames are never listed as evictable.

mod accessed;
mod aging;
mod alloc;
mod background;
mod batch;
mod deferred;
mod freeing;
mod heap;
mod holders;
mod lru;
mod miss_curve;
mod owners;
mod policy;
mod pool;
mod progress;
mod retire;
mod shadows;
mod shrink;
mod trial;
mod validate;
mod watched;
mod workingset;

#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use alloc::{AllocMode, PoolFrame};
pub(crate) use background::{FlushRequest, Step};
pub(crate) use freeing::Freeing;
pub(crate) use heap::HeapCharge;
pub(crate) use lru::Evictable;
pub use miss_curve::MissCurve;
pub(crate) use miss_curve::SAMPLER_BYTES;
pub(crate) use owners::{CleanCount, EvictCount, Owner, OwnerId};
pub use policy::EvictionPolicy;
pub(crate) use pool::{Pool, PoolOptions, Sampling, StoreScope};
pub(crate) use retire::Retired;
pub(crate) use shadows::{LeftShadow, SHADOW_BYTES_PER_FRAME};
#[cfg(test)]
pub(crate) use shrink::Io;
pub(crate) use trial::Untried;
pub(crate) use workingset::Refault;
