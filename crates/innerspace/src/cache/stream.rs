//! Read-ahead: who reads on grows a window, who jumps about gets none.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::KIB;

/// The largest window in bytes.
const MAX_WINDOW: u64 = 128 * KIB;

/// Watches the misses of one handle. A heuristic: threads that share a handle may disturb each other's streams.
#[derive(Debug)]
pub(super) struct Stream {
    /// The block that would continue the stream.
    next: AtomicU64,
    /// Blocks read ahead last time.
    window: AtomicU64,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            next: AtomicU64::new(u64::MAX),
            window: AtomicU64::new(0),
        }
    }
}

impl Stream {
    /// A miss at `block`: how many blocks behind it to read as well, at blocks of `block_bytes`.
    pub(super) fn miss(&self, block: u64, block_bytes: u64) -> u64 {
        let max = MAX_WINDOW / block_bytes;
        let window = if self.next.load(Ordering::Relaxed) == block {
            (self.window.load(Ordering::Relaxed) * 2)
                .clamp(1, max.max(1))
                .min(max)
        } else {
            0
        };
        self.window.store(window, Ordering::Relaxed);
        self.next.store(block + 1 + window, Ordering::Relaxed);
        window
    }

    /// The next miss at `block` continues a stream at full width.
    pub(super) fn expect(&self, block: u64, block_bytes: u64) {
        self.window
            .store(MAX_WINDOW / block_bytes, Ordering::Relaxed);
        self.next.store(block, Ordering::Relaxed);
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
    }
}
