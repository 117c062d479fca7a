//! Read-ahead: chooses which blocks to put in flight before a reader needs them, and when. `window`
//! has the size of the windows.
//!
//! Two windows, as in Linux's on-demand read-ahead: while a reader is in one, the next is in
//! flight. A stream is recognised by its misses: neighbours upwards or downwards at the second, a
//! fixed stride at the third. Its window doubles each time the reader enters the latest one, up to
//! a share of the memory; it halves when blocks that were read ahead are evicted unused. Windows of
//! several requests move by one request at a time: two windows of them stay in flight. A reader
//! that jumps about has no stream, and nothing is read ahead for it. A request of several blocks
//! says what it needs, so no stride is looked for, and in an upward stream the first window follows
//! the third neighbour.
//!
//! The words here are relaxed atomics without a protocol: threads that share a handle may disturb
//! each other's figures, which costs a wrong guess and nothing else.

use std::ops::Range;

use super::window::{FIRST_WINDOW, Tuning};
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The order in which a handle, or the pages of a mapping, will read a file:
/// [`PagedFile::set_reading`](crate::PagedFile::set_reading).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Reading {
    /// Unknown: the order is inferred from the misses.
    #[default]
    Normal,
    /// In no order: nothing is read ahead.
    Random,
    /// From start to end: all of a window is read ahead from the first miss on.
    Sequential,
}

/// The number of streams that are distinguished.
const STREAMS: usize = 8;

/// The longest stride, in blocks.
const MOST_STRIDE: u64 = 512;

/// How many blocks after the requested ones may have been cached already, without ending the
/// stream.
const SLACK: u64 = 8;

/// The number of requests of several blocks, after the second neighbour, that read nothing ahead.
const PATIENCE: u64 = 1;

/// Blocks to put in flight: `count` of them, `step` apart, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ahead {
    pub(crate) first: u64,
    pub(crate) step: i64,
    pub(crate) count: u64,
}

impl Ahead {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the blocks as a range, if they are neighbours.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        match self.step {
            _ if self.is_empty() => None,
            1 => Some(self.first..self.first + self.count),
            -1 => Some(self.first + 1 - self.count..self.first + 1),
            _ => None,
        }
    }

    /// Returns the blocks in the order in which they will be needed.
    pub(crate) fn blocks(self) -> impl Iterator<Item = u64> {
        let Ahead { first, step, count } = self;
        (0..count).map(move |at| first.wrapping_add_signed(step * at as i64))
    }
}

/// Watches the misses of one handle, or of the mappings of a file, which have no handle.
#[derive(Debug)]
pub(crate) struct Stream {
    one: [One; STREAMS],
    /// The most blocks of a window, even if [`Tuning`] allows more.
    most: u64,
    /// The number of uses so far.
    clock: AtomicU64,
    /// The reading order that was set for the handle, as a number.
    reading: AtomicU8,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream::with_windows_up_to(u64::MAX)
    }
}

/// One stream: its reader is at `last`, and all blocks before `frontier` were requested. Or a
/// single miss that may become a stream.
#[derive(Debug)]
struct One {
    /// The block that was last needed. Of a read of several, the last one in the stream's
    /// direction.
    last: AtomicU64,
    /// The distance from each block to the next; 0 after a single miss.
    step: Signed,
    /// For a single miss: its first block, and the distance from there to the nearest miss before
    /// it, which is a stride if it occurs again. 0 if there was none near.
    low: AtomicU64,
    distance: Signed,
    /// The first block that was not requested yet.
    frontier: AtomicU64,
    /// The block at which the reader requests more: the first one of the window that it has not
    /// entered yet, or the last one of a request.
    trigger: AtomicU64,
    /// The number of blocks of the window that was requested last.
    window: AtomicU64,
    /// The block before which the stream ends, if it is known.
    end: AtomicU64,
    /// [`Tuning::wasted`] when the window was last set.
    wasted: AtomicU64,
    /// The number of requests of several blocks still to come before something is read ahead.
    patience: AtomicU64,
    /// The count of uses at the stream's last use; 0 if it was never used.
    used: AtomicU64,
}

impl Default for One {
    fn default() -> One {
        let zero = || AtomicU64::new(0);
        One {
            last: zero(),
            step: Signed::default(),
            low: zero(),
            distance: Signed::default(),
            frontier: zero(),
            trigger: AtomicU64::new(u64::MAX),
            window: zero(),
            end: AtomicU64::new(u64::MAX),
            wasted: zero(),
            patience: zero(),
            used: zero(),
        }
    }
}

/// A number with a sign.
#[derive(Debug)]
struct Signed(AtomicU64);

impl Default for Signed {
    fn default() -> Signed {
        Signed(AtomicU64::new(0))
    }
}

impl Signed {
    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed) as i64
    }

    fn set(&self, value: i64) {
        self.0.store(value as u64, Ordering::Relaxed);
    }
}

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

