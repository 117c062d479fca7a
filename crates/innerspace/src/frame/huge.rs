//! Which parts of the arena the host may back with huge pages: those without holes.
//!
//! The host backs all of a huge page when one of its frames is touched, and may make one of small
//! pages at any time. If a frame of it were a hole, the process would have memory for which nobody
//! is charged. So a part of the arena has the advice only while it has no hole. It loses the advice
//! before its first frame is given up, and gets it back when its last hole becomes a frame. Blocks
//! are placed in a window from its start to its end, so a long view is of huge pages, too.
//!
//! Where the advice changes, the host divides a mapping, and a process may have only 65,530 of them
//! (`vm.max_map_count`). So there are at most [`PARTS`] parts, which are larger than a huge page in
//! memories above 4 GiB. If the host cannot divide a mapping, no part has huge pages from then on,
//! which takes no further mapping.

use std::ops::Range;

use super::arena::Arena;
use crate::sys::memory::{HUGE_PAGE, Pages};
use crate::units::PAGE_SIZE;

/// The maximum number of parts.
const PARTS: u32 = 8192;

/// The parts of one arena. It is changed under the buddy mutex.
#[derive(Debug, Default)]
pub(super) struct HugeParts {
    /// For each part, the number of frames that are holes or about to become some.
    holes: Box<[u32]>,
    /// log2 of the number of frames in a part.
    order: u8,
    /// Whether the host refused the advice, so that no part has huge pages.
    refused: bool,
}

impl HugeParts {
    /// Makes the parts of an arena in which all frames from `end` on are holes, and gives the
    /// advice.
    pub(super) fn new(arena: &Arena, end: u32) -> HugeParts {
        let all = arena.frames();
        let order = all.div_ceil(PARTS).next_power_of_two().trailing_zeros();
        let order = order.max((HUGE_PAGE / PAGE_SIZE).trailing_zeros()) as u8;
        let mut parts = HugeParts {
            holes: vec![0; all.div_ceil(1 << order) as usize].into(),
            order,
            refused: false,
        };
        let pieces: Vec<_> = parts.pieces(end..all).collect();
        for (part, len) in pieces {
            parts.holes[part] = len;
        }
        let whole = match end == all {
            true => all,
            false => end >> order << order,
        };
        arena.advise(0..whole, Pages::Huge);
        arena.advise(whole..all, Pages::Small);
        parts
    }

    /// Returns log2 of the number of frames in a part.
    pub(super) fn order(&self) -> u8 {
        self.order
    }

    /// Returns the parts that the frames are in, and how many are in each.
    fn pieces(&self, frames: Range<u32>) -> impl Iterator<Item = (usize, u32)> + use<> {
        let order = self.order;
        let parts = match self.holes.is_empty() || frames.is_empty() {
            true => 0..0,
            false => frames.start >> order..((frames.end - 1) >> order) + 1,
        };
        parts.map(move |part| {
            let (start, end) = (part << order, (part + 1) << order);
            (part as usize, frames.end.min(end) - frames.start.max(start))
        })
    }

    /// Counts frames that are about to become holes. Their memory is given back only after this.
    pub(super) fn lose(&mut self, arena: &Arena, frames: Range<u32>) {
        for (part, len) in self.pieces(frames) {
            if self.holes[part] == 0 && !self.refused && !self.advise(arena, part, Pages::Small) {
                self.refused = true;
                arena.advise(0..arena.frames(), Pages::Small);
            }
            self.holes[part] += len;
        }
    }

    /// Counts holes that became frames. They are used only after this.
    pub(super) fn gain(&mut self, arena: &Arena, frames: Range<u32>) {
        for (part, len) in self.pieces(frames) {
            self.holes[part] -= len;
            if self.holes[part] == 0 && !self.refused {
                self.advise(arena, part, Pages::Huge);
            }
        }
    }

    fn advise(&self, arena: &Arena, part: usize, pages: Pages) -> bool {
        let start = (part as u32) << self.order;
        arena.advise(
            start..(start + (1 << self.order)).min(arena.frames()),
            pages,
        )
    }

    /// Checks the counts of holes, those behind the last frame included.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn validate(&self, holes: u32) {
        let counted: u32 = self.holes.iter().sum();
        assert!(self.holes.is_empty() || counted == holes, "{counted} holes");
    }
}
