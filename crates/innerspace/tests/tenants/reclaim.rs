//! Reclaim for B never calls A's store, and does not wait for A's dirty pages.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use innerspace::store::{Accepted, MemoryStore, Store, SyncWhat};
use innerspace::{
    Group, MIB, Map, Memory, PAGE_SIZE, PagedFile, Threads,
    file::{FileAccess, FileError},
    group::LimitReason,
};

/// A bound that only a failure reaches.
const LONG: Duration = Duration::from_secs(20);

const LIMIT: u64 = 16 * MIB;

/// How A's store behaves when it is called to write, or to sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Hang,
    Panic,
    Full,
    /// The write succeeds, and the sync hangs.
    HangInSync,
    /// Both succeed.
    Nothing,
}

/// The calls that change a store, by thread.
struct Calls {
    by: Mutex<Vec<ThreadId>>,
    /// Held while calls are to hang.
    gate: Mutex<()>,
    /// Notified of each thread that hangs or is done.
    stopped: Mutex<Sender<ThreadId>>,
}

impl Calls {
    fn new() -> (Arc<Calls>, Receiver<ThreadId>) {
        let (stopped, stops) = mpsc::channel();
        let calls = Calls {
            by: Mutex::default(),
            gate: Mutex::default(),
            stopped: Mutex::new(stopped),
        };
        (Arc::new(calls), stops)
    }

    fn note(&self) {
        self.by.lock().unwrap().push(thread::current().id());
    }

    fn note_stopped(&self) {
        // The test may be over, and the receiver dropped.
        let _ = self.stopped.lock().unwrap().send(thread::current().id());
    }

    fn hang(&self) {
        self.note_stopped();
        // A test that failed may have held the gate.
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn has_any_by(&self, thread: ThreadId) -> bool {
        self.by.lock().unwrap().contains(&thread)
    }
}

struct Hostile {
    act: Act,
    calls: Arc<Calls>,
}

impl Store for Hostile {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(1);
        Ok(buf.len())
    }

    fn write_at(&self, buf: &[u8], _: u64) -> io::Result<usize> {
        self.calls.note();
        match self.act {
            Act::Hang => self.calls.hang(),
            Act::Panic => panic!("A's store"),
            Act::Full => return Err(io::ErrorKind::StorageFull.into()),
            Act::HangInSync | Act::Nothing => {}
        }
        Ok(buf.len())
    }

    fn sync(&self, _: SyncWhat) -> io::Result<()> {
        self.calls.note();
        if matches!(self.act, Act::Hang | Act::HangInSync) {
            self.calls.hang();
        }
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn writable(&self) -> bool {
        true
    }

    fn accepted(&self) -> Accepted {
        Accepted::UntilSync
    }
}

/// A memory of which B's `min` protects three quarters. A may take the rest.
struct Tenants {
    memory: Memory,
    a: Group,
    b: Group,
}

impl Tenants {
    fn new(threads: Threads) -> Arc<Tenants> {
        let memory = Memory::builder(LIMIT).threads(threads).build().unwrap();
        let a = memory.root_group().create_child_unlimited("a").unwrap();
        let b = memory.root_group().create_child_unlimited("b").unwrap();
        b.set_min(Some(LIMIT / 4 * 3)).unwrap();
        Arc::new(Tenants { memory, a, b })
    }

    fn hostile(&self, act: Act, calls: &Arc<Calls>) -> PagedFile {
        let store = Hostile {
            act,
            calls: Arc::clone(calls),
        };
        let options = self.memory.file_options().group(&self.a);
        options
            .access(FileAccess::ReadWrite)
            .open_store(store)
            .unwrap()
    }
}

/// Dirties all pages that A may, whatever its store does, and reads for the rest. Returns the last
/// error.
fn fill(file: &PagedFile) -> Option<FileError> {
    let (mut failures, mut error) = (0, None);
    for page in 0..LIMIT / PAGE_SIZE as u64 {
        let write = || file.write_at(&[2; PAGE_SIZE], page * PAGE_SIZE as u64);
        match catch_unwind(AssertUnwindSafe(write)) {
            Ok(Ok(())) => continue,
            Ok(Err(refused)) => error = Some(refused),
            Err(_) => {}
        }
        failures += 1;
        if failures == 8 {
            break;
        }
    }
    let mut bytes = vec![0; 64 << 10];
    for at in (LIMIT..2 * LIMIT).step_by(bytes.len()) {
        file.read_at(&mut bytes, at).unwrap();
    }
    error
}

/// Stores to this many pages of a new space of B. Returns `None` if B was refused.
fn store_to(tenants: &Tenants, pages: u64) -> Option<()> {
    let space = tenants.memory.create_space_in(&tenants.b).unwrap();
    let own = space.map(Map::anonymous(pages * PAGE_SIZE as u64)).unwrap();
    let mut accessor = space.accessor().unwrap();
    (0..pages).try_for_each(|page| accessor.store(own + page * PAGE_SIZE as u64, page).ok())
}

/// Does B's work inside its `min`, in five eighths of the memory, with 256 KiB of a file unwritten.
fn work(tenants: &Tenants) {
    let file = tenants.memory.file_options().group(&tenants.b);
    let file = file
        .access(FileAccess::ReadWrite)
        .open_store(MemoryStore::new());
    let file = file.unwrap();
    for page in 0..64 {
        let offset = page * PAGE_SIZE as u64;
        file.write_at(&[3; PAGE_SIZE], offset).unwrap();
    }
    store_to(tenants, LIMIT / 8 * 5 / PAGE_SIZE as u64).expect("B is inside its `min`");
    file.sync_all().unwrap();
}

/// Runs `work` on a thread of its own, and returns which. The thread may hang if the library is
/// wrong.
fn within_bounds<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (ThreadId, T) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || done.send((thread::current().id(), work())).unwrap());
    match ended.recv_timeout(LONG) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => resume_unwind(worker.join().unwrap_err()),
    }
}

