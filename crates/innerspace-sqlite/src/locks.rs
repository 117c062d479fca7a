//! Locks of byte ranges, as SQLite's own VFS for Unix has them, so that both work on one file.
//!
//! A database's locks are bytes beyond its content: PENDING, RESERVED, and 510 bytes that readers
//! share. Those of a WAL are bytes 120 to 127 of the `-shm` file; byte 128 (the dead man's switch)
//! is locked shared as long as a connection uses that file.
//!
//! **Each connection has an open file description of its own, and locks by it** (`F_OFD_SETLK`).
//! Such locks conflict with each other, and with the locks of whole processes (`F_SETLK`) that
//! SQLite's own VFS takes, whichever process has them. They end only with their description. The
//! locks of processes have a trap that SQLite's own VFS takes pains to avoid: a process that closes
//! any descriptor of a file loses all its locks on it. It cannot happen here, so no table of locks
//! of the process is needed, and nothing has to be closed late. What remains is the trap of the
//! other side: a connection of SQLite's own VFS in the same process on the same file loses its
//! locks when one of ours is closed. The crate's page says so.
//!
//! A database over stores ([`crate::Disk`]) is known only to this process. Its locks are a table.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How a unit is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Others may have it too.
    Shared,
    /// Nobody else has it.
    Exclusive,
}

/// A set of units that are locked one by one or several in a row. A unit is a range of bytes.
#[derive(Debug)]
pub(crate) struct Units {
    /// The first byte of each unit, and the end of the last.
    bounds: &'static [i64],
}

/// The units of a database file.
pub(crate) static DATABASE: Units = Units {
    bounds: &[0x4000_0000, 0x4000_0001, 0x4000_0002, 0x4000_0002 + 510],
};
pub(crate) const PENDING: u8 = 0;
pub(crate) const RESERVED: u8 = 1;
pub(crate) const SHARED: u8 = 2;

/// The units of a `-shm` file: SQLite's eight, and the dead man's switch.
pub(crate) static INDEX: Units = Units {
    bounds: &[120, 121, 122, 123, 124, 125, 126, 127, 128, 129],
};
pub(crate) const SWITCH: u8 = 8;

/// One connection's locks on one file.
#[derive(Debug)]
pub(crate) enum Locks {
    /// By the system, for a file of the file system.
    Host {
        file: Arc<File>,
        units: &'static Units,
        /// The process that made it. A child of fork(2) shares the description, and with it the
        /// locks.
        process: u32,
    },
    /// By a table, for a store.
    Process { table: Arc<Table>, owner: u64 },
}

/// The locks on a file that only this process uses.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<Vec<(u64, u8, Kind)>>);

static OWNERS: AtomicU64 = AtomicU64::new(0);

impl Locks {
    pub(crate) fn host(file: Arc<File>, units: &'static Units) -> Locks {
        Locks::Host {
            file,
            units,
            process: std::process::id(),
        }
    }

    /// A new owner of locks in a table.
    pub(crate) fn process(table: &Arc<Table>) -> Locks {
        Locks::Process {
            table: table.clone(),
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Locks units, or changes how they are locked. `false` if another has one of them.
    pub(crate) fn take(&self, kind: Kind, units: Range<u8>) -> io::Result<bool> {
        match self {
            Locks::Host {
                file, units: all, ..
            } => set(file, Some(kind), all.bytes(units)),
            Locks::Process { table, owner } => {
                let mut taken = table.0.lock().unwrap_or_else(PoisonError::into_inner);
                let blocks = |(other, unit, how): &(u64, u8, Kind)| {
                    other != owner
                        && units.contains(unit)
                        && (*how == Kind::Exclusive || kind == Kind::Exclusive)
                };
                if taken.iter().any(blocks) {
                    return Ok(false);
                }
                taken.retain(|(other, unit, _)| other != owner || !units.contains(unit));
                taken.extend(units.map(|unit| (*owner, unit, kind)));
                Ok(true)
            }
        }
    }

    /// Unlocks units, whether or not they are locked.
    pub(crate) fn release(&self, units: Range<u8>) -> io::Result<()> {
        match self {
            // A child's unlock would unlock its parent's files.
            Locks::Host { process, .. } if *process != std::process::id() => Ok(()),
            Locks::Host {
                file, units: all, ..
            } => set(file, None, all.bytes(units)).map(drop),
            Locks::Process { table, owner } => {
                let mut taken = table.0.lock().unwrap_or_else(PoisonError::into_inner);
                taken.retain(|(other, unit, _)| other != owner || !units.contains(unit));
                Ok(())
            }
        }
    }

    /// Returns how another has locked a unit, if one has.
    pub(crate) fn other(&self, unit: u8) -> io::Result<Option<Kind>> {
        match self {
            Locks::Host {
                file, units: all, ..
            } => get(file, all.bytes(unit..unit + 1)),
            Locks::Process { table, owner } => {
                let taken = table.0.lock().unwrap_or_else(PoisonError::into_inner);
                let of_others = |(other, at, _): &&(u64, u8, Kind)| other != owner && *at == unit;
                Ok(taken.iter().find(of_others).map(|(_, _, kind)| *kind))
            }
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        match self {
            // The locks end with the description, which a child of fork(2) may still have.
            Locks::Host { units, .. } => {
                let all = units.bounds.len() as u8 - 1;
                let _ = self.release(0..all);
            }
            Locks::Process { table, owner } => {
                let mut taken = table.0.lock().unwrap_or_else(PoisonError::into_inner);
                taken.retain(|(other, ..)| other != owner);
            }
        }
    }
}

impl Units {
    fn bytes(&self, units: Range<u8>) -> Range<i64> {
        self.bounds[usize::from(units.start)]..self.bounds[usize::from(units.end)]
    }
}

fn flock(kind: Option<Kind>, bytes: Range<i64>) -> libc::flock {
    let how = match kind {
        Some(Kind::Shared) => libc::F_RDLCK,
        Some(Kind::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    libc::flock {
        l_type: how as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start,
        l_len: bytes.end - bytes.start,
        // Must be 0 for locks of descriptions.
        l_pid: 0,
    }
}

fn set(file: &File, kind: Option<Kind>, bytes: Range<i64>) -> io::Result<bool> {
    let lock = flock(kind, bytes);
    loop {
        // SAFETY: the descriptor is open, and the struct is read during the call only.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // SQLite tries again, as it does for its own VFS.
            Some(libc::EACCES | libc::EAGAIN | libc::EBUSY | libc::ENOLCK | libc::ETIMEDOUT) => {
                return Ok(false);
            }
            _ => return Err(error),
        }
    }
}

fn get(file: &File, bytes: Range<i64>) -> io::Result<Option<Kind>> {
    let mut lock = flock(Some(Kind::Exclusive), bytes);
    // SAFETY: the descriptor is open, and the struct is written during the call only.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(match libc::c_int::from(lock.l_type) {
        libc::F_RDLCK => Some(Kind::Shared),
        libc::F_WRLCK => Some(Kind::Exclusive),
        _ => None,
    })
}
