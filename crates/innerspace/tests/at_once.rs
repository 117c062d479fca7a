//! Accesses that never wait: which succeed, which are refused, and that a refusal changes nothing.

use std::cmp::Ordering::Equal;
use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{AccessKind, FaultKind, Protection},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory(limit: u64) -> Memory {
    let options = Memory::builder(limit).threads(Threads::None);
    options.build().unwrap()
}

/// Returns the bytes of pages, with page n full of n + 1.
fn numbers(pages: u64) -> Vec<u8> {
    (0..pages * PAGE).map(|at| (at / PAGE + 1) as u8).collect()
}

/// Creates a file of 16 such pages, of which the first 8 are cached, and a shared mapping of it.
fn half_cached(memory: &Memory) -> (PagedFile, Space, VirtAddr) {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&numbers(16)))
        .unwrap();
    file.read_at(&mut [0; 8 * PAGE_SIZE], 0).unwrap();
    file.evict(8 * PAGE..).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    (file, space, at)
}

#[track_caller]
fn assert_would_block<T: std::fmt::Debug>(got: Result<T, innerspace::space::Fault>, at: VirtAddr) {
    let fault = got.unwrap_err();
    assert!(fault.would_block(), "{fault}");
    assert_eq!((fault.kind(), fault.address()), (FaultKind::WouldBlock, at));
    assert_eq!(io::Error::from(fault).kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn what_takes_no_waiting_is_done() {
    let memory = memory(8 * MIB);
    let (file, space, at) = half_cached(&memory);
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let private = space.map(Map::file(&file).private().writable()).unwrap();
    let holes = memory
        .file_options()
        .open_store(MemoryStore::with_len(PAGE))
        .unwrap();
    let hole = space.map(Map::file(&holes)).unwrap();
    let reads = file.stats().store_reads;
    let mut a = space.accessor().unwrap();
    assert_eq!(a.try_load::<u64>(own + 8), Ok(0), "the zero frame");
    assert_eq!(a.try_store(own + 8, 5_u64), Ok(()), "a new page");
    assert_eq!(a.try_load::<u8>(at + 3 * PAGE), Ok(4), "a cached page");
    assert_eq!(a.try_store(at + 4 * PAGE, 50_u8), Ok(()), "the same");
    assert_eq!(a.try_store(private + 4 * PAGE, 60_u8), Ok(()), "a copy");
    assert_eq!(a.try_load::<u8>(private + 4 * PAGE + 1), Ok(5));
    let fork = space.fork().unwrap();
    assert_eq!(a.try_store(own + 8, 6_u64), Ok(()), "copy-on-write");
    let mut b = fork.accessor().unwrap();
    assert_eq!(b.try_load::<u64>(own + 8), Ok(5));
    assert_eq!(b.try_load::<u8>(at + 4 * PAGE), Ok(50));
    assert_eq!(file.stats().store_reads, reads);
    // The store's content is unknown until the store was called.
    assert_would_block(a.try_load::<u8>(hole), hole);
    holes.prefetch(..).unwrap();
    assert_eq!(a.try_load::<u8>(hole), Ok(0), "a known hole");
    drop((a, b));
    space.validate();
    memory.validate();
}

// spec: P29
#[test]
fn what_the_store_has_is_left_there_and_nothing_changes() {
    let memory = memory(8 * MIB);
    let (file, space, at) = half_cached(&memory);
    let mut a = space.accessor().unwrap();
    a.load::<u8>(at).unwrap();
    let counts = || {
        let (file, memory) = (file.stats(), memory.root_group().usage());
        (file.store_reads, file.dirty, memory, space.stats().pages)
    };
    let before = counts();
    for page in [8, 12, 15] {
        assert_would_block(a.try_load::<u8>(at + page * PAGE), at + page * PAGE);
        assert_would_block(a.try_store(at + page * PAGE, 1_u8), at + page * PAGE);
    }
    assert_eq!(counts(), before);
    let error = a.try_load::<u64>(at + 8 * PAGE).unwrap_err();
    let text = format!("load of 8 bytes at {}: it would block", at + 8 * PAGE);
    assert_eq!(error.to_string(), text);
    let explained = a.explain(error).to_string();
    assert!(explained.starts_with(&format!("{text}: ")), "{explained}");
    assert_eq!(a.load::<u8>(at + 8 * PAGE), Ok(9));
    assert_eq!(a.try_load::<u8>(at + 8 * PAGE), Ok(9));
    // Other refusals are the same as in a call that may wait.
    let gone = a.try_load::<u8>(at + 16 * PAGE).unwrap_err();
    assert_eq!(gone.kind(), FaultKind::NotMapped);
    memory.validate();
}

// spec: V24
#[test]
fn a_buffer_has_what_comes_before_and_a_value_is_stored_wholly_or_not_at_all() {
    let memory = memory(8 * MIB);
    let (_file, space, at) = half_cached(&memory);
    let mut a = space.accessor().unwrap();
    let edge = at + 8 * PAGE;
    let mut buffer = [0xee; 3 * PAGE_SIZE];
    assert_would_block(a.try_read(at + 6 * PAGE, &mut buffer), edge);
    assert_eq!(
        buffer[..2 * PAGE_SIZE],
        numbers(16)[6 * PAGE_SIZE..][..2 * PAGE_SIZE]
    );
    assert!(buffer[2 * PAGE_SIZE..].iter().all(|byte| *byte == 0xee));
    let fault = a.try_write(at + 7 * PAGE, &[77; 2 * PAGE_SIZE]);
    assert_eq!(fault.unwrap_err().access(), AccessKind::Store);
    assert_eq!(a.load::<u8>(edge + (-1_i64) as u64), Ok(77), "the prefix");
    assert_would_block(a.try_store(edge + (-4_i64) as u64, 0_u64), edge);
    assert_eq!(a.try_load::<u32>(edge + (-4_i64) as u64), Ok(0x4d4d_4d4d));
    assert_would_block(a.try_load::<u64>(edge + (-4_i64) as u64), edge);
    assert_eq!(a.load::<u8>(edge), Ok(9), "as the store has it");
    drop(a);
    memory.validate();
}

#[test]
fn each_access_has_such_a_form_and_sessions_have_them_too() {
    let memory = memory(8 * MIB);
    let (_file, space, at) = half_cached(&memory);
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    space
        .protect(own, PAGE, Protection::READ_WRITE | Protection::EXECUTE)
        .unwrap();
    let far = at + 8 * PAGE;
    let mut a = space.accessor().unwrap();
    macro_rules! all {
        ($a:expr) => {
            let a = $a;
            assert_eq!(a.try_store(own, 3_u64), Ok(()));
            assert_eq!(a.try_fetch::<u64>(own), Ok(3));
            assert_eq!(a.try_swap(own, 4_u64, SeqCst), Ok(3));
            assert_eq!(a.try_fetch_add(own, 2_u64, SeqCst), Ok(4));
            assert_eq!(a.try_fetch_sub(own, 1_u64, SeqCst), Ok(6));
            assert_eq!(a.try_fetch_or(own, 8_u64, SeqCst), Ok(5));
            assert_eq!(a.try_fetch_and(own, 12_u64, SeqCst), Ok(13));
            assert_eq!(a.try_fetch_xor(own, 1_u64, SeqCst), Ok(12));
            assert_eq!(a.try_fetch_min(own, 9_u64, SeqCst), Ok(13));
            assert_eq!(a.try_fetch_max(own, 11_u64, SeqCst), Ok(9));
            assert_eq!(
                a.try_compare_exchange(own, 11_u64, 1, SeqCst, SeqCst),
                Ok(Ok(11))
            );
            assert_eq!(a.try_store_atomic(own, 2_u64, SeqCst), Ok(()));
            assert_eq!(a.try_load_atomic::<u64>(own, SeqCst), Ok(2));
            assert_eq!(a.try_fill(own + PAGE, 7, 2 * PAGE_SIZE), Ok(()));
            assert_eq!(
                a.try_copy_within(own + PAGE, PAGE_SIZE, own + 3 * PAGE),
                Ok(())
            );
            assert_eq!(a.try_compare(own + 3 * PAGE, &[7; PAGE_SIZE]), Ok(Equal));
            assert_would_block(a.try_swap(far, 4_u64, SeqCst), far);
            assert_would_block(a.try_fetch_add(far, 4_u64, SeqCst), far);
            assert_would_block(a.try_compare_exchange(far, 4_u64, 1, SeqCst, SeqCst), far);
            assert_would_block(a.try_load_atomic::<u64>(far, SeqCst), far);
            assert_would_block(a.try_store_atomic(far, 1_u64, SeqCst), far);
            assert_would_block(a.try_fill(far + (-PAGE_I64) as u64, 7, 2 * PAGE_SIZE), far);
            assert_would_block(a.try_copy_within(far, PAGE_SIZE, own + 3 * PAGE), far);
            assert_would_block(a.try_compare(far, &[7; 8]), far);
            assert_would_block(a.try_load::<u8>(far), far);
            assert_would_block(a.try_store(far, 1_u8), far);
            assert_eq!(a.try_load::<u8>(at + PAGE), Ok(2));
        };
    }
    all!(&mut a);
    space.discard(own, 64 * PAGE).unwrap();
    a.session(|a| {
        all!(a);
    });
}

// spec: P29
#[test]
fn many_reads_end_at_the_first_that_would_block_and_ask_no_store() {
    let memory = memory(8 * MIB);
    let (file, space, at) = half_cached(&memory);
    let reads = file.stats().store_reads;
    let mut a = space.accessor().unwrap();
    let gather = |a: &mut Accessor, pages: [u64; 3]| {
        let mut words = [[0; 8]; 3];
        let buffers = words.iter_mut().map(|word| &mut word[..]);
        let places = pages.iter().map(|page| at + page * PAGE);
        let mut reads: Vec<_> = places.zip(buffers).collect();
        let gathered = a.try_gather(&mut reads);
        (gathered, words.map(|word| word[7]))
    };
    assert_eq!(gather(&mut a, [7, 0, 3]), (Ok(()), [8, 1, 4]));
    let (gathered, words) = gather(&mut a, [7, 12, 9]);
    assert_would_block(gathered, at + 12 * PAGE);
    assert_eq!(words, [8, 0, 0], "what comes before, and no more");
    assert_eq!(file.stats().store_reads, reads);
    let mut words = [0; 8];
    let mut both = [(at + 12 * PAGE, &mut words[..4]), (at, &mut [0; 4][..])];
    a.gather(&mut both).unwrap();
    assert_eq!(words, [13, 13, 13, 13, 0, 0, 0, 0]);
    let (gathered, words) = gather(&mut a, [7, 12, 0]);
    assert_eq!((gathered, words), (Ok(()), [8, 13, 1]));
    let gone = a.try_gather(&mut [(at + 16 * PAGE, &mut [0])]).unwrap_err();
    assert_eq!(gone.kind(), FaultKind::NotMapped);
}

// spec: P29
#[test]
fn a_copy_between_spaces_ends_where_either_would_block() {
    let memory = memory(8 * MIB);
    let (file, space, at) = half_cached(&memory);
    let other = memory.create_space().unwrap();
    let own = other.map(Map::anonymous(64 * PAGE)).unwrap();
    let reads = file.stats().store_reads;
    let (mut here, mut there) = (other.accessor().unwrap(), space.accessor().unwrap());
    // The source's page 8 is not cached.
    let copied = here.try_copy_from(own + 5, &mut there, at + 6 * PAGE, 4 * PAGE_SIZE);
    let fault = copied.unwrap_err();
    assert_eq!(
        (fault.access(), fault.would_block()),
        (AccessKind::Load, true)
    );
    assert_eq!(fault.address(), at + 8 * PAGE);
    assert_eq!(
        here.compare(own + 5, &numbers(16)[6 * PAGE_SIZE..8 * PAGE_SIZE]),
        Ok(Equal)
    );
    assert_eq!(here.load::<u8>(own + 5 + 2 * PAGE), Ok(0), "and no more");
    // An uncached page may not be the target either.
    let copied = there.try_copy_from(at + 7 * PAGE, &mut here, own + 5, 2 * PAGE_SIZE);
    let fault = copied.unwrap_err();
    assert_eq!(
        (fault.access(), fault.would_block()),
        (AccessKind::Store, true)
    );
    assert_eq!(fault.address(), at + 8 * PAGE);
    assert_eq!(there.load::<u8>(at + 7 * PAGE), Ok(7), "the prefix");
    assert_eq!(file.stats().store_reads, reads);
    assert_eq!(
        there.load::<u8>(at + 8 * PAGE),
        Ok(9),
        "as the store has it"
    );
    assert_eq!(
        there.try_copy_from(at + 7 * PAGE, &mut here, own + 5, 2 * PAGE_SIZE),
        Ok(())
    );
    assert_eq!(there.load::<u8>(at + 8 * PAGE), Ok(8));
    drop((here, there));
    memory.validate();
}

const PAGE_I64: i64 = PAGE as i64;

// spec: P6
#[test]
fn a_full_group_would_block_and_is_not_reclaimed_from() {
    let memory = memory(512 * KIB);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&numbers(512)))
        .unwrap();
    file.scan(.., |_| ()).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut stored = 0;
    let refused = loop {
        let cached = file.stats().cached;
        match a.try_store(at + stored * PAGE, 1_u8) {
            Ok(()) => stored += 1,
            Err(fault) => break fault,
        }
        assert_eq!(file.stats().cached, cached, "nothing is evicted");
    };
    assert_would_block::<()>(Err(refused), at + stored * PAGE);
    a.store(at + stored * PAGE, 1_u8).unwrap();
    drop(a);
    memory.validate();
}

