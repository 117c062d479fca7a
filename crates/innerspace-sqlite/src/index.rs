//! The shared memory of a WAL: the file `NAME-shm`, mapped, as SQLite's own VFS has it; or pieces
//! of the heap, for a database over stores.
//!
//! Its first bytes say how far the WAL has been copied to the database. [`Progress`] is that, and
//! [docs/protocols/sqlite.md](../../../docs/protocols/sqlite.md) says what it is for.

use std::ffi::{OsString, c_int};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::disk::{self, Opening};
use crate::error::{Failure, Outcome, is_read_only};
use crate::ffi::raw;
use crate::file::Region;
use crate::locks::{INDEX, Kind, Locks, SWITCH, Table};
use crate::wal::WalState;

/// The length of a new `-shm` file, until the first region is written: SQLite's own mark.
const CUT: u64 = 3;
/// Where the second header is.
const SECOND_HEADER: usize = 48;
/// The unit in which SQLite's own VFS extends the file.
const STEP: u64 = 4096;

/// How far the WAL was copied to the database. The database file changes only with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// The salts: new numbers each time that the WAL starts over.
    pub(crate) salts: [u32; 2],
    /// The last frame of the WAL.
    pub(crate) last: u32,
    /// The last frame that has been copied.
    pub(crate) copied: u32,
    /// The last frame that has been begun to be copied.
    pub(crate) begun: u32,
}

impl Progress {
    /// Whether the database file may differ between the two. The end of the WAL does not matter.
    pub(crate) fn is_same(&self, other: &Progress) -> bool {
        let essence = |it: &Progress| (it.salts, it.copied, it.begun);
        essence(self) == essence(other)
    }

    /// Whether the WAL has only started over between the two, all of it having been copied before.
    pub(crate) fn started_over(&self, before: &Progress) -> bool {
        before.copied == before.last
            && self.salts != before.salts
            && (self.copied, self.begun) == (0, 0)
    }
}

/// The end of a WAL, from which a writer goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub(crate) last: u32,
    pub(crate) page_size: u32,
    /// As they are in the file.
    pub(crate) salts: [u32; 2],
    /// The checksum of all frames so far.
    pub(crate) sums: [u32; 2],
    /// Whether checksums are computed over big-endian words, because a big-endian machine began the
    /// WAL.
    is_big: bool,
}

impl Tail {
    /// Goes on with the checksum, by a multiple of 8 bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let word = |word: &[u8]| {
            let word = word.try_into().expect("4 bytes");
            match self.is_big {
                true => u32::from_be_bytes(word),
                false => u32::from_le_bytes(word),
            }
        };
        let [mut first, mut second] = self.sums;
        for pair in bytes.chunks_exact(8) {
            first = first.wrapping_add(word(&pair[..4])).wrapping_add(second);
            second = second.wrapping_add(word(&pair[4..])).wrapping_add(first);
        }
        self.sums = [first, second];
    }
}

/// One connection's use of the shared memory.
#[derive(Debug)]
pub(crate) struct Index {
    memory: Memory,
    locks: Locks,
}

#[derive(Debug)]
enum Memory {
    Host(HostIndex),
    Heap(Arc<HeapIndex>),
}

#[derive(Debug)]
struct HostIndex {
    file: Arc<File>,
    path: PathBuf,
    /// Each has [`HostIndex::in_one`] regions.
    mappings: Vec<Mapping>,
    /// The length of a region.
    region: usize,
    /// The size of the system's page: a mapping begins at a multiple of it.
    page: usize,
    is_read_only: bool,
    /// Whether nobody who may write has the file open, so that its content means nothing yet.
    is_orphan: bool,
}

/// The shared memory of a database over stores.
#[derive(Debug, Default)]
pub(crate) struct HeapIndex {
    regions: Mutex<Vec<Box<[AtomicU64]>>>,
    table: Arc<Table>,
}

