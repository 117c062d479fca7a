//! The index of a file: block number to word, a radix tree whose nodes are frames of the arena.
//!
//! | word | bits 0..4 | bits 4..36 | bits 36..40 |
//! |---|---|---|---|
//! | empty | 0 | 0 | 0 |
//! | block | 1 | frame | 0 |
//! | shadow of an evicted block | 2 | when it was evicted, in evictions (60 bits) | |
//! | node | 3 | frame | height: 1 for a node of block words, one more for each level above |
//!
//! The root word is a node, or the word of block 0 itself: a file of one block needs no node.
//!
//! **Readers** walk inside a section and take no lock: a node is unlinked, then a grace period passes, then its frame is
//! reused. What a reader finds can be gone a moment later, so it takes a reference on the frame and reads the same slot
//! again (I10). **Writers** hold the index mutex ([`Index::write`]); the nodes an insertion may need are allocated before.
//! A node goes when its last block goes, with the shadows left in it: shadows never cost a node of their own.

use crate::sync::raw::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::FrameId;

/// log2 of the words in a node.
const NODE_SHIFT: u32 = 9;
/// The words in a node.
pub(super) const NODE_WORDS: usize = 1 << NODE_SHIFT;
/// The height that covers every block number of the largest file.
const MAX_HEIGHT: u32 = 6;

const TAG_BLOCK: u64 = 1;
const TAG_SHADOW: u64 = 2;
const TAG_NODE: u64 = 3;

/// A word of the index, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// Nothing is cached there.
    Empty,
    /// A cached block; the frame is its first.
    Block(FrameId),
    /// A block was evicted at this count of evictions. Reads as absent.
    Shadow(u64),
    /// A node with the given height.
    Node(FrameId, u32),
}

impl Word {
    /// Takes a word apart.
    #[inline]
    pub(super) fn decode(word: u64) -> Word {
        let frame = FrameId((word >> 4) as u32);
        match word & 15 {
            TAG_BLOCK => Word::Block(frame),
            TAG_SHADOW => Word::Shadow(word >> 4),
            TAG_NODE => Word::Node(frame, (word >> 36) as u32 & 15),
            _ => Word::Empty,
        }
    }

    /// Puts a word together.
    pub(super) fn encode(self) -> u64 {
        match self {
            Word::Empty => 0,
            Word::Block(frame) => u64::from(frame.0) << 4 | TAG_BLOCK,
            Word::Shadow(when) => when << 4 | TAG_SHADOW,
            Word::Node(frame, height) => {
                u64::from(height) << 36 | u64::from(frame.0) << 4 | TAG_NODE
            }
        }
    }
}

/// Where nodes live.
pub(super) trait Nodes {
    /// The words of a node.
    fn words(&self, node: FrameId) -> &[AtomicU64; NODE_WORDS];
    /// The node's count of words that are blocks or nodes. Touched under the index mutex only.
    fn live(&self, node: FrameId) -> u32;
    /// Sets the count.
    fn set_live(&self, node: FrameId, live: u32);
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Index {
    root: AtomicU64,
    writer: Mutex<Counts>,
}

/// What an index holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) blocks: u64,
    pub(super) shadows: u64,
    pub(super) nodes: u64,
}

/// What became of an insertion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// The block is in; the shadow it replaced.
    Done(Option<u64>),
    /// A block is there already; nothing was changed.
    Occupied(FrameId),
    /// More spare nodes are needed, this many in all; nothing was changed.
    NeedNodes(usize),
}

/// Levels needed for a block number.
fn height_for(block: u64) -> u32 {
    (u64::BITS - block.leading_zeros()).div_ceil(NODE_SHIFT)
}

/// The word of a node of `height` that leads to `block`.
fn position(block: u64, height: u32) -> usize {
    (block >> ((height - 1) * NODE_SHIFT)) as usize & (NODE_WORDS - 1)
}

/// Whether a word is a block or a node.
fn is_live(word: u64) -> bool {
    matches!(Word::decode(word), Word::Block(_) | Word::Node(..))
}

