//! The size of the read-ahead window: where it begins, how it grows and shrinks, and its bounds.
//!
//! - The first window of a stream is [`FIRST_WINDOW`]. A scan, and a handle or mapping that is read
//!   in the order `Reading::Sequential`, begin with the largest window (`read_ahead`).
//! - The next window is twice the last, or half of it if most of the last was evicted unused
//!   ([`Tuning::next`]).
//! - The largest window is a part of the nearest limit ([`largest`]). It is also bounded by the
//!   number of blocks that may be in flight.
//! - A window of several requests of the store moves by one request at a time
//!   ([`Tuning::stride`]).
//! - The largest window of an uncached read is [`MOST_UNCACHED_WINDOW`].
//!
//! `read_ahead` decides which blocks are in a window, and when it is read.

use crate::units::{KIB, MIB};

/// The size of a stream's first window, in blocks. The window is smaller if the largest one allowed
/// is.
pub(super) const FIRST_WINDOW: u64 = 4;

/// The largest window of read-ahead is `1 / WINDOW_PART` of the nearest limit, but at most
/// [`MOST_WINDOW`]. It is at least [`LEAST_WINDOW`], Linux's default, unless that exceeds
/// `1 / LARGE_PART` of the limit. It also has room for half of [`REQUESTS_AHEAD`] requests of the
/// store's preferred size (or half as many as the store serves at a time, if that is fewer, but at
/// least two), unless these exceed `1 / WINDOW_PART` of the limit. See [`largest`].
const WINDOW_PART: u64 = 16;
const MOST_WINDOW: u64 = 8 * MIB;
const LEAST_WINDOW: u64 = 128 * KIB;
const LARGE_PART: u64 = 8;

/// The number of requests in two windows, where the limit has room for them and the store serves as
/// many at a time: the more requests are in flight, the less the latency of each matters.
const REQUESTS_AHEAD: u64 = 8;

/// The largest window of a read that caches nothing, in bytes.
pub(super) const MOST_UNCACHED_WINDOW: u64 = MIB;

/// Returns the largest window, in bytes, of a file whose nearest limit is `limit`, and whose store
/// prefers requests of `request` bytes and serves `at_a_time` of them.
pub(super) fn largest(limit: u64, request: u64, at_a_time: u32) -> u64 {
    let usual = (limit / WINDOW_PART).min(MOST_WINDOW);
    let least = LEAST_WINDOW.min(limit / LARGE_PART);
    let requests = REQUESTS_AHEAD.min(at_a_time.into()) / 2;
    let large = (requests.max(2) * request).min(limit / WINDOW_PART);
    usual.max(least).max(large)
}

/// The bounds of a file's windows at this moment, as `FileCore::tuning` returns them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The largest window, in blocks.
    pub(crate) most: u64,
    /// The number of blocks in the largest request.
    pub(crate) request: u64,
    /// The number of blocks that may be put in flight now.
    pub(crate) room: u64,
    /// How many of the file's blocks have been read ahead and evicted unused so far.
    pub(crate) wasted: u64,
}

impl Tuning {
    /// Returns the window after one of `window` blocks, which was set when `wasted_before` blocks
    /// had been read ahead and evicted unused.
    pub(super) fn next(&self, window: u64, wasted_before: u64) -> u64 {
        let wasted = self.wasted.wrapping_sub(wasted_before);
        let read = self.stride(window).unwrap_or(window);
        let next = match wasted * 2 > read {
            true => window / 2,
            false => (window * 2).max(FIRST_WINDOW),
        };
        next.min(self.most)
    }

    /// Returns the number of blocks by which a window of two or more requests moves: one request,
    /// so that each request that is used up is followed by another. Returns `None` for a smaller
    /// window, which is requested as a whole.
    pub(super) fn stride(&self, window: u64) -> Option<u64> {
        (window / 2 >= self.request).then_some(self.request)
    }
}
