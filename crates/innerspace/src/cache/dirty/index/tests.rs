//! The index of dirty blocks.

use super::*;

fn rules(order: WriteOrder, released: u64, reason: WriteReason) -> WriteRules {
    WriteRules {
        order,
        released,
        reason,
    }
}

fn filled(blocks: &[(u64, u64)]) -> DirtyIndex {
    let mut index = DirtyIndex::default();
    for (block, barrier) in blocks {
        index.insert(
            *block,
            Dirty {
                since: 10,
                barrier: *barrier,
            },
        );
    }
    index
}

#[test]
fn runs_are_adjacent_and_bounded() {
    let mut index = filled(&[(1, 0), (2, 0), (3, 0), (5, 0), (6, 0)]);
    let any = rules(WriteOrder::Background, 0, WriteReason::Pressure);
    assert_eq!(index.next_run(0..100, 8, &any), 1..4);
    assert_eq!(index.next_run(0..100, 2, &any), 1..3);
    assert_eq!(index.next_run(4..100, 8, &any), 5..7);
    assert_eq!(index.next_run(4..6, 8, &any), 5..6);
    assert!(index.next_run(7..100, 8, &any).is_empty());
}

#[test]
fn the_flusher_takes_old_blocks_only() {
    let mut index = filled(&[(1, 0)]);
    index.insert(
        2,
        Dirty {
            since: 12,
            barrier: 0,
        },
    );
    let flusher = |through| rules(WriteOrder::Background, 0, WriteReason::Flusher { through });
    assert!(index.next_run(0..9, 8, &flusher(9)).is_empty());
    assert_eq!(index.next_run(0..9, 8, &flusher(10)), 1..2);
    assert_eq!(index.next_run(0..9, 8, &flusher(12)), 1..3);
    // A second write does not make the block younger.
    index.insert(
        1,
        Dirty {
            since: 50,
            barrier: 0,
        },
    );
    assert_eq!(index.next_run(0..9, 8, &flusher(10)), 1..2);
}

#[test]
fn of_a_file_that_is_closing_only_its_closer_writes() {
    let mut index = filled(&[(1, 0), (2, 0)]);
    index.begin_close();
    let flusher = WriteReason::Flusher { through: 99 };
    for reason in [flusher, WriteReason::Pressure] {
        let rules = rules(WriteOrder::Background, 0, reason);
        assert!(index.next_run(0..9, 8, &rules).is_empty());
        assert_eq!(index.begin_write_if(1..3, &rules), None);
    }
    let rules = rules(WriteOrder::Background, 0, WriteReason::Sync);
    assert_eq!(index.next_run(0..9, 8, &rules), 1..3);
    assert!(index.begin_write_if(1..3, &rules).is_some());
}

#[test]
fn held_blocks_are_passed_over_and_explained() {
    let mut index = filled(&[(1, 0), (2, 5), (3, 4), (4, 0)]);
    let ordered = |released| rules(WriteOrder::Ordered, released, WriteReason::Sync);
    assert_eq!(index.next_run(0..9, 8, &ordered(0)), 1..2);
    assert_eq!(index.next_run(2..9, 8, &ordered(4)), 3..5);
    let first = HeldReason::UntilRelease { barrier: 4 };
    assert_eq!(index.held(0..9, &ordered(3)), Some((2, first)));
    assert_eq!(index.held(0..9, &ordered(5)), None);
    let pressure = rules(WriteOrder::OnSync, 0, WriteReason::Pressure);
    assert!(index.next_run(0..9, 8, &pressure).is_empty());
    assert_eq!(
        index.held(0..2, &pressure),
        Some((1, HeldReason::UntilSync))
    );
}

/// So many blocks that work for each of them would never end.
const MANY: u64 = 1 << 40;

