//! A server that fails: each fault is a retry or a clear error, and no byte is lost or mixed.

use std::time::{Duration, Instant};

use innerspace::store::StoreErrorKind;
use innerspace::{MIB, Memory};
use innerspace_object_store::Reason;
use innerspace_test_s3::{Fault, On, S3Server};

use crate::common::{bytes, open, quick, read};

const LEN: usize = 1_000_003;

fn server() -> S3Server {
    let server = S3Server::start();
    server.put("data", bytes(1, LEN));
    server
}

#[test]
fn a_fault_that_passes_is_a_retry() {
    let server = server();
    let object = open(&server, "data");
    let data = bytes(1, LEN);
    for fault in [
        Fault::Status(500),
        Fault::Status(503),
        Fault::Status(429),
        Fault::CutAfter(0),
        Fault::CutAfter(70_000),
        Fault::Stall,
        Fault::StallAfter(50_000),
        Fault::Shorter,
        Fault::CutAfterwards,
    ] {
        let before = object.stats().retries;
        server.inject(On::Get, fault);
        server.inject(On::Get, fault);
        let got = read(&object, 1000, 300_000).unwrap();
        assert!(got == data[1000..301_000], "{fault:?}");
        assert!(object.stats().retries > before, "{fault:?}");
    }
    assert_eq!(object.stats().failures, 0);
}

#[test]
fn a_cut_connection_is_continued_where_it_was_cut() {
    let server = server();
    let object = open(&server, "data");
    // More cuts than a request may fail in a row: each brings some bytes.
    for _ in 0..12 {
        server.inject(On::Get, Fault::CutAfter(20_000));
    }
    let got = read(&object, 0, LEN).unwrap();
    assert!(got == bytes(1, LEN));
    let fetched = object.stats().bytes_fetched;
    assert_eq!(fetched, LEN as u64, "no byte is fetched twice");
}

#[test]
fn a_fault_that_stays_is_a_clear_error_within_the_deadline() {
    for (fault, text, kind) in [
        (
            Fault::Status(503),
            "keeps failing (SlowDown",
            StoreErrorKind::Other,
        ),
        (
            Fault::Status(403),
            "no permission (AccessDenied",
            StoreErrorKind::ReadOnly,
        ),
        (
            Fault::Status(400),
            "refused the request",
            StoreErrorKind::Other,
        ),
        (
            Fault::CutAfter(0),
            "cannot be reached",
            StoreErrorKind::Other,
        ),
        (Fault::Stall, "no answer within", StoreErrorKind::TimedOut),
        (
            Fault::Shorter,
            "other bytes than were requested",
            StoreErrorKind::Other,
        ),
    ] {
        let server = server();
        let object = open(&server, "data");
        server.inject_always(On::Get, fault);
        let began = Instant::now();
        let error = read(&object, 10, 1000).unwrap_err();
        assert!(error.to_string().contains(text), "{fault:?}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
        assert_eq!(StoreErrorKind::of(&error), kind, "{fault:?}: {error}");
        // A bound against hanging, not a measure of speed.
        assert!(began.elapsed() < Duration::from_secs(20), "{fault:?}");
        server.heal();
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(read(&object, 10, 1000).unwrap(), bytes(1, LEN)[10..1010]);
    }
}

#[test]
fn after_a_failure_other_reads_fail_at_once_for_a_moment() {
    let server = server();
    let object = open(&server, "data");
    server.inject_always(On::Get, Fault::Status(500));
    read(&object, 0, 10).unwrap_err();
    let before = server.requests();
    for at in 0..1000 {
        read(&object, at, 10).unwrap_err();
    }
    assert!(server.requests() - before <= 20, "a few in each second");
}

#[test]
fn a_late_answer_is_overtaken_by_a_second_request() {
    let server = server();
    let object = quick()
        .hedge_after(Duration::from_millis(20))
        .open_on(server.client(), &"data".into())
        .unwrap();
    server.inject(On::Get, Fault::Late(250));
    assert_eq!(read(&object, 7, 100).unwrap(), bytes(1, LEN)[7..107]);
    let stats = object.stats();
    assert_eq!((stats.hedges, stats.retries), (1, 0), "{stats:?}");
}

#[test]
fn a_scan_through_the_cache_survives_a_bad_day() {
    let server = server();
    let memory = Memory::with_limit(MIB).unwrap();
    let file = memory
        .file_options()
        .open_store(open(&server, "data"))
        .unwrap();
    for fault in [
        Fault::Status(503),
        Fault::CutAfter(1000),
        Fault::Shorter,
        Fault::StallAfter(4096),
        Fault::Status(500),
        Fault::CutAfter(0),
    ] {
        server.inject(On::Get, fault);
    }
    let mut whole = Vec::new();
    file.scan(.., |piece| whole.extend_from_slice(piece))
        .unwrap();
    assert!(whole == bytes(1, LEN));
}

#[test]
fn a_file_with_requests_in_flight_closes_while_the_server_stalls() {
    let server = server();
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let file = memory
        .file_options()
        .open_store(open(&server, "data"))
        .unwrap();
    server.inject_always(On::Get, Fault::Stall);
    // The first block may be read by a plain call, which fails.
    let _ = file.prefetch(..);
    drop(file);
    drop(memory);
}

#[test]
fn opening_without_permission_or_server_says_what_to_check() {
    let server = server();
    server.inject_always(On::Head, Fault::Status(403));
    let error = quick()
        .open_on(server.client(), &"data".into())
        .unwrap_err();
    assert!(
        matches!(error.reason(), Some(Reason::Denied { .. })),
        "{error}"
    );
    assert!(!error.to_string().contains(server.secret()));
    let client = server.client();
    drop(server);
    let error = quick().open_on(client, &"data".into()).unwrap_err();
    assert!(
        matches!(error.reason(), Some(Reason::Unreachable { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("check the network"), "{error}");
}
