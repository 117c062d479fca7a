//! Snapshots: a space frozen at one moment, to read, fork from, compare with and restore.
//!
//! | file | what is in it |
//! |---|---|
//! | `frozen` | taking one, reading it, forking from it |
//! | `view` | bytes of a snapshot as a slice |
//! | `restore` | going back to one, in two forms, of which one serves fuzz loops |
//! | `changes` | which pages a space has changed since its last restore |
//! | `devices` | the states of the devices that it maps |
//! | `diff` | differences, from mappings and tables alone |
//! | `file` | saving one, and loading it |
//! | `error` | the errors of saving and loading |
//!
//! A snapshot is a fork that allows no stores and no changes of its mappings. It shares every table
//! and page with its space, except pinned pages and the tables that lead to them, and costs as much
//! as a fork. When its space changes a page later, the snapshot keeps the old page. Files are not
//! part of it: a page of a file that was not copied by a private store is read from the file, with
//! its content at that time.
//!
//! Locking: as for any space. A restore is a structural change, with the gate closed. `changes` has
//! its own mutex, which is taken inside sections. Under it, the group is charged without waiting;
//! no other lock is taken.

pub(crate) mod changes;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod frozen;
pub(crate) mod restore;
#[cfg(all(test, not(shuttle)))]
mod tests;
pub(crate) mod view;
