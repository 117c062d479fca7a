//! Guards calls to stores: what a thread may do with the file during such a call, and which stores
//! may be called on behalf of another operation.
//!
//! A store may be called with locks of the file's blocks, and its `invalidate` lock, held. If the
//! store called the same file on the same thread, that call could wait for these locks for ever. So
//! any such call that may wait returns an error. The store may use other files: it may itself be
//! made of files.
//!
//! A file, the files that its store is made of, and so on, form a stack. Files are locked from the
//! top of a stack downwards. An operation that needs memory, makes room for dirty blocks, or does
//! the service's work calls stores of files other than its own. These files may be anywhere in a
//! stack, even above a file whose store this thread is calling, or that it has locked (with the
//! append, long-view or `invalidate` lock, or the layout lock of a direct-access file:
//! [`FileLocked`](crate::exec::reentry::FileLocked)). While such a file is locked or its store is
//! being called, the operation calls only stores that use no files, judging by what they declare
//! and what has been seen so far ([`FileCore::may_call_unasked`]). Dirty blocks of other files are
//! written with nothing locked: an operation that found no memory releases its locks, makes room,
//! and tries again ([`with_room`]).

use std::io;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::errors::{FileError, StoreAction, store_panicked};
use crate::exec::reentry::{self, Inside, is_outermost};
use crate::group::{GroupId, SetAside};
use crate::reclaim::{Io, Pool, StoreScope, Trial};
use crate::store::{FileAccess, Store, uninterrupted};
use crate::sync::panics::Panics;
use crate::sync::{Apart, Arc};
use crate::units::PageCount;

/// The most times that an operation which lacks memory makes room and tries again, before it
/// returns the error.
pub(crate) const ROOMS: u32 = 8;

/// The number of pages to make room for in addition to the blocks that an operation needs: for
/// nodes of the index, and for pages that other threads allocate meanwhile.
const EXTRA_ROOM: u64 = 8;

/// A call to a file's store by this thread. The call ends when this is dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct StoreCall {
    _call: Inside,
    _scope: StoreScope,
    _apart: Apart,
}

impl FileCore {
    /// Returns the address of this structure. It identifies the file in the marks of store calls,
    /// in the lanes of tasks, and among watched pages.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Begins a call to the file's store. During the call, this thread calls no store to make room,
    /// and gets an error from any call to the file that may wait.
    pub(crate) fn store_call(&self) -> StoreCall {
        self.begin_call(None)
    }

    fn begin_call(&self, aside: Option<Arc<SetAside>>) -> StoreCall {
        StoreCall {
            _call: Inside::store_call(self.address(), self.store.uses_files.clone()),
            _scope: self.pool.store_scope(aside),
            _apart: Apart::begin(),
        }
    }

    /// Makes a call that asks the file's store for information. Repeats the call if it is
    /// interrupted. If it fails, the error names the range `bytes`.
    pub(crate) fn query_store<T>(
        &self,
        bytes: &Range<u64>,
        mut query: impl FnMut(&dyn Store) -> io::Result<T>,
    ) -> Result<T, FileError> {
        let store = self.store()?;
        let _call = self.store_call();
        let (what, len) = (StoreAction::Query, bytes.end - bytes.start);
        uninterrupted(|| query(&**store))
            .map_err(|error| self.store_error(what, bytes.start, len, error))
    }

    /// Makes a call that changes the file's store. Repeats the call if it is interrupted. Unlike a
    /// read, the call may use the pages that were set aside, so that dirty blocks can be written
    /// when there is no other memory. If it fails, the error names the `len` bytes at `offset`.
    pub(crate) fn change_store<T>(
        &self,
        what: StoreAction,
        (offset, len): (u64, u64),
        mut change: impl FnMut(&dyn Store) -> io::Result<T>,
    ) -> Result<T, FileError> {
        let store = self.store()?;
        let _call = self.begin_call(self.store.aside.clone());
        // A sync changes nothing that a later sync would have to cover.
        let _changing = (what != StoreAction::Sync).then(|| self.writes.syncs.changing());
        uninterrupted(|| change(&**store))
            .map_err(|error| self.store_error(what, offset, len, error))
    }

