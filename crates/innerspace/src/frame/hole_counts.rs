//! The number of holes (frames without memory, see [`super::window`]) in each part of the arena.
//! All parts but the last have the same number of frames, a power of two.

use std::ops::Range;

/// The number of holes in each part. The default value has no parts, and counts nothing.
#[derive(Debug, Default)]
pub(super) struct HoleCounts {
    pub(super) counts: Box<[u32]>,
    /// log2 of the number of frames in a part.
    order: u8,
    /// The number of frames in all parts together.
    all: u32,
}

impl HoleCounts {
    /// Makes the counts for `all` frames, of which those from `end` on are holes.
    pub(super) fn new(all: u32, end: u32, order: u8) -> HoleCounts {
        let mut counts = HoleCounts {
            counts: vec![0; all.div_ceil(1 << order) as usize].into(),
            order,
            all,
        };
        counts.lose(end..all, |_, _| ());
        counts
    }

    /// Returns log2 of the number of frames in a part.
    pub(super) fn order(&self) -> u8 {
        self.order
    }

    /// Returns the numbers of the parts that contain some of these frames.
    fn parts(&self, frames: &Range<u32>) -> Range<u32> {
        match self.counts.is_empty() || frames.is_empty() {
            true => 0..0,
            false => frames.start >> self.order..((frames.end - 1) >> self.order) + 1,
        }
    }

    /// Returns the frames of a part.
    fn part(&self, part: u32) -> Range<u32> {
        let start = part << self.order;
        start..(start + (1 << self.order)).min(self.all)
    }

    /// Counts frames that become holes. Calls `each` with each part that has some of them, and the
    /// number of its holes before.
    pub(super) fn lose(&mut self, frames: Range<u32>, mut each: impl FnMut(Range<u32>, u32)) {
        for number in self.parts(&frames) {
            let part = self.part(number);
            let lost = frames.end.min(part.end) - frames.start.max(part.start);
            each(part, self.counts[number as usize]);
            self.counts[number as usize] += lost;
        }
    }

    /// Counts holes that became frames. Calls `each` with each part that has some of them, and the
    /// number of its holes that are left.
    pub(super) fn gain(&mut self, frames: Range<u32>, mut each: impl FnMut(Range<u32>, u32)) {
        for number in self.parts(&frames) {
            let part = self.part(number);
            self.counts[number as usize] -= frames.end.min(part.end) - frames.start.max(part.start);
            each(part, self.counts[number as usize]);
        }
    }

    /// Calls `each` with each part that contains some of `frames` and consists only of holes.
    pub(super) fn all_holes(&self, frames: &Range<u32>, mut each: impl FnMut(Range<u32>)) {
        let is_empty = |number: &u32| {
            let part = self.part(*number);
            self.counts[*number as usize] == part.end - part.start
        };
        for number in self.parts(frames).filter(is_empty) {
            each(self.part(number));
        }
    }
}