/// The height of the subtree under a word; 0 for a word that is no node.
fn height_of(word: u64) -> u32 {
    match Word::decode(word) {
        Word::Node(_, height) => height,
        _ => 0,
    }
}

impl Index {
    /// The slot where the word of `block` is, if nodes lead there. Valid while the caller's section is open.
    #[inline]
    pub(super) fn slot<'a>(&'a self, nodes: &'a impl Nodes, block: u64) -> Option<&'a AtomicU64> {
        let mut slot = &self.root;
        // Acquire: pairs with the release stores of `IndexWriter`; the node's words were written before its link.
        let mut height = match Word::decode(slot.load(Ordering::Acquire)) {
            Word::Node(node, height) => {
                if height_for(block) > height {
                    return None;
                }
                slot = &nodes.words(node)[position(block, height)];
                height - 1
            }
            _ => return (block == 0).then_some(slot),
        };
        while height > 0 {
            let Word::Node(node, _) = Word::decode(slot.load(Ordering::Acquire)) else {
                return None;
            };
            slot = &nodes.words(node)[position(block, height)];
            height -= 1;
        }
        Some(slot)
    }

    /// The word of `block` now.
    #[inline]
    pub(super) fn load(&self, nodes: &impl Nodes, block: u64) -> Word {
        let slot = self.slot(nodes, block);
        slot.map_or(Word::Empty, |slot| {
            // The root word may have become a node since it was chosen as a slot.
            match Word::decode(slot.load(Ordering::Acquire)) {
                Word::Node(..) => Word::Empty,
                word => word,
            }
        })
    }

    /// The first block at or after `from` and before `to`. Needs a section, as [`Index::slot`] does.
    pub(super) fn next_block(
        &self,
        nodes: &impl Nodes,
        from: u64,
        to: u64,
    ) -> Option<(u64, FrameId)> {
        if from >= to {
            return None;
        }
        let root = self.root.load(Ordering::Acquire);
        next_below(nodes, root, 0, from).filter(|(block, _)| *block < to)
    }

    /// Starts a change; other writers wait.
    pub(super) fn write(&self) -> IndexWriter<'_> {
        IndexWriter {
            root: &self.root,
            counts: self.writer.lock(),
        }
    }

    /// Blocks, shadows and nodes in the index.
    pub(super) fn counts(&self) -> Counts {
        *self.writer.lock()
    }

    /// Recounts everything, and panics where a count or the form of the tree is wrong. Nobody may be changing it.
    pub(super) fn validate(&self, nodes: &impl Nodes) {
        let writer = self.write();
        let mut found = Counts::default();
        recount(nodes, self.root.load(Ordering::Relaxed), &mut found);
        assert_eq!(found, *writer.counts, "index counts");
    }
}

/// The first block at or after `from` in the subtree under `word`, whose first block number is `base`.
fn next_below(nodes: &impl Nodes, word: u64, base: u64, from: u64) -> Option<(u64, FrameId)> {
    match Word::decode(word) {
        Word::Block(frame) => (base >= from).then_some((base, frame)),
        Word::Empty | Word::Shadow(_) => None,
        Word::Node(node, height) => {
            let span_shift = (height - 1) * NODE_SHIFT;
            let first = from.saturating_sub(base) >> span_shift;
            let words = nodes.words(node);
            (first.min(NODE_WORDS as u64) as usize..NODE_WORDS).find_map(|place| {
                let child = words[place].load(Ordering::Acquire);
                if child == 0 {
                    return None;
                }
                next_below(nodes, child, base + ((place as u64) << span_shift), from)
            })
        }
    }
}

