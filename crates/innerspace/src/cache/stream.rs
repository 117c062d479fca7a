//! Read-ahead: who reads on grows a window, who jumps about gets none.

use std::ops::Range;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::KIB;

/// The largest window in bytes.
const MAX_WINDOW: u64 = 128 * KIB;

/// What is known of how the pages of a mapping are going to be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Reading {
    /// Nothing: misses show it.
    #[default]
    Normal,
    /// In no order: nothing is read ahead, nor mapped beside what is asked for.
    Random,
    /// In order: all of a window is read ahead from the first miss on.
    Sequential,
}

/// Streams that are told apart.
const STREAMS: usize = 8;

/// Watches the misses of one handle, or of the mappings of a file, which have none. Several streams may be mixed in them:
/// threads that share a handle, spaces that map one file. A heuristic: threads may disturb each other's figures.
#[derive(Debug, Default)]
pub(super) struct Stream {
    one: [One; STREAMS],
    /// Counts uses.
    clock: AtomicU64,
}

/// One stream.
#[derive(Debug)]
struct One {
    /// The first block that continues the stream.
    next: AtomicU64,
    /// The last one that does: some of what is read ahead may have been there already.
    latest: AtomicU64,
    /// Blocks read ahead last time.
    window: AtomicU64,
    /// Where the stream ends, if that is known.
    end: AtomicU64,
    /// When it was used last.
    used: AtomicU64,
}

impl Default for One {
    fn default() -> One {
        let never = || AtomicU64::new(u64::MAX);
        One {
            next: never(),
            latest: never(),
            window: AtomicU64::new(0),
            end: never(),
            used: AtomicU64::new(0),
        }
    }
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

impl One {
    fn continues_with(&self, block: u64) -> bool {
        (get(&self.next)..=get(&self.latest)).contains(&block)
    }
}

impl Stream {
    /// A miss at `block` of a mapping: how many blocks behind it to read as well.
    pub(super) fn miss_of_mapping(&self, reading: Reading, block: u64, block_bytes: u64) -> u64 {
        match reading {
            Reading::Normal => self.miss(block, block_bytes),
            Reading::Random => 0,
            Reading::Sequential => MAX_WINDOW / block_bytes,
        }
    }

    /// A miss at `block`: how many blocks behind it to read as well, at blocks of `block_bytes`.
    pub(super) fn miss(&self, block: u64, block_bytes: u64) -> u64 {
        let max = MAX_WINDOW / block_bytes;
        let known = self.one.iter().filter(|one| one.continues_with(block));
        let (one, window) = match known.max_by_key(|one| get(&one.window)) {
            Some(one) => (one, (get(&one.window) * 2).clamp(1, max.max(1)).min(max)),
            None => {
                let one = self.oldest();
                set(&one.end, u64::MAX);
                (one, 0)
            }
        };
        let ahead = window.min(get(&one.end).saturating_sub(block + 1));
        set(&one.window, window);
        set(&one.next, block + 1);
        set(&one.latest, block + 1 + ahead);
        self.note_use(one);
        ahead
    }

    /// The blocks in `blocks` are going to be read in order: the next miss there is one of a stream at full width, which
    /// ends with them.
    pub(super) fn expect(&self, blocks: Range<u64>, block_bytes: u64) {
        let one = self.oldest();
        set(&one.window, MAX_WINDOW / block_bytes);
        set(&one.next, blocks.start);
        set(&one.latest, blocks.end);
        set(&one.end, blocks.end);
        self.note_use(one);
    }

    fn note_use(&self, one: &One) {
        set(&one.used, self.clock.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// The stream that was used longest ago, whose place a new one takes.
    fn oldest(&self) -> &One {
        let by_use = self.one.iter().min_by_key(|one| get(&one.used));
        by_use.expect("there are some")
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_stream_doubles_its_window_and_a_jump_loses_it() {
        let stream = Stream::default();
        let mut block = 0;
        let mut windows = Vec::new();
        for _ in 0..8 {
            let ahead = stream.miss(block, 4 * KIB);
            windows.push(ahead);
            block += 1 + ahead;
        }
        assert_eq!(windows, [0, 1, 2, 4, 8, 16, 32, 32]);
        assert_eq!(stream.miss(9_999, 4 * KIB), 0);
        assert_eq!(stream.miss(5, 4 * KIB), 0);
        assert_eq!(stream.miss(6, 4 * KIB), 1);
        // Blocks as large as the window are not read ahead twice over.
        assert_eq!(stream.miss(8, 128 * KIB), 1);
        assert_eq!(stream.miss(10, 2048 * KIB), 0);
        // Blocks of the window that were there already do not end the stream.
        stream.expect(20..90, 4 * KIB);
        assert_eq!(
            (stream.miss(20, 4 * KIB), stream.miss(30, 4 * KIB)),
            (32, 32)
        );
        // An announced stream begins wide and ends where it was said to.
        stream.expect(100..140, 4 * KIB);
        assert_eq!(stream.miss(100, 4 * KIB), 32);
        assert_eq!(stream.miss(133, 4 * KIB), 6);
        assert_eq!(stream.miss(140, 4 * KIB), 0);
    }

    #[test]
    fn mixed_streams_are_told_apart_and_jumps_disturb_none() {
        let stream = Stream::default();
        let mut at = [1_000, 2_000, 3_000];
        let mut windows = Vec::new();
        for turn in 0..15u64 {
            let at = &mut at[turn as usize % 3];
            let ahead = stream.miss(*at, 4 * KIB);
            *at += 1 + ahead;
            windows.push(ahead);
            assert_eq!(stream.miss((turn + 1) * 100_000, 4 * KIB), 0, "a jump");
        }
        assert_eq!(windows, [0, 0, 0, 1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8]);
    }

    #[test]
    fn a_stream_in_the_place_of_an_announced_one_has_no_end() {
        let stream = Stream::default();
        for number in 0..STREAMS as u64 {
            let from = number * 1_000;
            stream.expect(from..from + 2, 4 * KIB);
        }
        assert_eq!(stream.miss(50_000, 4 * KIB), 0);
        assert_eq!(stream.miss(50_001, 4 * KIB), 1);
        assert_eq!(stream.miss(50_003, 4 * KIB), 2);
    }
}
