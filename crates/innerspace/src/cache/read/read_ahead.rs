//! Read-ahead: chooses which blocks to put in flight before a reader needs them, and when. `window`
//! decides how large the windows are.
//!
//! There are two windows, as in Linux's on-demand read-ahead: while a reader is in one, the next is
//! in flight. A stream is recognised by its misses: at the second miss if they are neighbours,
//! upwards or downwards, and at the third if they have a fixed stride. The window doubles each time
//! the reader enters the latest one, up to a share of the memory. It halves when blocks that were
//! read ahead are evicted unused. A window of several requests moves by one request at a time, and
//! two windows' worth of requests stay in flight. A reader that jumps about has no stream, and
//! nothing is read ahead for it. A request of several blocks says what it needs, so no stride is
//! looked for. In an upward stream of such requests, the first window comes with the fourth.
//!
//! Threads that share a handle may disturb each other's state. That costs a wrong guess, and
//! nothing else.

use std::ops::Range;

use super::window::{FIRST_WINDOW, Tuning};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, Ordering};

/// The order in which a file will be read through a handle or a mapping. A handle's order is set by
/// [`PagedFile::set_reading`](crate::PagedFile::set_reading).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Reading {
    /// Unknown: the order is inferred from the misses.
    #[default]
    Normal,
    /// In no order: nothing is read ahead.
    Random,
    /// From start to end: a window of the full size is read ahead from the first miss on.
    Sequential,
}

/// The number of streams that are distinguished for each handle.
const STREAMS: usize = 8;

/// The longest stride, in blocks.
const MOST_STRIDE: u64 = 512;

/// How many blocks after the requested ones a reader may skip, because they were already cached,
/// without ending its stream.
const SLACK: u64 = 8;

/// How many further requests of several blocks read nothing ahead, after the second such request of
/// a stream.
const PATIENCE: u64 = 1;

/// Blocks to put in flight: `count` of them, `step` apart, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ahead {
    pub(crate) first: u64,
    pub(crate) step: i64,
    pub(crate) count: u64,
}

impl Ahead {
    /// Returns the blocks in the order in which they will be needed. But neighbours are in
    /// ascending order even if the stream goes downwards.
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        let (first, step) = match self.step {
            -1 => (self.first.wrapping_add_signed(1 - self.count as i64), 1),
            step => (self.first, step),
        };
        (0..self.count).map(move |at| first.wrapping_add_signed(step * at as i64))
    }
}

/// Watches the misses of one handle, or of the mappings of a file, which have no handle.
#[derive(Debug)]
pub(crate) struct Stream {
    /// An innermost lock, held briefly.
    known: Mutex<Known>,
    /// The most blocks in a window, even if [`Tuning`] allows more.
    most: u64,
    /// The reading order that was set for the handle, as a number.
    reading: AtomicU8,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream::with_windows_up_to(u64::MAX)
    }
}

/// The streams that are distinguished for one handle, or for the mappings of a file.
#[derive(Debug, Default)]
struct Known {
    one: [One; STREAMS],
    /// The number of uses of these streams so far.
    clock: u64,
}

/// A stream, whose reader is at `last` and moves in steps of `step` blocks; or a single miss that
/// may become a stream. Blocks ahead of the reader are counted in steps from `last`, so that both
/// directions are treated alike.
#[derive(Clone, Copy, Debug, Default)]
struct One {
    /// The block that was last needed; for a read of several blocks, the last one in the stream's
    /// direction.
    last: u64,
    /// The distance from each block to the next; 0 after a single miss.
    step: i64,
    /// For a single miss: its first block.
    low: u64,
    /// For a single miss: its distance from the nearest earlier miss, or 0 if none was near. The
    /// distance is a stride if it occurs again.
    distance: i64,
    /// The number of blocks ahead that were requested already.
    asked: u64,
    /// The distance, in steps, to the block at which the reader requests more blocks. This is the
    /// first block of the window that the reader has not entered yet, or the last block of a
    /// request. 0 if there is none.
    trigger: u64,
    /// The number of blocks in the window that was requested last.
    window: u64,
    /// The block before which the stream ends, if it is known.
    end: Option<u64>,
    /// [`Tuning::wasted`] when the window was last set.
    wasted: u64,
    /// The number of further requests of several blocks before something is read ahead.
    patience: u64,
    /// The value of `Known::clock` at the stream's last use; 0 if it was never used.
    used: u64,
}

impl One {
    /// Returns the number of steps from the last block to `block`, or `None` if no whole number of
    /// steps, at least one, leads there.
    fn steps_to(&self, block: u64) -> Option<u64> {
        let step = self.step;
        if step == 0 {
            return None;
        }
        // This wraps: a stream that is expected to begin at block 0 has a `last` of `u64::MAX`.
        let distance = block.wrapping_sub(self.last) as i64;
        let fits = distance.signum() == step.signum() && distance % step == 0;
        fits.then(|| (distance / step) as u64)
    }

