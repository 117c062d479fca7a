//! A connection's database file.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::View;
use innerspace::store::Store;

use crate::branching::{self, VERSION, WAL_VERSION};
use crate::commit::{self, NotWritten};
use crate::database::{Database, identity};
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::{BranchAnswer, BranchCall, Control, OpenFile, Region, SECTOR_SIZE};
use crate::gate::Writer;
use crate::index::{Index, Progress};
use crate::locks::{Kind, Locks, PENDING, RESERVED, SHARED};
use crate::plain::sync_what;

/// SQLite's own upper limit for `PRAGMA mmap_size`.
const LARGEST_MMAP: i64 = 0x7fff_0000;

// The locks of a WAL's index that matter here; from `FIRST_READ` on they are those of readers.
const WRITE: u8 = 0;
const CHECKPOINT: u8 = 1;
const FIRST_READ: u8 = 3;

/// How a database was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) read_only: bool,
    /// Whether nobody changes the file as long as it is open (`immutable=1`).
    pub(crate) immutable: bool,
    /// Whether the shared memory of the WAL may only be read (`readonly_shm=1`).
    pub(crate) read_only_index: bool,
    /// Whether a write may damage bytes next to it in its sector (`psow=0`).
    pub(crate) sectors_tear: bool,
}

/// A connection's database file.
pub(crate) struct MainFile {
    /// The number of the connection, by which the gate knows it.
    number: u64,
    database: Arc<Database>,
    /// The way past the cache.
    store: Arc<dyn Store>,
    /// The file and its path; `None` for a database over stores.
    host: Option<(Arc<File>, PathBuf)>,
    locks: Locks,
    level: c_int,
    manner: Manner,
    index: Option<Index>,
    /// Whether a reader's lock on the WAL was taken since the cache was last compared with the WAL.
    is_unchecked: bool,
    /// Whether this connection has the lock that is needed to copy the WAL to the database.
    is_checkpointing: bool,
    /// The state of the WAL when this connection got the writer's lock, if the cache agreed.
    at_write_lock: Option<Progress>,
    views: Vec<View>,
    mmap_size: i64,
    step: u64,
    keeps_wal: bool,
    /// What was written since the last sync.
    written: Option<Range<u64>>,
}

impl MainFile {
    pub(crate) fn new(
        database: Arc<Database>,
        store: Arc<dyn Store>,
        host: Option<(Arc<File>, PathBuf)>,
        locks: Locks,
        manner: Manner,
    ) -> MainFile {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        MainFile {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            database,
            store,
            host,
            locks,
            level: raw::LOCK_NONE,
            manner,
            index: None,
            is_unchecked: false,
            is_checkpointing: false,
            at_write_lock: None,
            views: Vec::new(),
            mmap_size: 0,
            step: 0,
            keeps_wal: false,
            written: None,
        }
    }

    fn file(&self) -> Option<&File> {
        self.host.as_ref().map(|(file, _)| &**file)
    }

    fn progress(&self) -> Option<Progress> {
        self.index.as_ref().and_then(Index::progress)
    }

    /// Whether the cache may be used at all. Without a lock its blocks may be old, or become old
    /// while they are read.
    fn may_use_cache(&self) -> bool {
        self.level != raw::LOCK_NONE || self.manner.immutable
    }

    /// Makes the cache agree with the WAL, once for each time that SQLite begins to read by it.
    fn check_wal(&mut self) {
        if std::mem::take(&mut self.is_unchecked) && self.host.is_some() {
            let progress = self.progress();
            // A writer that starts the WAL over begins to read by it again, in its transaction.
            if let (Some(before), Some(now)) = (self.at_write_lock, progress) {
                self.database.note_start_over(before, now);
            }
            self.database.check_progress(progress);
        }
    }

    /// The result of a call for a lock, with SQLite's code for its failure.
    fn checked<T>(&self, code: c_int, done: io::Result<T>) -> Outcome<T> {
        done.map_err(|error| self.database.failure(code, "cannot lock", &error))
    }

