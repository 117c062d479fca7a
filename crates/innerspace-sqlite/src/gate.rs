//! The locks of writers, while branches are alive.
//!
//! A branch reads what the database has not changed from the database's own file. A write by
//! another process would change that behind its back. So while a database has branches, this
//! process holds the writers' locks against all others: RESERVED, or with a WAL its locks for
//! writing and for checkpoints, and a shared lock on the file, so that the WAL stays. Others can
//! still read. The connections of this process get those locks here, one at a time.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::index::Index;
use crate::locks::{Kind, Locks};

/// A lock that only one connection at a time has, so that it may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writer {
    /// To begin a transaction with a rollback journal.
    Reserved,
    /// To append to a WAL.
    Append,
    /// To copy a WAL to the database.
    Checkpoint,
}

#[derive(Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    kept: Option<Kept>,
    owners: [Option<u64>; 3],
    /// The only connection that may write, for the time of a commit of a branch.
    only: Option<u64>,
}

/// The locks that keep other processes out. They end with it.
pub(crate) struct Kept {
    pub(crate) locks: Locks,
    /// The index of the WAL, if the database has one.
    pub(crate) index: Option<Index>,
}

impl Kept {
    /// Whether these locks keep out other processes' writers of this kind.
    fn covers(&self, writer: Writer) -> bool {
        match writer {
            Writer::Reserved => self.index.is_none(),
            Writer::Append | Writer::Checkpoint => self.index.is_some(),
        }
    }
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a writer's lock for a connection: here, or else by `locks`. `false` if another has it.
    pub(crate) fn take(
        &self,
        writer: Writer,
        connection: u64,
        locks: &Locks,
        units: Range<u8>,
    ) -> io::Result<bool> {
        let mut state = self.state();
        if state.only.is_some_and(|only| only != connection) {
            return Ok(false);
        }
        if !state.kept.as_ref().is_some_and(|kept| kept.covers(writer)) {
            return locks.take(Kind::Exclusive, units);
        }
        let owner = &mut state.owners[writer as usize];
        if owner.is_some_and(|owner| owner != connection) {
            return Ok(false);
        }
        *owner = Some(connection);
        Ok(true)
    }

    /// Lets a connection's lock go, if it is one that was taken here.
    pub(crate) fn release(&self, writer: Writer, connection: u64) {
        let mut state = self.state();
        let owner = &mut state.owners[writer as usize];
        if *owner == Some(connection) {
            *owner = None;
        }
    }

    /// Whether another connection has a lock. `None` if the locks are not kept here.
    pub(crate) fn is_taken(&self, writer: Writer, connection: u64) -> Option<bool> {
        let state = self.state();
        state.kept.as_ref()?;
        let owner = state.owners[writer as usize];
        Some(owner.is_some_and(|owner| owner != connection))
    }

    /// Whether other processes are kept out.
    pub(crate) fn is_kept(&self) -> bool {
        self.state().kept.is_some()
    }

    /// Keeps other processes out from now on. `close` takes their locks; it is called while no
    /// connection of this process can take one.
    pub(crate) fn close<E>(&self, close: impl FnOnce() -> Result<Kept, E>) -> Result<(), E> {
        let mut state = self.state();
        if state.kept.is_none() {
            state.kept = Some(close()?);
        }
        Ok(())
    }

    /// Makes a call with the locks that are kept.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&Kept) -> T) -> Option<T> {
        self.state().kept.as_ref().map(call)
    }

    /// Whether other processes are kept out of a database with a rollback journal.
    pub(crate) fn keeps_journal(&self) -> bool {
        let state = self.state();
        state.kept.as_ref().is_some_and(|kept| kept.index.is_none())
    }

    /// Lets other processes write again if no branch needs the locks any longer, unless a
    /// connection here is writing. `is_unused` is asked with the gate locked, so that no branch
    /// begins meanwhile.
    pub(crate) fn open_if(&self, is_unused: impl FnOnce() -> bool) {
        let mut state = self.state();
        let is_free = state.owners.iter().all(Option::is_none);
        if state.kept.is_some() && is_free && is_unused() {
            state.kept = None;
        }
    }

    /// Lets other processes write again, whatever connections here do.
    pub(crate) fn force_open(&self) {
        let mut state = self.state();
        state.kept = None;
        state.owners = [None; 3];
    }

    /// Lets only one connection write. `false` if another is writing.
    pub(crate) fn reserve(&self, connection: u64) -> bool {
        let mut state = self.state();
        let others = |owner: &Option<u64>| owner.is_some_and(|owner| owner != connection);
        let is_free = state.only.is_none() && !state.owners.iter().any(others);
        if is_free {
            state.only = Some(connection);
        }
        is_free
    }

    pub(crate) fn end_reserve(&self) {
        self.state().only = None;
    }
}
