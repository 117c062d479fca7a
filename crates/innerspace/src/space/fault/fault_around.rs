//! Fault-around: a load or fetch also maps the holes, or the cached pages, of the 64 KiB around its
//! page.
//!
//! Neighbours are the pages that the mapping has in the same leaf, where the gate is open and
//! nothing is mapped yet. They are installed in the section of the fault, so a writer that closes
//! the gate, or a revoker, finds them as it finds the page itself.
//!
//! - A hole is installed as the zero frame with the validity that the access sets, because use of
//!   the zero frame is not tracked.
//! - A cached page is installed PRESENT, with no validity: VALID_R is the accessed bit, and the
//!   page was not accessed. The first load makes it valid by a step that needs no block. If reclaim
//!   comes before that load, it finds the page unused.
//!
//! A cached neighbour is mapped under its block's lock, as the page itself is, but only if the lock
//! is free and no thread waits for the block (`cache::map::fault_around`). Fault-around waits for
//! nothing, reads and allocates nothing, and takes no mutex.

use std::ops::Range;

use super::driver::{FaultState, FilePage, Step};
use super::zero;
use crate::cache::{FaultAround, Reading};
use crate::space::table;
use crate::space::table::pte::{self, Holds, Pte};
use crate::space::vma::area::Vma;
use crate::stats::Event;
use crate::{FrameId, PAGE_SIZE};

/// The size of the window around a page: a power of two, at most the size of a leaf's range.
const AROUND: u64 = 16 * PAGE_SIZE as u64;

// A fault can lock the blocks of all its neighbours, even if each is in a different block.
const _: () = assert!(AROUND / PAGE_SIZE as u64 <= FaultAround::MOST as u64);

impl FaultState<'_> {
    /// Returns the pages of the file that an access to `page` may map with it: those in the window
    /// around it that the mapping has in this leaf, where the gate is open. For a store, and if the
    /// file is read in random order, that is `page` alone.
    pub(crate) fn pages_around(&self, vma: &Vma, page: u64) -> Range<u64> {
        if self.what.access.writes() || vma.reading == Reading::Random {
            return page..page + 1;
        }
        let window = self.at.0 & !(AROUND - 1);
        let start = window.max(vma.start).max(self.around.start);
        let end = (window + AROUND).min(vma.end).min(self.around.end);
        vma.file_page(start)..vma.file_page(end)
    }

    /// Maps the zero frame over the page, and over the holes around it where nothing is mapped yet.
    pub(crate) fn map_holes(
        &mut self,
        vma: &Vma,
        leaf: FrameId,
        old: Pte,
        page: u64,
        holes: Range<u64>,
    ) -> Step {
        let words = self.nodes().words(leaf);
        let slot = table::slot_index(self.at.0, 0);
        if !zero::map(self.space, &words[slot], old, self.validity()) {
            return Step::Again;
        }
        let zero = zero::word(self.space, self.validity());
        // The gate may have closed on some of the holes since the store named them.
        let near = self.pages_around(vma, page);
        for other in holes.start.max(near.start)..holes.end.min(near.end) {
            let place = (slot as u64 + other).wrapping_sub(page) as usize;
            if other != page {
                let _mapped_already = pte::replace(&words[place], Pte::EMPTY, zero);
            }
        }
        Step::Done
    }

    /// Maps the cached pages around the page that was just mapped, whose block is locked.
    pub(crate) fn map_around(&mut self, vma: &Vma, leaf: FrameId) {
        let FilePage::Block(block, page, _) = &self.file else {
            unreachable!("a page of it was mapped just now")
        };
        let (page, file) = (*page, &*block.core);
        let near = self.pages_around(vma, page);
        let words = self.nodes().words(leaf);
        let slot = table::slot_index(self.at.0, 0) as u64;
        let word = |other: u64| &words[(slot + other).wrapping_sub(page) as usize];
        let frames = &self.space.pool.frames;
        let mut mapped = 0;
        for number in file.blocks_of_pages(&near) {
            let pages = file.pages_in(number);
            let pages = pages.start.max(near.start)..pages.end.min(near.end);
            let is_free = |other: &u64| pte::load(word(*other)).holds() == Holds::Nothing;
            let Some(first) = pages.clone().find(is_free) else {
                continue;
            };
            // A block taken for fault-around comes with one mapped page counted already.
            let (head, mut counted) = match number == block.block {
                true => (block.frame, false),
                false => match self.fault_around.take(file, number) {
                    Some(head) => (head, true),
                    None => continue,
                },
            };
            let hold = &frames.meta(head).hold;
            for other in first..pages.end.min(file.end_page()) {
                if !is_free(&other) {
                    continue;
                }
                if !counted && !hold.try_map() {
                    break;
                }
                let frame = FrameId(head.0 + (other - file.pages_in(number).start) as u32);
                let new = Pte::file(frames.host(frame) as u64, 0);
                counted = !pte::replace(word(other), Pte::EMPTY, new);
                mapped += u64::from(!counted);
            }
            if counted {
                let _held = hold.unmap(); // not the last hold: the index holds the locked block
            }
        }
        self.space.pool.counters.add(Event::PgMapAround, mapped);
    }
}
