//! The miss curve, drawn from a sample: the share of uses that would miss with more or less memory.
//!
//! The method is SHARDS, after C. Waldspurger, N. Park, A. Garthwaite and I. Ahmad, "Efficient MRC
//! Construction with SHARDS", FAST 2015. A block is in the sample if its hash is below a threshold,
//! so either all of its uses are sampled or none. The reuse distance of a use is the number of
//! other sampled blocks used since the block's last use, divided by the share of blocks sampled. An
//! LRU cache with more pages than the reuse distance hits; a smaller one misses. The sample has a
//! fixed size: when it has too many blocks, the one with the largest hash leaves, and the threshold
//! falls to that hash. A block also leaves when its reuse distance would exceed four times the
//! memory's pages, since no size on the curve would keep it. So a long scan does not thin the
//! sample out. As in the paper's SHARDS-adj, if the sample has more or fewer uses than its share,
//! the difference is corrected at the shortest distance.
//!
//! Whether a block is sampled is decided once, when it enters the cache, and noted in
//! [`Meta::uses`](crate::frame::Meta). A use of a block that is not sampled costs a bit test and an
//! increment of a counter that all threads share. That is too much for every hit. So uses are
//! sampled for a *stretch*, and then not sampled for four hundred times as long. The curve shows
//! the last whole stretch or, until the first one ends, the first. While nothing is sampled, a use
//! costs the load of one flag.
//!
//! **Mappings.** An access that finds its page writes nothing, so it leaves no trace. During a
//! stretch, the accessed bit of a page of a sampled block is cleared as soon as an access has found
//! the page (as in aging; that access completes). So the next access faults, and is seen. Reclaim
//! still learns that the page was used. Uses of other pages are not even counted. The number of all
//! uses through mappings is estimated: the uses seen, divided by the share of blocks sampled. The
//! number of these uses in the sample is not corrected.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::frame::{Meta, Uses};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::units::{PAGE_SIZE, PageCount};

/// The number of bits of a hash.
const HASH_BITS: u32 = 24;

/// The most blocks in the sample.
const SAMPLE: usize = 2048;

/// Reuse distances are distinguished up to this multiple of the memory's pages, the *reach*.
const REACH: u64 = 4;

/// The number of parts that the reach is divided into.
const PARTS: usize = 1024;

/// The most bytes that a sampler has on the heap, approximately: the blocks, their order and the
/// parts.
pub(crate) const SAMPLER_BYTES: u64 = (SAMPLE * 200 + PARTS * 8) as u64;

/// The share of uses that would miss, by size of the memory.
///
/// The curve is drawn from a stretch of uses (64 times as many as the memory has pages), as if the
/// memory had been empty before. It counts uses of file blocks. A call (view, read, write) counts
/// one use for each of its blocks, and an access through a mapping one use for each of its pages.
/// Some accesses are not seen: one just after another thread's access to the same page, a store
/// that spans two pages, and accesses by code that translates addresses itself. Pages of anonymous
/// memory and of direct access files are not counted.
///
/// For calls, the curve is within a few hundredths of the curve of all uses. For mappings, only
/// sampled pages are counted, so a page with a large share `s` of all accesses distorts the curve:
/// by at most `s` if the page is not in the sample, and by at most `s / r` if it is, where `r` is
/// the share of blocks that are sampled (all, while fewer than 2048 blocks are in use).
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MissCurve {
    /// Pairs: bytes of memory for data, and the share of uses (from 0 to 1) that would miss with
    /// that much. In ascending order of bytes.
    points: Vec<(u64, f64)>,
    /// The number of uses of sampled blocks that the curve is drawn from.
    samples: u64,
}

impl MissCurve {
    /// Returns pairs of an amount of memory for data, in bytes, and the share of uses that would
    /// miss with it. The amounts go from no memory to four times the present amount.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    /// Returns the share of uses, from 0 to 1, that would miss if there were `bytes` bytes of
    /// memory for data.
    pub fn at(&self, bytes: u64) -> f64 {
        let after = self.points.partition_point(|(size, _)| *size <= bytes);
        self.points[after.saturating_sub(1)].1
    }