    /// Runs `work`, which calls the store, and turns a panic of the store into an error. The caller
    /// resumes the panic from `panics` when it has dealt with the failure.
    pub(crate) fn caught<T>(
        &self,
        panics: &mut Panics,
        what: StoreAction,
        (offset, len): (u64, u64),
        work: impl FnOnce() -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let mut result = None;
        panics.catch(|| result = Some(work()));
        let panicked = || Err(self.store_error(what, offset, len, store_panicked()));
        result.unwrap_or_else(panicked)
    }

    /// Whether this thread is in a call to the file's store.
    pub(crate) fn in_store_call(&self) -> bool {
        reentry::is_in_store_call(self.address())
    }

    /// Returns an error in a child of fork(2): the child has neither the cached bytes nor the
    /// memory's threads, and only the parent may write to the store.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), FileError> {
        self.pool.check_process(|pid| self.other_process(pid))
    }

    #[cold]
    fn other_process(&self, pid: u32) -> FileError {
        FileError::OtherProcess {
            file: self.id.name.clone(),
            pid,
        }
    }

    /// Returns an error if the thread is in a call to the file's store, or the process is a child
    /// of fork(2). Called at the start of calls that may wait.
    pub(crate) fn check_not_reentrant(&self) -> Result<(), FileError> {
        self.check_process()?;
        match self.in_store_call() {
            false => Ok(()),
            true => Err(FileError::Reentered {
                file: self.id.name.clone(),
            }),
        }
    }

    /// Returns an error if the file is open for reading only, or if
    /// [`FileCore::check_not_reentrant`] returns one.
    pub(crate) fn check_writable(&self) -> Result<(), FileError> {
        self.check_not_reentrant()?;
        match self.id.access {
            FileAccess::ReadWrite => Ok(()),
            FileAccess::ReadOnly => Err(FileError::ReadOnly {
                file: self.id.name.clone(),
            }),
        }
    }

    pub(crate) fn closed(&self) -> FileError {
        FileError::Closed {
            file: self.id.name.clone(),
        }
    }

    pub(crate) fn would_block(&self, offset: u64) -> FileError {
        FileError::WouldBlock {
            file: self.id.name.clone(),
            offset,
        }
    }

    pub(crate) fn would_block_in(&self, block: u64) -> FileError {
        self.would_block(block.saturating_mul(self.block_bytes()))
    }

    /// Whether this thread may call the file's store on behalf of another operation. If not, notes
    /// that a store was skipped, for [`with_room`].
    pub(crate) fn may_call_unasked(&self) -> bool {
        let may = !self.store.may_use_files() || is_outermost();
        if !may {
            StoreScope::note_skipped();
        }
        may
    }

    /// Whether this thread may call the file's store to make room for the group in `io`. False for
    /// [`Io::Forbidden`].
    pub(crate) fn may_call_for(&self, io: Io) -> bool {
        io.includes(self.id.groups.iter().copied()) && self.may_call_unasked()
    }

    /// Calls [`with_room`] for this file. `work` is also repeated after room was made for the files
    /// that the store is made of, and after waiting for requests in flight, whose memory can then
    /// be reclaimed.
    pub(crate) fn with_room<T>(
        &self,
        work: impl FnMut() -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        let is_full = |error: &FileError| match error {
            FileError::Limit(full) => Some(full.details().id),
            _ => None,
        };
        let mut work = work;
        let (mut landings, mut rooms) = (0, 0);
        let patient = || loop {
            let result = work();
            if let Err(error) = &result
                && rooms < ROOMS
                && self.make_room_below(error, 2)
            {
                rooms += 1;
                continue;
            }
            match result.as_ref().err().and_then(is_full) {
                Some(group) if landings < ROOMS && self.wait_for_landing(group) => landings += 1,
                _ => return result,
            }
        };
        with_room(
            &self.pool,
            self.id.group.id(),
            PageCount(2 * self.block_pages()),
            is_full,
            patient,
        )
    }

    /// Whether `error` means that the store, which is made of files, found no memory for them. A
    /// call to a store evicts nothing, so the room has to be made outside it.
    pub(crate) fn is_short_below(&self, error: &FileError) -> bool {
        let is_short = matches!(error, FileError::Store { source, .. }
            if source.kind() == io::ErrorKind::OutOfMemory);
        is_short && self.store.may_use_files()
    }

    /// Makes room for `blocks` blocks of this file if [`FileCore::is_short_below`] holds for
    /// `error` and nothing is locked. Returns whether any page was freed. The caller ensures that
    /// this thread has no write under way, since reclaim might wait for it.
    pub(crate) fn make_room_below(&self, error: &FileError, blocks: u64) -> bool {
        if !self.is_short_below(error) || !is_outermost() || self.pool.in_store_scope() {
            return false;
        }
        let pages = blocks * self.block_pages() + EXTRA_ROOM;
        // Blocks whose requests have landed can be evicted.
        self.wait_for_landing(self.id.group.id());
        let freed = StoreScope::make_room_where_short(PageCount(pages));
        // If no allocation by this thread failed, another thread made the call that failed.
        let elsewhere = || {
            let io = Io::Of(self.id.group.id());
            self.pool.reclaim_for(GroupId::ROOT, PageCount(pages), io)
        };
        freed.unwrap_or_else(elsewhere) > PageCount(0)
    }

    /// Waits briefly for a request in flight to land, because its blocks can then be evicted. If
    /// the memory has no threads, runs queued jobs instead. Called when memory is short. Returns
    /// false, without waiting, if no request in flight holds memory of the group.
    fn wait_for_landing(&self, group: GroupId) -> bool {
        if self.cache.in_flight.of(group) == 0 {
            return false;
        }
        if self.cache.workers.has_threads() {
            self.cache.wait_for_landing();
        } else if is_outermost() {
            self.cache.run_jobs();
        } else {
            while self.store_calls.run_one() {}
        }
        true
    }

    /// Returns an error if another process has changed the store. May ask the store for its
    /// version, and returns an error if that call fails. The caller holds no lock of a block.
    pub(crate) fn check_version(&self) -> Result<(), FileError> {
        if self.version.begins_to_ask(self.pool.background.now()) {
            self.ask_version()?;
        }
        match self.version.is_changed() {
            false => Ok(()),
            true => Err(self.changed_in_place()),
        }
    }

    /// Asks the store for its version, if it reports versions. Records the first sign of a change
    /// in the error sequence. Returns an error only if the query fails.
    pub(crate) fn ask_version(&self) -> Result<(), FileError> {
        let version = |store: &dyn Store| store.version();
        if self.version.is_told() && self.version.note(self.query_store(&(0..0), version)?) {
            self.writes.errors.record(self.changed_in_place());
        }
        Ok(())
    }

    /// Accepts the store's present version. Returns an error if the store cannot be asked for it.
    /// The caller knows that another process may have changed the store. It has invalidated the
    /// blocks that it needs to read anew, or is about to.
    pub(crate) fn accept_version(&self) -> Result<(), FileError> {
        if self.version.is_told() {
            let now = self.query_store(&(0..0), |store| store.version())?;
            self.version.accept(now);
        }
        Ok(())
    }

    #[cold]
    fn changed_in_place(&self) -> FileError {
        let (was, now) = self.version.known_and_now();
        FileError::ChangedInPlace {
            file: self.id.name.clone(),
            was,
            now,
        }
    }
}

/// Runs `work`, which locks files and allocates memory. Repeats it, at most [`ROOMS`] times, if it
/// found no memory (`is_full` returns the full group) and reclaim skipped files because their
/// stores could not be called there. So `work` must be safe to run more than once. Before each
/// repetition, room for `pages` and a few more is made on behalf of `payer`, with nothing locked.
/// The error is returned instead if this thread has a file locked or is in a call to a store, or if
/// no page could be freed. The failed allocation is counted as a failure only if the caller gets
/// the error.
pub(crate) fn with_room<T, E>(
    pool: &Pool,
    payer: GroupId,
    pages: PageCount,
    is_full: impl Fn(&E) -> Option<GroupId>,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut rooms = 0;
    loop {
        let before = StoreScope::skipped();
        let trial = Trial::begin(pool);
        let result = work();
        let Some(group) = result.as_ref().err().and_then(&is_full) else {
            trial.forget();
            return result;
        };
        if rooms == ROOMS
            || StoreScope::skipped() == before
            || !is_outermost()
            || pool.reclaim_for(group, PageCount(pages.0 + EXTRA_ROOM), Io::Of(payer))
                == PageCount(0)
        {
            return result;
        }
        trial.forget();
        rooms += 1;
    }
}
