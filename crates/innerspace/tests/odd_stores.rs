//! Stores that behave oddly: interrupted, growing, short, failing half-way, or letting other
//! threads see the file in the middle of a call.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};

use innerspace::store::{MemoryStore, Store, SyncWhat};
use innerspace::{
    KIB, MIB, Map, Memory, PagedFile, Threads, View,
    file::{FileAccess, FileError, WriteOrder},
    space::{FaultKind, Protection},
};

fn memory_of(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

fn writable(memory: &Memory, store: impl Store) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(store).unwrap()
}

/// A store that interrupts each read once before it serves it, as read(2) may do.
struct Interrupted(MemoryStore, AtomicBool);
impl Store for Interrupted {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.1.fetch_xor(true, SeqCst) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.0.read_at(buf, offset)
    }
}

#[test]
fn an_interrupted_read_is_tried_again_also_in_a_run() {
    let memory = memory_of(4 * MIB);
    let store = Interrupted(
        MemoryStore::from_bytes(&[7; 64 << 10]),
        AtomicBool::new(false),
    );
    let file = memory.file_options().open_store(store).unwrap();
    let mut sum = 0u64;
    // The read of one block is retried after its interruption.
    assert_eq!(file.view(60 * KIB..61 * KIB).unwrap()[0], 7);
    // So is the read of a run of blocks.
    let done = file.scan(.., |piece| {
        sum += piece.iter().map(|b| u64::from(*b)).sum::<u64>()
    });
    done.unwrap();
    assert_eq!(sum, 7 * 65536);
}

/// A store that reports more bytes read than were requested.
struct TooMuch(MemoryStore);
impl Store for TooMuch {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset).map(|n| n + 1)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset).map(|n| n + 1)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_store_that_says_it_did_more_than_it_was_asked_is_an_error() {
    let memory = memory_of(4 * MIB);
    let store = || TooMuch(MemoryStore::from_bytes(&[7; 64 << 10]));
    let is_error = |error: &FileError| {
        matches!(error, FileError::Short { .. } | FileError::Store { .. }) && !error.would_block()
    };
    let one = memory.file_options().open_store(store()).unwrap();
    let error = one.view(0..10).unwrap_err();
    assert!(is_error(&error), "one block: {error:?}");
    let run = memory.file_options().open_store(store()).unwrap();
    let error = run.scan(.., |_| ()).unwrap_err();
    assert!(is_error(&error), "a run: {error:?}");
    let written = writable(&memory, TooMuch(MemoryStore::new()));
    written.write_at(&[1; 5000], 0).unwrap();
    let error = written.sync_all().unwrap_err();
    assert!(error.to_string().contains("write of"), "{error}");
    written.discard().unwrap();
}

