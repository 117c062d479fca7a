//! Spaces: address spaces in software, with faults, protections, copy-on-write fork and errors in
//! place of signals.
//!
//! Rooms, roughly from the bottom up. (The space itself is in `core`, but the types of its state
//! are in later rooms. No files import each other in a circle.)
//!
//! - `core`: addresses, errors and options; the space itself ([`Space`]), and the state under its
//!   gate's writer lock
//! - `vma`: one mapping; all mappings of a space in a persistent tree; the reverse map from a
//!   file's pages; an accessor's cache of mappings; devices
//! - `table`: the page table: the word of a page, and nodes whose subtrees forks share
//! - `tlb`: an accessor's private cache of leaves
//! - `code`, `dirty`: the pages that code was fetched from; the pages that were stored to
//! - `fault`: one page fault as steps: anonymous memory, files, direct-access files
//! - `access`: one access; the handles that make accesses: loads, stores, copies, atomics, device
//!   calls
//! - `change`: structural changes, with the gate closed on their range; advice, populating,
//!   locking; revoking pages of files
//! - `pin`, `report`: pages that stay at their address in the process; the contents of a space, in
//!   the manner of smaps
//! - `snapshot`: frozen spaces; restoring a space to one, and finding what differs from one
//! - `futures`: creating accessors, calls in the background, and waiting for pages
//!
//! # States and locking
//!
//! The set of mappings is published (`sync::rcu_cell`): a thread in a section reads the newest one,
//! without a lock. The page table is read and changed word by word. A structural change closes the
//! gate (`sync::gate`) on its own range of addresses, so that no fault installs a page there
//! meanwhile; faults elsewhere go on. These faults and the change meet at nodes above the range and
//! at leaves at its edges. So words change by compare-exchange (in the range, a plain store is
//! enough for a page that the leaf owns), and the mutex `paths` serialises the copying of shared
//! nodes. `change` lists the steps of a change and explains their order. A file page is installed
//! and revoked under its block's lock; revokers ignore the gate. Order: gate writer > block lock >
//! `paths` > section.
//!
//! # Blocking is a choice
//!
//! | | may wait | says that it would | as a future |
//! |---|---|---|---|
//! | an access | `load`, `store`, `read`, ... | `try_load`, ... | [`Space::ready`] |
//! | many accesses | `gather`, `copy_from` | `try_gather`, `try_copy_from` | [`Space::defer`] |
//! | a change, a sync, a watch | `unmap`, `sync`, `watch_code`, ... | - | [`Space::defer`] |
//!
//! `access::forms` makes the `try_` forms. An access that hits runs the same code in either form. A
//! miss takes the same steps (`fault`); where a step would have to sleep, a `try_` form fails. Both
//! kinds of future make the blocking call, as a task of the cache (`cache::task`); [`Space::ready`]
//! first tries without waiting.
//!
//! Neighbours: `cache` provides locked blocks and calls `cache::Mappers` to revoke; `reclaim`
//! provides frames. A space itself does no I/O and starts no thread.

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
#[cfg(any(test, feature = "test-util"))]
#[path = "tests/validate.rs"]
mod validate;
mod vma;

pub use self::access::accessor::Accessor;
#[cfg(all(feature = "layout", not(shuttle)))]
pub use self::access::layout::TranslationLayout;
pub use self::access::session::Session;
pub use self::change::map::Map;
pub use self::change::pages::Advice;
pub use self::change::region::Region;
pub use self::change::remap::Remap;
pub use self::code::CodePage;
pub use self::core::error::SpaceError;
pub use self::core::fault::{AccessKind, DeviceError, Explanation, Fault, FaultKind};
pub(crate) use self::core::options::check_group;
pub use self::core::options::{AddressWidth, SpaceOptions};
pub use self::core::space::Space;
pub use self::futures::SpaceReady;
pub use self::pin::{AtFork, Pinned};
pub use self::report::{MappingInfo, MappingKind, SpaceStats};
pub use self::snapshot::error::SnapshotFileError;
pub use self::snapshot::frozen::Snapshot;
pub use self::snapshot::view::PageView;
pub use self::table::report::PageStats;
pub use self::vma::cache::VmaLookups;
pub use self::vma::device::Device;
pub use self::vma::protection::{Protection, Sharing};
pub use crate::sys::copy::{AtomicScalar, Scalar};
