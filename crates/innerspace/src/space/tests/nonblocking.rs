//! Accesses that must not wait, during a change of the mappings.

use std::sync::mpsc;

use super::*;
use crate::cache::{Cache, FileOptions, PagedFile};
use crate::space::tlb::translator::GATE_MAIL;
use crate::store::MemoryStore;
use crate::sync::failpoint;
use crate::sync::gate::EVERYWHERE;

// spec: P29
#[test]
fn while_the_mappings_change_it_would_block_each_time() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1_u64).unwrap();
    let inner = &space.0;
    let writer = inner.gate.write();
    // As in a restore, the leaves that accessors remember do not change: accessors have to look at
    // the gate.
    let closed = writer.close(&pool.domain, &EVERYWHERE, || inner.post(GATE_MAIL));
    let would_block = |got: Result<u64, Fault>| assert!(got.unwrap_err().would_block());
    for page in [0, 0, 1, 0] {
        would_block(a.try_load(at + page * PAGE));
        would_block(a.try_store(at + page * PAGE, 2_u64).map(|()| 2));
    }
    a.session(|a| {
        for _ in 0..3 {
            would_block(a.try_load(at));
        }
    });
    // The last address of all is in no mapping, whatever the change.
    let fault = a.try_load::<u8>(VirtAddr(u64::MAX)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    let fault = a.load::<u8>(VirtAddr(u64::MAX)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    drop(closed);
    drop(writer);
    assert_eq!(a.try_load(at), Ok(1_u64));
    assert_eq!(a.try_store(at, 2_u64), Ok(()));
    assert_eq!(a.try_load(at + PAGE), Ok(0_u64));
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

/// A restore closes the gate between two steps of a fault, and the fault reads the mail about it.
// spec: P29
#[test]
fn a_change_that_begins_in_a_fault_is_looked_for_at_the_next_access() {
    let pool = pool(256);
    let cache = Cache::new(&pool);
    let store = Arc::new(MemoryStore::from_bytes(&[7; PAGE_SIZE]));
    let file = PagedFile::open(&cache, store, &FileOptions::new()).unwrap();
    file.view(..PAGE).unwrap();
    let space = space(&pool);
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(own, 1_u64).unwrap();
    let (open, may_open) = mpsc::channel::<()>();
    let (closes, closing) = mpsc::channel();
    let changing = space.clone();
    let _there = failpoint::on("BlockAcquired", move || {
        let (told, closed) = mpsc::channel();
        let other = thread::spawn(move || {
            let inner = &changing.0;
            let writer = inner.gate.write();
            let _closed = writer.close(&inner.pool.domain, &EVERYWHERE, || inner.post(GATE_MAIL));
            told.send(()).unwrap();
            may_open.recv().unwrap();
        });
        closed.recv().unwrap();
        closes.send(other).unwrap();
    });
    assert!(a.try_load::<u8>(at).unwrap_err().would_block());
    assert!(a.try_load::<u64>(own).unwrap_err().would_block());
    open.send(()).unwrap();
    closing.recv().unwrap().join().unwrap();
    assert_eq!(a.try_load(own), Ok(1_u64));
    assert_eq!(a.try_load(at), Ok(7_u8));
}

// spec: P29
#[test]
fn beside_a_change_elsewhere_nothing_waits() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let writer = space.0.gate.write();
    let closed = writer.close(&pool.domain, &(at.0 + 8 * PAGE..at.0 + 9 * PAGE), || ());
    assert_eq!(a.try_store(at, 1_u64), Ok(()));
    assert_eq!(a.try_load(at + 7 * PAGE), Ok(0_u64));
    let fault = a.try_load::<u64>(at + 8 * PAGE).unwrap_err();
    assert_eq!(
        (fault.would_block(), fault.address()),
        (true, at + 8 * PAGE)
    );
    drop(closed);
}
