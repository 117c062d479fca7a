//! Tests of waiting in place for a store that hangs until the test releases it: only the timeout
//! ends the wait.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use crate::Map;
use crate::cache::{FileAccess, PagedFile, TimedOut};
use crate::memory::{Memory, Threads};
use crate::space::AccessKind;
use crate::store::faulty::{Fault, OperationKind, Release, Rule};
use crate::store::{FaultyStore, MemoryStore};
use crate::sync::{Arc, thread};
use crate::units::MIB;

/// The timeout, in case a wait does not end.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(2);

fn open(memory: &Memory) -> (PagedFile, Arc<FaultyStore<MemoryStore>>) {
    let store = Arc::new(FaultyStore::new(MemoryStore::from_bytes(&[7; 100_000])));
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .name("data.bin");
    (options.open_store(store.clone()).unwrap(), store)
}

fn hang(store: &FaultyStore<MemoryStore>, kind: OperationKind) {
    store.add(Rule::new(Fault::Hang).on(&[kind]));
}

fn assert_timed_out<T: Debug>(end: Result<T, TimedOut>) {
    assert_eq!(end.unwrap_err(), TimedOut { waited: SHORT });
}

// spec: P19, P29
#[test]
fn who_waits_for_a_store_that_hangs_waits_as_long_as_he_said() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let (file, store) = open(&memory);
    file.write_at(&[1; 10], 0).unwrap();
    hang(&store, OperationKind::Sync);
    let mut sync = file.defer(|file| file.sync_all());
    assert_timed_out(sync.wait_timeout(SHORT));
    let error = sync.wait_timeout(SHORT).unwrap_err();
    assert_eq!(error.to_string(), "not done within 2ms");
    let kind = std::io::Error::from(error).kind();
    assert_eq!(kind, std::io::ErrorKind::TimedOut);
    store.wait_hanging(1);
    // This call is queued after the one that hangs, and given up.
    assert_timed_out(
        file.defer(move |file| file.write_at(&[9; 10], 50_000))
            .wait_timeout(SHORT),
    );
    store.release(Release::Proceed);
    sync.wait_timeout(LONG).unwrap().unwrap();
    file.try_sync_all().unwrap();

    hang(&store, OperationKind::Read);
    let mut ready = file.ready(50_000..50_010);
    assert_timed_out(ready.wait_timeout(SHORT));
    store.wait_hanging(1);
    store.release(Release::Proceed);
    assert_eq!(ready.wait_timeout(LONG).unwrap().unwrap()[..], [7; 10]);

    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    hang(&store, OperationKind::Read);
    let mut ready = space.ready(at + 90_000, 10, AccessKind::Load);
    assert_timed_out(ready.wait_timeout(SHORT));
    store.wait_hanging(1);
    store.release(Release::Proceed);
    ready.wait_timeout(LONG).unwrap().unwrap();
}

// spec: P19, P29, P31
#[test]
fn who_waits_where_no_thread_serves_does_it_himself() {
    let memory = Memory::builder(4 * MIB).threads(Threads::None);
    let memory = memory.build().unwrap();
    let (file, store) = open(&memory);
    // This happens before any timeout.
    let mut write = file.defer(move |file| file.write_at(&[9; 10], 50_000));
    write.wait_timeout(Duration::ZERO).unwrap().unwrap();
    let view = file.ready(50_000..50_010).wait_timeout(Duration::ZERO);
    assert_eq!(view.unwrap().unwrap()[..], [9; 10]);
    // Another thread makes the calls, and hangs.
    hang(&store, OperationKind::Sync);
    let ticking = {
        let mut sync = Box::pin(file.defer(|file| file.sync_all()));
        let waker = std::task::Waker::noop();
        let polled = sync
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
        assert!(polled.is_pending());
        let memory = memory.clone();
        thread::spawn(move || {
            memory.tick();
            drop(sync);
        })
    };
    store.wait_hanging(1);
    let mut read = file.defer_shared(move |file| file.read_to_vec(50_000..50_010));
    assert_timed_out(read.wait_timeout(SHORT));
    store.release(Release::Proceed);
    assert_eq!(read.wait_timeout(LONG).unwrap().unwrap(), [9; 10]);
    ticking.join().unwrap();
}