/// A store that holds calls of one kind until they are released.
struct Held {
    store: MemoryStore,
    holds: Holds,
    /// Whether calls are held, and how many are held now.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

#[derive(PartialEq)]
enum Holds {
    Reads,
    Writes,
}

impl Held {
    fn new(holds: Holds) -> Arc<Held> {
        Arc::new(Held {
            store: MemoryStore::from_bytes(&numbers(16)),
            holds,
            state: Mutex::new((false, 0)),
            changed: Condvar::new(),
        })
    }

    fn hold(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn wait_for_call(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.1 == 0));
    }

    fn let_go(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn called(&self, kind: Holds) {
        let mut state = self.state.lock().unwrap();
        if self.holds == kind && state.0 {
            state.1 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.0));
        }
    }
}

impl Store for Held {
    fn writable(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.called(Holds::Reads);
        self.store.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.called(Holds::Writes);
        self.store.write_at(bytes, offset)
    }
}

fn mapped(memory: &Memory, store: &Arc<Held>) -> (PagedFile, Space, VirtAddr) {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(store.clone()).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    (file, space, at)
}

#[test]
fn a_block_that_is_being_read_would_block() {
    let memory = memory(8 * MIB);
    let store = Held::new(Holds::Reads);
    let (_file, space, at) = mapped(&memory, &store);
    store.hold();
    thread::scope(|scope| {
        let reader = scope.spawn(|| space.accessor().unwrap().load::<u8>(at));
        store.wait_for_call();
        let mut a = space.accessor().unwrap();
        assert_would_block(a.try_load::<u8>(at), at);
        assert_would_block(a.try_store(at, 9_u8), at);
        store.let_go();
        assert_eq!(reader.join().unwrap(), Ok(1));
        assert_eq!(a.try_load::<u8>(at), Ok(1));
    });
}

