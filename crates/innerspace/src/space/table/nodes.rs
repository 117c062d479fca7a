//! The nodes of a table.

use std::ops::Range;

use crate::FrameId;
use crate::frame::{Dropped, FlagSet, HoldState, Kind};
use crate::group::GroupId;
use crate::reclaim::{Freeing, Pool, PoolFrame, Retired};
use crate::space::core::address::{LEVELS, ROOT_LEVEL, SLOTS, slot_index, span};
use crate::space::table::pte::{self, Holds, Pte};
use crate::sync::raw::{AtomicU64, Ordering};
use crate::sync::{failpoint, interleave};

/// The greatest number of shadows that a leaf may borrow through, one for each fork. A copy that
/// would need more takes a ref on each page instead. [`shadow_word`] has 8 bits for the number.
pub(crate) const MAX_BORROW_DEPTH: u64 = 8;
/// The greatest number of new nodes that the path to one leaf can need.
pub(crate) const PATH_NODES: usize = LEVELS as usize - 1;

pub(crate) fn child_word(child: FrameId) -> u64 {
    (u64::from(child.0) << 12) | 1
}

pub(super) fn word_child(word: u64) -> Option<FrameId> {
    (word != 0).then_some(FrameId((word >> 12) as u32))
}

/// Packs a leaf's shadow, and the number of leaves that the leaf borrows through, into one word; 0
/// without a shadow.
pub(super) fn shadow_word(shadow: Option<(FrameId, u64)>) -> u64 {
    shadow.map_or(0, |(shadow, depth)| (u64::from(shadow.0) << 8) | depth)
}

/// A leaf, found by a walk to an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(crate) frame: FrameId,
    /// Whether the whole path is exclusive to the space, no leaf borrows from this one, and every
    /// accessor that may have cached an earlier leaf of these addresses has been told to forget it.
    pub(crate) exclusive: bool,
}

/// The error if more nodes are needed than [`Spares`] can provide.
#[derive(Debug)]
pub(crate) struct NeedNodes;

/// The source of frames for new nodes.
#[derive(Debug, Default)]
pub(crate) struct Spares<'pool> {
    /// Frames set aside with the gate open, outside every section.
    pub(crate) aside: Vec<PoolFrame<'pool>>,
    /// The pool and group from which a frame is taken if none is set aside, provided that this
    /// needs no waiting; `None` while a gate is closed.
    pub(crate) at_once: Option<(&'pool Pool, GroupId)>,
}

impl<'pool> Spares<'pool> {
    pub(super) fn take(&mut self) -> Result<PoolFrame<'pool>, NeedNodes> {
        let aside = self.aside.pop();
        aside
            .or_else(|| self.at_once.and_then(|(pool, group)| pool.try_alloc(group)))
            .ok_or(NeedNodes)
    }
}

/// Nodes and pages removed from a table, to be released once no thread can be using them.
#[derive(Debug, Default)]
pub(crate) struct Detached {
    /// One parent's ref on each of these subtrees, with the level of the subtree's topmost node.
    pub(super) nodes: Vec<(FrameId, u32)>,
    /// Words that were removed from leaf slots.
    pub(crate) pages: Vec<Pte>,
    /// Shadows that a leaf has stopped borrowing from.
    pub(crate) shadows: Vec<FrameId>,
}

/// Operations on the nodes of a table.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'pool> {
    pub(crate) pool: &'pool Pool,
    /// The space whose sessions may be using the retired pages and nodes.
    pub(crate) owner: u64,
    /// The root of the space's table.
    pub(crate) root: FrameId,
}

