//! Tests of which blocks are read ahead after which misses.

use super::*;

const TUNING: Tuning = Tuning {
    most: 32,
    request: 256,
    room: 64,
    wasted: 0,
};

impl Ahead {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the blocks as a range, if they are neighbours.
    fn range(&self) -> Option<Range<u64>> {
        match self.step {
            _ if self.is_empty() => None,
            1 => Some(self.first..self.first + self.count),
            -1 => Some(self.first + 1 - self.count..self.first + 1),
            _ => None,
        }
    }
}

fn miss(stream: &Stream, block: u64) -> u64 {
    miss_by(stream, block, &TUNING)
}

fn miss_by(stream: &Stream, block: u64, tuning: &Tuning) -> u64 {
    stream.miss(block, 1, Reading::Normal, tuning).count
}

/// Reads blocks in this order as a cache would. Returns the length of each window.
fn windows(stream: &Stream, blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    windows_of(stream, blocks, &TUNING)
}

fn windows_of(stream: &Stream, blocks: impl Iterator<Item = u64>, tuning: &Tuning) -> Vec<u64> {
    let mut cached = std::collections::BTreeSet::new();
    let mut windows = Vec::new();
    for block in blocks {
        let ahead = match cached.contains(&block) {
            true => stream.used(block, tuning),
            false => stream.miss(block, 1, Reading::Normal, tuning),
        };
        if !ahead.is_empty() {
            windows.push(ahead.count);
        }
        cached.extend(ahead.blocks());
    }
    windows
}

// spec: R2
#[test]
fn a_stream_doubles_its_window_and_asks_for_the_next_when_it_enters_one() {
    let stream = Stream::default();
    assert_eq!(windows(&stream, 0..120), [4, 8, 16, 32, 32, 32, 32]);
    // The second window was requested at the first block of the first one, so no block was
    // missed.
    let stream = Stream::default();
    assert_eq!((miss(&stream, 7), miss(&stream, 8)), (0, 4));
    assert_eq!(stream.used(10, &TUNING).range(), Some(13..21));
    assert_eq!(stream.used(11, &TUNING).count, 0, "asked for already");
    assert_eq!(stream.used(13, &TUNING).range(), Some(21..37));
}

// spec: R3
#[test]
fn a_reader_that_jumps_gets_nothing() {
    let stream = Stream::default();
    let jumps = (0..1_000u64).map(|at| (at * 7_919) % 1_000_003);
    assert_eq!(windows(&stream, jumps), Vec::<u64>::new());
}

// spec: R4
#[test]
fn backward_reading_and_strides_are_streams() {
    let stream = Stream::default();
    assert_eq!(windows(&stream, (0..60).rev()), [4, 8, 16, 30]);
    assert_eq!(
        stream.miss(0, 1, Reading::Normal, &TUNING).count,
        0,
        "nothing lies below"
    );
    let stream = Stream::default();
    let strided = (0..40).map(|at| 1_000 + at * 10);
    assert_eq!(windows(&stream, strided.clone()), [4, 8, 16, 32, 32]);
    let stream = Stream::default();
    assert_eq!(windows(&stream, strided.rev()), [4, 8, 16, 32, 32]);
    let stream = Stream::default();
    assert_eq!(miss(&stream, 100) + miss(&stream, 110), 0);
    let ahead = stream.miss(120, 1, Reading::Normal, &TUNING);
    assert_eq!(ahead.blocks().collect::<Vec<_>>(), [130, 140, 150, 160]);
    let stream = Stream::default();
    assert_eq!(miss(&stream, 300) + miss(&stream, 290), 0);
    let ahead = stream.miss(280, 1, Reading::Normal, &TUNING);
    let blocks: Vec<_> = ahead.blocks().collect();
    assert_eq!(blocks, [270, 260, 250, 240], "the nearest come first");
    // There was room for two of the four: the third is the next request's first.
    stream.fell_short(&ahead, 250);
    assert_eq!(stream.used(270, &TUNING).first, 250);
}

