//! The pool: where frames come from, which group pays for each, and which frames are evicted when
//! none are left.
//!
//! **What it is.** One [`Pool`] per memory ties frames, groups and the domain of sections together.
//! The layers above ask it for frames and hand them back. When a group (or the arena) is full, the
//! pool evicts the least used frames.
//!
//! | room | what is in it |
//! |---|---|
//! | [`alloc`] | requests for frames and charges: the hit, the cold path; freeing in runs |
//! | [`background`] | the service thread's steps: watermarks, old dirty blocks |
//! | [`check`] | validation, and the holders of a full group's memory |
//! | [`evict`] | reclaim: passes, clusters, aging, rounds |
//! | [`pool`] | [`Pool`], a set of components; freeing, and the small calls for the layers above |
//! | [`uses`] | the marks that a use of a block leaves |
//! | [`lists`] | each group's lists, batches, refaults, eviction policies |
//! | [`owners`] | [`Owner`]: the upcall to a file; the registered owners |
//! | [`defer`] | work that waits for a grace period |
//! | [`progress`] | work under way, and waits for its end |
//! | [`sampling`] | the miss curve: how often a larger or smaller memory would miss |
//! | [`scope`] | what a thread is doing for a pool: calling a store or an owner, in a trial |
//! | [`watched`] | pages of files that code was fetched from |
//!
//! Several rooms implement a part of [`Pool`]. Apart from that, and from the types of [`Pool`]'s
//! fields, rooms use those below them in this table, never those above.
//!
//! # Who decides what
//!
//! | question | decided in |
//! |---|---|
//! | how many pages each group loses | `evict/passes.rs`, `pass`, `shares`; `group/protect.rs` |
//! | in which order a scan's pages are evicted | five files: see below |
//! | whether a page at the tail goes, stays or becomes active | `evict/cluster.rs`, `verdict` |
//! | the effect of a second use; which list pages are taken from | `lists/policy.rs` |
//! | when a block counts as used | the callers of `mark_accessed`, listed in `uses.rs` |
//! | how long a request tries; when it waits for others | `evict/room.rs`, `Rounds` |
//! | which stores a request may call | `owners/owner.rs`, `Io`; `alloc/request.rs`, `reclaim_io` |
//! | when the background frees and writes | `background/steps.rs` |
//!
//! **The order in which the pages of a scan, a read from beginning to end, are evicted.** New
//! blocks come to the head of their group's inactive list, a batch at a time (`lists/batch.rs`,
//! and `add_run` in `lists/lru.rs`). Reclaim isolates clusters of at most 256 frames
//! (`MOST_CLUSTER` in `evict/passes.rs`) from the tail, the oldest first (`isolate` in
//! `lists/lru.rs`). Those that `verdict` chooses for eviction are sorted by file and block
//! number (`by_owner` in `evict/cluster.rs`), so that neighbours are written and freed
//! together: the order inside a cluster is that of the file, not of age. An active block goes
//! to the inactive list first, to its head or to its tail as the policy says (`balance` in
//! `evict/passes.rs`). Aging (`evict/aging.rs`), which looks at mapped pages before memory is
//! full, leaves the unused ones at the tail, in their order.
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
//! **Locking.** A group's list mutex is held while a few frames are moved, or while up to 2^18
//! frames are examined for the error of a failed request (`check/holders.rs`). It is never held
//! during a call to an owner, a wait for a grace period, or a write to a store. The mutex of a
//! shared batch and that of a drain of all batches are taken before it. `Meta::lru` changes under
//! the list mutex of the frame's group, except when a frame is added: no other thread can find that
//! frame yet. The retire queue and the owner table have one mutex each, both innermost. Reclaim
//! names the frames that it has isolated, and holds no reference to them. So the owner checks
//! again, under the block's lock, that a frame is still its own.
//!
//! Pairs of operations that may run at the same time, and why each pair is safe:
//!
//! - `free` or `lru_remove`, and isolation by reclaim: `Isolated` becomes `None` under the list
//!   lock, and then the reclaimer does not put the frame back.
//! - A frame that is freed and listed anew, and a drain that finds its old number in a batch, or a
//!   reclaimer that puts it back: state and group are one word (`frame::listing`), which is read
//!   again under the list lock.
//! - `lru_add`, and a drain of all batches: the state is set before the drain can find the frame's
//!   number (`sync::pending`).
//! - `mark_accessed`, and `lru_remove` or a drain: the caller's hold keeps the frame from being
//!   freed, and the state is checked again under the list lock.
//! - `shrink` and `shrink`: isolation gives a frame to one reclaimer alone.
//! - Deletion of a group, and `shrink`: the lists stay where they are, and are found through the
//!   tree until they are empty.
//!
//! **Neighbours.** Below: `frame`, `group`, `stats`, `sync`, `sys`. Above: `cache` (registers files
//! as owners), `space`, `dax`, `memory`.
//!
//! **Tenants.** A request calls only the stores of files for which its own group, or one below it,
//! pays ([`Io::Of`]). From other groups it takes only clean pages that `min` does not protect, and
//! those that `low` protects only if nothing else can be freed. Data of other groups that is not
//! yet written or synced is written by the background: each file in its own lane of the memory's
//! threads, one flush at a time, so that a store that hangs delays only its own file
//! ([`LeftFlush`]). A request that finds nothing else to free waits for the end of such a flush.
//! After three fruitless waits, of at most half a second each, the request is refused. In a memory
//! without threads, the thread that calls `tick` writes for all files, and a request does not wait
//! for it.
//!
//! Writers ensure that a group within its `min` need not wait (`cache/dirty/limits.rs`): they leave
//! unwritten data only in pages that the `min` of other groups does not need. Owners are called
//! with no lock of this layer held, and only try to take the locks of blocks, so blocks that a
//! hanging store keeps locked stop no request.
//!
//! **Not here.** Threads: [`background`] offers the steps, and the facade runs them. Swap:
//! anonymous frames are never listed as evictable.

mod alloc;
mod background;
mod check;
mod defer;
mod evict;
mod lists;
mod owners;
mod pool;
mod progress;
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
pub(crate) use owners::{EvictCount, FlushRequest, Io, Owner, OwnerId};
pub(crate) use pool::{Pool, PoolOptions, Retired};
pub use sampling::MissCurve;
pub(crate) use sampling::SAMPLER_BYTES;
pub(crate) use scope::{StoreScope, Untried};
pub(crate) use watched::WatchedPages;