    /// Returns the block that is `steps` steps ahead.
    fn ahead(&self, steps: u64) -> u64 {
        self.last.wrapping_add_signed(self.step * steps as i64)
    }

    /// Whether a miss at `block` belongs to the stream. That is so for a block that was requested,
    /// for the next one, and for one a little further on, since the blocks before it may have been
    /// cached already.
    fn continues_with(&self, block: u64) -> bool {
        let steps = self.steps_to(block);
        steps.is_some_and(|steps| steps <= self.asked + 1 + SLACK.min(self.window))
    }

    fn is_single(&self) -> bool {
        self.step == 0 && self.used > 0
    }

    /// Returns the step of the stream that this single miss forms with a miss of the blocks `block`
    /// to `high`: if the two are neighbours, or as far apart as this miss was from the one before
    /// it.
    fn becomes(&self, block: u64, high: u64) -> Option<i64> {
        if !self.is_single() {
            return None;
        }
        let distance = block.wrapping_sub(self.low) as i64;
        if block == self.last + 1 {
            Some(1)
        } else if high + 1 == self.low {
            Some(-1)
        } else {
            let repeats = block == high && distance != 0 && distance == self.distance;
            repeats.then_some(distance)
        }
    }

    /// Whether a reader that comes to `block` requests more blocks.
    fn enters_with(&self, block: u64) -> bool {
        let window = self.trigger..=self.asked;
        self.trigger > 0 && (self.steps_to(block)).is_some_and(|steps| window.contains(&steps))
    }

    /// Requests the next window for a reader that has come to `last`. The window continues after
    /// the blocks already requested, unless the reader has gone past them.
    fn ask(&mut self, last: u64, window: u64, tuning: &Tuning) -> Ahead {
        let passed = self.steps_to(last).unwrap_or(0);
        self.asked = self.asked.saturating_sub(passed);
        if self.trigger > 0 {
            self.trigger = self.trigger.saturating_sub(passed).max(1);
        }
        (self.last, self.wasted) = (last, tuning.wasted);
        let step = self.step.unsigned_abs();
        let left = match self.step > 0 {
            true => self
                .end
                .unwrap_or(u64::MAX)
                .saturating_sub(last + 1)
                .div_ceil(step),
            // Downwards the stream ends at block 0.
            false => last / step,
        };
        let left = left.saturating_sub(self.asked);
        // A stream whose step is longer than one block makes requests of single blocks.
        let stride = tuning.stride(window).filter(|_| step == 1);
        let wanted = match stride {
            Some(_) => (window * 2).saturating_sub(self.asked),
            None => window,
        };
        let wanted = wanted.min(left);
        let mut count = wanted.min(tuning.room);
        if let Some(stride) = stride
            && count < left
            && (self.asked > 0 || count > stride)
        {
            // Only requests of full size are made now: a smaller one would take the place of a full
            // one.
            count -= count % stride;
        }
        if count == 0 && (tuning.room == 0 || tuning.room < wanted) {
            // There is too little room in flight. The window is requested when the reader comes to
            // the next block.
            return Ahead::default();
        }
        let first = self.asked + 1;
        self.asked += count;
        self.window = window;
        self.trigger = match stride {
            Some(stride) if self.asked > stride => stride,
            _ if count > 0 => first,
            _ => 0,
        };
        Ahead {
            first: self.ahead(first),
            step: self.step,
            count,
        }
    }

    /// Returns the size of the next window.
    fn next_window(&self, tuning: &Tuning) -> u64 {
        tuning.next(self.window, self.wasted)
    }
}

impl Stream {
    /// Creates a stream about which nothing is known. Its windows have at most `most` blocks.
    pub(crate) fn with_windows_up_to(most: u64) -> Stream {
        Stream {
            known: Mutex::default(),
            most,
            reading: AtomicU8::new(0),
        }
    }

    /// Returns the reading order that was set for the handle.
    pub(crate) fn reading(&self) -> Reading {
        match self.reading.load(Ordering::Relaxed) {
            1 => Reading::Random,
            2 => Reading::Sequential,
            _ => Reading::Normal,
        }
    }

    pub(crate) fn set_reading(&self, reading: Reading) {
        let number = match reading {
            Reading::Normal => 0,
            Reading::Random => 1,
            Reading::Sequential => 2,
        };
        self.reading.store(number, Ordering::Relaxed);
    }

    fn bounded(&self, tuning: &Tuning) -> Tuning {
        Tuning {
            most: tuning.most.min(self.most),
            ..*tuning
        }
    }

