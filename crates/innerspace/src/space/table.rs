//! The page table: a radix tree of 512-word nodes in the arena's frames, whose subtrees are shared by forks.
//!
//! Four levels of nine bits over pages of 4 KiB: 48 bits of address. Level 0 is the leaf ([`super::pte`]); a word of an
//! upper node is a child's frame number, shifted, or 0. The root belongs to its space; every other node is kept by its
//! hold word: `refs` counts the parents that lead to it, `mapped` the leaves that borrow from it.
//!
//! # Sharing
//!
//! Fork copies the root and takes one more ref on each child. A node with more than one ref, or below such a node, is
//! *shared*. A shared subtree changes only in ways right for every sharer (I11): a missing child or a zero or file
//! page is filled in, validity is taken away, a file page is evicted. Everything else first makes the path the space's own,
//! from the top ([`Nodes::own_path`]): a copied upper node takes one more ref on each child; a copied leaf *borrows*.
//!
//! # Borrowing
//!
//! A copied leaf names its origin, counts as one borrower there, and marks the anonymous pages it sees through it as
//! borrowed. It touches no frame's metadata: the origin keeps the frames. File pages are not copied, they fault in again
//! from the cache. An origin with borrowers is frozen: its other parents copy it too before they write. When it has lost
//! its last parent, its file pages are let go; when one borrower is left, that one absorbs it at its next write fault. A
//! chain longer than [`MAX_DEPTH`], or one whose next leaf is kept by borrowing alone, is cut by taking a ref on each frame
//! instead.
//!
//! Locking: words change by compare-exchange; copying and creating nodes by faults is serialised by the space's `paths`
//! mutex, never held over anything that sleeps. Node frames are always freed
//! after a grace period, for walkers that may still be in them.

use super::pte::{self, Holds, Pte, VALID_W};
use crate::frame::{Dropped, HoldState, Kind};
use crate::reclaim::{Pool, PoolFrame, Retired};
use crate::stats::Event;
use crate::sync::interleave;
use crate::sync::raw::{AtomicU64, Ordering};
use crate::{FrameId, PAGE_SHIFT, PageCount};
use std::ops::Range;

/// Bits of address a space can have.
pub(super) const ADDRESS_BITS: u32 = PAGE_SHIFT + 9 * LEVELS;
const LEVELS: u32 = 4;
/// The level of the root; 0 is the leaf.
pub(super) const ROOT_LEVEL: u32 = LEVELS - 1;
pub(super) const SLOTS: usize = 512;
/// Leaves in a borrowing chain before it is cut.
const MAX_DEPTH: u64 = 8;
/// Nodes that the way to one leaf can need.
pub(super) const PATH_NODES: usize = LEVELS as usize - 1;

/// The bytes that one word of a node at `level` leads to.
pub(super) const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + 9 * level)
}

/// Which word of a node at `level` leads to `at`.
pub(super) fn slot_index(at: u64, level: u32) -> usize {
    (at >> (PAGE_SHIFT + 9 * level)) as usize % SLOTS
}

fn child_word(child: FrameId) -> u64 {
    (u64::from(child.0) << 12) | 1
}

fn word_child(word: u64) -> Option<FrameId> {
    (word != 0).then_some(FrameId((word >> 12) as u32))
}

/// A leaf found on the way to an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub(super) frame: FrameId,
    /// Whether the whole path is the space's alone and nobody borrows from the leaf.
    pub(super) exclusive: bool,
}

/// More nodes are needed than were set aside.
#[derive(Debug)]
pub(super) struct NeedNodes;

/// What was taken out of a table, to be let go once nobody can be inside any more.
#[derive(Debug, Default)]
pub(super) struct Detached {
    /// Parent refs on subtrees, with their level.
    nodes: Vec<(FrameId, u32)>,
    /// Words of leaf slots.
    pages: Vec<Pte>,
}

/// The operations on nodes of one pool.
#[derive(Clone, Copy)]
pub(super) struct Nodes<'pool> {
    pub(super) pool: &'pool Pool,
}