#[test]
fn what_is_said_of_a_run_takes_no_time_for_each_of_its_blocks() {
    let mut index = DirtyIndex::default();
    let held = Dirty {
        since: 10,
        barrier: 7,
    };
    index.insert_run(0..MANY, held);
    index.insert(MANY, Dirty { barrier: 0, ..held });
    let ordered = rules(WriteOrder::Ordered, 6, WriteReason::Sync);
    assert_eq!(index.next_run(0..u64::MAX, 8, &ordered), MANY..MANY + 1);
    let reason = HeldReason::UntilRelease { barrier: 7 };
    assert_eq!(index.held(5..u64::MAX, &ordered), Some((MANY - 5, reason)));
    let any = rules(WriteOrder::Background, 0, WriteReason::Sync);
    assert_eq!(
        index.next_run(MANY - 2..u64::MAX, 8, &any),
        MANY - 2..MANY + 1
    );
    index.accept(0..MANY);
    index.begin_write_if(MANY..MANY + 1, &any).unwrap();
    index.doubt_accepted();
    // A second failure: blocks in doubt remain in doubt.
    index.accept(8..16);
    index.doubt_accepted();
    let doubted = index.doubted();
    let blocks: u64 = doubted.iter().map(|run| run.end - run.start).sum();
    assert!(doubted.len() < 8 && blocks == MANY + 1, "{doubted:?}");
    assert!(index.unsynced(MANY..u64::MAX).flatten().eq([MANY]));
    index.settle_doubt(10);
    assert!(!index.is_unsynced(10) && index.is_unsynced(11));
}

#[test]
fn a_sync_begins_with_the_first_that_is_written_being_written_or_in_doubt() {
    let mut index = filled(&[(1, 5), (2, 0), (4, 0), (6, 0)]);
    let rules = rules(WriteOrder::Ordered, 4, WriteReason::Sync);
    assert_eq!(index.first_to_sync(0..9, &rules), Some(2), "1 is held");
    assert_eq!(index.first_to_sync(3..9, &rules), Some(4));
    assert_eq!(index.first_to_sync(5..6, &rules), None);
    index.begin_write_if(4..5, &rules).unwrap();
    assert_eq!(index.first_to_sync(3..9, &rules), Some(4), "being written");
    index.end_write(4..5);
    index.accept(4..5);
    assert_eq!(index.first_to_sync(3..9, &rules), Some(6));
    index.doubt_accepted();
    assert_eq!(index.first_to_sync(3..9, &rules), Some(4), "in doubt");
}

#[test]
fn a_failed_write_stays_dirty_with_its_highest_barrier() {
    let mut index = filled(&[(7, 3)]);
    let rules = rules(WriteOrder::Background, 0, WriteReason::Sync);
    let (end, entry) = index.begin_write_if(7..9, &rules).expect("it is dirty");
    assert_eq!(end, 8);
    assert!(!index.contains(7));
    let number = index.progress().writes;
    assert!(index.is_writing(0..9, number));
    assert!(!index.is_writing(0..9, number - 1));
    assert!(!index.is_writing(8..9, number));
    index.insert(
        7,
        Dirty {
            since: 11,
            barrier: 2,
        },
    );
    index.end_write(7..8);
    index.insert(7, entry);
    assert!(!index.is_writing(0..9, number));
    assert_eq!(
        index.remove(7),
        Some(Dirty {
            since: 11,
            barrier: 3
        })
    );
    assert_eq!(index.last(), None);
}

#[test]
fn a_sync_covers_what_was_accepted_before_it_began() {
    let mut index = DirtyIndex::default();
    index.accept(0..4);
    let through = index.progress().acceptances;
    index.accept(3..6);
    index.synced(through);
    assert!(!index.is_unsynced(2));
    assert!(index.is_unsynced(3), "accepted again since");
    assert!(index.is_unsynced(5));
}

#[test]
fn a_write_may_have_been_put_off_for_a_cut_that_is_over() {
    let mut index = filled(&[(4, 0)]);
    let rules = rules(WriteOrder::Background, 0, WriteReason::Sync);
    let before = index.progress();
    assert!(!index.was_put_off(before));
    index.set_cut(Some(u64::MAX));
    assert!(!index.was_put_off(before), "nothing is cut off yet");
    index.set_cut(Some(2));
    assert!(index.next_run(0..9, 8, &rules).is_empty());
    assert!(index.was_put_off(before));
    index.set_cut(Some(u64::MAX));
    assert!(index.is_locked_alone());
    assert!(index.was_put_off(before));
    assert!(!index.was_put_off(index.progress()));
    assert_eq!(index.next_run(0..9, 8, &rules), 4..5);
}
