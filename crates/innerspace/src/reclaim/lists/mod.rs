//! The lists of each group: where a frame is, and how it gets from one list to another.
//!
//! | file | what is in it |
//! |---|---|
//! | [`state`] | [`LruState`], the word that says where a frame is; [`ListKind`] |
//! | [`group`] | one group's lists, their lock and their sizes |
//! | [`batch`] | frames on their way to a list |
//! | [`lru`] | [`Lru`]: all lists and batches of one pool; adding, removing, isolating |
//! | [`policy`] | the choices in which eviction algorithms differ |
//! | [`accessed`] | what a second use does to a frame |
//! | [`refault`] | the clock of evictions; what the return of an evicted block means |

mod accessed;
mod batch;
mod group;
mod lru;
mod policy;
mod refault;
mod state;

pub(super) use batch::{BATCH_LEN, thread_batch};
pub(super) use lru::Lru;
pub use policy::EvictionPolicy;
pub(crate) use refault::Refault;
#[cfg(all(test, not(shuttle)))]
pub(crate) use refault::SHADOW_BITS;
#[cfg(all(test, not(shuttle)))]
pub(super) use refault::shadow_unpack;
pub(crate) use state::Evictable;
#[cfg(all(test, not(shuttle)))]
pub(crate) use state::ListSizes;
pub(super) use state::{ListKind, LruState, pages_of};
