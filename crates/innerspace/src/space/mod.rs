//! Spaces: address spaces in software, with faults, protections, copy-on-write fork and errors in
//! place of signals.
//!
//! | file | what is in it |
//! |---|---|
//! | `vma`, `vma_set`, `tree` | a mapped range; all of a space's; the persistent tree of wide nodes that they are kept in |
//! | `shown` | which mappings show a page of a file |
//! | `vma_cache` | an accessor's own slots of mappings found last |
//! | `ledger` | who pays for the tree's nodes |
//! | `pte`, `table` | the word of a page; the tree of nodes whose subtrees forks share |
//! | `translate` | an accessor's private cache of leaf pointers |
//! | `fault` | one page fault as steps |
//! | `map` | what to map, and how |
//! | `mapping`, `change`, `fork` | structural changes, with the gate closed on their range |
//! | `remap`, `advise`, `region`, `options` | moving and growing; advice, populating, locking; a growing range; choices |
//! | `zap` | dropping anonymous pages where they are, with the gate open |
//! | `pin` | pages that stay where they are for whoever uses them by their address in the process |
//! | `device`, `code` | ranges whose accesses are calls; pages that code was fetched from |
//! | `dirty` | pages stored to since they were last asked about |
//! | `snapshot` | frozen spaces; restoring one, and what differs from one |
//! | `mappers` | the way back: from a file's pages to the words that show them |
//! | `access`, `across`; `accessor`, `session`, `bulk`, `gather` | one access; one in two pages; the handles to it: loads, stores, copies, many reads at once |
//! | `futures` | calls in the background, and waiting for pages |
//! | `atomics`, `values` | atomic accesses; types of a program's own |
//! | `error`, `report` | faults and refusals; what a space holds, in the manner of smaps |
//!
//! # States and locking
//!
//! The set of mappings is published (`sync::rcu_cell`): who is in a section reads the newest one,
//! without a lock. The page table is read and changed word by word. A structural change closes the
//! gate (`sync::gate`) on its own range of addresses, so that no fault installs a page there
//! meanwhile; faults elsewhere go on. What they share with the change are nodes above the range and
//! leaves at its edges: words change by compare-exchange (in the range a plain store is enough for
//! a page of the leaf's own), and the mutex `paths` serialises the copying of shared nodes. The
//! steps of a change, and why they are in that order, are in `change`. A file page is installed and
//! revoked under its block's lock; revokers pass the gate whether it is open or not. Order: gate
//! writer > block lock > `paths` > section.
//!
//! # Blocking is a choice
//!
//! | who | may wait | says that it would | waits as a future |
//! |---|---|---|---|
//! | an access | `load`, `store`, `read`, ... | `try_load`, `try_store`, `try_read`, ... (`access::forms`) | [`Space::ready`] |
//! | many accesses | `gather`, `copy_from` | `try_gather`, `try_copy_from` | [`Space::defer`] |
//! | a change, a sync, a watch | `unmap`, `sync`, `populate`, `watch_code`, ... | - | the same |
//!
//! An access that hits is the same code in either form. What is missed is looked for by the same
//! steps (`fault`); where a step would have to sleep, a `try_` form ends. Both futures make calls of
//! the blocking kind, as tasks of the cache (`cache::task`).
//!
//! Neighbours: `cache` gives locked blocks and calls [`crate::cache::Mappers`] to revoke; `reclaim`
//! gives frames. A space does no I/O of its own and starts no thread.

mod access;
mod change;
mod code;
mod core;
mod dirty;
mod fault;
mod futures;
mod pin;
mod report;
mod snapshot;
mod table;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod tlb;
mod vma;

use self::core::space::{Role, SpaceInner, Tables, page_start};

pub use self::access::accessor::Accessor;
pub use self::access::device::{Device, DeviceError};
pub use self::access::session::Session;
pub use self::change::advise::Advice;
pub use self::change::map::Map;
pub use self::change::region::Region;
pub use self::change::remap::Remap;
pub use self::code::CodePage;
pub use self::core::error::{AccessKind, Explanation, Fault, FaultKind, SpaceError};
pub(crate) use self::core::options::check_group;
pub use self::core::options::{AddressWidth, SpaceOptions};
pub use self::core::space::Space;
pub use self::futures::SpaceReady;
pub use self::pin::{AtFork, Pinned};
pub use self::report::{MappingInfo, MappingKind, PageStats, SpaceStats};
pub use self::snapshot::error::SnapshotFileError;
pub use self::snapshot::frozen::Snapshot;
pub use self::snapshot::view::PageView;
#[cfg(all(feature = "layout", not(shuttle)))]
pub use self::tlb::layout::TranslationLayout;
pub use self::vma::area::{Protection, Sharing};
pub use self::vma::cache::VmaLookups;
