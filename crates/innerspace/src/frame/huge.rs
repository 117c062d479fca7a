//! The parts of the arena that the host may back with huge pages: those without holes.
//!
//! The host backs all of a huge page when one of its frames is touched, and may merge small pages
//! into a huge one at any time. If a frame of the huge page were a hole, the process would have
//! memory for which no group is charged. So a part of the arena is advised to have huge pages only
//! while it has no hole. It loses the advice before its first frame is given up, and gets it back
//! when its last hole becomes a frame. Blocks are placed in a window from its start to its end, so
//! a long view consists of huge pages, too.
//!
//! Where the advice changes, the host divides a mapping, and a process may have only 65,530 of them
//! (`vm.max_map_count`). So there are at most [`PARTS`] parts, which are larger than a huge page in
//! memories above 4 GiB. If the host refuses the advice for a part that is about to get its first
//! hole, no part has huge pages from then on, and no further mapping is needed.

use std::ops::Range;

use super::arena::Arena;
use crate::sys::memory::{HUGE_PAGE, Pages};
use crate::units::PAGE_SIZE;

/// The maximum number of parts.
const PARTS: u32 = 8192;

/// The parts of one arena. They are changed under the buddy mutex. All parts but the last have the
/// same number of frames, a power of two.
#[derive(Debug, Default)]
pub(super) struct HugeParts {
    /// For each part, the number of addresses that are holes or about to become holes.
    pub(super) holes: Box<[u32]>,
    /// log2 of the number of frames in a part.
    order: u8,
    /// Whether no part has huge pages: none were asked for, or the host refused to make a part's
    /// pages small.
    only_small: bool,
}

impl HugeParts {
    /// Makes the parts of an arena in which all addresses from frame `end` on are holes, and
    /// advises the host about each.
    pub(super) fn new(arena: &Arena, end: u32, pages: Pages) -> HugeParts {
        let all = arena.frames();
        let order = all.div_ceil(PARTS).next_power_of_two().trailing_zeros();
        let order = order.max((HUGE_PAGE / PAGE_SIZE).trailing_zeros()) as u8;
        let whole = match pages {
            Pages::Small => 0,
            Pages::Huge if end == all => all,
            Pages::Huge => end >> order << order,
        };
        arena.advise(0..whole, Pages::Huge);
        arena.advise(whole..all, Pages::Small);
        let mut holes = vec![0; all.div_ceil(1 << order) as usize];
        split(&(end..all), order).for_each(|(part, behind)| holes[part] = behind.len() as u32);
        HugeParts {
            holes: holes.into(),
            order,
            only_small: pages == Pages::Small,
        }
    }

    /// Returns log2 of the number of frames in a part.
    pub(super) fn order(&self) -> u8 {
        self.order
    }

    /// Counts frames that are about to become holes. The caller gives their memory back only after
    /// this.
    pub(super) fn lose(&mut self, arena: &Arena, frames: &Range<u32>) {
        for (part, lost) in split(frames, self.order) {
            let is_first = self.holes[part] == 0;
            self.holes[part] += lost.len() as u32;
            if is_first && !self.only_small && !self.advise(arena, part, Pages::Small) {
                self.only_small = true;
                arena.advise(0..arena.frames(), Pages::Small);
            }
        }
    }

    /// Counts holes that became frames. The caller uses them only after this.
    pub(super) fn gain(&mut self, arena: &Arena, frames: &Range<u32>) {
        for (part, gained) in split(frames, self.order) {
            self.holes[part] -= gained.len() as u32;
            if self.holes[part] == 0 && !self.only_small {
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
}

/// Splits a range of frames at the boundaries of parts, which have `1 << order` frames. Returns
/// each piece with the number of its part.
fn split(frames: &Range<u32>, order: u8) -> impl Iterator<Item = (usize, Range<u32>)> + use<> {
    let frames = frames.clone();
    let pieces = (frames.start >> order..).map(move |part| {
        let start = part << order;
        let piece = frames.start.max(start)..frames.end.min(start + (1 << order));
        (part as usize, piece)
    });
    pieces.take_while(|(_, piece)| !piece.is_empty())
}
