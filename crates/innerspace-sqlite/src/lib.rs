//! SQLite on Innerspace: one memory limit for any number of databases, a share for each tenant, and
//! a failing disk as SQLite's own error.
//!
//! It is a VFS: SQLite itself stays as it is, and so do its files. A database may be used by this
//! VFS and by SQLite's own at the same time, in any number of processes.
//!
//! ```
//! use rusqlite::{Connection, OpenFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("data.db");
//! let vfs = innerspace_sqlite::Options::new().limit(64 << 20).register()?;
//! let database = Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), vfs.name())?;
//! database.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (7)")?;
//! assert_eq!(database.query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0))?, 7);
//! assert!(vfs.memory().root_group().usage() <= 64 << 20);
//! # Ok(()) }
//! ```
//!
//! # The extension
//!
//! `cargo build --release -p innerspace-sqlite` also makes `libinnerspace_sqlite.so`, which any
//! SQLite from 3.37 on loads:
//!
//! ```text
//! sqlite> .load target/release/libinnerspace_sqlite
//! sqlite> .open 'file:data.db?vfs=innerspace&limit=64MiB'
//! ```
//!
//! All databases that a process opens by the extension share one memory, whose limit the first one
//! sets.
//!
//! # Options of a URI
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `limit` | the limit of the memory, for the first database of the process | 64 MiB |
//! | `block` | the unit of caching of this database, 4 KiB to 2 MiB | 4 KiB |
//! | `group` | the tenant that pays for this database | the whole memory |
//! | `branch` | the branch of this database to open | the database itself |
//! | `group_limit` | the limit of that tenant, at its first mention | that of the memory |
//!
//! Sizes are numbers of bytes, or are followed by `KiB`, `MiB` or `GiB`. If a URI names this VFS or
//! one of these options, any other option that is not one of SQLite's own is an error.
//!
//! # Branches
//!
//! | SQL, on a connection to the parent | Rust | |
//! |---|---|---|
//! | `SELECT innerspace_branch('a')` | [`Vfs::branch`] | makes a writable copy as of now |
//! | `file:data.db?vfs=innerspace&branch=a` | [`Vfs::branch_path`] | opens it |
//! | `SELECT innerspace_diff('a')` | [`Vfs::changed_pages`] | the pages that it has changed |
//! | `SELECT innerspace_commit('a')` | [`Vfs::commit_branch`] | writes it back |
//! | `SELECT innerspace_discard('a')` | [`Vfs::discard_branch`] | ends it |
//!
//! A branch has every committed transaction of its parent, those that are only in the WAL included.
//! It can be written back as long as the parent has not moved on: the pages that it has changed are
//! written, in one transaction.
//! The parent stays live, and writes on: before it overwrites a page for the first time since the
//! newest branch began, it saves the page, once for all branches. Pages that a branch has written,
//! pages that the parent has saved, and journals of branches are in the memory, under its limit,
//! and on disk (in a file without a name) only as far as there is no room.
//!
//! Branches are the process's own: they end with it. As long as a database has branches, other
//! processes can read it and cannot write it: their writers find it locked. A branch of a branch is
//! made by a connection to the branch. A branch begins with a rollback journal, whatever its parent
//! has.
//!
//! Private mappings (`Space`) were the other way to build them. A fork of one freezes the branch's
//! writes and not the parent's, which SQLite makes to the file: a page that no branch has touched
//! would change under all of them. Versions that are saved by the parent cost nothing when a branch
//! begins, and one copy of each page that the parent then changes.
//!
//! # What is in the memory
//!
//! The blocks of database files, and temporary files as long as they fit. Journals and WALs are
//! read and written past it. Each connection of SQLite has a page cache of its own besides, outside
//! the limit: make it small (`PRAGMA cache_size = 10`), since the memory has the pages anyway. With
//! `PRAGMA mmap_size` SQLite uses the memory's blocks in place.
//!
//! A block that finds no room is read past the memory, so a small limit makes a database slower,
//! and nothing else.
//!
//! # Errors
//!
//! Each failure is SQLite's ordinary error, and a line in its log (`SQLITE_CONFIG_LOG`) that says
//! which file, what the system said, and what to do.
//!
//! # Caveats
//!
//! - Linux only. On network file systems the locks are those of the server.
//! - **Do not open one database by this VFS and by SQLite's own in one process.** When a connection
//!   of this VFS closes the file, POSIX takes the locks away from those of SQLite's own. (Other
//!   processes are not affected. Connections of this VFS among each other are not, either: their
//!   locks are those of open file descriptions.)
//! - A program that calls the VFS's `xFullPathname` itself, and a VFS on top of this one, must pass
//!   names as SQLite does: with the parameters of the URI behind them, as `sqlite3_create_filename()`
//!   makes them.
//! - `nolock=1` reads past the memory, because without locks nothing tells what is current.

#![cfg(unix)]
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![warn(clippy::return_self_not_must_use)]

mod branch;
mod branching;
mod commit;
mod database;
mod disk;
mod error;
mod ffi;
mod file;
mod gate;
mod history;
mod index;
mod locks;
mod main_file;
mod options;
mod plain;
mod system;
mod temporary;
mod uri;
mod wal;

pub use self::disk::{Deletion, Disk};
pub use self::options::{BranchError, Options, RegisterError, Vfs};

/// The name under which the VFS is registered, if no other is chosen.
pub const NAME: &str = "innerspace";

#[doc(hidden)]
pub use self::ffi::Api;
/// SQLite's numbers and structs as this crate has them, for the test that compares them.
#[doc(hidden)]
pub use self::ffi::raw as layout;

/// The example of README.md, compiled with the documented examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
