//! Read-ahead: who reads on grows a window, who jumps about gets none.

use std::ops::Range;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::KIB;

/// The largest window in bytes.
const MAX_WINDOW: u64 = 128 * KIB;

/// Watches the misses of one handle. A heuristic: threads that share a handle may disturb each other's streams.
#[derive(Debug)]
pub(super) struct Stream {
    /// The first block that continues the stream.
    next: AtomicU64,
    /// The last one that does: some of what is read ahead may have been there already.
    latest: AtomicU64,
    /// Blocks read ahead last time.
    window: AtomicU64,
    /// Where the stream ends, if that is known.
    end: AtomicU64,
}

impl Default for Stream {
    fn default() -> Stream {
        let never = || AtomicU64::new(u64::MAX);
        Stream {
            next: never(),
            latest: never(),
            window: AtomicU64::new(0),
            end: never(),
        }
    }
}

impl Stream {
    /// A miss at `block`: how many blocks behind it to read as well, at blocks of `block_bytes`.
    pub(super) fn miss(&self, block: u64, block_bytes: u64) -> u64 {
        let max = MAX_WINDOW / block_bytes;
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let window = if (get(&self.next)..=get(&self.latest)).contains(&block) {
            (get(&self.window) * 2).clamp(1, max.max(1)).min(max)
        } else {
            self.end.store(u64::MAX, Ordering::Relaxed);
            0
        };
        let ahead = window.min(get(&self.end).saturating_sub(block + 1));
        self.window.store(window, Ordering::Relaxed);
        self.next.store(block + 1, Ordering::Relaxed);
        self.latest.store(block + 1 + ahead, Ordering::Relaxed);
        ahead
    }

    /// The blocks in `blocks` are going to be read in order: the next miss there is one of a stream at full width, which
    /// ends with them.
    pub(super) fn expect(&self, blocks: Range<u64>, block_bytes: u64) {
        self.window
            .store(MAX_WINDOW / block_bytes, Ordering::Relaxed);
        self.next.store(blocks.start, Ordering::Relaxed);
        self.latest.store(blocks.end, Ordering::Relaxed);
        self.end.store(blocks.end, Ordering::Relaxed);
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
}
