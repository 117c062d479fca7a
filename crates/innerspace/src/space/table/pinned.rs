//! Anonymous pages that keep their address in the process: counting pins, giving out their bytes,
//! and copying them for a fork.
//!
//! A pinned page is an anonymous frame with pins counted in `mapped` of its hold word, a field that
//! is 0 for other anonymous pages. The page is owned by a leaf of one space alone; once that leaf
//! has released it, its pins alone keep it.
//!
//! Unsafe code: copies from and to pinned frames. The pins keep the frames from being freed.

use super::nodes::{Detached, Nodes, TooManyForks, child_word};
use super::pte::{self, Holds, Pte, VALID_R, VALID_W};
use crate::frame::{FlagSet, HoldState, Kind};
use crate::reclaim::{Pool, PoolFrame};
use crate::space::core::address::{LEAF_BYTES, LEVELS, ROOT_LEVEL, slot_index, span};
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::raw::{AtomicU64, Ordering};
use crate::sys::copy;
use crate::{FrameId, PAGE_SIZE};

/// One pin on each of these frames, dropped with this value.
pub(crate) struct Pins {
    pool: Arc<Pool>,
    frames: Arc<[FrameId]>,
}

impl Pins {
    /// Takes over one pin on each frame.
    pub(crate) fn adopt(pool: &Arc<Pool>, frames: Vec<FrameId>) -> Pins {
        Pins {
            pool: pool.clone(),
            frames: frames.into(),
        }
    }

    /// Returns the frames in the order of their addresses in the space.
    pub(crate) fn frames(&self) -> &Arc<[FrameId]> {
        &self.frames
    }

    /// Returns the host address of the bytes of the page with this index.
    pub(crate) fn host(&self, page: usize) -> *mut u8 {
        self.pool.frames.host(self.frames[page])
    }

    /// Copies bytes of one page, from `offset` on, to `into`. A concurrent store may be seen in
    /// part.
    pub(crate) fn copy_out(&self, page: usize, offset: usize, into: &mut [u8]) {
        assert!(offset <= PAGE_SIZE && into.len() <= PAGE_SIZE - offset);
        // SAFETY: the bytes are inside one frame of the arena, which the pool keeps mapped and the
        // pin keeps from being freed; `into` is an exclusive slice, and no part of the arena.
        unsafe { copy::copy_in(into, self.host(page).add(offset)) }
    }

    /// Copies `bytes` into one page, from `offset` on.
    pub(crate) fn copy_in(&self, page: usize, offset: usize, bytes: &[u8]) {
        assert!(offset <= PAGE_SIZE && bytes.len() <= PAGE_SIZE - offset);
        // SAFETY: as in `copy_out`. No slice of the frame exists: it has no views, because a
        // snapshot never shares a pinned page.
        unsafe { copy::copy_out(self.host(page).add(offset), bytes) }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.pool.foreign_maker().is_some() {
            return;
        }
        self.frames.iter().for_each(|frame| self.pool.unmap(*frame));
    }
}

/// The pinned pages of a space.
#[derive(Default)]
pub(crate) struct PinnedPages {
    /// The addresses and frames of the pages, in the order of the addresses.
    pub(crate) pages: Vec<(u64, FrameId)>,
    /// The number of nodes on the paths to the pages, root and leaves included.
    pub(crate) nodes: usize,
}

/// Why a range could not be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotPinned {
    /// A page is not in the state in which a store leaves it: the space's own, and valid for loads
    /// and stores.
    NotStoredTo,
    /// The page at this address has too many pins to count.
    TooMany(u64),
}