/// Has A do its worst, and then does `then`. Returns A's last error, if its own thread did not
/// hang.
fn beside(
    act: Act,
    threads: Threads,
    then: impl FnOnce(&Arc<Tenants>, &Calls),
) -> Option<FileError> {
    let tenants = Tenants::new(threads);
    let (calls, stops) = Calls::new();
    let gate = calls.gate.lock().unwrap();
    let file = tenants.hostile(act, &calls);
    let of_a = Arc::clone(&calls);
    let a = thread::spawn(move || {
        let error = fill(&file);
        of_a.note_stopped();
        (error, file)
    });
    while stops.recv_timeout(LONG).expect("A comes to its end") != a.thread().id() {}
    then(&tenants, &calls);
    drop(gate);
    let (error, file) = a.join().unwrap();
    // The store may panic until the end.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(file)));
    error
}

fn b_works_beside(act: Act, threads: Threads) -> Option<FileError> {
    beside(act, threads, |tenants, calls| {
        let of_b = Arc::clone(tenants);
        let (b, ()) = within_bounds(move || work(&of_b));
        assert!(!calls.has_any_by(b), "{act:?}: B's thread calls A's store");
    })
}

// spec: N4, N5
#[test]
fn b_works_while_a_store_of_a_hangs() {
    for threads in [Threads::Service, Threads::None] {
        b_works_beside(Act::Hang, threads);
        b_works_beside(Act::HangInSync, threads);
    }
}

// spec: N4, N5
#[test]
fn b_works_while_a_store_of_a_panics() {
    for threads in [Threads::Service, Threads::None] {
        b_works_beside(Act::Panic, threads);
    }
}

// spec: N5, N12
#[test]
fn a_full_disk_of_a_is_told_to_a_alone() {
    for threads in [Threads::Service, Threads::None] {
        let error = b_works_beside(Act::Full, threads);
        assert!(
            matches!(error, Some(FileError::Unwritten { .. })),
            "{error:?}"
        );
    }
}

// spec: N5, N12
#[test]
fn a_is_refused_in_its_own_name_when_its_data_would_take_what_b_is_owed() {
    let error = b_works_beside(Act::HangInSync, Threads::Service);
    // The thread that synced may have been A's own.
    let Some(error) = error else { return };
    let FileError::Limit(full) = &error else {
        panic!("{error}");
    };
    assert_eq!(full.details().reason, LimitReason::Unwritten);
    assert_eq!(full.details().group, "root/a");
}

// spec: N4
#[test]
fn b_beyond_its_min_calls_no_store_of_a_either() {
    for act in [Act::Nothing, Act::Full, Act::Hang] {
        beside(act, Threads::None, |tenants, calls| {
            let of_b = Arc::clone(tenants);
            let all = LIMIT / PAGE_SIZE as u64;
            let (b, got) = within_bounds(move || store_to(&of_b, all));
            assert_eq!(got, None, "that is more than there is");
            assert!(!calls.has_any_by(b), "{act:?}: B's thread calls A's store");
        });
    }
}

// spec: N4
#[test]
fn b_beyond_its_min_calls_no_store_of_a_for_bytes_on_the_heap() {
    for act in [Act::Nothing, Act::Hang] {
        beside(act, Threads::None, |tenants, calls| {
            let of_b = Arc::clone(tenants);
            let (b, files) = within_bounds(move || {
                let space = of_b.memory.create_space_in(&of_b.b).unwrap();
                let own = space.map(Map::anonymous(LIMIT)).unwrap();
                let mut accessor = space.accessor().unwrap();
                // All that it can have.
                let pages = (0..LIMIT).step_by(PAGE_SIZE);
                let stored = pages.map_while(|page| accessor.store(own + page, 1_u8).ok());
                assert!(stored.count() > 0);
                let open = || {
                    of_b.memory
                        .file_options()
                        .group(&of_b.b)
                        .open_store(MemoryStore::new())
                };
                let files: Vec<_> = (0..20_000).map_while(|_| open().ok()).collect();
                files.len()
            });
            assert!(files < 20_000, "that is more than there is");
            assert!(!calls.has_any_by(b), "{act:?}: B's thread calls A's store");
        });
    }
}

// spec: N4
#[test]
fn the_background_writes_for_b_what_b_may_not() {
    beside(Act::Nothing, Threads::Service, |tenants, calls| {
        // More pages than are free or clean while A's data is not written.
        tenants.b.set_min(None).unwrap();
        let pages = LIMIT / 16 * 15 / PAGE_SIZE as u64;
        let of_b = Arc::clone(tenants);
        let (b, got) = within_bounds(move || store_to(&of_b, pages));
        assert_eq!(got, Some(()));
        assert!(!calls.has_any_by(b));
    });
}
