//! Calls as futures.

use std::pin::pin;
use std::task::Poll;

use super::blocking::{Bell, poll};
use super::*;
use crate::cache::FileError;
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::thread;

/// What the store has.
fn stored(store: &Faulty) -> Vec<u8> {
    let mut bytes = vec![0; store.inner().len().expect("it tells its length") as usize];
    let got = store.inner().read_at(&mut bytes, 0);
    assert_eq!(got.expect("it can be read"), bytes.len());
    bytes
}

// spec: P29
#[test]
fn a_call_is_made_by_a_tick_in_the_order_of_the_first_polls() {
    for size in SIZES {
        let cache = memory_of(16, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        let bell = Arc::new(Bell::default());
        let later = file.later();
        let mut cut = pin!(later.set_len(size));
        let mut append = pin!(later.append(vec![7; 100]));
        let mut punch = pin!(later.punch(0..size));
        let mut sync = pin!(later.sync_all());
        let mut read = pin!(later.read(size - 10..size + 100));
        let mut outside = pin!(later.read(0..4 * size));
        store.clear_log();
        cache.tick();
        assert_eq!(
            (file.len(), store.log().len()),
            (4 * size, 0),
            "nobody polled"
        );
        assert!(poll(cut.as_mut(), &bell).is_pending());
        assert!(poll(append.as_mut(), &bell).is_pending());
        assert!(poll(punch.as_mut(), &bell).is_pending());
        assert!(poll(sync.as_mut(), &bell).is_pending());
        assert!(poll(read.as_mut(), &bell).is_pending());
        assert!(poll(read.as_mut(), &bell).is_pending());
        assert!(poll(outside.as_mut(), &bell).is_pending());
        assert_eq!(file.len(), 4 * size);
        cache.tick();
        assert_eq!(bell.rung(), 6, "each was woken once");
        assert!(matches!(poll(cut.as_mut(), &bell), Poll::Ready(Ok(()))));
        let at = poll(append.as_mut(), &bell);
        assert!(
            matches!(at, Poll::Ready(Ok(at)) if at == size),
            "behind the cut: {at:?}"
        );
        assert!(matches!(poll(punch.as_mut(), &bell), Poll::Ready(Ok(()))));
        assert!(matches!(poll(sync.as_mut(), &bell), Poll::Ready(Ok(()))));
        let Poll::Ready(Ok(bytes)) = poll(read.as_mut(), &bell) else {
            panic!("read by the tick");
        };
        assert_eq!(bytes, [[0; 10].as_slice(), &[7; 100]].concat());
        let end = poll(outside.as_mut(), &bell);
        assert!(
            matches!(end, Poll::Ready(Err(FileError::PastEnd { .. }))),
            "{end:?}"
        );
        assert_eq!(stored(&store).len() as u64, size + 100);
    }
}

// spec: P29
#[test]
fn a_call_whose_future_is_dropped_before_its_turn_is_not_made() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    {
        let mut write = pin!(file.later().write_at([9; 10], 0));
        assert!(poll(write.as_mut(), &bell).is_pending());
    }
    cache.tick();
    assert_eq!(bell.rung(), 0);
    assert_eq!(contents(&file), pattern(0..65_536));
    drop(file);
    assert_empty(&cache);
}

// spec: P29
#[test]
fn a_call_keeps_its_file_open_until_it_is_made() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    let mut write = pin!(file.later().write_at([9; 10], 100));
    assert!(poll(write.as_mut(), &bell).is_pending());
    drop(file);
    assert_eq!(cache.files().len(), 1);
    cache.tick();
    assert_eq!(bell.rung(), 1);
    assert!(matches!(poll(write.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert_eq!(stored(&store)[100..110], [9; 10], "written when it closed");
    assert_empty(&cache);
}

// spec: P29
#[test]
fn a_call_under_way_ends_without_its_future() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    file.write_at(&[9; 4096], 0).unwrap();
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
    let ticking = {
        let mut sync = pin!(file.later().sync_data());
        assert!(poll(sync.as_mut(), &bell).is_pending());
        let cache = cache.clone();
        let ticking = thread::spawn(move || cache.tick());
        store.wait_hanging(1);
        assert!(poll(sync.as_mut(), &bell).is_pending());
        ticking
    };
    store.release(Release::Proceed);
    ticking.join().unwrap();
    assert_eq!(bell.rung(), 1, "the waker is told, whoever it wakes");
    assert_eq!(stored(&store)[..4096], [9; 4096]);
    drop(file);
    assert_empty(&cache);
}

// spec: P29
#[test]
fn the_handle_hears_once_of_a_sync_that_failed_later() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let other = file.clone();
    let bell = Arc::new(Bell::default());
    file.write_at(&[9; 4096], 0).unwrap();
    store.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Write])
            .times(1),
    );
    let mut sync = pin!(file.later().sync_all());
    assert!(poll(sync.as_mut(), &bell).is_pending());
    cache.tick();
    let end = poll(sync.as_mut(), &bell);
    assert!(
        matches!(end, Poll::Ready(Err(FileError::Store { .. }))),
        "{end:?}"
    );
    file.sync_all().unwrap();
    assert!(other.sync_all().is_err(), "another handle hears for itself");
    other.sync_all().unwrap();
    assert_eq!(stored(&store)[..4096], [9; 4096]);
}