#[test]
fn a_block_that_is_being_written_can_be_loaded_and_a_store_would_block() {
    let memory = memory(8 * MIB);
    let store = Held::new(Holds::Writes);
    let (file, space, at) = mapped(&memory, &store);
    let mut a: Accessor = space.accessor().unwrap();
    a.store(at, 5_u8).unwrap();
    store.hold();
    thread::scope(|scope| {
        let writer = scope.spawn(|| file.sync_data());
        store.wait_for_call();
        assert_eq!(a.try_load::<u8>(at), Ok(5));
        assert_would_block(a.try_store(at, 6_u8), at);
        assert_eq!(a.try_load::<u8>(at), Ok(5));
        store.let_go();
        writer.join().unwrap().unwrap();
        assert_eq!(a.try_store(at, 6_u8), Ok(()));
    });
    memory.validate();
}

#[test]
fn what_waits_for_other_accessors_would_block() {
    let memory = memory(8 * MIB);
    let (file, space, at) = half_cached(&memory);
    let mut a = space.accessor().unwrap();
    let view = file.view(..PAGE).unwrap();
    assert_eq!(a.try_load::<u8>(at), Ok(1));
    assert_would_block(a.try_store(at, 9_u8), at);
    a.store(at, 9_u8).unwrap();
    assert_eq!((view[0], a.try_load::<u8>(at)), (1, Ok(9)));
    // A hole that is stored to is taken away from all mappings.
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let holes = options.open_store(MemoryStore::with_len(PAGE)).unwrap();
    holes.prefetch(..).unwrap();
    let hole = space.map(Map::file(&holes).shared().writable()).unwrap();
    assert_eq!(a.try_load::<u8>(hole), Ok(0));
    assert_would_block(a.try_store(hole, 1_u8), hole);
    assert_eq!(
        (a.store(hole, 1_u8), a.try_load::<u8>(hole)),
        (Ok(()), Ok(1))
    );
}

