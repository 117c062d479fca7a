//! The last reference to a file is dropped while another thread is working on what it released:
//! that drop, or the drop of the memory's last handle, waits until the bytes are written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::cache::{FileAccess, PagedFile};
use crate::frame::{HoldState, Kind};
use crate::memory::{Memory, Threads};
use crate::reclaim::{AllocMode, Retired};
use crate::store::faulty::{Fault, OperationKind, Release, Rule};
use crate::store::{FaultyStore, MemoryStore};
use crate::sync::{failpoint, thread};
use crate::units::{MIB, PAGE_SIZE, VirtAddr};
use crate::{Map, Space};

const PAGE: u64 = PAGE_SIZE as u64;

/// The timeout, in case a wait does not end.
const LONG: Duration = Duration::from_secs(20);

type Hanging = Arc<FaultyStore<MemoryStore>>;

fn open(memory: &Memory) -> (PagedFile, Hanging) {
    let bytes = MemoryStore::from_bytes(&[1; PAGE_SIZE]);
    let store = Arc::new(FaultyStore::new(bytes));
    let options = memory.file_options().access(FileAccess::ReadWrite);
    (options.open_store(store.clone()).unwrap(), store)
}

/// Opens a file with dirty bytes. Only a mapping keeps the file open.
fn mapped(memory: &Memory) -> (Space, VirtAddr, Hanging) {
    let (file, store) = open(memory);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    space.accessor().unwrap().store(at, 7_u64).unwrap();
    (space, at, store)
}

fn is_written(store: &Hanging) -> bool {
    store.inner().to_vec()[..8] == 7_u64.to_ne_bytes()
}

/// Calls `last` while another thread is stopped at `point` in `begin`, which it reaches when `last`
/// is at the point "Released". The other thread goes on when `is_waited_for` returns true, or when
/// `last` is over.
fn while_other_is_at(
    point: &'static str,
    begin: impl FnOnce() + Send + 'static,
    is_waited_for: impl Fn() -> bool + Send + 'static,
    last: impl FnOnce(),
) {
    let is_over = Arc::new(AtomicBool::new(false));
    let (there, arrives) = mpsc::channel();
    let over = is_over.clone();
    let other = move || {
        let armed = failpoint::on(point, move || {
            there.send(()).unwrap();
            while !is_waited_for() && !over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        });
        begin();
        drop(armed);
    };
    let (started, starts) = mpsc::channel();
    let armed = failpoint::on("Released", move || {
        started.send(thread::spawn(other)).unwrap();
        arrives.recv_timeout(LONG).expect("the other gets there");
    });
    last();
    drop(armed);
    is_over.store(true, Ordering::Relaxed);
    starts.recv().unwrap().join().unwrap();
}

// spec: P30
#[test]
fn an_unmapping_waits_for_a_thread_that_frees_the_last_reference_to_the_file() {
    for threads in [Threads::Service, Threads::None] {
        let memory = Memory::builder(4 * MIB).threads(threads);
        let memory = memory.build().unwrap();
        let _paused = memory
            .0
            .service
            .as_ref()
            .map(crate::memory::service::Service::pause);
        let (space, at, store) = mapped(&memory);
        memory.0.pool.finish_retired();
        let (pool, asked) = (memory.0.pool.clone(), memory.0.pool.clone());
        let begin = move || assert!(pool.flush_retired() > 0);
        let is_waited_for = move || asked.is_retired_waited_for();
        while_other_is_at("Retiring", begin, is_waited_for, || {
            space.unmap(at, PAGE).unwrap();
            assert!(is_written(&store), "{threads:?}");
        });
    }
}

// spec: P30
#[test]
fn an_unmapping_waits_for_a_thread_that_closes_the_file() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let (space, at, store) = mapped(&memory);
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
    let (over, ends) = mpsc::channel();
    let theirs = store.clone();
    let last = thread::spawn(move || {
        space.unmap(at, PAGE).unwrap();
        over.send(is_written(&theirs)).unwrap();
    });
    store.wait_hanging(1);
    assert!(ends.try_recv().is_err(), "the store has not answered");
    store.release(Release::Proceed);
    assert!(ends.recv_timeout(LONG).unwrap());
    last.join().unwrap();
}

/// Drops a file from inside a call to its own store, which leaves the closing to other threads,
/// whose write hangs.
fn left_to_others(memory: &Memory) -> Hanging {
    let (file, store) = open(memory);
    file.write_at(&7_u64.to_ne_bytes(), 0).unwrap();
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
    let core = file.inner().core().clone();
    let call = core.store_call();
    drop(file);
    drop(call);
    store
}

// spec: P30
#[test]
fn the_last_of_the_memory_waits_for_a_file_that_was_let_go_where_it_could_not_be_closed() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let store = left_to_others(&memory);
    store.wait_hanging(1);
    let cache = memory.0.cache.clone();
    let (over, ends) = mpsc::channel();
    let theirs = store.clone();
    let last = thread::spawn(move || {
        drop(memory);
        over.send(is_written(&theirs)).unwrap();
    });
    while !cache.is_deferred_waited_for() {
        assert!(ends.try_recv().is_err(), "it waits");
        thread::yield_now();
    }
    store.release(Release::Proceed);
    assert!(ends.recv_timeout(LONG).unwrap());
    last.join().unwrap();
}

// spec: P30
#[test]
fn nothing_is_charged_any_more_when_the_last_drop_has_returned() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let _paused = memory
        .0
        .service
        .as_ref()
        .map(crate::memory::service::Service::pause);
    let group = memory.create_group("a", 2 * MIB).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space.accessor().unwrap().store(at, 1_u64).unwrap();
    memory.0.pool.finish_retired();
    let (pool, asked) = (memory.0.pool.clone(), memory.0.pool.clone());
    // Another thread takes this entry out of the queue.
    let frame = pool.alloc(group.id(), 0, AllocMode::Wait).unwrap();
    pool.retire(Retired::Put(
        frame.publish_as(Kind::Table, HoldState::refs_only(1)),
    ));
    let begin = move || assert!(pool.flush_retired() > 0);
    let is_waited_for = move || asked.is_retired_waited_for();
    while_other_is_at("Retiring", begin, is_waited_for, || {
        drop(space);
        assert_eq!(group.usage(), 0);
    });
}
