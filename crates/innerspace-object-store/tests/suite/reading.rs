//! Reads of an object: the right bytes, of one version, under the limits.

use std::sync::Arc;

use innerspace::store::{Store, StoreErrorKind};
use innerspace::{KIB, MIB, Memory};
use innerspace_object_store::{Reason, RemoteError, RequestLimit};
use innerspace_test_s3::S3Server;

use crate::common::{bytes, open, quick, read};

const LEN: usize = 3_000_001;

#[test]
fn an_object_is_read_as_it_is_by_view_scan_and_call() {
    let server = S3Server::start();
    let data = bytes(1, LEN);
    server.put("data", data.clone());
    let memory = Memory::with_limit(MIB).unwrap();
    let object = open(&server, "data");
    let file = memory.file_options().open_store(object.clone()).unwrap();
    assert_eq!(file.len(), LEN as u64);
    for (start, end) in [
        (0, 10),
        (4090, 4100),
        (2_999_990, LEN),
        (1_000_000, 1_100_000),
    ] {
        let view = file.view(start as u64..end as u64).unwrap();
        assert_eq!(&view[..], &data[start..end]);
    }
    let mut whole = Vec::new();
    file.scan(.., |piece| whole.extend_from_slice(piece))
        .unwrap();
    assert!(whole == data);
    assert!(file.view(LEN as u64 - 1..LEN as u64 + 1).is_err());
    let stats = object.stats();
    assert!(stats.bytes_fetched >= LEN as u64, "{stats:?}");
    assert!(memory.stats().usage <= MIB);
}

#[test]
fn a_scan_takes_few_requests_and_one_block_takes_a_small_one() {
    let server = S3Server::start();
    server.put("data", bytes(1, 16 * MIB as usize));
    let memory = Memory::with_limit(64 * MIB).unwrap();
    let object = open(&server, "data");
    let file = memory.file_options().open_store(object.clone()).unwrap();
    file.view(8 * MIB..8 * MIB + 1).unwrap();
    assert_eq!(object.stats().bytes_fetched, 4 * KIB);
    file.scan(.., |_| {}).unwrap();
    let stats = object.stats();
    assert!(stats.requests < 40, "{stats:?}");
    assert!(stats.bytes_fetched <= 17 * MIB, "{stats:?}");
}

#[test]
fn a_replaced_object_is_changed_and_never_mixed() {
    for ignores_conditions in [false, true] {
        let server = S3Server::start();
        server.ignore_conditions(ignores_conditions);
        server.put("data", bytes(1, LEN));
        let object = open(&server, "data");
        let memory = Memory::with_limit(4 * MIB).unwrap();
        let file = memory.file_options().open_store(object.clone()).unwrap();
        assert_eq!(file.view(0..4096).unwrap()[..], bytes(1, LEN)[..4096]);
        server.put("data", bytes(2, LEN));
        let error = file.view(2_000_000..2_000_100).unwrap_err();
        assert!(
            error.to_string().contains("another program has changed"),
            "{error}"
        );
        // What is cached stays readable, and the server is asked no more.
        assert_eq!(file.view(0..4096).unwrap()[..], bytes(1, LEN)[..4096]);
        let before = server.requests();
        let error = read(&object, 1_000_000, 10).unwrap_err();
        assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Changed);
        assert_eq!(server.requests(), before);
        let again = open(&server, "data");
        assert_eq!(read(&again, 5, 100).unwrap(), bytes(2, LEN)[5..105]);
        assert_ne!(again.version().unwrap(), object.version().unwrap());
    }
}

#[test]
fn an_object_without_a_tag_is_known_by_its_length_and_time() {
    let server = S3Server::start();
    server.leave_tags_out(true);
    server.put("data", bytes(1, LEN));
    let object = open(&server, "data");
    assert_eq!(object.meta().e_tag, None);
    assert_eq!(read(&object, 5, 100).unwrap(), bytes(1, LEN)[5..105]);
    server.put("data", bytes(2, LEN + 1));
    let error = read(&object, 5, 100).unwrap_err();
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Changed);
}