// spec: R4
#[test]
fn reads_of_several_blocks_are_one_step_of_their_stream() {
    let stream = Stream::default();
    let ahead = |block| stream.miss(block, 16, Reading::Normal, &TUNING).range();
    assert_eq!((ahead(0), ahead(16), ahead(32)), (None, None, None));
    assert_eq!(ahead(48), Some(64..68));
    let stream = Stream::default();
    let ahead = |block| stream.miss(block, 16, Reading::Normal, &TUNING).range();
    assert_eq!((ahead(160), ahead(144)), (None, Some(140..144)));
    let stream = Stream::default();
    let strided = (0..9).map(|at| stream.miss(at * 100, 3, Reading::Normal, &TUNING));
    assert!(strided.into_iter().all(|ahead| ahead.is_empty()));
}

// spec: R4
#[test]
fn mixed_streams_are_told_apart_and_jumps_disturb_none() {
    let stream = Stream::default();
    let mut at = [1_000, 2_000, 3_000];
    let mut windows = Vec::new();
    for turn in 0..12u64 {
        let at = &mut at[turn as usize % 3];
        let ahead = miss(&stream, *at);
        *at += 1 + ahead;
        windows.push(ahead);
        assert_eq!(miss(&stream, (turn + 1) * 100_000), 0, "a jump");
    }
    assert_eq!(windows, [0, 0, 0, 4, 4, 4, 8, 8, 8, 16, 16, 16]);
}

#[test]
fn an_announced_stream_is_wide_at_once_and_ends_where_it_was_said_to() {
    for start in [0, 20, 100] {
        let stream = Stream::default();
        stream.expect(start..start + 70, &TUNING);
        let ahead = stream.miss(start, 1, Reading::Normal, &TUNING);
        assert_eq!(ahead.range(), Some(start + 1..start + 33));
        let next = stream.used(start + 1, &TUNING);
        assert_eq!(next.range(), Some(start + 33..start + 65));
        let last = stream.used(start + 33, &TUNING);
        assert_eq!(last.range(), Some(start + 65..start + 70));
        assert_eq!(stream.used(start + 65, &TUNING).count, 0);
    }
    // A stream that takes the place of this one has no end.
    let stream = Stream::default();
    for number in 0..STREAMS as u64 {
        let from = number * 1_000;
        stream.expect(from..from + 2, &TUNING);
    }
    assert_eq!(miss(&stream, 50_000), 0);
    assert_eq!(miss(&stream, 50_001), 4);
    assert_eq!(miss(&stream, 50_006), 8);
}

/// Windows of four requests of eight blocks.
const REQUESTS: Tuning = Tuning {
    request: 8,
    ..TUNING
};

// spec: R2
#[test]
fn two_windows_of_several_requests_stay_in_flight_and_move_by_one_request() {
    let up = Stream::default();
    up.expect(100..300, &REQUESTS);
    let ahead = up.miss(100, 1, Reading::Normal, &REQUESTS);
    assert_eq!(ahead.range(), Some(101..165));
    let mut frontier = 165;
    for block in 101..300 {
        let range = up.used(block, &REQUESTS).range();
        // At the last block of each request.
        let end = (frontier + 8).min(300);
        match (block - 100) % 8 {
            0 if frontier < end => assert_eq!(range, Some(frontier..end), "{block}"),
            _ => assert_eq!(range, None, "{block}"),
        }
        frontier = range.map_or(frontier, |range| range.end);
    }
    assert_eq!(frontier, 300);
    let down = Stream::default();
    assert_eq!(
        windows_of(&down, (0..400).rev(), &REQUESTS)[..4],
        [4, 8, 24, 40]
    );
    let strided = Stream::default();
    let jumps = (0..40).map(|at| 1_000 + at * 10);
    assert_eq!(windows_of(&strided, jumps, &REQUESTS), [4, 8, 16, 32, 32]);
}

