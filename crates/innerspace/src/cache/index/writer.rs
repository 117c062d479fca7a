//! Changes an index: inserts blocks with the nodes that they need, replaces and removes blocks.

use super::{
    Guarded, Inserted, MAX_HEIGHT, NODE_SHIFT, Nodes, Word, height_for, height_of, is_live,
    position,
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

    /// Puts `frames` at `first` and after it, up to the first place where a block is already, with
    /// one walk down for each node. Takes missing nodes from `spares`, in which they are zeroed and
    /// not linked yet. The shadows that the blocks replace are added to `shadows`.
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
            let (slots, node) = match self.bottom(nodes, block) {
                Some(node) => (&nodes.words(node)[position(block, 1)..], Some(node)),
                // Nodes are missing, or the file has at most block 0.
                None => {
                    let need = self.missing_nodes(nodes, block);
                    if need > spares.len() {
                        let need_nodes = Some(need);
                        return Inserted { blocks, need_nodes };
                    }
                    self.grow(nodes, block, spares);
                    let (slot, node) = self.make_path(nodes, block, spares);
                    (std::slice::from_ref(slot), node)
                }
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
            if let Some(node) = node {
                nodes.set_live(node, nodes.live(node) + put as u32);
            }
            self.guarded.counts.blocks += put as u64;
            self.guarded.counts.shadows -= (shadows.len() - before) as u64;
            blocks += put;
            if put < most {
                break;
            }
        }
        Inserted {
            blocks,
            need_nodes: None,
        }
    }

    /// Fills the slot of `block`.
    #[inline(always)]
    fn put(&self, nodes: &impl Nodes, slot: &AtomicU64, block: u64, frame: FrameId) {
        tag::fill(slot, Word::Block(frame).encode(), || {
            nodes.set_tag(frame, self.tags.given(block));
        });
    }

    /// Returns the node that has the word of `block`, if nodes lead there.
    fn bottom(&self, nodes: &impl Nodes, block: u64) -> Option<FrameId> {
        let mut word = self.root.load(Ordering::Relaxed);
        if height_for(block) > height_of(word) {
            return None;
        }
        loop {
            match Word::decode(word) {
                Word::Node(node, 1) => return Some(node),
                Word::Node(node, height) => {
                    word = nodes.words(node)[position(block, height)].load(Ordering::Relaxed);
                }
                _ => return None,
            }
        }
    }

    /// Puts `new` in the place of `old`.
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

    /// Takes `frame` out of `block`, and leaves the given shadow if a node remains to hold it.
    /// Nodes that became empty are unlinked and added to `freed`; they may be reused only after a
    /// grace period.
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

    /// Forgets all shadows at or after `from`, where the file now ends.
    pub(crate) fn drop_shadows(&mut self, nodes: &impl Nodes, from: u64) {
        let root = self.root.load(Ordering::Relaxed);
        if matches!(Word::decode(root), Word::Shadow(_)) && from == 0 {
            self.root.store(0, Ordering::Release);
            self.guarded.counts.shadows -= 1;
        } else {
            self.guarded.counts.shadows -= drop_shadows_below(nodes, root, 0, from);
        }
    }

    /// Returns the slot of `block`, if nodes lead there.
    fn find<'n>(&self, nodes: &'n impl Nodes, block: u64) -> Option<&'n AtomicU64>
    where
        'a: 'n,
    {
        let mut slot: &'n AtomicU64 = self.root;
        let mut height = height_of(slot.load(Ordering::Relaxed));
        if height_for(block) > height {
            return None;
        }
        while height > 0 {
            let Word::Node(node, _) = Word::decode(slot.load(Ordering::Relaxed)) else {
                return None;
            };
            slot = &nodes.words(node)[position(block, height)];
            height -= 1;
        }
        Some(slot)
    }

    /// Returns how many nodes an insertion of `block` has to add.
    pub(crate) fn missing_nodes(&self, nodes: &impl Nodes, block: u64) -> usize {
        let root = self.root.load(Ordering::Relaxed);
        let (wanted, present) = (height_for(block), height_of(root));
        if !is_live(root) {
            return wanted as usize;
        }
        if wanted > present {
            // The insertion puts new roots above the old one, and then makes a separate path below
            // the top.
            return (wanted - present + wanted - 1) as usize;
        }
        let mut word = root;
        let mut height = present;
        while height > 0 {
            let Word::Node(node, _) = Word::decode(word) else {
                break;
            };
            word = nodes.words(node)[position(block, height)].load(Ordering::Relaxed);
            height -= 1;
        }
        // At this point `height` levels are missing, unless the walk ended at the block's own word.
        match Word::decode(word) {
            Word::Node(..) => 0,
            _ => height as usize,
        }
    }

    /// Adds levels above the root until `block` fits.
    fn grow(&mut self, nodes: &impl Nodes, block: u64, spares: &mut Vec<FrameId>) {
        let wanted = height_for(block);
        loop {
            let root = self.root.load(Ordering::Relaxed);
            let height = height_of(root);
            if root == 0 || height >= wanted {
                return;
            }
            if !is_live(root) {
                // The root is a shadow, which is not worth a node.
                self.root.store(0, Ordering::Release);
                self.guarded.counts.shadows -= 1;
                return;
            }
            let node = self.take_spare(spares);
            nodes.words(node)[0].store(root, Ordering::Relaxed);
            nodes.set_live(node, 1);
            self.root
                .store(Word::Node(node, height + 1).encode(), Ordering::Release);
        }
    }

    /// Makes the missing nodes on the way to `block`. Returns its slot, and the node that the slot
    /// is in.
    fn make_path<'n>(
        &mut self,
        nodes: &'n impl Nodes,
        block: u64,
        spares: &mut Vec<FrameId>,
    ) -> (&'n AtomicU64, Option<FrameId>)
    where
        Self: 'n,
    {
        let mut slot: &AtomicU64 = self.root;
        let mut parent = None;
        let root = slot.load(Ordering::Relaxed);
        let mut height = if root == 0 {
            height_for(block)
        } else {
            height_of(root)
        };
        while height > 0 {
            let node = match Word::decode(slot.load(Ordering::Relaxed)) {
                Word::Node(node, _) => node,
                _ => {
                    let node = self.take_spare(spares);
                    nodes.set_live(node, 0);
                    slot.store(Word::Node(node, height).encode(), Ordering::Release);
                    if let Some(parent) = parent {
                        nodes.set_live(parent, nodes.live(parent) + 1);
                    }
                    node
                }
            };
            slot = &nodes.words(node)[position(block, height)];
            parent = Some(node);
            height -= 1;
        }
        (slot, parent)
    }

    fn take_spare(&mut self, spares: &mut Vec<FrameId>) -> FrameId {
        self.guarded.counts.nodes += 1;
        spares.pop().expect("missing_nodes counted them")
    }

    /// Takes the word of `block` out of its node's count. Unlinks the nodes on the path that became
    /// empty.
    fn prune(&mut self, nodes: &impl Nodes, block: u64, freed: &mut Vec<FrameId>) {
        let mut path: [(Option<FrameId>, &AtomicU64); MAX_HEIGHT as usize + 1] =
            [(None, self.root); MAX_HEIGHT as usize + 1];
        let mut depth = 0;
        let mut slot = self.root;
        while let Word::Node(node, height) = Word::decode(slot.load(Ordering::Relaxed)) {
            path[depth] = (Some(node), slot);
            depth += 1;
            slot = &nodes.words(node)[position(block, height)];
            if height == 1 {
                break;
            }
        }
        for (node, link) in path[..depth].iter().rev() {
            let node = node.expect("filled above");
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

fn drop_shadows_below(nodes: &impl Nodes, word: u64, base: u64, from: u64) -> u64 {
    let Word::Node(node, height) = Word::decode(word) else {
        return 0;
    };
    let span_shift = (height - 1) * NODE_SHIFT;
    let mut dropped = 0;
    for (place, slot) in nodes.words(node).iter().enumerate() {
        let start = base + ((place as u64) << span_shift);
        match Word::decode(slot.load(Ordering::Relaxed)) {
            Word::Shadow(_) if start >= from => {
                slot.store(0, Ordering::Relaxed);
                dropped += 1;
            }
            Word::Node(..) if start + (1 << span_shift) > from => {
                dropped += drop_shadows_below(nodes, slot.load(Ordering::Relaxed), start, from);
            }
            _ => {}
        }
    }
    dropped
}