    /// Takes a lock, or says that another connection has it.
    fn take(&self, kind: Kind, unit: u8) -> Outcome {
        let taken = self.locks.take(kind, unit..unit + 1);
        match self.checked(raw::IOERR_LOCK, taken)? {
            true => Ok(()),
            false => Err(Failure::busy()),
        }
    }

    fn let_go(&self, units: Range<u8>) -> Outcome {
        self.checked(raw::IOERR_UNLOCK, self.locks.release(units))
    }

    fn lock_shared(&mut self) -> Outcome {
        // A writer that waits for the readers to go holds PENDING, so that no new ones come.
        self.take(Kind::Shared, PENDING)?;
        let shared = self.take(Kind::Shared, SHARED);
        let released = self.let_go(PENDING..PENDING + 1);
        shared?;
        self.level = raw::LOCK_SHARED;
        released.inspect_err(|_| {
            // SQLite assumes that no lock was given.
            let _ = self.release(raw::LOCK_NONE);
        })?;
        let Some((file, _)) = self.host.clone() else {
            return Ok(());
        };
        self.database.check_header(&file).inspect_err(|_| {
            // The error is reported; the lock is tried again then.
            let _ = self.release(raw::LOCK_NONE);
        })
    }

    fn lock_exclusive(&mut self) -> Outcome {
        if self.level == raw::LOCK_RESERVED {
            self.take(Kind::Exclusive, PENDING)?;
            self.level = raw::LOCK_PENDING;
        }
        self.take(Kind::Exclusive, SHARED)?;
        self.level = raw::LOCK_EXCLUSIVE;
        // With a WAL others may have changed the file since the shared lock was taken. A connection
        // that keeps its locks uses the WAL without an index.
        if let Some((file, _)) = self.host.clone() {
            self.database.check_header(&file)?;
            if self.index.is_some() {
                self.is_unchecked = true;
                self.check_wal();
            }
        }
        Ok(())
    }

    fn release(&mut self, level: c_int) -> Outcome {
        if self.level <= level {
            return Ok(());
        }
        if self.level == raw::LOCK_EXCLUSIVE
            && let Some(file) = self.file()
        {
            self.database.note_own_change(file, self.progress());
        }
        if self.level == raw::LOCK_EXCLUSIVE && self.index.is_none() {
            branching::check_end(&self.database);
        }
        if level == raw::LOCK_SHARED {
            if self.level == raw::LOCK_EXCLUSIVE {
                let shared = self.locks.take(Kind::Shared, SHARED..SHARED + 1);
                if !self.checked(raw::IOERR_RDLOCK, shared)? {
                    return Err(Failure::new(
                        raw::IOERR_RDLOCK,
                        "another program ignores the locks",
                    ));
                }
            }
            self.let_go(PENDING..RESERVED + 1)?;
            self.level = level;
            self.release_writer(Writer::Reserved);
            return Ok(());
        }
        self.level = raw::LOCK_NONE;
        let done = self.let_go(PENDING..SHARED + 1);
        self.release_writer(Writer::Reserved);
        done
    }

    /// Refuses a WAL for a database whose branches began with a rollback journal: the lock that
    /// keeps other processes out does not hold for writers of a WAL.
    fn check_may_use_wal(&self) -> Outcome {
        match self.database.gate.keeps_journal() {
            false => Ok(()),
            true => Err(Failure::new(
                raw::BUSY,
                format!(
                    "{} has branches that began without a WAL; discard them, and then set its \
                     journal_mode to WAL",
                    self.database.name
                ),
            )),
        }
    }

    /// Lets a writer's lock go that the gate may have given.
    fn release_writer(&self, writer: Writer) {
        let gate = &self.database.gate;
        gate.release(writer, self.number);
        // The last branch may have gone while this connection was writing.
        gate.open_if(|| !self.database.has_branches());
    }

