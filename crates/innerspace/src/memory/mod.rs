//! The facade: one [`Memory`] ties frames, groups, cache and spaces together, and runs the service
//! thread.
//!
//! | file | contents |
//! |---|---|
//! | `error` | [`MemoryError`] |
//! | `causes` | [`causes()`]: an error of any family, and those below it |
//! | `limit` | [`Limit`]: bytes, or a share of the container or machine |
//! | `files` | the table of open files: one for each identity of a store (P27), cached or direct |
//! | `service` | the service thread, and `tick()` in its place |
//! | `options` | [`MemoryBuilder`]: limit, threads; creating a memory |
//! | `open` | opening files |
//! | `direct` | opening direct-access files |
//! | `stats` | [`MemoryStats`]: all counters, for people, programs and Prometheus |
//!
//! A `Memory` is a handle. Files, views, spaces and accessors keep alive what they need; the
//! service thread ends when the last of them is gone.
//!
//! Locking: the table of open files has a mutex. It is held from the search for a file of the file
//! system until that file is locked against other processes and added, but not while any other
//! store is probed, and never while a file is read or written.

mod causes;
mod direct;
mod error;
mod files;
mod limit;
#[cfg(all(test, shuttle))]
mod models;
mod open;
mod options;
mod service;
mod stats;
#[cfg(test)]
mod tests;

use crate::cache::{Cache, ErrorHook, FileError, PagedFile};
use crate::group::{Group, GroupError, Pressure};
use crate::reclaim::{MissCurve, Pool};
use crate::space::{Snapshot, SnapshotFileError, Space, SpaceError, SpaceOptions, check_group};
use crate::sync::Arc;
use crate::sync::panics::Panics;

pub use self::causes::{causes, raw_os_error};
pub use self::direct::DaxOpener;
pub use self::error::MemoryError;
use self::files::OpenFiles;
pub use self::limit::Limit;
pub use self::open::{FileOpener, OpenError};
pub use self::options::{MINIMUM_LIMIT, MemoryBuilder, Threads};
use self::service::Service;
pub use self::stats::{LimitParts, MemoryStats};

/// A memory manager with a hard limit: cached files, memory groups and address spaces.
///
/// Every handle reaches every group. Do not give a handle to a tenant that must not reach the other
/// groups. Give the tenant only what was opened or created for its own [`Group`].
///
/// Dropping the last handle of the memory waits for work that was left to its threads, such as
/// closing files whose last handle was dropped in a call to a store, calling wakers, the error hook
/// and the callbacks of [`Group::on_events`]. The wait ends after five seconds in which no part of
/// that work ends and no store accepts any bytes. A store that hangs for that long is abandoned,
/// with the bytes that were not written to it. Files, spaces and accessors outlive the `Memory`,
/// and their own drops wait for what they keep open. With [`Threads::None`] the thread that drops
/// does the work itself, and waits for every store.
///
/// ```
/// use innerspace::{KIB, MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; 100_000])?;
/// let memory = Memory::with_limit(64 * MIB)?;
/// let file = memory.open(&path)?;
/// let head = file.view(0..16 * KIB)?;
/// assert_eq!(head[100], 7);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Memory(Arc<MemoryInner>);

struct MemoryInner {
    pool: Arc<Pool>,
    cache: Arc<Cache>,
    root: Group,
    /// The limit that was asked for, in bytes.
    limit: u64,
    /// The service thread; `None` if the program's own threads do its work.
    service: Option<Service>,
    files: OpenFiles,
}

impl Memory {
    /// Returns the group of the whole memory; its limit is the memory's.
    pub fn root_group(&self) -> &Group {
        &self.0.root
    }

    /// Creates a group (a tenant) below the root, limited to `max` bytes.
    ///
    /// # Errors
    /// The errors of [`Group::create_child`].
    pub fn create_group(&self, name: &str, max: u64) -> Result<Group, GroupError> {
        self.0.root.create_child(name, max)
    }