    /// Returns the number of uses of sampled blocks that the curve is drawn from. A curve drawn
    /// from few uses is unreliable.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// The time without sampling is this many times as long as the stretch before it.
const REST: u32 = 400;

/// The number of uses in a stretch for each page of the memory.
const STRETCH: u64 = 64;

/// The sampler of one memory.
pub(crate) struct Sampler {
    /// Whether a stretch is under way.
    on: AtomicBool,
    /// The number of uses in a stretch.
    stretch: u64,
    /// Blocks with a hash below this are sampled. The threshold only falls.
    threshold: AtomicU64,
    state: Mutex<State>,
    /// The number of pages of distance in one part of the reach.
    part: u64,
    /// The number of all uses by calls in this stretch, sampled or not.
    seen: AtomicU64,
}

struct State {
    /// When each sampled block was last used, as the count of sampled uses at that time.
    blocks: HashMap<Key, u64>,
    /// The same blocks in the order of their last uses.
    by_time: VecDeque<(u64, Key)>,
    /// The number of uses for each part of the reach, by distance.
    parts: Vec<f64>,
    /// The number of uses with a distance beyond the reach, and of first uses.
    farther: f64,
    /// How many of the uses counted in `parts` and `farther` were through mappings.
    mapped: f64,
    samples: u64,
    began: Instant,
    /// When the next stretch begins, if none is under way.
    next: Instant,
    /// The curve of the last whole stretch.
    last: Option<MissCurve>,
}

type Key = (u32, u64);

/// Whether a block was used by a call or through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Call,
    Mapping,
}

impl Sampler {
    /// Creates a sampler for a memory of this many pages.
    pub(crate) fn new(memory: PageCount) -> Sampler {
        Sampler {
            on: AtomicBool::new(true),
            stretch: memory.0 * STRETCH,
            threshold: AtomicU64::new(1 << HASH_BITS),
            state: Mutex::new(State::new()),
            part: (memory.0 * REACH).div_ceil(PARTS as u64).max(1),
            seen: AtomicU64::new(0),
        }
    }

    /// Returns whether a stretch is under way.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Notes that a call used a block during a stretch.
    pub(crate) fn see(&self, meta: &Meta, pages: u64) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        if meta.uses.has(Uses::SAMPLED) {
            self.used(meta, pages, Way::Call);
        }
    }

    /// Notes that a block was used through a mapping, if a stretch is under way and the block is
    /// sampled. Returns whether the use was noted.
    pub(crate) fn see_mapped(&self, meta: &Meta, pages: u64) -> bool {
        self.is_on() && meta.uses.has(Uses::SAMPLED) && self.used(meta, pages, Way::Mapping)
    }

    /// Ends the stretch if it is long enough, and begins the time without sampling.
    #[cold]
    fn rest(&self, state: &mut State) {
        let seen = self.seen.load(Ordering::Relaxed);
        let mapped = state.mapped / self.rate();
        if seen + (mapped as u64) < self.stretch {
            return;
        }
        let now = Instant::now();
        state.next = now + (now - state.began) * REST;
        state.last = Some(self.curve_of(state, seen));
        self.on.store(false, Ordering::Relaxed);
    }

    /// Returns the share of blocks that are sampled.
    fn rate(&self) -> f64 {
        self.threshold.load(Ordering::Relaxed) as f64 / (1u64 << HASH_BITS) as f64
    }

    /// Begins another stretch when it is time, and returns whether it did. The share of blocks that
    /// are sampled stays as it is, since the blocks in the cache are already marked.
    pub(crate) fn tick(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if self.on.load(Ordering::Relaxed) || now < state.next {
            return false;
        }
        *state = State {
            last: state.last.take(),
            ..State::new()
        };
        self.seen.store(0, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
        true
    }

    /// Marks a block that enters the cache, if it is in the sample.
    pub(crate) fn mark(&self, meta: &Meta) {
        let hash = hash(meta.owner(), meta.index());
        if hash < self.threshold.load(Ordering::Relaxed) {
            meta.uses.set(Uses::SAMPLED);
        }
    }

    /// Notes a use of a marked block of `pages` pages. If the block is no longer in the sample,
    /// removes the mark and returns false.
    #[cold]
    fn used(&self, meta: &Meta, pages: u64, way: Way) -> bool {
        let noted = self.note((meta.owner(), meta.index()), pages, way);
        if !noted {
            meta.uses.clear(Uses::SAMPLED);
        }
        noted
    }

    /// Notes one use. Returns false if the block is not, or no longer, in the sample.
    fn note(&self, key: Key, pages: u64, way: Way) -> bool {
        let hash = hash(key.0, key.1);
        let mut state = self.state.lock();
        let threshold = self.threshold.load(Ordering::Relaxed);
        if hash >= threshold {
            return false;
        }
        let state = &mut *state;
        state.samples += 1;
        state.mapped += f64::from(u8::from(way == Way::Mapping));
        let now = state.samples;
        let rate = self.rate();
        match state.blocks.insert(key, now) {
            Some(before) => {
                let at = state.by_time.partition_point(|(used, _)| *used < before);
                state.by_time.remove(at);
                let others = state.by_time.len() - at;
                let distance = (others as f64 / rate) as u64 * pages;
                match state.parts.get_mut((distance / self.part) as usize) {
                    Some(part) => *part += 1.0,
                    None => state.farther += 1.0,
                }
            }
            None => state.farther += 1.0,
        }
        state.by_time.push_back((now, key));
        let reach = (self.part * PARTS as u64) as f64;
        if state.blocks.len() as f64 / rate * pages as f64 > reach
            && let Some((_, oldest)) = state.by_time.pop_front()
        {
            state.blocks.remove(&oldest);
        }
        if state.blocks.len() > SAMPLE {
            self.shrink(state, threshold);
        }
        if state.samples.is_multiple_of(256) {
            self.rest(state);
        }
        true
    }

    /// Removes the block with the largest hash, and all others with the same hash. Scales the
    /// earlier counts down to the new threshold.
    fn shrink(&self, state: &mut State, threshold: u64) {
        let hash_of = |key: &Key| hash(key.0, key.1);
        let largest = state.blocks.keys().map(hash_of).max().unwrap_or(0);
        state.blocks.retain(|key, _| hash_of(key) != largest);
        state.by_time.retain(|(_, key)| hash_of(key) != largest);
        let scale = largest as f64 / threshold as f64;
        state.parts.iter_mut().for_each(|part| *part *= scale);
        state.farther *= scale;
        state.mapped *= scale;
        self.threshold.store(largest, Ordering::Relaxed);
    }

    /// Returns the curve of the last whole stretch. Until there is one, returns the curve of the
    /// first stretch so far.
    pub(crate) fn curve(&self) -> MissCurve {
        let state = self.state.lock();
        match &state.last {
            Some(last) => last.clone(),
            None => self.curve_of(&state, self.seen.load(Ordering::Relaxed)),
        }
    }

    /// Returns the curve of the uses counted in `state`. `uses` is the number of all uses by calls.
    fn curve_of(&self, state: &State, uses: u64) -> MissCurve {
        let rate = self.rate();
        let counted: f64 = state.parts.iter().sum::<f64>() + state.farther;
        let missing = uses as f64 * rate - (counted - state.mapped);
        // A sample of all blocks needs no correction.
        let adjusted = if rate < 1.0 { missing } else { 0.0 };
        let total = (counted + adjusted).max(1.0);
        let mut misses = total;
        let mut points = vec![(0, 1.0)];
        for (at, part) in state.parts.iter().enumerate() {
            misses -= part + if at == 0 { adjusted } else { 0.0 };
            let bytes = (at as u64 + 1) * self.part * PAGE_SIZE as u64;
            points.push((bytes, (misses / total).clamp(0.0, 1.0)));
        }
        MissCurve {
            points,
            samples: state.samples,
        }
    }
}