/// A log to which another process appends: once `grows` is set, each query finds it one byte
/// longer.
struct Growing(Arc<MemoryStore>, Arc<AtomicBool>);
impl Store for Growing {
    fn len(&self) -> io::Result<u64> {
        if self.1.load(SeqCst) {
            self.0.set_len_externally(self.0.len()? + 100)?;
        }
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_write_ends_in_a_file_whose_store_grew_while_it_was_asked() {
    let memory = memory_of(4 * MIB);
    let grows = Arc::new(AtomicBool::new(false));
    let stored = Arc::new(MemoryStore::from_bytes(&[7; 1000]));
    let file = writable(&memory, Growing(stored.clone(), grows.clone()));
    grows.store(true, SeqCst);
    file.invalidate(..).unwrap();
    grows.store(false, SeqCst);
    let len = file.len();
    assert_eq!(
        len,
        stored.len().unwrap(),
        "what is stored ends in the file"
    );
    file.write_at(&vec![1; len as usize], 0).unwrap();
    file.sync_all().unwrap();
    assert!(stored.to_vec() == vec![1; len as usize]);
}

/// A store that has fewer bytes than it reports.
struct Short(MemoryStore);
impl Store for Short {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= 100 {
            return Ok(0);
        }
        let most = buf.len().min(100 - offset as usize);
        self.0.read_at(&mut buf[..most], offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_short_read_after_our_own_cut_is_not_a_shrink() {
    let memory = memory_of(4 * MIB);
    let file = writable(&memory, Short(MemoryStore::from_bytes(&[7; 8192])));
    file.set_len(4096).unwrap();
    let error = file.view(0..10).unwrap_err();
    assert!(matches!(error, FileError::Short { .. }), "{error}");
}

/// A store that fails reads past some offset.
struct BadAfter(MemoryStore, u64);
impl Store for BadAfter {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.1 {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.read_at(buf, offset)
    }
}

#[test]
fn what_is_read_ahead_is_part_of_what_is_filled() {
    let memory = memory_of(4 * MIB);
    let file = memory
        .file_options()
        .open_store(BadAfter(MemoryStore::from_bytes(&[7; 64 << 10]), 4096))
        .unwrap();
    file.scan(.., |_| ()).unwrap_err();
    let stats = file.stats();
    assert!(
        stats.read_ahead <= stats.filled,
        "ahead {} filled {}",
        stats.read_ahead,
        stats.filled
    );
}

type Look = Box<dyn FnOnce() + Send>;

/// A store that lets another thread view the file while it is being cut.
struct Watched {
    store: MemoryStore,
    viewer: Arc<Mutex<Option<Look>>>,
}
impl Store for Watched {
    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.store.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.store.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        if let Some(look) = self.viewer.lock().unwrap().take() {
            look();
        }
        self.store.set_len(len)
    }
    fn writable(&self) -> bool {
        true
    }
}

/// Creates a file that ends in the middle of its only block, of 2 MiB, and a view of that block
/// taken at the moment of the cut. There was no memory to move the block, so the bytes that were
/// cut off are still there.
fn cut_beside_a_view(memory: &Memory) -> (PagedFile, View) {
    cut_with(memory, |_| ())
}

/// Does what [`cut_beside_a_view`] does, and calls `before` with the file before it is cut.
fn cut_with(memory: &Memory, before: impl FnOnce(&PagedFile)) -> (PagedFile, View) {
    let viewer = Arc::new(Mutex::new(None));
    let store = Watched {
        store: MemoryStore::new(),
        viewer: viewer.clone(),
    };
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let options = options.block_size(2 * MIB).write_order(WriteOrder::OnSync);
    let file = options.open_store(store).unwrap();
    file.write_at(&vec![9; 2 << 20], 0).unwrap();
    before(&file);
    let kept: Arc<Mutex<Option<View>>> = Arc::default();
    let (other, keep) = (file.clone(), kept.clone());
    *viewer.lock().unwrap() = Some(Box::new(move || {
        // Another thread views the file at this moment.
        let view = std::thread::spawn(move || other.view(0..100).unwrap()).join();
        *keep.lock().unwrap() = Some(view.unwrap());
    }));
    file.set_len(MIB + 100).unwrap();
    assert_eq!(file.len(), MIB + 100);
    file.set_len(MIB + 100).unwrap();
    let view = kept.lock().unwrap().take().unwrap();
    (file, view)
}

fn assert_zeros(file: &PagedFile, range: std::ops::Range<u64>) {
    let mut bytes = vec![1; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).unwrap();
    let left = bytes.iter().position(|byte| *byte != 0);
    assert_eq!(left, None, "what was cut off is back");
}

#[test]
fn a_cut_beside_a_view_shows_nothing_of_what_it_cut_off() {
    let memory = memory_of(4 * MIB);
    let (file, view) = cut_beside_a_view(&memory);
    drop(view);
    file.set_len(2 * MIB).unwrap();
    assert_zeros(&file, MIB + 100..2 * MIB);
}

#[test]
fn a_cut_beside_a_view_shows_nothing_through_a_mapping() {
    let memory = memory_of(4 * MIB);
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    let mut at = None;
    let (_file, view) = cut_with(&memory, |file| {
        let mapped = space.map(Map::file(file).shared()).unwrap();
        assert_eq!(a.load::<u8>(mapped + MIB + 200), Ok(9));
        at = Some(mapped);
    });
    let tail = at.unwrap() + MIB + 200;
    let refused = a.load::<u8>(tail).unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Limit, "no memory for the block");
    drop(view);
    assert_eq!(a.load::<u8>(tail), Ok(0));
}

/// Growing the file clears the rest of its last block, even if other threads append at the same
/// time.
#[test]
fn a_cut_beside_a_view_shows_nothing_behind_an_append() {
    let memory = memory_of(5 * MIB);
    // So much is in use that the block cannot move, and the limit allows as much unwritten data.
    let filler = MemoryStore::from_bytes(&[5; 800 << 10]);
    let filler = memory.file_options().open_store(filler).unwrap();
    let _kept = filler.scatter(..).unwrap();
    for round in 0..60 {
        let (file, view) = cut_beside_a_view(&memory);
        drop(view);
        let turn = Arc::new(Barrier::new(2));
        let (other, at_once) = (file.clone(), turn.clone());
        let appender = std::thread::spawn(move || {
            at_once.wait();
            (0..round * 5).for_each(|_| std::hint::spin_loop());
            other.try_append(&[1; 10]).ok()
        });
        turn.wait();
        file.write_at(&[2], MIB + 1000).unwrap();
        let appended = appender.join().unwrap();
        assert_zeros(&file, MIB + 110..MIB + 990);
        assert!(appended.is_none_or(|at| at == MIB + 100 || at == MIB + 1001));
        file.discard().unwrap();
    }
}

/// Evicting one clean block of another file is enough.
#[test]
fn a_file_that_was_cut_beside_a_view_grows_if_memory_can_be_had() {
    let memory = memory_of(7 * MIB);
    let options = memory.file_options().block_size(2 * MIB);
    let other = options
        .open_store(MemoryStore::from_bytes(&[5; 2 << 20]))
        .unwrap();
    let kept = other.view(0..10).unwrap();
    let (file, view) = cut_beside_a_view(&memory);
    drop(kept);
    file.write_at(&[2], MIB + 1000).unwrap();
    assert_zeros(&file, MIB + 100..MIB + 1000);
    assert_eq!(view[..], [9; 100]);
}

#[test]
fn a_discard_after_a_cut_by_others_beside_a_view_shows_nothing_of_what_was_cut_off() {
    let memory = memory_of(4 * MIB);
    let store = Failing::default();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .block_size(2 * MIB)
        .open_store(store.clone())
        .unwrap();
    file.write_at(&vec![9; 2 << 20], 0).unwrap();
    // These blocks are written, and not synced.
    (0..4).for_each(|_| memory.tick());
    let view = file.view(0..100).unwrap();
    store.0.set_len_externally(MIB).unwrap();
    file.discard().unwrap();
    drop(view);
    file.set_len(2 * MIB).unwrap();
    assert_zeros(&file, MIB..2 * MIB);
}

/// A store that answers some calls with an error.
#[derive(Clone, Default)]
struct Failing(Arc<MemoryStore>, Arc<AtomicUsize>, Arc<AtomicBool>);
impl Store for Failing {
    fn len(&self) -> io::Result<u64> {
        // Counts down to the call that fails; 0 for none.
        if self.1.load(SeqCst) > 0 && self.1.fetch_sub(1, SeqCst) == 1 {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.2.load(SeqCst) {
            // Punches only half of the range.
            self.0.punch(offset, len / 2)?;
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.punch(offset, len)
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_discard_that_fails_leaves_no_bytes_that_no_sync_keeps() {
    let memory = memory_of(4 * MIB);
    let store = Failing::default();
    let file = writable(&memory, store.clone());
    file.write_at(&[1; 4096], 0).unwrap();
    file.sync_all().unwrap();
    file.write_at(&[2; 4096], 4096).unwrap();
    // The second query fails.
    store.1.store(2, SeqCst);
    file.discard().unwrap();
    let len = file.len();
    file.sync_all().unwrap();
    assert_eq!(
        store.0.len().unwrap(),
        len,
        "a good sync, and the file is longer than its store"
    );
}

#[test]
fn a_punch_that_fails_half_way_shows_what_the_store_has() {
    let memory = memory_of(4 * MIB);
    let store = Failing::default();
    store.0.write_at(&[7; 64 << 10], 0).unwrap();
    let file = writable(&memory, store.clone());
    file.scan(.., |_| ()).unwrap();
    store.2.store(true, SeqCst);
    file.punch(0..64 * KIB).unwrap_err();
    let mut before = [0; 8];
    file.read_exact_at(&mut before, 0).unwrap();
    // This sync writes nothing.
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    let mut after = [0; 8];
    file.read_exact_at(&mut after, 0).unwrap();
    assert_eq!(before, after, "read and read again");
}

#[test]
fn reclaim_frees_what_it_is_asked_for() {
    let memory = memory_of(8 * MIB);
    let a = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&[7; 64 << 10]))
        .unwrap();
    let b = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&[7; 256 << 10]))
        .unwrap();
    b.scan(.., |_| ()).unwrap();
    a.scan(.., |_| ()).unwrap();
    a.evict(..).unwrap(); // its index node now waits for a grace period
    let freed = memory.reclaim(128 * KIB);
    assert!(
        freed >= 128 * KIB,
        "{freed} of {} with {} to be had",
        128 * KIB,
        b.stats().cached.bytes()
    );
}

/// Calls that wait for a grace period may free nothing.
#[test]
fn reclaim_says_how_much_it_freed() {
    let memory = memory_of(8 * MIB);
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&[7; 1 << 20]))
        .unwrap();
    file.scan(.., |_| ()).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(256 * KIB)).unwrap();
    (0..8).for_each(|_| memory.tick());
    for protection in [Protection::READ, Protection::READ_WRITE].repeat(20) {
        space.protect(at, 4 * KIB, protection).unwrap();
    }
    let before = memory.stats().totals.usage;
    let freed = memory.reclaim(128 * KIB);
    let less = (before - memory.stats().totals.usage) * 4 * KIB;
    assert!(
        less >= 128 * KIB && freed <= less,
        "{freed} said, {less} freed"
    );
}

