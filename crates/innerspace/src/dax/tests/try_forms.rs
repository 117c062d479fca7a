//! Calls that must not wait.

use super::super::grab::Wanted;
use super::*;

#[track_caller]
fn assert_would_block<T: std::fmt::Debug>(got: Result<T, DaxError>, at: u64) {
    match got {
        Err(DaxError::WouldBlock { offset, .. }) => assert_eq!(offset, at),
        other => panic!("{other:?}"),
    }
}

// spec: P29
#[test]
fn a_read_asks_nobody_and_meets_no_cut() {
    let pool = pool(64);
    let device = device(8);
    let file = file(&pool, &device, 600);
    file.write_all_at(&[7; 100], PAGE - 50).unwrap();
    let mut buf = [1; 200];
    assert_eq!(file.try_read_at(&mut buf, PAGE - 100).unwrap(), 200);
    let expected: Vec<u8> = [[0; 50], [7; 50], [7; 50], [0; 50]].concat();
    assert_eq!(buf[..], expected);
    assert_eq!(file.try_read_at(&mut buf, 600 * PAGE - 3).unwrap(), 3);
    assert_eq!(file.try_read_at(&mut buf, 600 * PAGE).unwrap(), 0);
    let short = file.try_read_exact_at(&mut buf, 600 * PAGE - 3);
    assert!(matches!(short, Err(DaxError::PastEnd { .. })), "{short:?}");
    // Entries that others have are nothing to a read.
    let held = file.core().entries.lock(1, Wanted::Cover).unwrap();
    file.try_read_exact_at(&mut buf, PAGE).unwrap();
    drop(held);
    let cut = file.core().layout.write();
    assert_would_block(file.try_read_at(&mut buf, 5), 5);
    assert_would_block(file.try_read_exact_at(&mut buf, PAGE), PAGE);
    drop(cut);
    file.try_read_exact_at(&mut buf, PAGE).unwrap();
}

/// Over host files.
#[cfg(all(target_os = "linux", not(miri)))]
mod host {
    use super::super::reminding::{create, create_guarded, path_in};
    use super::*;

    // spec: P29
    #[test]
    fn what_is_not_known_of_a_host_file_is_not_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = create(&path_in(&folder), DaxSetup::default());
        file.write_all_at(&[7; 10], 4 * PAGE).unwrap();
        file.sync_all().unwrap();
        file.invalidate(..).unwrap();
        let mut buf = [1; 3 * PAGE_SIZE];
        assert_would_block(file.try_read_at(&mut buf, 5), 5);
        assert_eq!(buf, [1; 3 * PAGE_SIZE]);
        file.read_at(&mut [0], 0).unwrap();
        assert_eq!(file.try_read_at(&mut buf, 5).unwrap(), buf.len());
        assert_eq!(buf, [0; 3 * PAGE_SIZE], "a hole that is known");
        buf.fill(1);
        // The hole ends there.
        assert_would_block(
            file.try_read_exact_at(&mut buf[..PAGE_SIZE], 4 * PAGE - 9),
            4 * PAGE,
        );
        assert_eq!((buf[8], buf[9]), (0, 1), "what comes before");
        file.read_at(&mut [0], 4 * PAGE).unwrap();
        assert_eq!(file.try_read_at(&mut buf, 4 * PAGE).unwrap(), 10);
        assert_eq!(buf[..10], [7; 10]);
    }

    #[test]
    fn of_a_guarded_file_nothing_is_had() {
        let folder = tempfile::tempdir().unwrap();
        let file = create_guarded(&path_in(&folder));
        file.write_all_at(&[7; 10], 0).unwrap();
        assert_would_block(file.try_read_at(&mut [0; 10], 3), 3);
        assert_eq!(file.try_read_at(&mut [0; 10], 10).unwrap(), 0, "its end");
    }
}