impl Index {
    /// Opens the file next to the database `path`, whose own file is `database`.
    pub(crate) fn host(path: &Path, database: &File, read_only: bool) -> Outcome<Index> {
        let mut name = OsString::from(path);
        name.push("-shm");
        let path = PathBuf::from(name);
        let owner = database.metadata();
        let failed = |code, what, error| Failure::io(code, what, &path.to_string_lossy(), &error);
        let owner = owner.map_err(|error| failed(raw::IOERR_FSTAT, "cannot examine", error))?;
        let how = Opening {
            write: true,
            create: true,
            exclusive: false,
            mode: owner.mode() & 0o777,
        };
        let open = |write| disk::open(&path, Opening { write, ..how });
        let (file, is_read_only) = match read_only {
            true => (open(false), true),
            false => match open(true) {
                Err(error) if is_read_only(&error) => (open(false), true),
                opened => (opened, false),
            },
        };
        let file = file.map_err(|error| failed(raw::CANTOPEN, "cannot open", error))?;
        if !is_read_only {
            disk::match_mode(&file, how.mode);
        }
        // SAFETY: the call takes nothing.
        if unsafe { libc::geteuid() } == 0 && !is_read_only {
            // If it fails, the owner of the database cannot open the file, and sees an error.
            let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
        }
        let file = Arc::new(file);
        let locks = Locks::host(file.clone(), &INDEX);
        let mut host = HostIndex {
            file,
            path,
            mappings: Vec::new(),
            region: 0,
            page: system_page(),
            is_read_only,
            is_orphan: false,
        };
        host.attach(&locks)?;
        let memory = Memory::Host(host);
        Ok(Index { memory, locks })
    }

    pub(crate) fn heap(heap: &Arc<HeapIndex>) -> Index {
        Index {
            memory: Memory::Heap(heap.clone()),
            locks: Locks::process(&heap.table),
        }
    }

    /// Returns a region, and makes it if `extend` says so.
    pub(crate) fn region(&mut self, number: usize, bytes: usize, extend: bool) -> Outcome<Region> {
        match &mut self.memory {
            Memory::Heap(heap) => Ok(Region {
                start: heap.region(number, bytes, extend),
                is_read_only: false,
            }),
            Memory::Host(host) => {
                if host.is_orphan {
                    host.attach(&self.locks)?;
                }
                if host.is_orphan {
                    return Err(Failure::new(raw::READONLY_CANTINIT, ""));
                }
                host.map(number, bytes, extend)?;
                Ok(Region {
                    start: host.start(number),
                    is_read_only: host.is_read_only,
                })
            }
        }
    }

    pub(crate) fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Locks or unlocks some of SQLite's eight units, as `xShmLock` says.
    pub(crate) fn lock(&self, first: u8, count: u8, flags: c_int) -> Outcome {
        let units = first..first + count;
        let kind = match flags & raw::SHM_SHARED != 0 {
            true => Kind::Shared,
            false => Kind::Exclusive,
        };
        let done = match flags & raw::SHM_UNLOCK != 0 {
            true => self.locks.release(units).map(|()| true),
            false => self.locks.take(kind, units),
        };
        let failed = |error| Failure::io(raw::IOERR_SHMLOCK, "cannot lock", &self.name(), &error);
        match done.map_err(failed)? {
            true => Ok(()),
            false => Err(Failure::busy()),
        }
    }