impl One {
    fn step(&self) -> i64 {
        self.step.get()
    }

    /// Returns the number of steps from the last block to `block`, or `None` if no whole number of
    /// steps, at least one, leads there.
    fn steps_to(&self, block: u64) -> Option<u64> {
        let step = self.step();
        if step == 0 {
            return None;
        }
        // This wraps: a stream that is expected from block 0 on has its last block before that.
        let distance = block.wrapping_sub(get(&self.last)) as i64;
        let fits = distance.signum() == step.signum() && distance % step == 0;
        fits.then(|| (distance / step) as u64)
    }

    /// Whether a miss at `block` belongs to the stream. That is so for a block that was requested,
    /// for the next one, and for one a little further, because some blocks were already cached.
    fn continues_with(&self, block: u64) -> bool {
        let Some(steps) = self.steps_to(block) else {
            return false;
        };
        let asked = self.steps_to(get(&self.frontier)).unwrap_or(1);
        steps <= asked + SLACK.min(get(&self.window))
    }

    /// Whether a miss at `block`, which continues the stream, concerns a block that was already
    /// requested: it was evicted before the reader came to it, or there was no memory for it.
    fn has_asked_for(&self, block: u64) -> bool {
        let frontier = get(&self.frontier);
        match self.step() > 0 {
            true => block < frontier,
            // Below block 0 the frontier is a very large number.
            false => block > frontier || frontier > get(&self.last),
        }
    }

    fn is_single(&self) -> bool {
        self.step() == 0 && get(&self.used) > 0
    }

    /// For a single miss, returns the step of the stream that it becomes with a miss of `block` to
    /// `high`: if they are neighbours, or as far from one another as this one was from the miss
    /// before it.
    fn becomes(&self, block: u64, high: u64) -> Option<(&One, i64)> {
        if !self.is_single() {
            return None;
        }
        let distance = block.wrapping_sub(get(&self.low)) as i64;
        let step = if block == get(&self.last) + 1 {
            1
        } else if high + 1 == get(&self.low) {
            -1
        } else if block == high && distance != 0 && distance == self.distance.get() {
            distance
        } else {
            return None;
        };
        Some((self, step))
    }

    /// Whether a reader that comes to `block` requests more.
    fn enters_with(&self, block: u64) -> bool {
        let trigger = get(&self.trigger);
        if trigger == u64::MAX {
            return false;
        }
        let frontier = get(&self.frontier);
        match self.step() > 0 {
            true => (trigger..frontier).contains(&block),
            false => block <= trigger && block > frontier,
        }
    }

    /// Requests the next window for a reader that has come to `last` in steps of `step`.
    fn ask(&self, last: u64, step: i64, window: u64, tuning: &Tuning) -> Ahead {
        set(&self.last, last);
        self.step.set(step);
        set(&self.wasted, tuning.wasted);
        let next = last.wrapping_add_signed(step);
        let known = get(&self.frontier);
        // The window continues after the requested blocks, unless the reader has gone past them.
        let is_past = match step > 0 {
            true => known < next,
            false => known > next,
        };
        let first = if is_past { next } else { known };
        let left = match step > 0 {
            true => get(&self.end).saturating_sub(first).div_ceil(step as u64),
            // Downwards the window ends at block 0. Below that, the first number wraps to a very
            // large one.
            false if first > last => 0,
            false => first / step.unsigned_abs() + 1,
        };
        // A stream of strides makes requests of single blocks.
        let stride = tuning.stride(window).filter(|_| step.abs() == 1);
        let known = first.abs_diff(next);
        let wanted = match stride {
            Some(_) => (window * 2).saturating_sub(known),
            None => window,
        };
        let wanted = wanted.min(left);
        let mut count = wanted.min(tuning.room);
        if let Some(stride) = stride
            && count < left
            && (known > 0 || count > stride)
        {
            // A small request would take the place of a large one.
            count -= count % stride;
        }
        if count == 0 && (tuning.room == 0 || tuning.room < wanted) {
            // The window is requested when the reader comes to the next block.
            return Ahead::default();
        }
        set(&self.window, window);
        set(
            &self.frontier,
            first.wrapping_add_signed(step * count as i64),
        );
        let trigger = match stride {
            Some(stride) if known + count > stride => {
                last.wrapping_add_signed(step * stride as i64)
            }
            _ if count > 0 => first,
            _ => u64::MAX,
        };
        set(&self.trigger, trigger);
        Ahead { first, step, count }
    }

    /// Returns the size of the window after this one.
    fn next_window(&self, tuning: &Tuning) -> u64 {
        tuning.next(get(&self.window), get(&self.wasted))
    }
}

impl Stream {
    /// Creates a stream about which nothing is known. Its windows have at most `most` blocks.
    pub(crate) fn with_windows_up_to(most: u64) -> Stream {
        Stream {
            one: Default::default(),
            most,
            clock: AtomicU64::new(0),
            reading: AtomicU8::new(0),
        }
    }