impl<'pool> Nodes<'pool> {
    pub(crate) fn words(self, node: FrameId) -> &'pool [AtomicU64; SLOTS] {
        #[cfg(all(test, not(shuttle)))]
        visited::count();
        self.pool.frames.words(node)
    }

    pub(super) fn state(self, node: FrameId) -> HoldState {
        self.pool.frames.meta(node).hold.load()
    }

    pub(super) fn is_shared(self, node: FrameId) -> bool {
        self.is_zero_leaf(node) || self.is_held_twice(node)
    }

    /// Returns whether the node has a second parent, or a borrower.
    pub(super) fn is_held_twice(self, node: FrameId) -> bool {
        let state = self.state(node);
        state.refs() > 1 || state.mapped() > 0
    }

    /// Returns whether an accessor may have the leaf coalesced (`tlb::coalesced`). The caller of
    /// this and the next two functions holds the gate's writer lock.
    pub(crate) fn is_coalesced(self, leaf: FrameId) -> bool {
        let flags = self.pool.frames.meta(leaf).flags.load();
        flags.contains(FlagSet::COALESCED)
    }

    /// Notes that an accessor is going to coalesce the leaf.
    pub(crate) fn mark_coalesced(self, leaf: FrameId) {
        self.pool.frames.meta(leaf).flags.set(FlagSet::COALESCED);
    }

    /// Notes that all accessors that may have the leaf coalesced have been told to forget it.
    /// Returns whether the leaf was marked.
    pub(crate) fn unmark_coalesced(self, leaf: FrameId) -> bool {
        let marked = self.is_coalesced(leaf);
        if marked {
            self.pool.frames.meta(leaf).flags.clear(FlagSet::COALESCED);
        }
        marked
    }

    /// Returns whether a child is shared, so that it must be copied before a change. The child is
    /// not the leaf of zeros, its parent is exclusive to the space, and the caller holds `paths`.
    ///
    /// The other sharers of a shared child may go at any time. So `replaced` gets a ref on the
    /// child, which then stays shared until `replaced` is released. Otherwise a thread that found
    /// the child exclusive would change its words without a lock, and a change made after the copy
    /// would be lost. The ref is taken before the count is read. So while this call holds the ref,
    /// no other thread finds the child unshared. If one found it unshared before, so does this
    /// call.
    pub(crate) fn keep_if_shared(
        self,
        child: FrameId,
        level: u32,
        replaced: &mut Detached,
    ) -> bool {
        let hold = &self.pool.frames.meta(child).hold;
        if !hold.try_get() {
            return true; // the count is full, and so many sharers cannot all go meanwhile
        }
        let state = hold.load();
        if state.refs() > 2 || state.mapped() > 0 {
            replaced.nodes.push((child, level));
            return true;
        }
        let dropped = hold.put();
        assert_ne!(dropped, Dropped::Last, "I11: a child without a parent");
        false
    }

    /// Returns the child that `word` leads to. Acquire: pairs with the release that linked it.
    pub(super) fn child(self, word: &AtomicU64) -> Option<FrameId> {
        interleave();
        word_child(word.load(Ordering::Acquire))
    }

    /// Turns a frame whose words are set into a node with one parent.
    pub(crate) fn publish(self, frame: PoolFrame<'_>) -> FrameId {
        self.publish_leaf(frame, None)
    }

    pub(super) fn publish_leaf(
        self,
        mut frame: PoolFrame<'_>,
        shadow: Option<(FrameId, u64)>,
    ) -> FrameId {
        frame.set_kind(Kind::Table);
        let extra = shadow_word(shadow);
        frame.meta().extra.store(extra, Ordering::Relaxed);
        frame.publish(HoldState::refs_only(1))
    }

    /// Calls `visit` for each node below the root that covers a part of `range`: with the word that
    /// leads to the node, the node, its level, and the part. The walk continues in the node that
    /// `visit` returns, if any, and ends with the first error.
    pub(super) fn walk<E>(
        self,
        range: &Range<u64>,
        visit: &mut impl FnMut(&AtomicU64, FrameId, u32, Range<u64>) -> Result<Option<FrameId>, E>,
    ) -> Result<(), E> {
        debug_assert!(range.end <= span(LEVELS), "a range of addresses");
        self.walk_below(self.root, ROOT_LEVEL, range, visit)
    }

    fn walk_below<E>(
        self,
        node: FrameId,
        level: u32,
        range: &Range<u64>,
        visit: &mut impl FnMut(&AtomicU64, FrameId, u32, Range<u64>) -> Result<Option<FrameId>, E>,
    ) -> Result<(), E> {
        let mut from = range.start;
        while from < range.end {
            let part = from..range.end.min((from | (span(level) - 1)) + 1);
            from = part.end;
            let word = &self.words(node)[slot_index(part.start, level)];
            if let Some(child) = self.child(word)
                && let Some(next) = visit(word, child, level - 1, part.clone())?
                && level > 1
            {
                self.walk_below(next, level - 1, &part, visit)?;
            }
        }
        Ok(())
    }

    /// Returns the leaf of `at`, if there is one. The caller is inside the gate.
    pub(crate) fn find(self, at: u64) -> Option<Leaf> {
        let mut node = self.root;
        let mut exclusive = true;
        for level in (1..=ROOT_LEVEL).rev() {
            node = self.child(&self.words(node)[slot_index(at, level)])?;
            failpoint!(Walk if level == ROOT_LEVEL);
            exclusive &= !self.is_held_twice(node);
        }
        // The root is checked last: a walk that has reached a new node finds the root counted twice
        // until all accessors have been told (`Nodes::replaces`).
        exclusive &= !self.is_held_twice(self.root);
        Some(Leaf {
            frame: node,
            exclusive: exclusive && !self.is_zero_leaf(node),
        })
    }

    /// Returns the leaf of `at`, if it is exclusive to the space. The caller is inside the gate.
    pub(crate) fn find_exclusive(self, at: u64) -> Option<FrameId> {
        let leaf = self.find(at).filter(|leaf| leaf.exclusive);
        leaf.map(|leaf| leaf.frame)
    }

    /// Returns the node at `level` on the way to `at`, and creates missing nodes from `spares`.
    /// Shared nodes stay shared. The caller is inside the gate.
    pub(crate) fn fill_path(
        self,
        at: u64,
        level: u32,
        spares: &mut Spares<'_>,
    ) -> Result<FrameId, NeedNodes> {
        let mut node = self.root;
        for level in (level + 1..=ROOT_LEVEL).rev() {
            let word = &self.words(node)[slot_index(at, level)];
            node = match self.child(word) {
                Some(child) => child,
                None => self.link_new(word, spares)?,
            };
            failpoint!(Filling if level == ROOT_LEVEL);
        }
        Ok(node)
    }

    /// Links an empty node, unless another sharer of the parent links one first. Returns the node
    /// that is linked.
    fn link_new(self, word: &AtomicU64, spares: &mut Spares<'_>) -> Result<FrameId, NeedNodes> {
        let mut frame = spares.take()?;
        frame.zero();
        let new = self.publish(frame);
        // Release: publishes the node's zeros to walkers in `child`. Acquire: a loser walks into
        // the winner's node.
        match word.compare_exchange(0, child_word(new), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(new),
            Err(winner) => {
                self.put(new, 0); // empty, so its level does not matter
                Ok(word_child(winner).expect("a word that is not empty has a child"))
            }
        }
    }

    /// Returns the frame of a page of the arena.
    pub(crate) fn frame_of(self, pte: Pte) -> FrameId {
        self.pool.frames.frame_of(pte.host() as usize)
    }

    pub(super) fn retire(self, entry: Retired) {
        self.pool.retire_of(self.owner, entry);
    }

    /// Releases a page after a grace period, because accessors may be using it.
    pub(crate) fn retire_page(self, page: Pte) {
        match page.holds() {
            Holds::Own => self.retire(Retired::Put(self.frame_of(page))),
            Holds::File => self.retire(Retired::Unmap(self.frame_of(page))),
            Holds::Nothing | Holds::Zero | Holds::Direct | Holds::Borrowed => {}
        }
    }

    /// Releases pages without waiting. No accessor may still be using them.
    pub(crate) fn put_pages(self, pages: impl Iterator<Item = Pte>) {
        let mut freeing = Freeing::new(self.pool);
        for page in pages {
            if page.is_own() {
                freeing.put(self.frame_of(page));
            } else if page.is_of_file() {
                self.pool.unmap(self.frame_of(page));
            }
        }
    }

    /// Drops a parent's ref on a subtree. If it was the last, frees all of the subtree that nothing
    /// else leads to or borrows from. No accessor that came through this parent may still be in the
    /// subtree.
    pub(crate) fn put(self, node: FrameId, level: u32) {
        if self.is_zero_leaf(node) {
            return; // the parents of the leaf of zeros are not counted
        }
        let hold = &self.pool.frames.meta(node).hold;
        // During this call the thread counts as a borrower of the leaf. Real borrowers may come and
        // go at any time, and the last parent has to release the file pages while the leaf still
        // exists.
        if level == 0 && hold.try_map() {
            let _held = hold.put();
            let state = hold.load();
            if state.refs() == 0 && state.mapped() > 1 {
                self.prune(node);
            }
            if hold.unmap() == Dropped::Last {
                self.free(node, level);
            }
        } else if hold.put() == Dropped::Last {
            self.free(node, level);
        }
    }

    /// Frees a node that has no parent and no borrower, and releases all that it keeps.
    pub(super) fn free(self, node: FrameId, level: u32) {
        let words = self.words(node);
        if level > 0 {
            for word in words {
                if let Some(child) = self.child(word) {
                    self.put(child, level - 1);
                }
            }
        } else {
            // Most words of a leaf keep no page when the leaf is freed. So words are tested eight
            // at a time, one cache line.
            let (lines, _) = words.as_chunks::<8>();
            let holding = lines.iter().filter(|line| {
                let all = line.iter().fold(0, |all, word| all | pte::load(word).0);
                Pte(all).needs_letting_go()
            });
            self.put_pages(holding.flatten().map(|word| {
                let page = pte::load(word);
                match page.is_of_file() {
                    // A revoker may still be in this leaf. The swap decides which of the two
                    // releases the page.
                    true => pte::take(word),
                    false => page,
                }
            }));
            if let Some(shadow) = self.part(node) {
                self.put_shadow(shadow);
            }
        }
        self.retire(Retired::Frame(node));
    }

    /// Releases detached nodes and pages. No thread may still be using them: usually a grace period
    /// has passed since they were detached, or the gate was closed when they were.
    pub(crate) fn release(self, detached: Detached) {
        for (node, level) in detached.nodes {
            self.put(node, level);
        }
        self.put_pages(detached.pages.into_iter());
        for shadow in detached.shadows {
            self.put_shadow(shadow);
        }
    }

    /// Copies the root's words into a new root and takes one more ref on each child. If a child has
    /// too many parents to count, fails, and the new root keeps the children before it. The gate is
    /// closed, or the space is frozen.
    pub(crate) fn share_root(self, to: FrameId) -> Result<(), TooManyForks> {
        let to = self.words(to);
        for (words, copies) in self.words(self.root).chunks(8).zip(to.chunks(8)) {
            // Most of a root is empty, so words are tested eight at a time. Only a snapshot's root
            // may change meanwhile: it may gain a child, which the fork does not need.
            if words.iter().all(|word| word.load(Ordering::Relaxed) == 0) {
                continue;
            }
            for (word, copy) in words.iter().zip(copies) {
                let Some(child) = self.child(word) else {
                    continue;
                };
                if !self.pool.frames.meta(child).hold.try_get() {
                    return Err(TooManyForks);
                }
                copy.store(child_word(child), Ordering::Release);
            }
        }
        Ok(())
    }
}

/// The error if a node already has as many parents, or a page as many owners, as a count can hold.
#[derive(Debug)]
pub(crate) struct TooManyForks;

impl Detached {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.pages.is_empty() && self.shadows.is_empty()
    }

    /// Returns the number of detached subtrees.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// Counts the nodes that this thread has looked into.
#[cfg(all(test, not(shuttle)))]
pub(crate) mod visited {
    use std::cell::Cell;

    thread_local! {
        static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count() {
        VISITED.set(VISITED.get() + 1);
    }

    /// Returns the count so far.
    pub(crate) fn so_far() -> u64 {
        VISITED.get()
    }
}