// spec: R3
#[test]
fn a_window_of_several_requests_waits_for_room_for_a_whole_one_and_shrinks() {
    let stream = Stream::default();
    stream.expect(0..1_000, &REQUESTS);
    assert_eq!(miss_by(&stream, 0, &REQUESTS), 64);
    let full = |room| Tuning { room, ..REQUESTS };
    assert_eq!(stream.used(8, &full(7)).count, 0, "a part of a request");
    assert_eq!(stream.used(9, &full(15)).range(), Some(65..73));
    assert_eq!(stream.used(10, &REQUESTS).count, 0);
    let ahead = stream.used(17, &REQUESTS);
    assert_eq!(ahead.range(), Some(73..81));
    // No memory for it: the same blocks are requested one request later.
    stream.fell_short(&ahead, 73);
    assert_eq!(stream.used(18, &REQUESTS).count, 0);
    assert_eq!(stream.used(25, &REQUESTS).range(), Some(73..89));
    // More than half of what was requested last was evicted unused: the window is halved.
    let wasted = Tuning {
        wasted: 5,
        ..REQUESTS
    };
    assert_eq!(stream.used(33, &wasted).count, 0);
    assert!((34..65).all(|block| stream.used(block, &wasted).count <= 64));
}

#[test]
fn blocks_that_were_cached_already_do_not_end_a_stream() {
    let stream = Stream::default();
    assert_eq!((miss(&stream, 0), miss(&stream, 1)), (0, 4));
    // Blocks 6 to 8 were cached, so they are not misses.
    let ahead = stream.miss(9, 1, Reading::Normal, &TUNING);
    assert_eq!(ahead.range(), Some(10..18));
}

// spec: R3
#[test]
fn what_was_read_ahead_for_nothing_halves_the_window() {
    let stream = Stream::default();
    stream.expect(0..1_000, &TUNING);
    assert_eq!(miss(&stream, 0), 32);
    let wasted = Tuning {
        wasted: 20,
        ..TUNING
    };
    assert_eq!(stream.used(1, &wasted).count, 16);
    assert_eq!(stream.used(33, &wasted).count, 32, "no more of it");
}

// spec: R3
#[test]
fn blocks_that_were_evicted_before_their_use_are_asked_for_again() {
    let stream = Stream::default();
    stream.expect(0..1_000, &TUNING);
    assert_eq!(miss(&stream, 0), 32);
    assert_eq!(stream.used(1, &TUNING).range(), Some(33..65));
    // Blocks 20 to 64 were evicted.
    let again = |block| stream.miss(block, 1, Reading::Normal, &TUNING).range();
    assert_eq!(again(20), Some(21..53));
    assert_eq!(again(21), Some(22..54));
    // The same downwards.
    let stream = Stream::default();
    let down = |block| stream.miss(block, 1, Reading::Normal, &TUNING).range();
    assert_eq!((down(9), down(8), down(3)), (None, Some(4..8), Some(0..3)));
    assert_eq!((down(2), down(1)), (Some(0..2), Some(0..1)));
}

// spec: R3
#[test]
fn blocks_for_which_there_was_no_memory_are_asked_for_again() {
    let stream = Stream::default();
    stream.expect(0..1_000, &TUNING);
    let ahead = stream.miss(0, 1, Reading::Normal, &TUNING);
    stream.fell_short(&ahead, 9);
    let ahead = stream.used(1, &TUNING);
    assert_eq!(ahead.range(), Some(9..41));
    stream.fell_short(&ahead, 9);
    assert!(!stream.is_due(8));
    assert_eq!(
        stream.miss(9, 1, Reading::Normal, &TUNING).range(),
        Some(10..42)
    );
}

#[test]
fn advice_decides_from_the_first_miss_on() {
    let stream = Stream::default();
    let first = |reading| stream.miss(50, 1, reading, &TUNING).count;
    assert_eq!(first(Reading::Random), 0);
    assert_eq!(first(Reading::Sequential), 32);
    assert_eq!(stream.used(51, &TUNING).count, 32);
    // With blocks as large as the largest window, there is no read-ahead.
    let none = Tuning { most: 0, ..TUNING };
    let stream = Stream::default();
    let ahead = (0..9).map(|block| stream.miss(block, 1, Reading::Sequential, &none).count);
    assert_eq!(ahead.sum::<u64>(), 0);
}