impl<'pool> Nodes<'pool> {
    pub(super) fn words(self, node: FrameId) -> &'pool [AtomicU64; SLOTS] {
        self.pool.frames.words(node)
    }

    fn state(self, node: FrameId) -> HoldState {
        self.pool.frames.meta(node).hold.load()
    }

    fn is_shared(self, node: FrameId) -> bool {
        let state = self.state(node);
        state.refs() > 1 || state.mapped() > 0
    }

    /// The child that `word` leads to. Acquire: pairs with the release that linked it.
    fn child(self, word: &AtomicU64) -> Option<FrameId> {
        interleave();
        word_child(word.load(Ordering::Acquire))
    }

    /// Turns a frame whose words are set into a node with one parent.
    pub(super) fn publish(self, frame: PoolFrame<'_>) -> FrameId {
        self.publish_leaf(frame, None)
    }

    fn publish_leaf(self, mut frame: PoolFrame<'_>, origin: Option<(FrameId, u64)>) -> FrameId {
        frame.set_kind(Kind::Table);
        let extra = origin.map_or(0, |(origin, depth)| (u64::from(origin.0) << 8) | depth);
        frame.meta().extra.store(extra, Ordering::Relaxed);
        frame.publish(HoldState::refs_only(1))
    }

    fn origin(self, leaf: FrameId) -> Option<(FrameId, u64)> {
        let extra = self.pool.frames.meta(leaf).extra.load(Ordering::Relaxed);
        (extra != 0).then_some((FrameId((extra >> 8) as u32), extra & 0xff))
    }

    fn set_origin(self, leaf: FrameId, origin: Option<(FrameId, u64)>) {
        let extra = origin.map_or(0, |(origin, depth)| (u64::from(origin.0) << 8) | depth);
        self.pool
            .frames
            .meta(leaf)
            .extra
            .store(extra, Ordering::Relaxed);
    }

    /// Walks to the leaf of `at`. Inside the gate.
    pub(super) fn find(self, root: FrameId, at: u64) -> Option<Leaf> {
        let mut node = root;
        let mut exclusive = true;
        for level in (1..=ROOT_LEVEL).rev() {
            node = self.child(&self.words(node)[slot_index(at, level)])?;
            exclusive &= !self.is_shared(node);
        }
        Some(Leaf {
            frame: node,
            exclusive,
        })
    }

    /// The leaf of `at`, with the nodes on the way created from `spares`; shared nodes stay shared. Inside the gate.
    pub(super) fn fill_path(
        self,
        root: FrameId,
        at: u64,
        spares: &mut Vec<PoolFrame<'_>>,
    ) -> Result<FrameId, NeedNodes> {
        let mut node = root;
        for level in (1..=ROOT_LEVEL).rev() {
            let word = &self.words(node)[slot_index(at, level)];
            node = match self.child(word) {
                Some(child) => child,
                None => self.link_new(word, spares)?,
            };
        }
        Ok(node)
    }

    /// Links an empty node; sharers of the parent may race, and one wins.
    fn link_new(
        self,
        word: &AtomicU64,
        spares: &mut Vec<PoolFrame<'_>>,
    ) -> Result<FrameId, NeedNodes> {
        let mut frame = spares.pop().ok_or(NeedNodes)?;
        frame.zero();
        let new = self.publish(frame);
        // Release: publishes the node's zeros; Acquire: a loser walks into the winner's node.
        match word.compare_exchange(0, child_word(new), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(new),
            Err(winner) => {
                self.put(new, 0); // empty, so its level does not matter
                Ok(word_child(winner).expect("a word that is not empty has a child"))
            }
        }
    }

    /// The leaf of `at` on a path that is the space's alone: shared nodes on the way are copied. Inside the gate, with
    /// the space's `paths` mutex held. `replaced` gets the parent refs to drop once no accessor of the space can be in
    /// the old leaf; `moved` is called before the new leaf can be written to.
    pub(super) fn own_path(
        self,
        root: FrameId,
        at: u64,
        spares: &mut Vec<PoolFrame<'_>>,
        replaced: &mut Detached,
        moved: impl FnOnce(),
    ) -> Result<FrameId, NeedNodes> {
        let mut node = root;
        let mut leaf_moved = false;
        for level in (1..=ROOT_LEVEL).rev() {
            let word = &self.words(node)[slot_index(at, level)];
            node = match self.child(word) {
                None => self.link_new(word, spares)?,
                Some(child) if !self.is_shared(child) => child,
                Some(child) => {
                    leaf_moved |= level == 1;
                    let copy = self.copy(child, level - 1, spares.pop().ok_or(NeedNodes)?);
                    // Release: publishes the copy's words. Nobody else writes a word of a node that is ours alone
                    // and not empty: `paths` is held.
                    word.store(child_word(copy), Ordering::Release);
                    replaced.nodes.push((child, level - 1));
                    copy
                }
            };
        }
        if leaf_moved {
            moved();
        }
        Ok(node)
    }

    /// A copy of a shared node, with one parent.
    fn copy(self, old: FrameId, level: u32, frame: PoolFrame<'_>) -> FrameId {
        self.pool.counters.count(Event::TableUnshare);
        if level == 0 {
            self.copy_leaf(old, frame)
        } else {
            self.copy_upper(old, frame)
        }
    }

    fn copy_upper(self, old: FrameId, mut frame: PoolFrame<'_>) -> FrameId {
        for (word, slot) in self.words(old).iter().zip(frame.words()) {
            let child = self.child(word);
            slot.store(child.map_or(0, child_word), Ordering::Relaxed);
            if let Some(child) = child {
                // `old` holds a ref on its child, and shared nodes lose no children.
                let more = self.pool.frames.meta(child).hold.try_get();
                assert!(more, "a node has as many parents as a count can hold");
            }
        }
        self.publish(frame)
    }

    fn copy_leaf(self, old: FrameId, mut frame: PoolFrame<'_>) -> FrameId {
        let depth = self.origin(old).map_or(1, |(_, depth)| depth + 1);
        // A dead origin is kept by `old` alone, with pages that `old` may have replaced all: borrowing from `old` in turn
        // would keep a chain of such leaves alive, one more a fork.
        let flatten = depth > MAX_DEPTH || self.absorbable_origin(old).is_some();
        let mut borrows = false;
        for (index, (word, slot)) in self.words(old).iter().zip(frame.words()).enumerate() {
            let pte = pte::load(word);
            let copy = match pte.holds() {
                // What can fault in again does. A copy of a file's page or hole would be out of the reach of a revoker
                // that walked to the old leaf a moment ago.
                Holds::Nothing | Holds::File | Holds::Zero => 0,
                Holds::Own | Holds::Borrowed if flatten => {
                    self.end_writes_in_place(old, index);
                    let more = self.pool.frames.meta(self.frame_of(pte)).hold.try_get();
                    assert!(more, "a frame has as many owners as a count can hold");
                    pte.owned().0
                }
                Holds::Own | Holds::Borrowed => {
                    borrows = true;
                    pte.borrowed().0
                }
            };
            slot.store(copy, Ordering::Relaxed);
        }
        let origin = borrows.then(|| {
            let counted = self.pool.frames.meta(old).hold.try_map();
            assert!(counted, "a leaf has as many borrowers as a count can hold");
            (old, depth)
        });
        self.publish_leaf(frame, origin)
    }

    /// Takes the write validity of the leaf that owns a page of this chain: the frame is to have two owners, and a leaf that
    /// is exclusive again would write to it without asking.
    fn end_writes_in_place(self, mut leaf: FrameId, index: usize) {
        loop {
            let word = &self.words(leaf)[index];
            if pte::load(word).holds() == Holds::Own {
                pte::take_valid(word, VALID_W);
                return;
            }
            leaf = self
                .origin(leaf)
                .expect("a borrowed page has an owner up the chain")
                .0;
        }
    }

    /// The frame of a page in the arena.
    pub(super) fn frame_of(self, pte: Pte) -> FrameId {
        self.pool.frames.frame_of(pte.host() as usize)
    }

    /// Takes over the frames of a leaf's origin if nobody else has a use for it. The leaf is exclusive and `paths` held;
    /// the origin is reached by nobody else, since it has no parent and this leaf is its one borrower.
    pub(super) fn absorb_origin(self, leaf: FrameId) {
        let Some(origin) = self.absorbable_origin(leaf) else {
            return;
        };
        for (from, to) in self.words(origin).iter().zip(self.words(leaf)) {
            let theirs = pte::take(from);
            match theirs.holds() {
                Holds::Own => self.take_over(theirs, to),
                _ => self.retire_page(theirs),
            }
        }
        self.set_origin(leaf, self.origin(origin));
        self.set_origin(origin, None);
        let last = self.pool.frames.meta(origin).hold.unmap();
        assert_eq!(
            last,
            Dropped::Last,
            "I11: an origin was found by somebody while absorbed"
        );
        self.pool.retire(Retired::Frame(origin));
    }

    /// The origin that `absorb_origin` would take over. Once so, it stays so: nobody else can reach it.
    pub(super) fn absorbable_origin(self, leaf: FrameId) -> Option<FrameId> {
        let (origin, _) = self.origin(leaf)?;
        let state = self.state(origin);
        (state.refs() == 0 && state.mapped() == 1).then_some(origin)
    }

    /// Moves the origin's ownership of one page to the slot that borrows it, or lets the page go.
    fn take_over(self, theirs: Pte, to: &AtomicU64) {
        loop {
            let ours = pte::load(to);
            if ours.holds() != Holds::Borrowed || ours.host() != theirs.host() {
                return self.retire_page(theirs);
            }
            if pte::replace(to, ours, ours.owned()) {
                return;
            }
        }
    }

    /// Lets a page go after a grace period: accessors may be using it.
    pub(super) fn retire_page(self, page: Pte) {
        match page.holds() {
            Holds::Own => self.pool.retire(Retired::Put(self.frame_of(page))),
            Holds::File => self.pool.retire(Retired::Unmap(self.frame_of(page))),
            Holds::Nothing | Holds::Zero | Holds::Borrowed => {}
        }
    }

    /// Lets a page go at once: nobody can be using it.
    pub(super) fn put_page(self, page: Pte) {
        match page.holds() {
            Holds::Own => self.pool.put(self.frame_of(page)),
            Holds::File => self.pool.unmap(self.frame_of(page)),
            Holds::Nothing | Holds::Zero | Holds::Borrowed => {}
        }
    }

    /// Drops a parent's ref on a subtree; the last one frees it. No accessor that came through this parent can be in it.
    pub(super) fn put(self, node: FrameId, level: u32) {
        let hold = &self.pool.frames.meta(node).hold;
        // A leaf is counted as borrowed meanwhile: a borrower may come or go at any time, and what was the last parent has
        // to let the file pages go while the leaf is still there.
        if level == 0 && hold.try_map() {
            let _held = hold.put();
            let state = hold.load();
            if state.refs() == 0 && state.mapped() > 1 {
                self.drop_file_pages(node);
            }
            if hold.unmap() == Dropped::Last {
                self.free(node, level);
            }
        } else if hold.put() == Dropped::Last {
            self.free(node, level);
        }
    }

    /// A leaf without parents is out of the reach of revokers: it keeps no file page.
    fn drop_file_pages(self, leaf: FrameId) {
        for word in self.words(leaf) {
            if pte::load(word).holds() == Holds::File {
                self.retire_page(pte::take(word));
            }
        }
    }

    /// Frees a node that nobody holds, and what it held.
    fn free(self, node: FrameId, level: u32) {
        let words = self.words(node);
        if level > 0 {
            for word in words {
                if let Some(child) = self.child(word) {
                    self.put(child, level - 1);
                }
            }
        } else {
            for word in words {
                self.put_page(pte::take(word)); // a revoker may be in here still; one of us lets go
            }
            if let Some((origin, _)) = self.origin(node)
                && self.pool.frames.meta(origin).hold.unmap() == Dropped::Last
            {
                self.free(origin, 0);
            }
        }
        self.pool.retire(Retired::Frame(node));
    }

    /// Lets go what was detached. The gate has been closed since, so nobody is in it.
    pub(super) fn release(self, detached: Detached) {
        for (node, level) in detached.nodes {
            self.put(node, level);
        }
        for page in detached.pages {
            self.put_page(page);
        }
    }

    /// Copies the root's words into a new root and takes one more ref on each child. The gate is closed.
    pub(super) fn share_root(self, from: FrameId, to: FrameId) -> Result<(), TooManyForks> {
        for (index, word) in self.words(from).iter().enumerate() {
            let Some(child) = self.child(word) else {
                continue;
            };
            if !self.pool.frames.meta(child).hold.try_get() {
                return Err(TooManyForks);
            }
            self.words(to)[index].store(child_word(child), Ordering::Release);
        }
        Ok(())
    }
}