    /// Whether another connection reads the WAL.
    pub(crate) fn is_read_by_others(&self) -> io::Result<bool> {
        for unit in 3..SWITCH {
            if self.locks.other(unit)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the file, for the last connection.
    pub(crate) fn delete(&self) {
        match &self.memory {
            // A file that is left is cut by the next connection.
            Memory::Host(host) => drop(std::fs::remove_file(&host.path)),
            Memory::Heap(heap) => heap.clear(),
        }
    }

    /// Returns how far the WAL was copied. `None` if there is no region yet.
    pub(crate) fn progress(&self) -> Option<Progress> {
        let start = self.first()?;
        let load = |at| word(start, at);
        // The places are those of SQLite's WAL-index format: the header, twice 48 bytes; then how
        // far it was copied, five read marks, eight lock bytes, how far it was begun.
        let progress = Progress {
            salts: [load(32), load(36)],
            last: load(16),
            copied: load(96),
            begun: load(128),
        };
        // A writer that starts the WAL over sets the header first. Until it has set the rest, the
        // words are those of two generations, and look like a later state of the new one.
        let is_torn = progress.copied.max(progress.begun) > progress.last;
        (!is_torn).then_some(progress)
    }

    fn first(&self) -> Option<NonNull<u8>> {
        match &self.memory {
            Memory::Host(host) => host.start(0),
            Memory::Heap(heap) => heap.region(0, 0, false),
        }
    }

    /// Returns the last committed state of the WAL. `None` if it is being changed just now, or
    /// there is no WAL yet.
    pub(crate) fn state(&self) -> Option<WalState> {
        let header = self.header()?;
        Some(WalState {
            change: header[2],
            page_size: page_size(&header),
            last: header[4],
            pages: header[5],
            salts: [header[8], header[9]],
        })
    }

    /// Returns the end of the WAL, for a writer. `None` as for [`Index::state`].
    pub(crate) fn tail(&self) -> Option<Tail> {
        let header = self.header()?;
        Some(Tail {
            last: header[4],
            page_size: page_size(&header),
            salts: [header[8], header[9]],
            sums: [header[6], header[7]],
            is_big: header[3].to_ne_bytes()[1] != 0,
        })
    }

    /// Returns the header. `None` if it is being changed just now, or there is none yet.
    fn header(&self) -> Option<[u32; 12]> {
        let start = self.first()?;
        // The header is there twice. A writer changes one after the other.
        let copy = |at| -> [u32; 12] { std::array::from_fn(|number| word(start, at + 4 * number)) };
        let second = copy(SECOND_HEADER);
        fence(Ordering::SeqCst);
        let header = copy(0);
        // Byte 12 says whether there is a state, byte 13 whether checksums are computed over
        // big-endian words, bytes 14 and 15 the size of a page.
        let is_begun = header[3].to_ne_bytes()[0] != 0;
        (header == second && is_begun).then_some(header)
    }

    /// Makes the two headers differ, as a writer that is killed between them does: the next reader
    /// makes the index anew from the WAL. The caller has the writer's lock.
    pub(crate) fn spoil(&self) {
        if let Some(start) = self.first() {
            // SAFETY: as in `word`; the index of a connection that may write is not mapped
            // read-only.
            let change = unsafe {
                start
                    .byte_add(SECOND_HEADER + 8)
                    .cast::<AtomicU32>()
                    .as_ref()
            };
            change.fetch_xor(u32::MAX, Ordering::SeqCst);
        }
    }

    fn name(&self) -> String {
        match &self.memory {
            Memory::Host(host) => host.path.to_string_lossy().into_owned(),
            Memory::Heap(_) => "shared memory".to_owned(),
        }
    }
}

/// Returns the size of a page that a header tells.
fn page_size(header: &[u32; 12]) -> u32 {
    let [_, _, low, high] = header[3].to_ne_bytes();
    let size = u32::from(u16::from_ne_bytes([low, high]));
    (size & 0xfe00) + ((size & 1) << 16)
}

/// Loads a word of the first region.
fn word(start: NonNull<u8>, at: usize) -> u32 {
    // SAFETY: the first region has 32 KiB and is mapped as long as the index that it was taken
    // from, and `at` is in its headers. All who use it load and store whole aligned words.
    let word = unsafe { start.byte_add(at).cast::<AtomicU32>().as_ref() };
    word.load(Ordering::SeqCst)
}

impl HostIndex {
    /// Takes the dead man's switch. The first connection of all processes cuts the file: what is in
    /// it may be from before a power cut.
    fn attach(&mut self, locks: &Locks) -> Outcome {
        let path = self.path.to_string_lossy();
        let switch = SWITCH..SWITCH + 1;
        let failed = |error| Failure::io(raw::IOERR_LOCK, "cannot lock", &path, &error);
        match locks.other(SWITCH).map_err(failed)? {
            Some(Kind::Exclusive) => return Err(Failure::busy()),
            Some(Kind::Shared) => {}
            None if self.is_read_only => {
                self.is_orphan = true;
                return Ok(());
            }
            None => {
                let first = locks.take(Kind::Exclusive, switch.clone());
                if !first.map_err(failed)? {
                    return Err(Failure::busy());
                }
                let cut = self.file.set_len(CUT);
                cut.map_err(|error| Failure::io(raw::IOERR_SHMOPEN, "cannot cut", &path, &error))?;
            }
        }
        match locks.take(Kind::Shared, switch).map_err(failed)? {
            true => {
                self.is_orphan = false;
                Ok(())
            }
            false => Err(Failure::busy()),
        }
    }

    /// The regions of a mapping: one, unless the system's page is larger.
    fn in_one(&self) -> usize {
        (self.page / self.region.max(1)).max(1)
    }

    /// Returns the start of a region that is mapped.
    fn start(&self, number: usize) -> Option<NonNull<u8>> {
        let mapping = self.mappings.get(number / self.in_one())?;
        // SAFETY: the mapping has that many regions.
        Some(unsafe { mapping.start.byte_add(number % self.in_one() * self.region) })
    }

    /// Maps the regions up to one, which have `bytes` each.
    fn map(&mut self, number: usize, bytes: usize, extend: bool) -> Outcome {
        // SQLite always asks for the same.
        self.region = bytes;
        let wanted = number / self.in_one() + 1;
        let bytes = self.in_one() * bytes;
        if wanted <= self.mappings.len() {
            return Ok(());
        }
        let path = self.path.to_string_lossy();
        let failed = |error| Failure::io(raw::IOERR_SHMSIZE, "cannot extend", &path, &error);
        let len = self.file.metadata().map_err(failed)?.len();
        let end = wanted as u64 * bytes as u64;
        if len < end {
            if !extend {
                return Ok(());
            }
            // Writes a byte in each page, so that a full disk shows here, and not when the memory
            // is stored to.
            for page in len / STEP..end / STEP {
                let last = (page + 1) * STEP - 1;
                self.file.write_all_at(&[0], last).map_err(failed)?;
            }
        }
        while self.mappings.len() < wanted {
            let at = (self.mappings.len() * bytes) as i64;
            let mapping = Mapping::new(&self.file, at, bytes, self.is_read_only);
            let mapping = mapping
                .map_err(|error| Failure::io(raw::IOERR_SHMMAP, "cannot map", &path, &error))?;
            self.mappings.push(mapping);
        }
        Ok(())
    }
}

fn system_page() -> usize {
    // SAFETY: the call takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096)
}

impl HeapIndex {
    fn region(&self, number: usize, bytes: usize, extend: bool) -> Option<NonNull<u8>> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        while extend && regions.len() <= number {
            let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0));
            regions.push(words.collect());
        }
        let region = regions.get(number)?;
        Some(NonNull::from(&region[0]).cast())
    }

    fn clear(&self) {
        // Only the last connection deletes, and has unmapped its regions.
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.clear();
    }
}