    /// Takes or releases locks of the WAL's index. Writers' locks go through the gate.
    fn lock_index(&self, units: Range<u8>, flags: c_int) -> Outcome {
        let missing = || Failure::new(raw::IOERR_SHMLOCK, "no shared memory");
        let index = self.index.as_ref().ok_or_else(missing)?;
        let of_gate = |unit| match unit {
            WRITE => Some(Writer::Append),
            CHECKPOINT => Some(Writer::Checkpoint),
            _ => None,
        };
        if flags & raw::SHM_SHARED != 0 {
            return index.lock(units.start, units.end - units.start, flags);
        }
        for unit in units.clone() {
            let Some(writer) = of_gate(unit) else {
                continue;
            };
            if flags & raw::SHM_UNLOCK != 0 {
                // The kernel's lock may be this connection's too, from before the gate was closed.
                let released = index.locks().release(unit..unit + 1);
                self.checked(raw::IOERR_SHMLOCK, released)?;
                self.release_writer(writer);
                continue;
            }
            let locks = index.locks();
            let taken = self
                .database
                .gate
                .take(writer, self.number, locks, unit..unit + 1);
            if !self.checked(raw::IOERR_SHMLOCK, taken)? {
                let unlock = raw::SHM_UNLOCK | raw::SHM_EXCLUSIVE;
                self.lock_index(units.start..unit, unlock)?;
                return Err(Failure::busy());
            }
        }
        let rest = units.start.max(CHECKPOINT + 1)..units.end;
        if rest.is_empty() {
            return Ok(());
        }
        let locked = index.lock(rest.start, rest.end - rest.start, flags);
        if locked.is_err() && flags & raw::SHM_LOCK != 0 && units.start < rest.start {
            let unlock = raw::SHM_UNLOCK | raw::SHM_EXCLUSIVE;
            self.lock_index(units.start..rest.start, unlock)?;
        }
        locked
    }

    /// Rounds a length up to a whole number of steps, if SQLite has set one.
    fn in_steps(&self, len: u64) -> u64 {
        match self.step {
            0 => len,
            step => len.div_ceil(step) * step,
        }
    }

    fn has_moved(&self) -> bool {
        let Some((file, path)) = &self.host else {
            return false;
        };
        let own = file.metadata().map(|own| identity(&own)).ok();
        let named = std::fs::metadata(path).map(|named| identity(&named)).ok();
        named.is_none() || own != named
    }

    fn has_external_reader(&self) -> Outcome<bool> {
        let Some(index) = &self.index else {
            return Ok(false);
        };
        let failed = |error| {
            self.database
                .failure(raw::IOERR_LOCK, "cannot examine", &error)
        };
        index.is_read_by_others().map_err(failed)
    }

    fn index(&mut self) -> Outcome<&mut Index> {
        if self.index.is_none() {
            self.index = Some(match &self.host {
                Some((file, path)) => Index::host(path, file, self.manner.read_only_index)?,
                None => Index::heap(&self.database.index),
            });
        }
        let missing = || Failure::new(raw::IOERR_SHMMAP, "no shared memory");
        self.index.as_mut().ok_or_else(missing)
    }

    /// Writes the pages that a branch has changed. SQLite has taken the locks of a writer.
    fn write_back(&mut self, name: &str) -> Outcome {
        let database = self.database.clone();
        let branch = database.branches.named(name)?;
        let open = |end| {
            let opened = (database.beside)(end, true);
            opened.map_err(|error| database.failure(raw::CANTOPEN, "cannot open beside", &error))
        };
        match &self.index {
            Some(index) => commit::by_wal(&branch, &*open("-wal")?, index),
            None if self.level == raw::LOCK_EXCLUSIVE => {
                let before = database.history().written();
                match commit::by_journal(&branch, self, &*open("-journal")?) {
                    Ok(()) => Ok(()),
                    Err(NotWritten { failure, is_undone }) => {
                        if is_undone {
                            database.history().note_undone(before);
                        }
                        Err(failure)
                    }
                }
            }
            None => Err(Failure::busy()),
        }
    }

    /// Tells the database of an exclusive lock on the WAL's index that was just taken.
    fn after_lock(&mut self, units: Range<u8>) -> Outcome {
        let Some((file, _)) = self.host.clone() else {
            return Ok(());
        };
        let progress = self.progress();
        if units.contains(&CHECKPOINT) {
            self.database.begin_checkpoint(&file, progress)?;
            self.is_checkpointing = true;
        }
        if units.contains(&WRITE) {
            self.at_write_lock = progress.and_then(|now| self.database.agreed(now));
        }
        Ok(())
    }