impl Nodes<'_> {
    /// Returns whether a page is pinned.
    pub(super) fn is_pinned(self, page: Pte) -> bool {
        page.holds() == Holds::Own && self.state(self.frame_of(page)).mapped() > 0
    }

    /// Pins the pages of `start..end`, all of which must be in the state in which a store leaves
    /// them. The caller is in a section and holds the gate's writer lock and `paths`: no fork or
    /// restore is under way, and no fault takes away such a page or its leaf.
    pub(crate) fn pin_range(
        self,
        pool: &Arc<Pool>,
        start: u64,
        end: u64,
    ) -> Result<Pins, NotPinned> {
        let mut frames = Vec::with_capacity(((end - start) / PAGE_SIZE as u64) as usize);
        let mut pin = |at: u64| {
            let leaf = self.find_exclusive(at);
            let leaf = leaf.ok_or(NotPinned::NotStoredTo)?;
            let page = pte::load(&self.words(leaf)[slot_index(at, 0)]);
            // A restore treats a page without write validity as unchanged, even if bytes were
            // written through the pin.
            let stored_to = page.holds() == Holds::Own && page.has(VALID_R | VALID_W);
            if !stored_to || !self.is_sole_owner(page) {
                return Err(NotPinned::NotStoredTo);
            }
            let frame = self.frame_of(page);
            if !self.pool.frames.meta(frame).hold.try_map() {
                return Err(NotPinned::TooMany(at));
            }
            frames.push(frame);
            Ok(())
        };
        let all = (start..end).step_by(PAGE_SIZE).try_for_each(&mut pin);
        let pins = Pins::adopt(pool, frames); // on an error, its drop removes the pins
        all?;
        let leaves = (start & !(LEAF_BYTES - 1)..end).step_by(LEAF_BYTES as usize);
        leaves.for_each(|at| self.mark_pinned(at));
        Ok(pins)
    }

    /// Marks the nodes on the path to the leaf of `at`, which may have pinned pages. The caller
    /// holds the gate's writer lock, and the path is exclusive to the space.
    pub(super) fn mark_pinned(self, at: u64) {
        let mark = |node| self.pool.frames.meta(node).flags.set(FlagSet::PINNED);
        let mut node = self.root;
        for level in (1..=ROOT_LEVEL).rev() {
            mark(node);
            let child = self.child(&self.words(node)[slot_index(at, level)]);
            node = child.expect("the path to a pinned page");
        }
        mark(node);
    }

    /// Returns whether pages in or below the node may be pinned. The caller holds the gate's writer
    /// lock.
    pub(super) fn is_marked(self, node: FrameId) -> bool {
        let flags = self.pool.frames.meta(node).flags.load();
        flags.contains(FlagSet::PINNED)
    }

    /// Returns all pinned pages, and unmarks the marked nodes that lead to none. The caller is in a
    /// section and holds the gate's writer lock.
    pub(crate) fn pinned(self) -> PinnedPages {
        let mut found = PinnedPages::default();
        self.find_pinned(self.root, ROOT_LEVEL, 0, &mut found);
        found
    }

    fn find_pinned(self, node: FrameId, level: u32, start: u64, found: &mut PinnedPages) {
        if !self.is_marked(node) {
            return;
        }
        let before = found.pages.len();
        for (slot, word) in (0..).zip(self.words(node)) {
            let at = start + slot * span(level);
            if level > 0 {
                let child = self.child(word).into_iter();
                child.for_each(|child| self.find_pinned(child, level - 1, at, found));
                continue;
            }
            let page = pte::load(word);
            if self.is_pinned(page) {
                found.pages.push((at, self.frame_of(page)));
            }
        }
        match found.pages.len() > before {
            true => found.nodes += 1,
            false => self.pool.frames.meta(node).flags.clear(FlagSet::PINNED),
        }
    }

    /// Gives the fork below `root` its own copies of the marked nodes, which lead to pinned pages.
    /// Pinned pages are copied to frames from `pages`; the other anonymous pages are shared by a
    /// ref on each. So the pinned leaves, and the paths to them, stay exclusive to the parent. The
    /// parent's gate is closed, and no other thread can reach the fork.
    pub(crate) fn copy_pinned(
        self,
        root: FrameId,
        nodes: &mut Vec<PoolFrame<'_>>,
        pages: &mut Vec<PoolFrame<'_>>,
    ) -> Result<(), TooManyForks> {
        let section = self.pool.domain.reader();
        let mut replaced = Detached::default();
        let mut own = |word: &AtomicU64, node, level, _| {
            if !self.is_marked(node) {
                return Ok(None);
            }
            let frame = nodes.pop().expect("as many as were counted");
            let copy = match level {
                0 => {
                    self.pool.counters.count(Event::TableUnshare);
                    self.copy_flat(node, frame, pages)?
                }
                _ => self.copy(node, level, frame),
            };
            word.store(child_word(copy), Ordering::Release);
            replaced.nodes.push((node, level));
            Ok(Some(copy))
        };
        let copied = Nodes { root, ..self }.walk(&(0..span(LEVELS)), &mut own);
        drop(section);
        self.release(replaced);
        copied
    }

    /// Copies a pinned page, and returns the word by which the fork's leaf owns the copy.
    pub(super) fn copy_of(self, page: Pte, pages: &mut Vec<PoolFrame<'_>>) -> Pte {
        self.pool.counters.count(Event::Cow);
        let mut copy = pages.pop().expect("as many as were counted");
        copy.copy_from(self.frame_of(page));
        copy.set_kind(Kind::Anonymous);
        let host = self.pool.frames.host(copy.id()) as u64;
        copy.publish(HoldState::refs_only(1));
        page.copied_to(host)
    }

    /// Empties the root of a fork that failed, and gives back its refs on its children. No other
    /// thread can reach the root.
    pub(crate) fn clear_root(self, root: FrameId) {
        for word in self.words(root) {
            if let Some(child) = self.child(word) {
                word.store(0, Ordering::Relaxed);
                self.put(child, ROOT_LEVEL - 1);
            }
        }
    }
}