/// A node has as many parents as its count can hold.
#[derive(Debug)]
pub(super) struct TooManyForks;

/// What to do to the slots of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edit {
    /// Empty them; whole subtrees come off as one.
    Detach,
    /// Take all validity away on paths of the space's own.
    Forbid,
    /// Take write validity away, wherever it is.
    ForbidWrite,
    /// The same on paths of the space's own: what is made valid there from now on is not right for other sharers.
    Part,
}

impl Edit {
    fn needs_own_path(self) -> bool {
        self != Edit::ForbidWrite
    }
}

/// Changes of a range, in two phases, both with the gate closed: first the paths are made the space's own, which changes
/// nothing that anybody can see and can be started again with more nodes; then the slots are edited, which needs none.
impl Nodes<'_> {
    /// Makes the paths that `edit` needs the space's own. What it replaced is in `detached`, also when it fails.
    pub(super) fn own_range(
        self,
        root: FrameId,
        range: &Range<u64>,
        edit: Edit,
        spares: &mut Vec<PoolFrame<'_>>,
        detached: &mut Detached,
    ) -> Result<(), NeedNodes> {
        if !edit.needs_own_path() {
            return Ok(());
        }
        let mut walk = Walk {
            nodes: self,
            edit,
            detached,
        };
        walk.own(root, ROOT_LEVEL, 0, range, spares)
    }

    /// Does `edit` to every slot of the range, whose paths are the space's own if the edit needs that.
    pub(super) fn apply(
        self,
        root: FrameId,
        range: &Range<u64>,
        edit: Edit,
        detached: &mut Detached,
    ) {
        Walk {
            nodes: self,
            edit,
            detached,
        }
        .edit(root, ROOT_LEVEL, 0, range);
    }
}

