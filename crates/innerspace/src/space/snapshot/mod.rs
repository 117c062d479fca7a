//! Snapshots: a space frozen at a moment, to look into, to fork from, to compare with and to go
//! back to.
//!
//! | file | what is in it |
//! |---|---|
//! | `frozen` | taking one, reading it, forking from it |
//! | `view` | bytes of a snapshot as a slice |
//! | `restore` | going back, in two forms |
//! | `changes` | which pages a space has changed since it last went back |
//! | `ghosts` | which pages it has given back lately |
//! | `diff` | differences, from the tables alone |
//! | `file` | saving one, and loading it |
//! | `error` | the errors of that |
//!
//! A snapshot is a fork that nobody can store to or map in: it shares every table and page with its
//! space, costs as much as a fork, and pays for what its space changes later by keeping the old
//! pages. Files are not part of it: a page of a file that was not copied by a private store is read
//! from the file as it is when it is read.
//!
//! Locking: as for any space; a restore is a structural change, with the gate closed. `changes` has
//! a mutex of its own, taken inside sections and under no other.

pub(crate) mod changes;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod error;
pub(crate) mod file;
pub(crate) mod frozen;
pub(crate) mod ghosts;
pub(crate) mod restore;
#[cfg(all(test, not(shuttle)))]
mod tests;
pub(crate) mod view;