#[test]
fn a_deleted_object_and_a_missing_one_say_so() {
    let server = S3Server::start();
    server.put("data", bytes(1, LEN));
    let object = open(&server, "data");
    server.delete("data");
    let error = read(&object, 0, 10).unwrap_err();
    assert!(
        error.to_string().contains("deleted after it was opened"),
        "{error}"
    );
    let error = quick()
        .open_on(server.client(), &"none".into())
        .unwrap_err();
    let reason = error.reason().unwrap();
    assert!(matches!(reason, Reason::NotFound { .. }), "{error}");
    assert!(matches!(error, RemoteError::Open { .. }));
}

#[test]
fn the_limits_on_requests_in_flight_hold() {
    let server = S3Server::start();
    server.put("a", bytes(1, LEN));
    server.put("b", bytes(2, LEN));
    server.set_delay(std::time::Duration::from_millis(5));
    let shared = RequestLimit::new(5);
    let options = || quick().requests(4).request_limit(&shared);
    let a = Arc::new(options().open_on(server.client(), &"a".into()).unwrap());
    let b = Arc::new(options().open_on(server.client(), &"b".into()).unwrap());
    server.forget_counts();
    std::thread::scope(|scope| {
        for thread in 0..24_u64 {
            let (file, version) = if thread % 2 == 0 { (&a, 1) } else { (&b, 2) };
            scope.spawn(move || {
                for n in 0..8 {
                    let offset = (thread * 8 + n) * 10_000;
                    let got = read(&**file, offset, 100).unwrap();
                    let right = (offset..offset + 100).map(|at| crate::common::byte(version, at));
                    assert!(got.into_iter().eq(right));
                }
            });
        }
    });
    assert!(server.most_in_flight() <= 5, "{}", server.most_in_flight());
    assert!(server.most_in_flight() >= 3, "{}", server.most_in_flight());
    assert!(a.stats().most_in_flight <= 4);
    let (all, a, b) = (shared.stats(), a.stats(), b.stats());
    assert_eq!(all.most_in_flight, 5);
    assert_eq!(all.requests, a.requests + b.requests);
    assert_eq!(all.bytes_fetched, 24 * 8 * 100);
    assert_eq!(all.in_flight, 0);
}

#[test]
fn a_hundred_files_at_once_stay_under_the_limit() {
    let server = S3Server::start();
    let len = 300_000;
    for number in 0..100 {
        server.put(&format!("file-{number}"), bytes(number, len));
    }
    let memory = Memory::with_limit(4 * MIB).unwrap();
    std::thread::scope(|scope| {
        for number in 0..100_u64 {
            let (memory, server) = (&memory, &server);
            scope.spawn(move || {
                let object = open(server, &format!("file-{number}"));
                let file = memory.file_options().open_store(object).unwrap();
                let mut at = 0;
                file.scan(.., |piece| {
                    for byte in piece {
                        assert_eq!(*byte, crate::common::byte(number, at));
                        at += 1;
                    }
                })
                .unwrap();
                assert_eq!(at, len as u64);
            });
        }
    });
    let stats = memory.stats();
    assert!(stats.peak <= 4 * MIB, "{stats:?}");
}

#[test]
fn a_url_finds_the_server_by_the_environment_alone() {
    // The environment of this process is shared by all tests: the tool's tests set it for a child.
    let error = quick().open("s3://bucket").unwrap_err();
    assert!(matches!(error, RemoteError::Url { .. }), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("with space");
    std::fs::write(&path, bytes(3, 100_000)).unwrap();
    let url = format!("file://{}", path.display()).replace(' ', "%20");
    let object = quick().open(&url).unwrap();
    assert_eq!(
        read(&object, 99_000, 5000).unwrap(),
        bytes(3, 100_000)[99_000..]
    );
    std::fs::write(&path, bytes(4, 100_001)).unwrap();
    let error = read(&object, 0, 10).unwrap_err();
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Changed);
}