struct Walk<'a, 'pool> {
    nodes: Nodes<'pool>,
    edit: Edit,
    detached: &'a mut Detached,
}

impl Walk<'_, '_> {
    /// Whether the edit takes the child that covers `from..to` off as one.
    fn takes_whole(&self, level: u32, from: u64, to: u64) -> bool {
        self.edit == Edit::Detach && to - from == span(level)
    }

    fn own(
        &mut self,
        node: FrameId,
        level: u32,
        base: u64,
        range: &Range<u64>,
        spares: &mut Vec<PoolFrame<'_>>,
    ) -> Result<(), NeedNodes> {
        for (index, from, to) in pieces(level, base, range.start, range.end) {
            let word = &self.nodes.words(node)[index];
            let Some(mut child) = self.nodes.child(word) else {
                continue;
            };
            if self.takes_whole(level, from, to) {
                continue;
            }
            if self.nodes.is_shared(child) {
                let copy = self
                    .nodes
                    .copy(child, level - 1, spares.pop().ok_or(NeedNodes)?);
                word.store(child_word(copy), Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                child = copy;
            }
            if level > 1 {
                self.own(
                    child,
                    level - 1,
                    base + index as u64 * span(level),
                    range,
                    spares,
                )?;
            }
        }
        Ok(())
    }

    fn edit(&mut self, node: FrameId, level: u32, base: u64, range: &Range<u64>) {
        for (index, from, to) in pieces(level, base, range.start, range.end) {
            let word = &self.nodes.words(node)[index];
            if level == 0 {
                self.edit_slot(word);
                continue;
            }
            let Some(child) = self.nodes.child(word) else {
                continue;
            };
            if self.takes_whole(level, from, to) {
                word.store(0, Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                continue;
            }
            self.edit(child, level - 1, base + index as u64 * span(level), range);
        }
    }

    fn edit_slot(&mut self, word: &AtomicU64) {
        match self.edit {
            Edit::Detach => self.detached.pages.push(pte::take(word)),
            Edit::Forbid => {
                pte::take_valid(word, pte::VALID_R | VALID_W);
            }
            Edit::ForbidWrite | Edit::Part => {
                pte::take_valid(word, VALID_W);
            }
        }
    }
}

/// The parts of `start..end` by the words of the node at `base`: word number, from, to.
fn pieces(level: u32, base: u64, start: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let first = (start.max(base) - base) / span(level);
    (first..SLOTS as u64).map_while(move |index| {
        let from = base + index * span(level);
        (from < end).then(|| {
            (
                index as usize,
                from.max(start),
                (from + span(level)).min(end),
            )
        })
    })
}

impl Detached {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.pages.is_empty()
    }
}

/// What the leaves of a range hold, in pages.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    /// Anonymous pages in leaves of the space's own.
    pub(super) own: PageCount,
    /// Anonymous pages in leaves shared with forks, or borrowed from such.
    pub(super) shared: PageCount,
    pub(super) file: PageCount,
    pub(super) zero: PageCount,
    pub(super) referenced: PageCount,
    pub(super) writable: PageCount,
}

