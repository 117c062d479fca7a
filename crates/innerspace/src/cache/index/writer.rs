//! Changes to an index: inserting blocks and the nodes that they need, replacing and removing
//! blocks.

use super::{
    Counts, Guarded, Inserted, Nodes, Way, Word, height_for, height_of, is_live, position, visit,
    walk,
};
use crate::frame::{Tag, Tags, tag};
use crate::sync::MutexGuard;
use crate::sync::raw::{AtomicU64, Ordering};
use crate::units::FrameId;

/// The right to change an [`super::Index`].
#[derive(Debug)]
pub(crate) struct IndexWriter<'a, T = ()> {
    pub(super) root: &'a AtomicU64,
    pub(super) tags: &'a Tags,
    pub(super) guarded: MutexGuard<'a, Guarded<T>>,
}

impl<'a, T> IndexWriter<'a, T> {
    /// Returns the `T` that the index's mutex guards.
    #[inline]
    pub(crate) fn guarded(&mut self) -> &mut T {
        &mut self.guarded
    }

    /// Inserts `frames` at the block `first` and those after it. Stops at the first slot that
    /// already has a block, or if `spares` has too few nodes. Walks down the tree once for each
    /// node of block words. Takes missing nodes from `spares`; these are zeroed and not linked yet.
    /// Adds the shadows that the blocks replace to `shadows`.
    pub(crate) fn insert(
        &mut self,
        nodes: &impl Nodes,
        first: u64,
        frames: &[FrameId],
        spares: &mut Vec<FrameId>,
        shadows: &mut Vec<u64>,
    ) -> Inserted {
        let mut blocks = 0;
        while blocks < frames.len() {
            let (block, rest) = (first + blocks as u64, &frames[blocks..]);
            let mut way = walk(self.root, nodes, block);
            if way.missing > 0 {
                if way.missing > spares.len() {
                    let need_nodes = Some(way.missing);
                    return Inserted { blocks, need_nodes };
                }
                way = self.make_way(nodes, block, spares);
            }
            let slots = match way.node {
                Some((node, _)) => &nodes.words(node)[position(block, 1)..],
                None => std::slice::from_ref(way.slot),
            };
            let most = slots.len().min(rest.len());
            let before = shadows.len();
            let put = (block..)
                .zip(slots.iter().zip(rest))
                .take_while(|(block, (slot, frame))| {
                    match Word::decode(slot.load(Ordering::Relaxed)) {
                        Word::Block(_) => return false,
                        Word::Shadow(when) => shadows.push(when),
                        _ => {}
                    }
                    self.put(nodes, slot, *block, **frame);
                    true
                });
            let put = put.count();
            if let Some((node, _)) = way.node {
                nodes.set_live(node, nodes.live(node) + put as u32);
            }
            blocks += put;
            let counts = &mut self.guarded.counts;
            counts.blocks += put as u64;
            counts.shadows -= (shadows.len() - before) as u64;
            if put < most {
                break;
            }
        }
        Inserted {
            blocks,
            need_nodes: None,
        }
    }

    /// Puts `frame` at `block` if nodes lead to its slot and the slot is empty. Otherwise returns
    /// false, with nothing changed.
    #[inline(always)]
    pub(crate) fn insert_one(&mut self, nodes: &impl Nodes, block: u64, frame: FrameId) -> bool {
        let way = walk(self.root, nodes, block);
        if way.missing > 0 || way.slot.load(Ordering::Relaxed) != Word::Empty.encode() {
            return false;
        }
        self.put(nodes, way.slot, block, frame);
        if let Some((node, _)) = way.node {
            nodes.set_live(node, nodes.live(node) + 1);
        }
        self.guarded.counts.blocks += 1;
        true
    }

    /// Writes `frame` to the slot of `block`, and tags the frame.
    #[inline(always)]
    fn put(&self, nodes: &impl Nodes, slot: &AtomicU64, block: u64, frame: FrameId) {
        tag::fill(slot, Word::Block(frame).encode(), || {
            nodes.set_tag(frame, self.tags.given(block));
        });
    }

    /// Replaces the frame `old` of `block` with `new`.
    pub(crate) fn replace(&mut self, nodes: &impl Nodes, block: u64, old: FrameId, new: FrameId) {
        let slot = self
            .find(nodes, block)
            .expect("I7: a locked block stays in its index");
        let before = tag::refill(
            slot,
            Word::Block(new).encode(),
            || nodes.set_tag(old, Tag::NONE),
            || nodes.set_tag(new, self.tags.given(block)),
        );
        assert_eq!(
            Word::decode(before),
            Word::Block(old),
            "I7: a locked block stays in its index"
        );
    }

