//! Copying shared nodes, and the pages that a copied leaf borrows: see the module above.

use super::nodes::{MAX_DEPTH, Nodes, child_word};
use super::pte::{self, Holds, Pte, VALID_W};
use super::shadow::Borrower;
use crate::FrameId;
use crate::reclaim::PoolFrame;
use crate::stats::Event;
use crate::sync::atomic::fence;
use crate::sync::failpoint;
use crate::sync::raw::Ordering;

impl Nodes<'_> {
    /// Makes a copy of a shared node, with one parent.
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
            // The leaf of zeros faults in again, for the reason that a file's page does in
            // `copy_leaf`.
            let child = self.child(word).filter(|child| !self.is_zero_leaf(*child));
            slot.store(child.map_or(0, child_word), Ordering::Relaxed);
            if let Some(child) = child {
                // `old` holds a ref on its child, and shared nodes lose no children.
                let more = self.pool.frames.meta(child).hold.try_get();
                assert!(more, "a node has as many parents as a count can hold");
            }
        }
        self.publish(frame)
    }

    fn copy_leaf(self, old: FrameId, frame: PoolFrame<'_>) -> FrameId {
        // A shadow that is kept by `old` alone goes first. Borrowing through it would keep a chain
        // of such leaves alive, one more a fork, and a ref on each page would touch them all.
        let _section = self.pool.domain.reader();
        while self.collapse_shadow(old, Borrower::Shared) {}
        let depth = self.shadow(old).map_or(1, |(_, depth)| depth + 1);
        match depth > MAX_DEPTH {
            true => self.copy_flat(old, frame),
            false => self.copy_borrowing(old, depth, frame),
        }
    }

    /// A copy of a leaf that borrows its anonymous pages. The others fault in again: a copied word
    /// of a file's page or hole would be out of the reach of a revoker that walked to the old leaf
    /// a moment ago.
    fn copy_borrowing(self, old: FrameId, depth: u64, mut frame: PoolFrame<'_>) -> FrameId {
        let mut borrows = 0;
        frame.copy_from(old);
        // Acquire: the words were loaded one by one; pairs with the releases that installed the
        // pages, as in `pte::load`.
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

    /// Makes a copy of a leaf that owns its anonymous pages, too.
    fn copy_flat(self, old: FrameId, mut frame: PoolFrame<'_>) -> FrameId {
        for (index, (word, slot)) in self.words(old).iter().zip(frame.words()).enumerate() {
            let pte = pte::load(word);
            let copy = match pte.holds() {
                // As in `copy_borrowing`.
                Holds::Nothing | Holds::File | Holds::Direct | Holds::Zero => 0,
                Holds::Own | Holds::Borrowed => {
                    self.end_writes_in_place(old, index);
                    let more = self.pool.frames.meta(self.frame_of(pte)).hold.try_get();
                    assert!(more, "a frame has as many owners as a count can hold");
                    pte.owned().0
                }
            };
            slot.store(copy, Ordering::Relaxed);
        }
        self.publish_leaf(frame, None)
    }

    /// Takes the write validity of the leaf that owns a page of this chain: the frame is about to
    /// have two owners, and a leaf that became exclusive again would write to it without asking.
    /// The caller's table keeps the first leaf, and that one keeps the others; so no leaf that
    /// another thread may find here is exclusive (see `pte` on copies). In a section: a leaf of the
    /// chain may be collapsed by the one before it. A walk that finds no owner began at a word that
    /// has become an owner's, without write validity.
    pub(crate) fn end_writes_in_place(self, mut leaf: FrameId, index: usize) {
        loop {
            let word = &self.words(leaf)[index];
            if pte::load(word).holds() == Holds::Own {
                pte::take_valid(word, VALID_W);
                return;
            }
            match self.shadow(leaf) {
                Some((shadow, _)) => leaf = shadow,
                None => return,
            }
            failpoint!(Climbing if self.state(leaf).refs() == 0);
        }
    }

    /// Installs the page that the leaf `theirs` has in a slot in the leaf `ours` as well. Returns
    /// the page that was there, or `None`, with nothing changed, if the new one has too many owners
    /// to count. The gate is closed, and `ours` is the space's own.
    pub(crate) fn share_page(self, ours: FrameId, theirs: FrameId, slot: usize) -> Option<Pte> {
        let page = pte::load(&self.words(theirs)[slot]);
        let shared = match self.shadow(ours) {
            // As at the time when `ours` was copied from it: the frame's metadata is not touched.
            Some((shadow, _)) if shadow == theirs => page.borrowed(),
            _ => {
                let _section = self.pool.domain.reader();
                self.end_writes_in_place(theirs, slot);
                if !self.pool.frames.meta(self.frame_of(page)).hold.try_get() {
                    return None;
                }
                page.owned()
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
