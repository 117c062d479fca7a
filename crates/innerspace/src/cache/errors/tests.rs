//! The texts of errors, and what handles are told of failures.

use super::*;

fn disk_full(offset: u64) -> FileError {
    FileError::Store {
        file: "data.bin".into(),
        action: StoreAction::Write,
        offset,
        len: 4096,
        source: Arc::new(io::Error::new(io::ErrorKind::StorageFull, "no space left")),
    }
}

#[test]
fn each_error_is_one_clear_line() {
    let file: Arc<str> = "data.bin".into();
    let shrank = FileError::Shrank {
        file: file.clone(),
        offset: 1_048_576,
        len: 4096,
        now: 524_288,
        was: 1_073_741_824,
        since: KnownSince::Opened,
    };
    let texts = [
        (
            shrank,
            "data.bin: wanted 4096 bytes at 1,048,576 but the file now ends at 524,288 (it was 1,073,741,824 \
             when opened)",
        ),
        (
            FileError::PastEnd {
                file: file.clone(),
                offset: 8192,
                len: 4096,
                size: 10_000,
            },
            "data.bin: wanted 4096 bytes at 8,192 but the file ends at 10,000",
        ),
        (
            disk_full(4096),
            "data.bin: write of 4096 bytes at 4,096 failed: no space left",
        ),
        (
            FileError::Held {
                file: file.clone(),
                dirty: 1 << 20,
                reason: HeldReason::UntilRelease { barrier: 7 },
            },
            "data.bin: 1.0 MiB of unwritten data may not be written yet; release barrier 7 first",
        ),
        (
            FileError::NotWhole {
                file: file.clone(),
                size: 1001,
                element: 4,
            },
            "data.bin: 1,001 bytes are not a whole number of elements of 4 bytes",
        ),
        (
            FileError::ViewTooLarge {
                file,
                len: 3 << 20,
                blocks: 4 << 20,
                max: 2 << 20,
            },
            "data.bin: a view of 3.0 MiB takes 4.0 MiB of blocks, and the limit is 2.0 MiB; use chunks, scan \
             or read_at, or raise the limit",
        ),
    ];
    for (error, text) in texts {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_failure_without_a_range_names_none() {
    let failed = |action, offset| FileError::Store {
        file: "data.bin".into(),
        action,
        offset,
        len: 0,
        source: Arc::new(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
    };
    let text = |action, offset| failed(action, offset).to_string();
    assert_eq!(
        text(StoreAction::Sync, 0),
        "data.bin: sync failed: no answer"
    );
    assert_eq!(
        text(StoreAction::Query, 0),
        "data.bin: query failed: no answer"
    );
    assert_eq!(
        text(StoreAction::Resize, 65_536),
        "data.bin: resize to 65,536 bytes failed: no answer"
    );
}

#[test]
fn kinds_match_those_of_std() {
    let error = io::Error::from(disk_full(0));
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(error.get_ref().is_some_and(|inner| inner.is::<FileError>()));
    let blocked = FileError::WouldBlock {
        file: "f".into(),
        offset: 4096,
    };
    assert!(blocked.would_block());
    assert_eq!(blocked.to_string(), "f: the operation would block at 4,096");
    assert!(!disk_full(0).would_block() && !disk_full(0).is_limit());
}

#[test]
fn each_handle_hears_of_a_failure_once_and_a_later_one_never() {
    let sequence = ErrorSequence::default();
    let (first, second) = (sequence.sample(), sequence.sample());
    assert!(sequence.check(&first).is_ok());
    sequence.record(disk_full(0));
    let later = sequence.sample();
    assert!(sequence.check(&first).is_err());
    assert!(sequence.check(&first).is_ok());
    assert!(sequence.check(&second).is_err());
    assert!(sequence.check(&later).is_ok());
    sequence.record(disk_full(4096));
    assert!(sequence.check(&later).is_err());
    assert_eq!(sequence.count(), 2);
}

#[test]
fn a_full_log_drops_the_oldest() {
    let log = ErrorLog::default();
    for number in 0..ErrorLog::CAPACITY as u64 {
        assert!(log.push(disk_full(number)).is_none());
    }
    let oldest = log.push(disk_full(64));
    assert!(matches!(oldest, Some(FileError::Store { offset: 0, .. })));
    let errors = log.take();
    assert_eq!(errors.len(), ErrorLog::CAPACITY);
    assert!(matches!(errors[0], FileError::Store { offset: 1, .. }));
    assert!(log.take().is_empty());
}
