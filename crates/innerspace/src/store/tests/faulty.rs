//! Tests of `FaultyStore`: each fault does what its model says, and nothing else happens.

use super::*;
use crate::store::faulty::{
    AfterTear, Failure, Fault, OperationKind, Rates, Record, Release, Rule, SECTOR, Unsynced,
};
use crate::sync::thread;

const LEN: usize = 16 * SECTOR as usize;

/// Makes a store with known, synced content.
fn synced() -> FaultyStore<MemoryStore> {
    let store = FaultyStore::new(MemoryStore::new());
    store.write_at(&pattern(LEN, 0), 0).unwrap();
    store.sync(SyncWhat::All).unwrap();
    store.clear_log();
    store
}

fn kind_of<T: std::fmt::Debug>(result: io::Result<T>) -> StoreErrorKind {
    StoreErrorKind::of(&result.unwrap_err())
}

#[test]
fn without_faults_it_is_the_inner_store() {
    for seed in 0..5 {
        compare_with_plain_vector(&FaultyStore::new(MemoryStore::new()), seed, 300_000);
    }
    let store = synced();
    assert_eq!(store.identity(), store.inner().identity());
    assert!(store.writable());
}

#[test]
fn a_rule_hits_the_nth_matching_operation_in_its_range() {
    let store = synced();
    let page = 4096..8192;
    let fault = Fault::Fail(Failure::Io);
    store.add(
        Rule::new(fault)
            .on(&[OperationKind::Read])
            .within(page)
            .nth(2)
            .times(2),
    );
    let mut buf = [0; 512];
    let mut failed = |offset| store.read_at(&mut buf, offset).is_err();
    assert!(!failed(4096 - 512), "ends where the range begins");
    assert!(!failed(8192), "begins where the range ends");
    assert!(!failed(4096), "the first");
    assert!(failed(4000), "the second reaches in");
    assert!(!failed(0), "outside");
    assert!(failed(8191), "the third");
    assert!(!failed(4096), "used up");
    store.write_at(b"x", 4096).unwrap();
}

#[test]
fn failures_are_told_apart_and_leave_no_trace() {
    let failures = [
        (Failure::Io, StoreErrorKind::Io),
        (Failure::NoSpace, StoreErrorKind::NoSpace),
        (Failure::TimedOut, StoreErrorKind::TimedOut),
        (Failure::ReadOnly, StoreErrorKind::ReadOnly),
    ];
    for (failure, kind) in failures {
        let store = synced();
        store.add(Rule::new(Fault::Fail(failure)).forever());
        assert_eq!(kind_of(store.write_at(&[1; 100], 0)), kind);
        assert_eq!(kind_of(store.set_len(1)), kind);
        assert_eq!(kind_of(store.punch(0, 4096)), kind);
        assert_eq!(kind_of(store.sync(SyncWhat::Data)), kind);
        assert_eq!(kind_of(store.read_at(&mut [0; 9], 0)), kind);
        assert_eq!(kind_of(store.len()), kind);
        assert_eq!(kind_of(store.next_data(0)), kind);
        assert_eq!(store.log().len(), 7);
        store.heal();
        assert!(read_all(&store) == pattern(LEN, 0));
    }
}

#[test]
fn the_log_says_what_was_asked_and_what_came_of_it() {
    let store = synced();
    let fault = Fault::Fail(Failure::NoSpace);
    store.add(Rule::new(fault).on(&[OperationKind::Write]));
    let _ = store.write_at(&[1; 100], 7);
    store.read_at(&mut [0; 50], LEN as u64 - 20).unwrap();
    let seen: Vec<_> = store
        .log()
        .iter()
        .map(|r| (r.kind, r.offset, r.len, r.fault, r.outcome))
        .collect();
    let full = Err(io::ErrorKind::StorageFull);
    assert_eq!(seen[0], (OperationKind::Write, 7, 100, Some(fault), full));
    assert_eq!(
        seen[1],
        (OperationKind::Read, LEN as u64 - 20, 50, None, Ok(20))
    );
}