fn recount(nodes: &impl Nodes, word: u64, found: &mut Counts) -> bool {
    match Word::decode(word) {
        Word::Empty => false,
        Word::Block(_) => {
            found.blocks += 1;
            true
        }
        Word::Shadow(_) => {
            found.shadows += 1;
            false
        }
        Word::Node(node, height) => {
            assert!(
                (1..=MAX_HEIGHT).contains(&height),
                "node of height {height}"
            );
            found.nodes += 1;
            let mut live = 0;
            for word in nodes.words(node) {
                let word = word.load(Ordering::Relaxed);
                if height_of(word) > 0 {
                    assert_eq!(height_of(word), height - 1, "a child one level down");
                } else {
                    assert!(
                        word == 0 || height == 1,
                        "a word of a block above the lowest level"
                    );
                }
                live += u32::from(recount(nodes, word, found));
            }
            assert_eq!(live, nodes.live(node), "live words of a node");
            assert!(live > 0, "an empty node was kept");
            true
        }
    }
}

/// The right to change an [`Index`].
#[derive(Debug)]
pub(super) struct IndexWriter<'a> {
    root: &'a AtomicU64,
    counts: MutexGuard<'a, Counts>,
}

impl IndexWriter<'_> {
    /// Puts `frame` at `block`, unless a block is there. Takes the nodes it needs from `spares`: zeroed, not yet linked.
    pub(super) fn insert(
        &mut self,
        nodes: &impl Nodes,
        block: u64,
        frame: FrameId,
        spares: &mut Vec<FrameId>,
    ) -> Inserted {
        if let Some(slot) = self.find(nodes, block) {
            let before = Word::decode(slot.load(Ordering::Relaxed));
            if let Word::Block(other) = before {
                return Inserted::Occupied(other);
            }
        }
        let need = self.missing_nodes(nodes, block);
        if need > spares.len() {
            return Inserted::NeedNodes(need);
        }
        self.grow(nodes, block, spares);
        let (slot, parent) = self.make_path(nodes, block, spares);
        let shadow = match Word::decode(slot.load(Ordering::Relaxed)) {
            Word::Shadow(when) => {
                self.counts.shadows -= 1;
                Some(when)
            }
            _ => None,
        };
        // Release: pairs with the acquire loads of readers; the frame was published before.
        slot.store(Word::Block(frame).encode(), Ordering::Release);
        if let Some(parent) = parent {
            nodes.set_live(parent, nodes.live(parent) + 1);
        }
        self.counts.blocks += 1;
        Inserted::Done(shadow)
    }

    /// Puts `new` where `old` is.
    pub(super) fn replace(&mut self, nodes: &impl Nodes, block: u64, old: FrameId, new: FrameId) {
        let slot = self
            .find(nodes, block)
            .expect("I7: a locked block stays in its index");
        let before = slot.swap(Word::Block(new).encode(), Ordering::AcqRel);
        assert_eq!(
            Word::decode(before),
            Word::Block(old),
            "I7: a locked block stays in its index"
        );
    }

    /// Takes `frame` out of `block`, leaving a shadow if one is given and a node remains to hold it. Nodes that became
    /// empty are added to `freed`: unlinked, but to be reused after a grace period only.
    pub(super) fn remove(
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
        let before = slot.swap(word, Ordering::AcqRel);
        assert_eq!(
            Word::decode(before),
            Word::Block(frame),
            "I7: a locked block stays in its index"
        );
        self.counts.blocks -= 1;
        self.counts.shadows += u64::from(shadow.is_some());
        self.prune(nodes, block, freed);
    }

    /// Forgets all shadows at or after `from`, where the file ends now.
    pub(super) fn drop_shadows(&mut self, nodes: &impl Nodes, from: u64) {
        let root = self.root.load(Ordering::Relaxed);
        if matches!(Word::decode(root), Word::Shadow(_)) && from == 0 {
            self.root.store(0, Ordering::Release);
            self.counts.shadows -= 1;
        } else {
            self.counts.shadows -= drop_shadows_below(nodes, root, 0, from);
        }
    }

    /// The slot of `block`, if nodes lead there.
    fn find<'n>(&'n self, nodes: &'n impl Nodes, block: u64) -> Option<&'n AtomicU64> {
        let mut slot = self.root;
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

    /// Nodes an insertion of `block` has to add.
    fn missing_nodes(&self, nodes: &impl Nodes, block: u64) -> usize {
        let root = self.root.load(Ordering::Relaxed);
        let (wanted, present) = (height_for(block), height_of(root));
        if !is_live(root) {
            return wanted as usize;
        }
        if wanted > present {
            // New roots above the old one, then a path of its own below the top.
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
        // `height` levels are missing, unless the walk ended at the block's own word.
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
                // A shadow is not worth a node.
                self.root.store(0, Ordering::Release);
                self.counts.shadows -= 1;
                return;
            }
            let node = self.take_spare(spares);
            nodes.words(node)[0].store(root, Ordering::Relaxed);
            nodes.set_live(node, 1);
            self.root
                .store(Word::Node(node, height + 1).encode(), Ordering::Release);
        }
    }

    /// The slot of `block` with the nodes on the way made, and the node it is in.
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
        self.counts.nodes += 1;
        spares.pop().expect("missing_nodes counted them")
    }

    /// Takes the word of `block` out of its node's count, and unlinks the nodes above that became empty.
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
            self.counts.shadows -= shadows as u64;
            self.counts.nodes -= 1;
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

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Nodes on the heap; numbers from 1.
    struct TestNodes {
        words: Vec<Box<[AtomicU64; NODE_WORDS]>>,
        live: Vec<AtomicU64>,
        free: Vec<FrameId>,
    }

    impl TestNodes {
        fn new(count: usize) -> TestNodes {
            TestNodes {
                words: (0..count)
                    .map(|_| Box::new([const { AtomicU64::new(0) }; NODE_WORDS]))
                    .collect(),
                live: (0..count).map(|_| AtomicU64::new(0)).collect(),
                free: (1..=count as u32).map(FrameId).collect(),
            }
        }

        fn take(&mut self) -> FrameId {
            let node = self.free.pop().expect("enough nodes");
            self.words(node)
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            node
        }
    }

    impl Nodes for TestNodes {
        fn words(&self, node: FrameId) -> &[AtomicU64; NODE_WORDS] {
            &self.words[node.index() - 1]
        }
        fn live(&self, node: FrameId) -> u32 {
            self.live[node.index() - 1].load(Ordering::Relaxed) as u32
        }
        fn set_live(&self, node: FrameId, live: u32) {
            self.live[node.index() - 1].store(u64::from(live), Ordering::Relaxed);
        }
    }

    fn insert(index: &Index, nodes: &mut TestNodes, block: u64, frame: u32) -> Inserted {
        let mut spares = Vec::new();
        loop {
            let result = index
                .write()
                .insert(nodes, block, FrameId(frame), &mut spares);
            let Inserted::NeedNodes(need) = result else {
                nodes.free.append(&mut spares);
                return result;
            };
            while spares.len() < need {
                spares.push(nodes.take());
            }
        }
    }

    fn remove(index: &Index, nodes: &mut TestNodes, block: u64, frame: u32, shadow: Option<u64>) {
        let mut freed = Vec::new();
        index
            .write()
            .remove(nodes, block, FrameId(frame), shadow, &mut freed);
        nodes.free.append(&mut freed);
    }

    #[test]
    fn words_come_apart_as_they_were_put_together() {
        for word in [
            Word::Empty,
            Word::Block(FrameId(u32::MAX)),
            Word::Shadow((1 << 60) - 1),
            Word::Node(FrameId(7), MAX_HEIGHT),
        ] {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(
            [
                height_for(0),
                height_for(1),
                height_for(511),
                height_for(512)
            ],
            [0, 1, 1, 2]
        );
        assert_eq!(height_for((1 << 51) - 1), MAX_HEIGHT);
    }

    #[test]
    fn a_file_of_one_block_needs_no_node() {
        let mut nodes = TestNodes::new(0);
        let index = Index::default();
        assert_eq!(insert(&index, &mut nodes, 0, 5), Inserted::Done(None));
        assert_eq!(index.load(&nodes, 0), Word::Block(FrameId(5)));
        assert_eq!(index.load(&nodes, 1), Word::Empty);
        assert_eq!(
            insert(&index, &mut nodes, 0, 6),
            Inserted::Occupied(FrameId(5))
        );
        remove(&index, &mut nodes, 0, 5, None);
        assert_eq!(index.counts(), Counts::default());
    }

    // spec: P7
    #[test]
    fn a_shadow_reads_as_absent_and_a_create_replaces_it() {
        let mut nodes = TestNodes::new(4);
        let index = Index::default();
        insert(&index, &mut nodes, 3, 30);
        insert(&index, &mut nodes, 4, 40);
        remove(&index, &mut nodes, 3, 30, Some(99));
        assert_eq!(index.load(&nodes, 3), Word::Shadow(99));
        assert_eq!(index.next_block(&nodes, 0, 10), Some((4, FrameId(40))));
        assert_eq!(
            index.counts(),
            Counts {
                blocks: 1,
                shadows: 1,
                nodes: 1
            }
        );
        index.validate(&nodes);
        assert_eq!(insert(&index, &mut nodes, 3, 31), Inserted::Done(Some(99)));
        assert_eq!(
            index.counts(),
            Counts {
                blocks: 2,
                shadows: 0,
                nodes: 1
            }
        );
        index.validate(&nodes);
        // The last block of a node takes the shadows with it.
        remove(&index, &mut nodes, 3, 31, Some(100));
        remove(&index, &mut nodes, 4, 40, Some(101));
        assert_eq!(index.counts(), Counts::default());
        assert_eq!(nodes.free.len(), 4);
    }

    #[test]
    fn it_agrees_with_a_map_through_growth_and_removal() {
        let mut nodes = TestNodes::new(200);
        let index = Index::default();
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        let mut random = 12345u64;
        for step in 0..4000u32 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let spread = [3, 9, 12, 20, 40, 51][(random >> 60) as usize % 6];
            let block = (random >> 8) & ((1 << spread) - 1);
            match model.get(&block).copied() {
                Some(frame) => {
                    let shadow = (step % 3 == 0).then_some(u64::from(step));
                    remove(&index, &mut nodes, block, frame, shadow);
                    model.remove(&block);
                }
                None if model.len() < 30 => {
                    let done = insert(&index, &mut nodes, block, step + 1);
                    assert!(matches!(done, Inserted::Done(_)));
                    model.insert(block, step + 1);
                }
                None => {
                    let (old, frame) = model.pop_first().expect("30 of them");
                    remove(&index, &mut nodes, old, frame, None);
                }
            }
            if step % 64 == 0 {
                index.validate(&nodes);
            }
            assert_eq!(index.counts().blocks, model.len() as u64);
            let from = block.saturating_sub(5);
            let next = model
                .range(from..)
                .next()
                .map(|(block, frame)| (*block, FrameId(*frame)));
            assert_eq!(index.next_block(&nodes, from, u64::MAX), next);
        }
        for (block, frame) in &model {
            assert_eq!(index.load(&nodes, *block), Word::Block(FrameId(*frame)));
        }
        index.write().drop_shadows(&nodes, 0);
        assert_eq!(index.counts().shadows, 0);
        index.validate(&nodes);
    }

    #[test]
    fn a_missing_node_is_asked_for_before_anything_changes() {
        let mut nodes = TestNodes::new(10);
        let index = Index::default();
        let refused = index
            .write()
            .insert(&nodes, 513, FrameId(1), &mut Vec::new());
        assert_eq!(refused, Inserted::NeedNodes(2));
        insert(&index, &mut nodes, 0, 9);
        let refused = index
            .write()
            .insert(&nodes, 513, FrameId(1), &mut Vec::new());
        assert_eq!(refused, Inserted::NeedNodes(3));
        assert_eq!(
            index.counts(),
            Counts {
                blocks: 1,
                shadows: 0,
                nodes: 0
            }
        );
        insert(&index, &mut nodes, 513, 1);
        assert_eq!(index.load(&nodes, 0), Word::Block(FrameId(9)));
        assert_eq!(
            index.counts(),
            Counts {
                blocks: 2,
                shadows: 0,
                nodes: 3
            }
        );
        index.validate(&nodes);
    }
}