    /// Creates an empty address space, charged to the root group.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] if there is no page for the space's root.
    pub fn create_space(&self) -> Result<Space, SpaceError> {
        self.create_space_with(&SpaceOptions::new())
    }

    /// Creates an empty address space, charged to `group`.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] if the group has no page for the space's root;
    /// [`SpaceError::OtherMemorysGroup`].
    pub fn create_space_in(&self, group: &Group) -> Result<Space, SpaceError> {
        self.create_space_with(&SpaceOptions::new().group(group))
    }

    /// Creates an empty address space with these options.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] if its group has no page for the space's root;
    /// [`SpaceError::OtherMemorysGroup`].
    pub fn create_space_with(&self, options: &SpaceOptions) -> Result<Space, SpaceError> {
        let group = options.group.as_ref().unwrap_or(&self.0.root);
        check_group("space", group, &self.0.pool)?;
        Ok(Space::new(&self.0.cache, group, options.width)?)
    }

    /// Loads what [`Snapshot::save`] wrote, charged to the root group; [`Memory::load_snapshot_in`]
    /// charges another group. `open` gets the name of each mapped file and returns the file, or
    /// `None`, which ends the call with [`SnapshotFileError::UnknownFile`]. The name is the one
    /// given by [`FileOpener::name`], or else the path by which the file was opened, or the store's
    /// name. (Control characters in the name are not escaped, unlike in [`PagedFile::name`].) No
    /// mapping of the loaded snapshot is locked, or has advice on how it will be read. Spaces can
    /// be forked from the snapshot, and restored to it.
    ///
    /// ```
    /// # use innerspace::{Map, Memory, MIB};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let space = memory.create_space()?;
    /// let at = space.map(Map::anonymous(MIB))?;
    /// space.accessor()?.store(at, 7_u64)?;
    /// let mut saved = Vec::new();
    /// space.freeze()?.save(&mut saved)?;
    /// let loaded = memory.load_snapshot(&saved[..], |_| None)?;
    /// assert_eq!(loaded.fork()?.accessor()?.load::<u64>(at)?, 7);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SnapshotFileError`], in which case nothing is kept.
    pub fn load_snapshot(
        &self,
        from: impl std::io::Read,
        open: impl FnMut(&str) -> Option<PagedFile>,
    ) -> Result<Snapshot, SnapshotFileError> {
        self.load_snapshot_in(&self.0.root, from, open)
    }

    /// Loads like [`Memory::load_snapshot`], with the loaded pages and their tables charged to
    /// `group`. The group also pays for spaces from [`Snapshot::fork`]; with [`Snapshot::fork_in`]
    /// another group pays for the fork. Pages of files are charged to the groups of the files.
    ///
    /// # Errors
    /// [`SnapshotFileError`], also if the group is full. Nothing is kept in that case.
    pub fn load_snapshot_in(
        &self,
        group: &Group,
        mut from: impl std::io::Read,
        open: impl FnMut(&str) -> Option<PagedFile>,
    ) -> Result<Snapshot, SnapshotFileError> {
        if !group.belongs_to(&self.0.pool.groups) {
            return Err(SnapshotFileError::OtherMemorysGroup);
        }
        Snapshot::load(&self.0.cache, group, &mut from, open)
    }

    /// Returns the limit in bytes, as asked for.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Does the work of one tick: writes back old blocks, evicts ahead of need, wakes futures. With
    /// [`Threads::None`] call it about once a second. With a service thread, calling it is
    /// unnecessary.
    ///
    /// # Panics
    /// Panics if a store, a waker, the error hook or a callback of [`Group::on_events`] panics in
    /// this thread. The rest of the tick's work is done before the panic resumes.
    pub fn tick(&self) {
        self.0.cache.tick();
    }

    /// Evicts pages until `bytes` are freed or nothing more can be evicted. Returns the number of
    /// bytes freed.
    pub fn reclaim(&self, bytes: u64) -> u64 {
        use crate::group::Reclaimer;
        let (root, pages) = (self.0.root.id(), crate::PageCount::ceil(bytes));
        self.0.pool.reclaim(root, pages, Some(root)).bytes()
    }

