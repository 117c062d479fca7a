//! Direct access: files whose bytes are directly addressable and take no page cache.
//!
//! **What it is.** A [`DaxDevice`] is a range of bytes that the process can address. An extent map
//! says which block of the device contains which page of a file, or that the page is a hole. A
//! mapping shows the device's own bytes, and for a hole the zero frame, which takes no memory. A
//! store to a block is durable once its cache lines are flushed, or once the host has written the
//! block: [`Durability`] says which of the two.
//!
//! - `device`: bytes at an address: memory, sealed files in memory, host files; flushing them
//! - `extents`: maps pages of a file to pages of a device: in place over a sparse host file, or
//!   scattered over memory
//! - `entry`, `waits`, `grab`: the word of an entry; its waiters; locking it in place
//! - `entries`: a file's entries, in nodes of the arena
//! - `core`, `file`: a file's state; the handle, and pins
//! - `fault`: page faults
//! - `io`: reads and writes by call
//! - `try_forms`: the calls that never wait, and calls in the background
//! - `flush`: sync
//! - `cut`: truncate, punch, invalidate
//! - `pins`: ranges whose addresses foreign code has
//! - `open`: host files: opening one, and what other processes can do to it
//! - `error`: what can go wrong
//!
//! # States and transitions
//!
//! An entry covers a page, or 2 MiB. It is locked in place while it is changed. A fault keeps it
//! locked from the lookup until the page table has been filled. State, event, and new state:
//!
//! - absent or empty, on a read fault: zero, or a clean block; the page table is filled before the
//!   unlock
//! - absent, empty or zero, on a store, write call or pin: a dirty block; from zero, translations
//!   are revoked everywhere and a grace period passes first
//! - clean block, on a store, write call or pin: a dirty block
//! - large zero, on a store to one page: absent, with a node of pages; translations are revoked as
//!   from zero, and the leaf of zeros is unlinked
//! - dirty block, on a sync: a clean block; write validity is revoked, a grace period passes, the
//!   lines are flushed, and a fence follows
//! - any, on a truncate or punch: absent; translations are revoked, a grace period passes, and the
//!   block is freed
//!
//! **Locking.** The file's `appending` > `layout` (shared: calls that read and write; exclusive:
//! cuts) > `syncing`, `growth` > entries, in the order of their pages > the innermost locks: those
//! of the wait queues, the extent map, the device's free list and the set of dirty ranges. A fault
//! takes none of the file's locks: it locks entries, and takes innermost locks. If it meets a cut,
//! it unlocks its entry and waits for `layout`; `cut` says how a fault and a cut see each other.
//! Faults in different ranges of 2 MiB share hardly any written data: the extent map and the set of
//! dirty ranges are striped by range, counts and the free list by thread (`stripes`, `extents`),
//! and each accessor has a count of its own on the open file (`reference`).
//!
//! **Blocking is a choice**, as in `space`: reads, writes and pins by call have `try_` forms. They
//! are the same code with `Wait::No`, which never waits for a lock, uses only free memory, and
//! stops before a query of the host or a grace period. Cuts and syncs consist of queries and grace
//! periods, so they have no such form. Any call can be made in the background.
//!
//! **Neighbours.** Below: `sys` maps and flushes; `store` opens host files and has their errors;
//! `cache` has the index and the list of mappers; `reclaim` provides nodes. Above: `space` maps
//! files; the facade opens them.
//!
//! **A host file that another process truncates** while it is mapped loses bytes, and the next
//! access to them raises SIGBUS, as in any mapping that the kernel makes: see `open`. With
//! [`OnShrink::Error`] the access is an error, at the price of a system call for each access. A
//! full disk is an error, or a signal in the few cases that `extents::identity` names.

mod core;
mod cut;
mod device;
mod entries;
mod entry;
mod error;
mod extents;
mod fault;
mod file;
mod flush;
mod grab;
mod io;
mod open;
mod pins;
mod reference;
mod stats;
mod stripes;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod try_forms;
mod waits;

#[cfg(all(test, not(shuttle)))]
pub(crate) use self::open::HostFile;

pub(crate) use self::core::{DaxCore, DaxSetup};
pub use self::core::{HoleWrites, OnShrink};
pub use device::{DaxDevice, Durability};
pub(crate) use entry::LARGE_PAGES;
pub use error::{DaxAction, DaxError, DaxFeature, PinHolder};
pub(crate) use fault::{DaxPages, Reach};
pub use file::{DaxFile, DaxPin};
pub(crate) use io::pieces;
pub(crate) use reference::DaxRef;
pub use stats::DaxStats;
