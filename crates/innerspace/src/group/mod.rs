//! Memory groups: which group each page is charged to, how much each group may have, and which
//! group refuses a request.
//!
//! **What it is.** A tree of counters, like Linux's memory cgroups. Every page in use is charged to
//! one group, and counts in that group and in all above it. Each group has a hard limit, `max`. It
//! may also have a mark above which charges are slow, `high`, and marks up to which its pages are
//! protected from reclaim for other groups, `low` and `min`. The root's limit is the whole memory,
//! or less.
//!
//! **Key types.** `GroupTree` holds the nodes; a `GroupId` is the number of one, which is looked up
//! without a lock, by two loads. A `Charge` is a guard: dropping it gives the pages back; `commit`
//! passes them on to a frame, which carries the group's number. [`Group`] is the public handle; the
//! last clone deletes the group. `Reclaimer` is the upcall that frees pages of a full group:
//! `reclaim` implements it. [`LimitError`] says which group is full and what holds its memory.
//!
//! - `handle`, `events`, `watch`, `stall`: the user's side: the handle; figures; notification of
//!   events; the record of stalls
//! - `tree`, `node`, `slab`: the shape of the tree and the counters of each group, which never move
//! - `charge`, `counters`: charging, by way of the stock; the hierarchical counter
//! - `stock`, `slot`, `moves`, `levels`: pages charged in advance for each thread; the word of a
//!   slot; counts of moves to and from a stock; the counters as the stock sees them
//! - `id`: the number of a group
//! - `aside`: pages set aside for requests that must succeed later
//! - `heap`; `blocks`, `block_sizes`: bytes on the heap that a group is charged for; the blocks of
//!   open files, for which limits must have room
//! - `over`, `protect`: groups over their limit; the pages that reclaim must spare
//! - `report`, `error`: usage, statistics and `validate`; the errors
//!
//! **States of a node.** Free -> Live (`create`) -> Deleted (`remove`) -> Free (its last page was
//! given back). A deleted node stays in the tree as long as pages are charged to it: it takes no
//! new charge, has no name and no limit, and its pages count as the parent's own. So deletion
//! passes the charges to the parent in constant time. Nodes are never moved or unmapped.
//!
//! **Numbers.** Each node counts `usage` (pages of the node and of all below it) and `own` (pages
//! charged to the node itself). At rest `usage = own + sum(usage of children)` (I8). A charge adds
//! to one level after another by compare-and-swap, so `usage` never exceeds `max`, even for an
//! instant. If a level refuses, the additions to the levels below it are undone, and nothing else
//! has changed. Most charges never touch the levels: each thread has a stock of charged pages. The
//! pages of a stock count as used, reports subtract them, and they are given back before a request
//! is refused. A stock has up to 128 pages of a group, and more while no limit is near. Pages given
//! back to a group that is over its limit (`over`) are not put in stock.
//!
//! **Events** ([`GroupEvents`]) are counted where they happen; the service thread (or `tick`) then
//! notifies each [`GroupWatch`] of a group that has counted some.
//!
//! **Locking.** Charging takes no lock but the mutex of a stock that threads share. The tree's
//! shape (names, children, free numbers) is under one mutex, which is near the end of the lock
//! order: nothing is allocated from the pool, reclaimed or waited for under this mutex. The caller
//! of a charge keeps the group alive (by a [`Group`] handle, or a page charged to it).
//!
//! **Neighbours.** Below: `stats`, `sync`, `sys`. Above: `reclaim` charges before it allocates, and
//! implements `Reclaimer`.
//!
//! **Not here.** Frames, lists, and retries after reclaim: a refusal is returned to the caller.

mod aside;
mod block_sizes;
mod blocks;
mod charge;
mod counters;
mod error;
mod events;
mod handle;
mod heap;
mod id;
mod levels;
mod moves;
mod node;
mod over;
mod protect;
mod report;
mod slab;
mod slot;
mod stall;
mod stock;
mod tree;
mod watch;

#[cfg(all(test, shuttle))]
mod models;
#[cfg(all(test, not(shuttle)))]
mod stock_tests;
#[cfg(all(test, not(shuttle)))]
mod tests;

pub(crate) use aside::SetAside;
pub(crate) use blocks::FileBlocks;
pub(crate) use charge::{Charge, Reach};
pub use error::{GroupError, Holders, LimitDetails, LimitError, LimitReason};
pub(crate) use error::{Underflow, minimum_pages};
pub use events::{GroupEvents, GroupStats};
pub use handle::Group;
pub(crate) use heap::{HeapBytes, MayReclaim};
pub(crate) use id::GroupId;
pub(crate) use protect::{Portion, Spared};
pub(crate) use slab::Slab;
pub use stall::Pressure;
#[cfg(all(test, not(shuttle)))]
pub(crate) use tree::Protection;
pub(crate) use tree::{GroupTree, MAX_LEVELS};
pub use watch::GroupWatch;

use crate::units::PageCount;

/// The maximum depth of groups below the root.
pub const MAX_DEPTH: usize = 8;

/// The maximum number of groups that one group may have below it, at any depth: a sixteenth of the
/// number that a memory can have, so that one tenant does not use up the group numbers of the
/// others. The root has no such maximum.
pub const MAX_GROUPS_BELOW: usize = 4096;

/// Frees pages of a group that has reached its limit. The layer above implements this trait. Its
/// functions are called with no lock of this layer held.
pub(crate) trait Reclaimer: Send + Sync {
    /// Tries to free `pages` that are charged to `group` or below it, and returns how many were
    /// freed. The work is bounded; 0 means that nothing there can be freed now. Calls the stores of
    /// those dirty files for which `payer` or a group below it pays; without a payer, calls no
    /// store.
    fn reclaim(&self, group: GroupId, pages: PageCount, payer: Option<GroupId>) -> PageCount;

    /// Charges a group for pages in no frame. Waits for nothing and frees nothing, but wakes the
    /// service thread if a group is above its `high` afterwards.
    fn charge_without_waiting(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, LimitError>;

    /// Counts the pages of `group` and below that cannot be freed, by what holds them.
    fn holders(&self, group: GroupId) -> Holders;
}