    /// Removes `frame` from the slot of `block`, and leaves `shadow` there, if there is one. Nodes
    /// that now have no block or node are unlinked, with their shadows, and added to `freed`. They
    /// may be reused only after a grace period.
    pub(crate) fn remove(
        &mut self,
        nodes: &impl Nodes,
        block: u64,
        frame: FrameId,
        shadow: Option<u64>,
        freed: &mut Vec<FrameId>,
    ) {
        let slot = self
            .find(nodes, block)
            .expect("I7: a locked block stays in its index");
        let word = shadow.map_or(Word::Empty, Word::Shadow).encode();
        let before = tag::empty(slot, word, || nodes.set_tag(frame, Tag::NONE));
        assert_eq!(
            Word::decode(before),
            Word::Block(frame),
            "I7: a locked block stays in its index"
        );
        self.guarded.counts.blocks -= 1;
        self.guarded.counts.shadows += u64::from(shadow.is_some());
        self.prune(nodes, block, freed);
    }

    /// Removes the shadows of all blocks at or after `from`.
    pub(crate) fn drop_shadows(&mut self, nodes: &impl Nodes, from: u64) {
        let shadows = &mut self.guarded.counts.shadows;
        let mut drop_shadow = |_, slot: &AtomicU64, word| -> Option<()> {
            if let Word::Shadow(_) = word {
                slot.store(Word::Empty.encode(), Ordering::Release);
                *shadows -= 1;
            }
            None
        };
        visit(nodes, self.root, 0, &(from..u64::MAX), &mut drop_shadow);
    }

    /// Returns the slot of `block`, if the nodes on the path to it exist.
    fn find<'n>(&self, nodes: &'n impl Nodes, block: u64) -> Option<&'n AtomicU64>
    where
        'a: 'n,
    {
        let way = walk(self.root, nodes, block);
        (way.missing == 0).then_some(way.slot)
    }

    /// Returns how many nodes an insertion of `block` has to add.
    pub(crate) fn missing_nodes(&self, nodes: &impl Nodes, block: u64) -> usize {
        walk(self.root, nodes, block).missing
    }

    /// Adds the nodes that are missing on the path to `block`: first levels above the root, until
    /// the tree is high enough for the block, then the nodes below.
    #[cold]
    fn make_way<'n>(
        &mut self,
        nodes: &'n impl Nodes,
        block: u64,
        spares: &mut Vec<FrameId>,
    ) -> Way<'n>
    where
        'a: 'n,
    {
        let counts = &mut self.guarded.counts;
        let mut take_spare = |counts: &mut Counts| {
            counts.nodes += 1;
            spares.pop().expect("`walk` counted them")
        };
        let wanted = height_for(block);
        let mut root = self.root.load(Ordering::Relaxed);
        while is_live(root) && height_of(root) < wanted {
            let node = take_spare(counts);
            nodes.words(node)[0].store(root, Ordering::Relaxed);
            nodes.set_live(node, 1);
            root = Word::Node(node, height_of(root) + 1).encode();
            self.root.store(root, Ordering::Release);
        }
        let mut way = walk(self.root, nodes, block);
        let missing = way.missing as u32;
        for height in (1..=missing).rev() {
            let node = take_spare(counts);
            nodes.set_live(node, 0);
            let before = way
                .slot
                .swap(Word::Node(node, height).encode(), Ordering::AcqRel);
            if let Some((parent, _)) = way.node {
                nodes.set_live(parent, nodes.live(parent) + 1);
            }
            way.node = Some((node, way.slot));
            way.slot = &nodes.words(node)[position(block, height)];
            if let Word::Shadow(_) = Word::decode(before) {
                // A shadow of block 0 in the root word is dropped, not moved to the node.
                counts.shadows -= 1;
            }
        }
        way
    }

    /// Subtracts the word of `block`, which was just removed, from its node's count. Unlinks the
    /// nodes on the path that have become empty.
    fn prune(&mut self, nodes: &impl Nodes, block: u64, freed: &mut Vec<FrameId>) {
        // Each round handles the lowest node that is left on the path.
        while let Some((node, link)) = walk(self.root, nodes, block).node {
            let live = nodes.live(node) - 1;
            nodes.set_live(node, live);
            if live > 0 {
                return;
            }
            let words = nodes.words(node).iter();
            let shadows = words
                .filter(|word| word.load(Ordering::Relaxed) != 0)
                .count();
            self.guarded.counts.shadows -= shadows as u64;
            self.guarded.counts.nodes -= 1;
            link.store(0, Ordering::Release);
            freed.push(node);
        }
    }
}
