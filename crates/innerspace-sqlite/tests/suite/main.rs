//! SQLite over the VFS: every journal mode, other processes, power cuts, kills, and bad input.

mod bad_input;
mod branches;
mod commits;
mod common;
mod disks;
mod extension;
mod journal_modes;
mod kernel_cache;
mod kills;
mod layout;
mod mmap;
mod power_cuts;
mod processes;
mod wal;