#[test]
fn an_operation_hangs_until_released_and_others_do_not() {
    let store = Arc::new(synced());
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]).times(2));
    let read = || {
        let store = store.clone();
        thread::spawn(move || {
            let mut buf = [0; 512];
            store.read_at(&mut buf, 0).map(|count| (count, buf))
        })
    };
    let (first, second) = (read(), read());
    store.wait_hanging(2);
    store.write_at(&[9; 512], 0).unwrap();
    store.release(Release::Proceed);
    for hung in [first, second] {
        assert_eq!(hung.join().unwrap().unwrap(), (512, [9; 512]));
    }
    assert_eq!(store.hanging(), 0);

    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let third = read();
    store.wait_hanging(1);
    store.release(Release::Fail(Failure::TimedOut));
    assert_eq!(kind_of(third.join().unwrap()), StoreErrorKind::TimedOut);

    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let fourth = read();
    store.wait_hanging(1);
    store.power_cut(Unsynced::Keep).unwrap();
    let error = fourth.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the device has no power");
}

#[test]
fn a_torn_write_ends_at_a_sector() {
    let store = synced();
    store.add(Rule::new(Fault::Tear {
        sectors: 3,
        then: AfterTear::Fail,
    }));
    let offset = SECTOR + 100;
    assert_eq!(
        kind_of(store.write_at(&[1; 8 * 512], offset)),
        StoreErrorKind::Io
    );
    let mut expected = pattern(LEN, 0);
    expected[offset as usize..4 * 512].fill(1);
    assert!(read_all(&store) == expected);
}

#[test]
fn a_write_torn_by_a_power_cut_is_half_on_the_medium() {
    let store = synced();
    store.write_at(&[1; 512], 0).unwrap();
    let then = AfterTear::PowerCut(Unsynced::Lose);
    store.add(Rule::new(Fault::Tear { sectors: 2, then }));
    assert_eq!(
        kind_of(store.write_at(&[2; 4 * 512], LEN as u64 - 512)),
        StoreErrorKind::Io
    );
    assert_eq!(
        kind_of(store.read_at(&mut [0], 0)),
        StoreErrorKind::Io,
        "no power"
    );
    store.power_on();
    // The earlier write is lost. The torn one reached a sector before the old end and one after it.
    let mut expected = pattern(LEN, 0);
    expected[LEN - 512..].fill(2);
    expected.extend([2; 512]);
    assert!(read_all(&store) == expected);
}

#[test]
fn a_lost_write_is_acknowledged_and_never_there() {
    let store = synced();
    store.add(Rule::new(Fault::Lose).on(&[OperationKind::Write]));
    assert_eq!(store.write_at(&[1; 700], 0).unwrap(), 700);
    store.sync(SyncWhat::All).unwrap();
    assert!(read_all(&store) == pattern(LEN, 0));
}

#[test]
fn misdirected_transfers_land_beside() {
    let store = synced();
    store.add(Rule::new(Fault::Misdirect { sectors: -2 }).on(&[OperationKind::Write]));
    store.write_at(&[1; 512], 3 * 512).unwrap();
    let mut expected = pattern(LEN, 0);
    expected[512..1024].fill(1);
    assert!(read_all(&store) == expected);

    store.add(Rule::new(Fault::Misdirect { sectors: 1 }).on(&[OperationKind::Read]));
    let mut buf = [0; 512];
    store.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [1; 512]);
}

#[test]
fn rot_flips_one_bit_of_an_answer_or_of_the_medium() {
    let differing_bits = |got: &[u8], expected: &[u8]| -> u32 {
        got.iter()
            .zip(expected)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum()
    };
    let store = synced();
    store.add(Rule::new(Fault::Rot).on(&[OperationKind::Read]));
    assert_eq!(differing_bits(&read_all(&store), &pattern(LEN, 0)), 1);
    assert_eq!(differing_bits(&read_all(&store), &pattern(LEN, 0)), 0);
    store.add(Rule::new(Fault::Rot).on(&[OperationKind::Write]));
    store.write_at(&pattern(LEN, 5), 0).unwrap();
    for _ in 0..2 {
        assert_eq!(differing_bits(&read_all(&store), &pattern(LEN, 5)), 1);
    }
}

/// Changes a store made by `synced` in every way that a power cut can undo.
fn change_everything(store: &FaultyStore<MemoryStore>) {
    store.write_at(&[1; 1000], 300).unwrap();
    store.punch(4 * SECTOR, 2 * SECTOR).unwrap();
    store.set_len(LEN as u64 / 2 + 10).unwrap();
    store.write_at(&[2; 600], LEN as u64).unwrap();
}