    /// Notes a miss at `block`, of `wanted` blocks from there on. Returns the blocks to put in
    /// flight after them.
    pub(crate) fn miss(&self, block: u64, wanted: u64, reading: Reading, tuning: &Tuning) -> Ahead {
        let tuning = &self.bounded(tuning);
        if reading == Reading::Random || tuning.most == 0 {
            return Ahead::default();
        }
        let high = block + wanted.max(1) - 1;
        let last_of = |step: i64| if step == 1 { high } else { block };
        let mut known = self.known.lock();
        let now = known.note_use();
        let streams = known.one.iter_mut();
        let continued = streams.filter(|one| one.continues_with(block));
        if let Some(one) = continued.max_by_key(|one| one.window) {
            one.used = now;
            let mut window = match wanted > 1 && one.patience > 0 {
                true => 0,
                false => one.next_window(tuning),
            };
            one.patience = one.patience.saturating_sub(1);
            if one.steps_to(block) <= Some(one.asked) {
                // The block was evicted before the reader came to it, or there was no memory for
                // it. The window starts again from here. Otherwise each miss would move the window
                // further ahead of a reader that finds none of its blocks.
                one.asked = 0;
                window = window.min(one.window);
            }
            return one.ask(last_of(one.step), window, tuning);
        }
        if reading == Reading::Sequential {
            let one = known.begin(block, high, 0);
            one.step = 1;
            return one.ask(high, tuning.most, tuning);
        }
        let mut streams = known.one.iter_mut();
        if let Some((step, one)) = streams.find_map(|one| Some((one.becomes(block, high)?, one))) {
            (one.used, one.step) = (now, step);
            let window;
            (one.patience, window) = match wanted > 1 && step > 0 {
                true => (PATIENCE, 0),
                false => (0, FIRST_WINDOW.min(tuning.most)),
            };
            return one.ask(last_of(step), window, tuning);
        }
        let distance = known.distance_to(block);
        known.begin(block, high, distance);
        Ahead::default()
    }

    /// Notes the first use of a block that was read ahead. Returns the blocks to put in flight now.
    pub(crate) fn used(&self, block: u64, tuning: &Tuning) -> Ahead {
        let mut known = self.known.lock();
        let now = known.note_use();
        let Some(one) = known.one.iter_mut().find(|one| one.enters_with(block)) else {
            return Ahead::default();
        };
        one.used = now;
        let tuning = &self.bounded(tuning);
        one.ask(block, one.next_window(tuning), tuning)
    }

    /// Notes that only the blocks before `block` could be put in flight, so that the others are
    /// requested again.
    pub(crate) fn fell_short(&self, ahead: &Ahead, block: u64) {
        let last = (ahead.first).wrapping_add_signed(ahead.step * (ahead.count as i64 - 1));
        let asked = |one: &&mut One| one.step == ahead.step && one.ahead(one.asked) == last;
        if let Some(one) = self.known.lock().one.iter_mut().find(asked) {
            // Blocks that another reader of the stream has passed meanwhile need no request.
            let [first, missing] = [ahead.first, block].map(|at| one.steps_to(at).unwrap_or(1));
            one.asked = missing - 1;
            if one.trigger >= missing {
                one.trigger = if missing > first { first } else { 0 };
            }
        }
    }

    /// Whether [`Stream::used`] would request blocks.
    pub(crate) fn is_due(&self, block: u64) -> bool {
        let known = self.known.lock();
        known.one.iter().any(|one| one.enters_with(block))
    }

    /// Notes that these blocks will be read in order: the next miss there starts a stream with the
    /// largest window. The stream ends with these blocks.
    pub(crate) fn expect(&self, blocks: Range<u64>, tuning: &Tuning) {
        let tuning = &self.bounded(tuning);
        let before = blocks.start.wrapping_sub(1);
        let mut known = self.known.lock();
        known.note_use();
        let one = known.begin(before, before, 0);
        one.step = 1;
        (one.window, one.wasted) = (tuning.most, tuning.wasted);
        one.end = Some(blocks.end);
    }
}

impl Known {
    /// Counts a use, and returns the new count.
    fn note_use(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes a single miss, of the blocks from `low` to `high`, in place of the stream whose last
    /// use was longest ago.
    fn begin(&mut self, low: u64, high: u64, distance: i64) -> &mut One {
        let by_use = self.one.iter_mut().min_by_key(|one| one.used);
        let one = by_use.expect("there are some");
        *one = One {
            low,
            last: high,
            distance,
            used: self.clock,
            ..One::default()
        };
        one
    }

    /// Returns the distance of `block` from the nearest single miss; 0 if none is near enough for a
    /// stride.
    fn distance_to(&self, block: u64) -> i64 {
        let single = self.one.iter().filter(|one| one.is_single());
        let distances = single.map(|one| block.wrapping_sub(one.low) as i64);
        let near = distances.filter(|distance| distance.unsigned_abs() <= MOST_STRIDE);
        near.min_by_key(|distance| distance.unsigned_abs())
            .unwrap_or(0)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
