//! Copies shared nodes, and finds out which leaf owns each page that a copied leaf borrows. The
//! parent module explains sharing and borrowing.

use super::nodes::{MAX_BORROW_DEPTH, Nodes, TooManyForks, child_word};
use super::pte::{self, Holds, Pte};
use super::shadow::Borrower;
use crate::FrameId;
use crate::reclaim::PoolFrame;
use crate::space::core::address::SLOTS;
use crate::stats::Event;
use crate::sync::atomic::fence;
use crate::sync::failpoint;
use crate::sync::raw::Ordering;

impl Nodes<'_> {
    /// Copies a shared node. The copy has one parent.
    pub(crate) fn copy(self, old: FrameId, level: u32, frame: PoolFrame<'_>) -> FrameId {
        self.pool.counters.count(Event::TableUnshare);
        if level == 0 {
            self.copy_leaf(old, frame)
        } else {
            self.copy_upper(old, frame)
        }
    }

    fn copy_upper(self, old: FrameId, mut frame: PoolFrame<'_>) -> FrameId {
        for (word, slot) in self.words(old).iter().zip(frame.words()) {
            // The leaf of zeros is left out and faults in again, like a page of a file in
            // `copy_borrowing`.
            let child = self.child(word).filter(|child| !self.is_zero_leaf(*child));
            slot.store(child.map_or(0, child_word), Ordering::Relaxed);
            if let Some(child) = child {
                // `old` holds a ref on its child, and shared nodes lose no children, so the child
                // is alive.
                let more = self.pool.frames.meta(child).hold.try_get();
                assert!(more, "a node has as many parents as a count can hold");
            }
        }
        self.publish(frame)
    }

    fn copy_leaf(self, old: FrameId, frame: PoolFrame<'_>) -> FrameId {
        // A shadow that only `old` uses is collapsed first. Otherwise the chain of shadows would
        // become longer with each fork. Borrowing would keep all of them alive, and cutting the
        // chain takes a ref on each page, which touches the metadata of all frames.
        let _section = self.pool.domain.reader();
        while self.collapse_shadow(old, Borrower::Shared) {}
        let depth = self.shadow(old).map_or(1, |(_, depth)| depth + 1);
        match depth > MAX_BORROW_DEPTH {
            true => {
                let copied = self.copy_flat(old, frame, &mut Vec::new());
                copied.expect("a frame has as many owners as a count can hold")
            }
            false => self.copy_borrowing(old, depth, frame),
        }
    }

    /// Copies a leaf; the copy borrows the anonymous pages. Other pages are left out and fault in
    /// again: a revoker that walked to the old leaf a moment ago would miss the copied word of a
    /// file's page or hole.
    fn copy_borrowing(self, old: FrameId, depth: u64, mut frame: PoolFrame<'_>) -> FrameId {
        let mut borrows = 0;
        frame.copy_from(old);
        // Acquire: pairs with the releases that installed the pages, as in `pte::load`. `copy_from`
        // loads the words one by one, without it.
        fence(Ordering::Acquire);
        failpoint!(LeafCopied);
        frame.change_words(|word| {
            let copy = Pte(word).borrowed_or_empty().0;
            borrows |= copy;
            copy
        });
        let shadow = (borrows != 0).then(|| {
            self.add_borrower(old, frame.id());
            (old, depth)
        });
        self.publish_leaf(frame, shadow)
    }

    /// Copies a leaf; the copy takes a ref on each anonymous page, and so borrows nothing. Pinned
    /// pages are copied to frames from `pages`.
    pub(super) fn copy_flat(
        self,
        old: FrameId,
        mut frame: PoolFrame<'_>,
        pages: &mut Vec<PoolFrame<'_>>,
    ) -> Result<FrameId, TooManyForks> {
        let mut copies = [Pte::EMPTY; SLOTS];
        for (index, word) in self.words(old).iter().enumerate() {
            let page = pte::load(word);
            let copy = match page.holds() {
                // Pages of files and zeros are left out, as in `copy_borrowing`.
                Holds::Nothing | Holds::File | Holds::Direct | Holds::Zero => continue,
                Holds::Own if self.is_pinned(page) => Some(self.copy_of(page, pages)),
                Holds::Own | Holds::Borrowed => self.second_owner(old, index, page),
            };
            let Some(copy) = copy else {
                self.put_pages(copies.into_iter());
                return Err(TooManyForks);
            };
            copies[index] = copy;
        }
        for (slot, page) in frame.words().iter().zip(copies) {
            slot.store(page.0, Ordering::Relaxed);
        }
        Ok(self.publish(frame))
    }

    /// Takes a ref, for another leaf, on the page in a slot of this leaf, and returns the word by
    /// which the other leaf owns the page. Returns `None` if the page has too many owners to count.
    /// The caller is in a section.
    pub(super) fn second_owner(self, leaf: FrameId, index: usize, page: Pte) -> Option<Pte> {
        self.end_writes_in_place(leaf, index);
        let hold = &self.pool.frames.meta(self.frame_of(page)).hold;
        hold.try_get().then(|| page.owned())
    }

    /// Takes write validity away from a page that is about to get a second owner or a view: from
    /// the word of the leaf that owns the page, which is `leaf` or a shadow in its chain. Otherwise
    /// a leaf that became exclusive again would store to the page without a fault.
    ///
    /// The caller's table keeps the first leaf, and that leaf keeps the others; so no other thread
    /// finds a leaf of this chain exclusive (see `pte` on copies). The caller is in a section,
    /// because a leaf of the chain may collapse the next one. If a walk finds no owner, the leaf in
    /// which it began has meanwhile become the owner, without write validity.
    pub(crate) fn end_writes_in_place(self, mut leaf: FrameId, index: usize) {
        loop {
            let word = &self.words(leaf)[index];
            if pte::load(word).holds() == Holds::Own {
                pte::take_write_validity(word);
                return;
            }
            match self.shadow(leaf) {
                Some((shadow, _)) => leaf = shadow,
                None => return,
            }
            failpoint!(Climbing if self.state(leaf).refs() == 0);
        }
    }

    /// Installs in a slot of the leaf `ours` the page that the leaf `theirs` has in the same slot.
    /// Returns the page that `ours` had there, or `None`, with nothing changed, if the new page has
    /// too many owners to count. The gate is closed, and `ours` is exclusive to the space.
    pub(crate) fn share_page(self, ours: FrameId, theirs: FrameId, slot: usize) -> Option<Pte> {
        let page = pte::load(&self.words(theirs)[slot]);
        let shared = match self.shadow(ours) {
            // The page is borrowed again, as it was when `ours` was copied, so the frame's metadata
            // need not be touched.
            Some((shadow, _)) if shadow == theirs => page.borrowed(),
            _ => {
                let _section = self.pool.domain.reader();
                self.second_owner(theirs, slot, page)?
            }
        };
        let word = &self.words(ours)[slot];
        let before = pte::take(word);
        self.borrows_from(ours, slot);
        let replaced = pte::replace(word, Pte::EMPTY, shared);
        assert!(
            replaced,
            "I11: a leaf of the space's own changed with the gate closed"
        );
        Some(before)
    }
}