    /// Returns the share of time during which requests for memory were stalled, over all groups.
    pub fn pressure(&self) -> Pressure {
        self.0.root.pressure()
    }

    /// Returns an estimate, from a sample, of the share of uses of file blocks that would have
    /// missed with more memory, or with less. `None` unless [`MemoryBuilder::sample_misses`] was
    /// called.
    pub fn miss_curve(&self) -> Option<MissCurve> {
        self.0.pool.miss_curve()
    }

    /// Takes the write errors that no open handle was left to report, oldest first. If a file was
    /// dropped and its data could not be written, taking its error discards the data; see
    /// [`FileError`]. Each such file has one error, that of its last failed write. The latest 64
    /// errors are kept; [`Totals::error_untaken`](crate::Totals::error_untaken) counts those that
    /// were dropped before they were taken.
    #[must_use = "taking an error discards the data that it is about"]
    pub fn take_errors(&self) -> Vec<FileError> {
        self.0.cache.take_errors()
    }

    /// Sets a hook that is called with each write error that no open handle can report, because the
    /// file's last handle is gone. [`Memory::take_errors`] returns these errors, too. A later hook
    /// replaces an earlier one.
    ///
    /// The hook runs on one of the memory's threads, or in [`Memory::tick`]. During the call, no
    /// lock is held that a call to this library takes. The hook also runs when the last `Memory` is
    /// dropped. After that, with [`Threads::None`], it runs in the thread that drops the file. Up
    /// to 64 errors, the latest, wait until the hook is called with them;
    /// [`Totals::error_untold`](crate::Totals::error_untold) counts those that were dropped before.
    ///
    /// With [`Threads::None`] the hook also runs in a thread that waits for a future by
    /// [`Task::wait_timeout`](crate::Task::wait_timeout), and a panic in the hook propagates out of
    /// that wait.
    ///
    /// The memory keeps the hook. So a hook that owns a `Memory`, a file, a space or an accessor
    /// keeps the memory, and itself, alive for ever. Use a [`Weak`](std::sync::Weak) reference to
    /// their owner in the hook instead, or a name by which the program finds them.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory};
    /// # let memory = Memory::with_limit(MIB).unwrap();
    /// memory.set_error_hook(|error| eprintln!("lost: {error}"));
    /// ```
    pub fn set_error_hook(&self, hook: impl Fn(&FileError) + Send + Sync + 'static) {
        let hook: ErrorHook = std::sync::Arc::new(hook);
        self.0.cache.set_error_hook(hook);
    }

    /// Recomputes all state that is derived from other state, and compares the two, with the
    /// service thread paused. No other thread may use the memory meanwhile.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    #[cfg(any(test, feature = "test-util"))]
    pub fn validate(&self) {
        if self.0.cache.is_foreign() {
            return;
        }
        let _paused = self.0.service.as_ref().map(Service::pause);
        self.0.cache.wait_quiet();
        self.0.cache.released(Vec::new());
        self.0.cache.wait_quiet();
        self.0.pool.validate();
        self.0.cache.validate();
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("limit", &self.0.limit)
            .field("service", &self.0.service)
            .field("root", &self.0.root)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryInner {
    fn drop(&mut self) {
        if self.cache.is_foreign() {
            // A child of fork(2) must drop nothing that belongs to its parent.
            std::mem::forget((self.pool.clone(), self.cache.clone(), self.root.clone()));
            return;
        }
        let mut panics = Panics::default();
        // Files whose last handle was dropped where they could not be closed are closed before this
        // returns, because the process may end then. With `Threads::None` no other thread would
        // close them.
        match self.service {
            Some(_) => {
                panics.catch(|| self.pool.finish_retired());
                panics.catch(|| self.cache.wait_deferred());
            }
            None => panics.catch(|| self.cache.abandon()),
        }
        // This wakes the service thread, which then checks whether anything is left to serve.
        self.pool.background.kick();
        panics.go_on();
    }
}