#[test]
fn what_is_written_over_is_not_read_again() {
    let memory = memory_of(4 * MIB);
    let file = writable(&memory, MemoryStore::from_bytes(&[7; 1 << 20]));
    for _ in 0..3 {
        file.scan(.., |_| ()).unwrap();
    } // the blocks are active now
    file.evict(0..64 * KIB).unwrap();
    let before = memory.stats().totals;
    file.write_at(&[1; 64 << 10], 0).unwrap();
    let after = memory.stats().totals;
    assert_eq!(
        after.refault_activate - before.refault_activate,
        after.active.saturating_sub(before.active),
        "as many as became active"
    );
}

/// A store that can be told to let its next sync fail, and then drops the writes since the last
/// sync.
#[derive(Clone, Default)]
struct Forgetful {
    stored: Arc<MemoryStore>,
    synced: Arc<Mutex<Vec<u8>>>,
    drops: Arc<AtomicBool>,
}
impl Store for Forgetful {
    fn len(&self) -> io::Result<u64> {
        self.stored.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.stored.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.stored.write_at(buf, offset)
    }
    fn sync(&self, _what: SyncWhat) -> io::Result<()> {
        let mut synced = self.synced.lock().unwrap();
        if self.drops.swap(false, SeqCst) {
            self.stored.write_at(&synced, 0)?;
            return Err(io::Error::from_raw_os_error(5));
        }
        *synced = self.stored.to_vec();
        Ok(())
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn what_a_discard_goes_back_to_is_not_lost_by_a_sync_later() {
    let memory = memory_of(4 * MIB);
    let store = Forgetful::default();
    let file = writable(&memory, store.clone());
    file.write_at(&[1; 8192], 0).unwrap();
    file.sync_all().unwrap();
    // The bytes are accepted and not synced. The second block is not overwritten.
    file.write_at(&[2; 8192], 0).unwrap();
    (0..64).for_each(|_| memory.tick());
    assert!(store.stored.to_vec() == [2; 8192]);
    file.write_at(&[3; 100], 0).unwrap();
    store.drops.store(true, SeqCst);
    file.discard().unwrap();
    let mut shown = [0; 4096];
    file.read_exact_at(&mut shown, 0).unwrap();
    file.sync_all().unwrap_err();
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    let mut after = [0; 8192];
    file.read_exact_at(&mut after, 0).unwrap();
    assert!(after[..4096] == shown, "a good sync, and other bytes");
    assert!(after[4096..] == [2; 4096], "written, not given up");
}