#[test]
fn a_store_where_too_much_is_dirty_would_block_and_has_it_written() {
    let memory = memory(512 * KIB);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&numbers(100)))
        .unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    let mut store = |page: u64| {
        a.load::<u8>(at + page * PAGE).unwrap();
        a.try_store(at + page * PAGE, 1_u8)
    };
    let refused = (0..100).find(|page| store(*page).is_err());
    let page = refused.expect("not all of the memory can be dirty");
    assert_would_block(store(page), at + page * PAGE);
    assert_eq!(file.stats().written, 0, "it has written nothing itself");
    memory.tick();
    assert_eq!(store(page), Ok(()));
}

#[test]
fn of_a_direct_access_file_is_had_what_it_knows_without_asking() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, numbers(2)).unwrap();
    let memory = memory(8 * MIB);
    let options = memory.dax_options().access(FileAccess::ReadWrite);
    let file = options.open(&path).unwrap();
    file.set_len(3 * PAGE).unwrap();
    let mapped = || {
        let space = memory.create_space().unwrap();
        let at = space.map(Map::dax(&file).shared().writable()).unwrap();
        (space.accessor().unwrap(), at)
    };
    let ((mut a, at), (mut b, there)) = (mapped(), mapped());
    assert_would_block(a.try_load::<u8>(at), at);
    assert_eq!(a.load::<u8>(at), Ok(1));
    assert_eq!(a.try_load::<u8>(at), Ok(1));
    assert_eq!(b.try_load::<u8>(there), Ok(1), "it is known where it is");
    assert_eq!(
        b.try_load::<u8>(there + PAGE).ok(),
        None,
        "and of that one not"
    );
    // A first store still has to wait.
    assert_would_block(b.try_store(there, 9_u8), there);
    a.store(at, 9_u8).unwrap();
    assert_eq!(b.try_store(there, 10_u8), Ok(()));
    assert_eq!(a.try_load::<u8>(at), Ok(10));
    file.sync_all().unwrap();
    assert_eq!(b.try_load::<u8>(there), Ok(10));
    assert_would_block(b.try_store(there, 11_u8), there);
    // A hole, and a page that is cut off.
    let hole = 2 * PAGE;
    assert_would_block(a.try_load::<u8>(at + hole), at + hole);
    assert_eq!(a.load::<u8>(at + hole), Ok(0));
    assert_eq!(b.try_load::<u8>(there + hole), Ok(0));
    assert_would_block(b.try_store(there + hole, 1_u8), there + hole);
    file.set_len(PAGE).unwrap();
    let gone = b.try_load::<u8>(there + PAGE).unwrap_err();
    assert_eq!(gone.kind(), FaultKind::PastEnd);
    drop((a, b));
    memory.validate();
}