impl State {
    fn new() -> State {
        State {
            blocks: HashMap::new(),
            by_time: VecDeque::new(),
            parts: vec![0.0; PARTS],
            farther: 0.0,
            mapped: 0.0,
            samples: 0,
            began: Instant::now(),
            next: Instant::now(),
            last: None,
        }
    }
}

/// Hashes a block's owner and index to `HASH_BITS` bits (the finisher of splitmix64).
fn hash(owner: u32, index: u64) -> u64 {
    let mut x = index ^ u64::from(owner) << 40;
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31) >> (64 - HASH_BITS)
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const MEMORY: u64 = 4000;

    /// Counts the blocks used after a given time: a Fenwick tree over the times of last uses.
    struct Times {
        tree: Vec<u32>,
        next: usize,
        len: u32,
    }

    impl Times {
        fn new(room: usize) -> Times {
            Times {
                tree: vec![0; room + 1],
                next: 0,
                len: 0,
            }
        }

        fn next(&mut self) -> usize {
            self.next += 1;
            self.next - 1
        }

        fn add(&mut self, time: usize) {
            self.len += 1;
            self.change(time, 1);
        }

        fn remove(&mut self, time: usize) {
            self.len -= 1;
            self.change(time, u32::MAX);
        }

        /// Adds `by`, wrapping, to the count at `time`.
        fn change(&mut self, time: usize, by: u32) {
            let mut at = time + 1;
            while at < self.tree.len() {
                self.tree[at] = self.tree[at].wrapping_add(by);
                at += at & at.wrapping_neg();
            }
        }

        /// Returns how many times are later than this one.
        fn since(&self, time: usize) -> u32 {
            let (mut up_to, mut at) = (0, time + 1);
            while at > 0 {
                up_to += self.tree[at];
                at -= at & at.wrapping_neg();
            }
            self.len - up_to
        }
    }

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Returns the share of uses that miss in an LRU cache of each of these sizes, computed from
    /// every reuse distance.
    fn simulated(trace: &[u64], sizes: &[u64]) -> Vec<f64> {
        let mut last: HashMap<u64, usize> = HashMap::new();
        let mut times = Times::new(trace.len() + 1);
        let mut misses = vec![0u64; sizes.len()];
        for block in trace {
            let now = times.next();
            let distance = match last.insert(*block, now) {
                Some(before) => {
                    let others = u64::from(times.since(before));
                    times.remove(before);
                    others
                }
                None => u64::MAX,
            };
            times.add(now);
            for (miss, size) in misses.iter_mut().zip(sizes) {
                *miss += u64::from(distance >= *size);
            }
        }
        let share = |count| count as f64 / trace.len() as f64;
        misses.into_iter().map(share).collect()
    }

    // spec: M19
    #[test]
    fn the_curve_agrees_with_a_full_simulation() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let skewed: Vec<u64> = (0..600_000)
            .map(|_| (40_000.0 * random.next().powi(3)) as u64)
            .collect();
        let round: Vec<u64> = (0..200_000).map(|n| n % 5_000).collect();
        let mixed: Vec<u64> = (0..400_000)
            .map(|n| match n % 3 {
                0 => 1_000_000 + n,
                1 => (2_000.0 * random.next()) as u64,
                _ => 10_000 + (9_000.0 * random.next().powi(2)) as u64,
            })
            .collect();
        for (name, trace) in [("skewed", skewed), ("round", round), ("mixed", mixed)] {
            let sampler = Sampler::new(PageCount(MEMORY));
            let sampled = trace
                .iter()
                .filter(|block| sampler.note((1, **block), 1, Way::Call));
            let sampled = sampled.count();
            let curve = sampler.curve_of(&sampler.state.lock(), trace.len() as u64);
            let sizes: Vec<u64> = (1..=40).map(|n| n * MEMORY / 10).collect();
            for (size, exact) in sizes.iter().zip(simulated(&trace, &sizes)) {
                // The curve of a loop is a step: near the step, any share is correct.
                if name == "round" && size.abs_diff(5_000) <= 400 {
                    continue;
                }
                let estimate = curve.at(size * PAGE_SIZE as u64);
                assert!(
                    (estimate - exact).abs() <= 0.05,
                    "{name}: {estimate} at {size} pages, {exact} by simulation, {sampled} sampled"
                );
            }
            assert!(
                curve.samples() < trace.len() as u64 / 2,
                "{name}: {sampled}"
            );
        }
    }

    #[test]
    fn a_sample_of_everything_is_exact() {
        let sampler = Sampler::new(PageCount(1));
        for block in [1, 2, 3, 1, 1, 2, 3] {
            assert!(sampler.note((1, block), 1, Way::Call));
        }
        let curve = sampler.curve_of(&sampler.state.lock(), 7);
        let at = |pages: u64| curve.at(pages * PAGE_SIZE as u64);
        // The distances are 2, 0, 2 and 2, after three first uses.
        assert_eq!(at(0), 1.0);
        assert!((at(1) - 6.0 / 7.0).abs() < 1e-9);
        assert!((at(2) - 6.0 / 7.0).abs() < 1e-9);
        assert!((at(3) - 3.0 / 7.0).abs() < 1e-9);
        assert_eq!(curve.samples(), 7);
    }

    #[test]
    fn after_a_stretch_comes_a_rest_and_the_curve_stays() {
        let sampler = Sampler::new(PageCount(100));
        let round = |rounds: u64| {
            (0..rounds * 50).for_each(|n| {
                sampler.seen.fetch_add(1, Ordering::Relaxed);
                sampler.note((1, n % 50), 1, Way::Call);
            });
        };
        round(100);
        assert!(sampler.on.load(Ordering::Relaxed), "5,000 of 6,400 uses");
        round(40);
        assert!(!sampler.on.load(Ordering::Relaxed));
        let whole = sampler.curve();
        assert!(whole.at(60 * PAGE_SIZE as u64) < 0.05);
        let now = Instant::now();
        assert!(!sampler.tick(now));
        assert!(!sampler.on.load(Ordering::Relaxed), "too early");
        assert!(sampler.tick(now + std::time::Duration::from_secs(100_000)));
        assert!(sampler.on.load(Ordering::Relaxed));
        round(1);
        assert_eq!(sampler.curve(), whole, "the last whole one");
    }
}