/// A part of a file, mapped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to no thread, and all who use its bytes do so by atomics.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: &File, at: i64, bytes: usize, is_read_only: bool) -> io::Result<Mapping> {
        let rights = match is_read_only {
            true => libc::PROT_READ,
            false => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                rights,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                at,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and SQLite uses none of it after it was unmapped or closed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose pages have 64 KiB maps two regions at a time.
    #[test]
    fn regions_that_are_smaller_than_a_page_share_a_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let database = File::create(&path).unwrap();
        let mut index = Index::host(&path, &database, false).unwrap();
        let Memory::Host(host) = &mut index.memory else {
            panic!("it is on the host");
        };
        host.page = 64 << 10;
        const REGION: usize = 32 << 10;
        assert!(index.region(0, REGION, false).unwrap().start.is_none());
        let third = index.region(2, REGION, true).unwrap().start.unwrap();
        // SAFETY: the region is mapped.
        unsafe { third.write(7) };
        let start = |index: &mut Index, number| index.region(number, REGION, false).unwrap().start;
        let (first, second) = (start(&mut index, 0).unwrap(), start(&mut index, 1).unwrap());
        assert_eq!(second.addr().get() - first.addr().get(), REGION);
        assert!(start(&mut index, 3).is_some() && start(&mut index, 4).is_none());
        let mut shm = path.into_os_string();
        shm.push("-shm");
        let bytes = std::fs::read(shm).unwrap();
        assert_eq!((bytes.len(), bytes[2 * REGION]), (4 * REGION, 7));
    }
}