    /// Tells the database of an exclusive lock on the WAL's index that is about to be released.
    fn before_unlock(&mut self, units: Range<u8>) {
        let progress = self.progress();
        if units.contains(&CHECKPOINT) && std::mem::take(&mut self.is_checkpointing) {
            let file = self.file().expect("only a file of the host is checked");
            self.database.end_checkpoint(file, progress);
        }
        if units.contains(&WRITE)
            && let (Some(before), Some(after)) = (self.at_write_lock.take(), progress)
        {
            self.database.note_start_over(before, after);
        }
    }
}

impl Drop for MainFile {
    fn drop(&mut self) {
        self.before_unlock(WRITE..FIRST_READ);
        // SQLite has unlocked the file before. If not, the locks end with the descriptor.
        let _ = self.release(raw::LOCK_NONE);
    }
}

impl OpenFile for MainFile {
    fn read(&mut self, buf: &mut [u8], at: u64) -> Outcome<usize> {
        if !self.may_use_cache() {
            return self.database.read_past(&*self.store, buf, at);
        }
        self.check_wal();
        self.database.read(&*self.store, buf, at)
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Outcome {
        let end = at + bytes.len() as u64;
        if at <= VERSION && VERSION < end && bytes[(VERSION - at) as usize] == WAL_VERSION {
            self.check_may_use_wal()?;
        }
        let written = self.written.get_or_insert(at..end);
        *written = written.start.min(at)..written.end.max(end);
        self.database.write(&*self.store, bytes, at)
    }

    fn truncate(&mut self, len: u64) -> Outcome {
        let len = self.in_steps(len);
        self.database.truncate(&*self.store, len)
    }

    fn sync(&mut self, flags: c_int) -> Outcome {
        self.database.sync(&*self.store, sync_what(flags))?;
        if let (Some((file, _)), Some(written)) = (&self.host, self.written.take()) {
            // The blocks are in the memory, under its limit. The first page stays with the system:
            // it is what each shared lock looks at.
            drop_kernel_pages(file, written.start.max(SECTOR_SIZE as u64)..written.end);
        }
        Ok(())
    }

    fn len(&mut self) -> Outcome<u64> {
        let failed = |error| {
            self.database
                .failure(raw::IOERR_FSTAT, "cannot examine", &error)
        };
        self.store.len().map_err(failed)
    }

    fn lock(&mut self, level: c_int) -> Outcome {
        if self.level >= level {
            return Ok(());
        }
        match level {
            raw::LOCK_SHARED => self.lock_shared(),
            raw::LOCK_RESERVED => {
                let (gate, units) = (&self.database.gate, RESERVED..RESERVED + 1);
                let taken = gate.take(Writer::Reserved, self.number, &self.locks, units);
                if !self.checked(raw::IOERR_LOCK, taken)? {
                    return Err(Failure::busy());
                }
                self.level = level;
                Ok(())
            }
            _ => self.lock_exclusive(),
        }
    }

    fn branch(&mut self, call: BranchCall<'_>) -> Outcome<BranchAnswer> {
        if let BranchCall::WriteBack(name) = call {
            return self.write_back(name).map(|()| BranchAnswer::Done);
        }
        let path = self.host.as_ref().map(|(_, path)| path.as_path());
        branching::answer(call, &self.database, path, self.number)
    }

    fn unlock(&mut self, level: c_int) -> Outcome {
        self.release(level)
    }

    fn is_reserved(&mut self) -> Outcome<bool> {
        if self.level >= raw::LOCK_RESERVED {
            return Ok(true);
        }
        let gate = &self.database.gate;
        if let Some(is_taken) = gate.is_taken(Writer::Reserved, self.number) {
            return Ok(is_taken);
        }
        let other = self.locks.other(RESERVED);
        Ok(self.checked(raw::IOERR_CHECKRESERVEDLOCK, other)?.is_some())
    }

    fn control(&mut self, control: Control<'_>) -> Outcome<bool> {
        /// Sets a flag, or returns it if the argument is negative.
        fn flag(flag: &mut bool, argument: &mut c_int) {
            match *argument {
                0 => *flag = false,
                asked if asked < 0 => *argument = c_int::from(*flag),
                _ => *flag = true,
            }
        }
        match control {
            Control::LockState(level) => *level = self.level,
            Control::SizeHint(len) => {
                let len = self.in_steps(u64::try_from(len).unwrap_or(0));
                if self.step > 0 && self.len()? < len {
                    self.database.truncate(&*self.store, len)?;
                }
            }
            Control::ChunkSize(step) => self.step = u64::try_from(step).unwrap_or(0),
            Control::PersistWal(argument) => flag(&mut self.keeps_wal, argument),
            Control::PowersafeOverwrite(argument) => {
                let mut is_safe = !self.manner.sectors_tear;
                flag(&mut is_safe, argument);
                self.manner.sectors_tear = !is_safe;
            }
            Control::MmapSize(argument) => {
                let asked = std::mem::replace(argument, self.mmap_size);
                if asked >= 0 && self.views.is_empty() {
                    self.mmap_size = asked.min(LARGEST_MMAP);
                }
            }
            Control::HasMoved(argument) => *argument = c_int::from(self.has_moved()),
            Control::ExternalReader(argument) => {
                *argument = c_int::from(self.has_external_reader()?);
            }
        }
        Ok(true)
    }

    fn characteristics(&self) -> c_int {
        match self.manner.sectors_tear {
            true => raw::IOCAP_SUBPAGE_READ,
            false => raw::IOCAP_SUBPAGE_READ | raw::IOCAP_POWERSAFE_OVERWRITE,
        }
    }

    fn shm_map(&mut self, region: usize, bytes: usize, extend: bool) -> Outcome<Region> {
        self.check_may_use_wal()?;
        self.index()?.region(region, bytes, extend)
    }

    fn shm_lock(&mut self, first: u8, count: u8, flags: c_int) -> Outcome {
        let units = first..first + count;
        let is_exclusive = flags & raw::SHM_EXCLUSIVE != 0;
        if flags & raw::SHM_UNLOCK != 0 && is_exclusive {
            self.before_unlock(units.clone());
        }
        self.lock_index(units.clone(), flags)?;
        if flags & raw::SHM_LOCK != 0 {
            self.is_unchecked |= !is_exclusive && first >= FIRST_READ;
            if is_exclusive && let Err(failure) = self.after_lock(units.clone()) {
                // SQLite assumes that the lock was not given.
                self.lock_index(units, raw::SHM_UNLOCK | raw::SHM_EXCLUSIVE)?;
                return Err(failure);
            }
        }
        Ok(())
    }

    fn shm_barrier(&mut self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn shm_unmap(&mut self, delete: bool) -> Outcome {
        self.before_unlock(WRITE..FIRST_READ);
        if let Some(index) = self.index.take()
            && delete
        {
            index.delete();
        }
        Ok(())
    }

    fn fetch(&mut self, at: u64, len: usize) -> Outcome<Option<NonNull<u8>>> {
        let is_within = at + len as u64 <= self.mmap_size as u64;
        if !is_within || !self.may_use_cache() {
            return Ok(None);
        }
        self.check_wal();
        let Some(view) = self.database.view(at, len) else {
            return Ok(None);
        };
        let start = NonNull::from(&view[..]).cast();
        self.views.push(view);
        Ok(Some(start))
    }

    fn unfetch(&mut self, pointer: Option<NonNull<u8>>) {
        let Some(pointer) = pointer else { return };
        let of_pointer = |view: &View| view.as_ptr() == pointer.as_ptr();
        if let Some(at) = self.views.iter().rposition(of_pointer) {
            self.views.swap_remove(at);
        }
    }
}

/// Drops pages of a file that the kernel has cached and that are not dirty.
fn drop_kernel_pages(file: &File, bytes: Range<u64>) {
    if bytes.is_empty() {
        return;
    }
    let (start, len) = (bytes.start as i64, (bytes.end - bytes.start) as i64);
    // A hint, so the result says nothing of use.
    // SAFETY: the descriptor is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
}