impl Resident {
    /// All present slots.
    pub(super) fn total(&self) -> u64 {
        self.own.0 + self.shared.0 + self.file.0 + self.zero.0
    }
}

impl Nodes<'_> {
    /// Calls `each` for every slot of the range whose leaf exists. Inside the gate, or closed.
    pub(super) fn for_each_slot(
        self,
        root: FrameId,
        start: u64,
        end: u64,
        each: &mut impl FnMut(u64, &AtomicU64),
    ) {
        self.walk_slots(root, ROOT_LEVEL, 0, start, end, each);
    }

    fn walk_slots(
        self,
        node: FrameId,
        level: u32,
        base: u64,
        start: u64,
        end: u64,
        each: &mut impl FnMut(u64, &AtomicU64),
    ) {
        for (index, from, to) in pieces(level, base, start, end) {
            let word = &self.words(node)[index];
            if level == 0 {
                each(from, word);
            } else if let Some(child) = self.child(word) {
                self.walk_slots(
                    child,
                    level - 1,
                    base + index as u64 * span(level),
                    from,
                    to,
                    each,
                );
            }
        }
    }

    /// Counts what the range's leaves hold.
    pub(super) fn resident(self, root: FrameId, start: u64, end: u64) -> Resident {
        let mut found = Resident::default();
        // The leaf looked at last, and whether it is this space's alone.
        let mut leaf = (u64::MAX, false);
        self.for_each_slot(root, start, end, &mut |at, word| {
            let pte = pte::load(word);
            if leaf.0 != at / span(1) {
                let exclusive = self.find(root, at).is_some_and(|leaf| leaf.exclusive);
                leaf = (at / span(1), exclusive);
            }
            match pte.holds() {
                Holds::Nothing => return,
                Holds::Zero => found.zero.0 += 1,
                Holds::File => found.file.0 += 1,
                Holds::Own if leaf.1 => found.own.0 += 1,
                Holds::Own | Holds::Borrowed => found.shared.0 += 1,
            }
            found.referenced.0 += u64::from(pte.has(pte::VALID_R));
            found.writable.0 += u64::from(pte.has(VALID_W));
        });
        found
    }

    /// Nodes of the space's table, shared ones included.
    pub(super) fn count_nodes(self, root: FrameId) -> PageCount {
        PageCount(self.count_below(root, ROOT_LEVEL))
    }

    fn count_below(self, node: FrameId, level: u32) -> u64 {
        if level == 0 {
            return 1;
        }
        let children = self.words(node).iter().filter_map(|word| self.child(word));
        1 + children
            .map(|child| self.count_below(child, level - 1))
            .sum::<u64>()
    }

    /// Checks every node below `root` that can be checked from one space. At rest.
    pub(super) fn validate(self, root: FrameId) {
        self.validate_below(root, ROOT_LEVEL);
    }

    fn validate_below(self, node: FrameId, level: u32) {
        assert_eq!(
            self.pool.frames.meta(node).kind(),
            Kind::Table,
            "node {node:?}"
        );
        assert!(self.state(node).refs() >= 1, "node {node:?} has no parent");
        for word in self.words(node) {
            if level > 0 {
                if let Some(child) = self.child(word) {
                    self.validate_below(child, level - 1);
                }
                continue;
            }
            let pte = pte::load(word);
            match pte.holds() {
                Holds::Nothing => assert_eq!(pte, Pte::EMPTY),
                Holds::Zero => assert!(!pte.has(VALID_W), "I4: the zero frame is writable"),
                Holds::File => {
                    let head = self.pool.frames.head_of(self.frame_of(pte));
                    assert!(
                        self.state(head).mapped() > 0,
                        "a file page counts as unmapped"
                    );
                }
                Holds::Own => {
                    assert!(
                        self.state(self.frame_of(pte)).refs() > 0,
                        "an own page is free"
                    );
                }
                Holds::Borrowed => {
                    assert!(!pte.has(VALID_W), "a borrowed page is writable");
                    assert!(self.origin(node).is_some(), "borrowed from nobody");
                    assert!(
                        self.state(self.frame_of(pte)).refs() > 0,
                        "a borrowed page is free"
                    );
                }
            }
        }
        if let (0, Some((origin, _))) = (level, self.origin(node)) {
            assert!(
                self.state(origin).mapped() > 0,
                "an origin does not count its borrower"
            );
        }
    }
}