#[test]
fn a_power_cut_takes_back_what_was_not_synced() {
    let store = synced();
    change_everything(&store);
    assert!(store.unsynced_sectors() > 0);
    store.power_cut(Unsynced::Lose).unwrap();
    assert_eq!(
        store.len().unwrap_err().to_string(),
        "the device has no power"
    );
    assert!(store.write_at(b"x", 0).is_err() && store.sync(SyncWhat::All).is_err());
    store.power_on();
    assert!(read_all(&store) == pattern(LEN, 0));
    assert_eq!(store.unsynced_sectors(), 0);

    change_everything(&store);
    let changed = store.inner().to_vec();
    store.power_cut(Unsynced::Keep).unwrap();
    store.power_on();
    assert!(read_all(&store) == changed);

    store.write_at(&[8; 100], 0).unwrap();
    store.sync(SyncWhat::Data).unwrap();
    store.power_cut(Unsynced::Lose).unwrap();
    store.power_on();
    assert_eq!(
        read_all(&store)[..100],
        [8; 100],
        "a sync that succeeded holds"
    );
}

#[test]
fn a_lost_sync_covers_nothing() {
    let store = synced();
    store.write_at(&[8; 100], 0).unwrap();
    store.add(Rule::new(Fault::Lose).on(&[OperationKind::Sync]));
    store.sync(SyncWhat::All).unwrap();
    store.power_cut(Unsynced::Lose).unwrap();
    store.power_on();
    assert!(read_all(&store) == pattern(LEN, 0));
}

#[test]
fn a_sync_that_forgets_leaves_old_bytes_and_new_lengths() {
    let store = synced();
    store.write_at(&[8; 100], 0).unwrap();
    store.punch(1024, 1024).unwrap();
    store.set_len(3_000).unwrap();
    store.set_len(LEN as u64).unwrap();
    store.write_at(&[9; 100], 3_500).unwrap();
    store.add(Rule::new(Fault::Forget(Failure::Io)));
    store.sync(SyncWhat::All).unwrap_err();
    let mut expected = pattern(LEN, 0);
    expected[3_000..].fill(0);
    assert!(read_all(&store) == expected);
    assert_eq!(store.unsynced_sectors(), 0);
}

#[test]
fn a_power_cut_by_seed_keeps_whole_sectors_old_or_new() {
    let (mut some_old, mut some_new) = (0, 0);
    for seed in 0..20 {
        let store = synced();
        store.write_at(&[0xEE; LEN / 2], 0).unwrap();
        store.power_cut(Unsynced::Some(seed)).unwrap();
        store.power_on();
        let (got, old) = (read_all(&store), pattern(LEN, 0));
        assert!(got[LEN / 2..] == old[LEN / 2..], "untouched");
        for (sector, old) in got[..LEN / 2].chunks(512).zip(old.chunks(512)) {
            let is_new = sector == [0xEE; 512];
            assert!(is_new || sector == old, "seed {seed}");
            *(if is_new { &mut some_new } else { &mut some_old }) += 1;
        }
    }
    assert!(
        some_old > 20 && some_new > 20,
        "{some_old} old, {some_new} new"
    );
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| -> (Vec<Record>, Vec<u8>) {
        let store = synced();
        let one = 40_000;
        let rates = Rates {
            io: one,
            no_space: one,
            interrupted: one,
            short: one,
            tear: one,
            lose: one,
            misdirect: one,
            rot: one,
        };
        store.seed(seed, rates);
        let mut dice = Dice(1);
        for round in 0..400 {
            let offset = dice.roll(LEN as u64);
            let _ = match round % 3 {
                0 => store.read_at(&mut [0; 3000], offset).map(drop),
                1 => store.write_at(&pattern(2000, round), offset).map(drop),
                _ => store.sync(SyncWhat::Data),
            };
        }
        (store.log(), store.inner().to_vec())
    };
    let (log, bytes) = run(7);
    assert_eq!(log.len(), 400);
    assert!((log.clone(), bytes) == run(7));
    assert!(log != run(8).0);
    let hit = |wanted: fn(&Fault) -> bool| {
        assert!(
            log.iter().filter_map(|r| r.fault.as_ref()).any(wanted),
            "{wanted:?}"
        );
    };
    hit(|fault| matches!(fault, Fault::Fail(Failure::Io)));
    hit(|fault| matches!(fault, Fault::Fail(Failure::NoSpace)));
    hit(|fault| matches!(fault, Fault::Fail(Failure::Interrupted)));
    hit(|fault| matches!(fault, Fault::Short));
    hit(|fault| matches!(fault, Fault::Tear { .. }));
    hit(|fault| matches!(fault, Fault::Lose));
    hit(|fault| matches!(fault, Fault::Misdirect { .. }));
    hit(|fault| matches!(fault, Fault::Rot));
}