    /// Returns the order in which the handle's owner reads.
    pub(crate) fn reading(&self) -> Reading {
        match self.reading.load(Ordering::Relaxed) {
            1 => Reading::Random,
            2 => Reading::Sequential,
            _ => Reading::Normal,
        }
    }

    /// Sets the order in which the handle's owner reads.
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
        let known = self.one.iter().filter(|one| one.continues_with(block));
        if let Some(one) = known.max_by_key(|one| get(&one.window)) {
            let step = one.step();
            self.note_use(one);
            let patience = get(&one.patience);
            let mut window = match wanted > 1 && patience > 0 {
                true => 0,
                false => one.next_window(tuning),
            };
            set(&one.patience, patience.saturating_sub(1));
            if one.has_asked_for(block) {
                // Starts again from here. Otherwise each miss would move the frontier one window
                // further ahead of a reader that finds none of the blocks.
                set(&one.frontier, last_of(step).wrapping_add_signed(step));
                window = window.min(get(&one.window));
            }
            return one.ask(last_of(step), step, window, tuning);
        }
        if reading == Reading::Sequential {
            let one = self.begin(block, high, 0);
            return one.ask(high, 1, tuning.most, tuning);
        }
        if let Some((one, step)) = self.one.iter().find_map(|one| one.becomes(block, high)) {
            self.note_use(one);
            set(&one.frontier, last_of(step).wrapping_add_signed(step));
            let (patience, window) = match wanted > 1 && step > 0 {
                true => (PATIENCE, 0),
                false => (0, FIRST_WINDOW.min(tuning.most)),
            };
            set(&one.patience, patience);
            return one.ask(last_of(step), step, window, tuning);
        }
        self.begin(block, high, self.distance_to(block));
        Ahead::default()
    }

    /// Notes the first use of a block that was read ahead. Returns the blocks to put in flight now.
    pub(crate) fn used(&self, block: u64, tuning: &Tuning) -> Ahead {
        let Some(one) = self.one.iter().find(|one| one.enters_with(block)) else {
            return Ahead::default();
        };
        self.note_use(one);
        let tuning = &self.bounded(tuning);
        one.ask(block, one.step(), one.next_window(tuning), tuning)
    }

    /// Notes that only the blocks before `block` could be put in flight, so that the others are
    /// requested again.
    pub(crate) fn fell_short(&self, ahead: &Ahead, block: u64) {
        let end = (ahead.first).wrapping_add_signed(ahead.step * ahead.count as i64);
        let asked = |one: &&One| one.step() == ahead.step && get(&one.frontier) == end;
        if let Some(one) = self.one.iter().find(asked) {
            set(&one.frontier, block);
            let trigger = get(&one.trigger);
            if trigger == block || (ahead.step == 1 && trigger > block) {
                let is_empty = block == ahead.first;
                set(&one.trigger, if is_empty { u64::MAX } else { ahead.first });
            }
        }
    }

    /// Whether [`Stream::used`] would request blocks.
    pub(crate) fn is_due(&self, block: u64) -> bool {
        self.one.iter().any(|one| one.enters_with(block))
    }

    /// Notes that these blocks will be read in order: the next miss there starts a stream at full
    /// width, which ends with them.
    pub(crate) fn expect(&self, blocks: Range<u64>, tuning: &Tuning) {
        let tuning = &self.bounded(tuning);
        let before = blocks.start.wrapping_sub(1);
        let one = self.begin(before, before, 0);
        one.step.set(1);
        set(&one.window, tuning.most);
        set(&one.wasted, tuning.wasted);
        set(&one.end, blocks.end);
    }

    /// Notes a single miss, of the blocks from `low` to `high`, in place of the stream whose last
    /// use was longest ago.
    fn begin(&self, low: u64, high: u64, distance: i64) -> &One {
        let by_use = self.one.iter().min_by_key(|one| get(&one.used));
        let one = by_use.expect("there are some");
        set(&one.low, low);
        set(&one.last, high);
        one.step.set(0);
        one.distance.set(distance);
        set(&one.frontier, high.wrapping_add(1));
        set(&one.trigger, u64::MAX);
        set(&one.window, 0);
        set(&one.end, u64::MAX);
        set(&one.patience, 0);
        self.note_use(one);
        one
    }

    /// Returns the distance of `block` from the nearest single miss; 0 if none is near enough for a
    /// stride.
    fn distance_to(&self, block: u64) -> i64 {
        let single = self.one.iter().filter(|one| one.is_single());
        let distances = single.map(|one| block.wrapping_sub(get(&one.low)) as i64);
        let near = distances.filter(|distance| distance.unsigned_abs() <= MOST_STRIDE);
        near.min_by_key(|distance| distance.unsigned_abs())
            .unwrap_or(0)
    }

    fn note_use(&self, one: &One) {
        set(&one.used, self.clock.fetch_add(1, Ordering::Relaxed) + 1);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
