//! The index of a file: a radix tree from block numbers to words, whose nodes are frames of the
//! arena.
//!
//! | word | bits 0..4 | bits 4..12 | bits 12..44 |
//! |---|---|---|---|
//! | empty | 0 | 0 | 0 |
//! | block | 1 | 0 | frame |
//! | shadow of an evicted block | 2 | the group, and its clock at the eviction (60 bits) | |
//! | node | 3 | height: 1 for a node of block words, one more for each level above | frame |
//!
//! So the upper bits of the word of a block or node are the offset of its bytes in the arena
//! ([`FrameOffset`]).
//!
//! The root word leads to a node, or to block 0 itself: a file of one block needs no node.
//!
//! **Readers** walk the tree in a section and take no lock: a node is first unlinked, then a grace
//! period passes, then its frame is reused. A block that a reader finds may be removed a moment
//! later, so the reader takes a reference to the frame and reads the same slot again (I10).
//! **Writers** hold the index mutex ([`Index::write`]); nodes that an insertion may need are
//! allocated beforehand. Writers keep the tags of the frames in step with the words, for readers
//! that guess where a block is (`frame::tag`). A node is removed with its last block, and the
//! shadows left in it are dropped: no node is kept for shadows alone.

pub(crate) mod spare_nodes;
mod writer;

pub(crate) use writer::IndexWriter;

use std::hint::cold_path;
use std::ops::{Deref, DerefMut, Range};

use crate::frame::{FrameOffset, Tag, Tags};
use crate::sync::raw::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::units::FrameId;

/// log2 of the number of words in a node.
const NODE_SHIFT: u32 = 9;
/// The number of words in a node.
pub(crate) const NODE_WORDS: usize = 1 << NODE_SHIFT;
/// The height that covers every block number of the largest file.
#[cfg(any(test, feature = "test-util"))]
const MAX_HEIGHT: u32 = 6;

const TAG_BLOCK: u64 = 1;
const TAG_SHADOW: u64 = 2;
const TAG_NODE: u64 = 3;

/// A decoded word of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Nothing is cached for the block.
    Empty,
    /// A cached block, with its first frame.
    Block(FrameId),
    /// The shadow of an evicted block: the group that it was charged to, and the value of that
    /// group's clock at the eviction. The block counts as absent.
    Shadow(u64),
    /// A node, with its frame and its height.
    Node(FrameId, u32),
}

impl Word {
    #[inline]
    pub(crate) fn decode(word: u64) -> Word {
        let frame = FrameOffset::in_word(word).id();
        match word & 15 {
            TAG_BLOCK => Word::Block(frame),
            TAG_SHADOW => Word::Shadow(word >> 4),
            TAG_NODE => Word::Node(frame, (word & FrameOffset::LOW_BITS) as u32 >> 4),
            _ => Word::Empty,
        }
    }

    #[inline(always)]
    pub(crate) fn encode(self) -> u64 {
        match self {
            Word::Empty => 0,
            Word::Block(frame) => FrameOffset::of(frame).bytes() | TAG_BLOCK,
            Word::Shadow(when) => when << 4 | TAG_SHADOW,
            Word::Node(frame, height) => {
                FrameOffset::of(frame).bytes() | u64::from(height) << 4 | TAG_NODE
            }
        }
    }
}

/// The memory in which the nodes of an index are kept.
pub(crate) trait Nodes {
    /// Returns the words of a node.
    fn words(&self, node: FrameId) -> &[AtomicU64; NODE_WORDS];
    /// Returns how many of the node's words are blocks or nodes. Called under the index mutex only.
    fn live(&self, node: FrameId) -> u32;
    /// Sets the number that [`Nodes::live`] returns.
    fn set_live(&self, node: FrameId, live: u32);
    /// Sets the tag of a block's frame.
    fn set_tag(&self, frame: FrameId, tag: Tag);
}

/// The index of a file. Its mutex also guards a `T`: state that changes with the index, and would
/// otherwise need a mutex of its own.
#[derive(Debug)]
pub(crate) struct Index<T = ()> {
    root: AtomicU64,
    tags: Tags,
    writer: Mutex<Guarded<T>>,
}

/// The state that the mutex of an [`Index`] guards. Dereferences to the `T`.
#[derive(Debug, Default)]
pub(crate) struct Guarded<T> {
    counts: Counts,
    inner: T,
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for Guarded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl Default for Index {
    fn default() -> Index {
        Index::ranked(Rank::Index, Tags::none())
    }
}

/// How many blocks, shadows and nodes an index has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) blocks: u64,
    pub(crate) shadows: u64,
    pub(crate) nodes: u64,
}

/// The result of an insertion of neighbouring blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The number of blocks that were inserted, counted from the first.
    pub(crate) blocks: usize,
    /// The number of spare nodes that the next block needs, if too few were given. If this is
    /// `None` and not all blocks were inserted, there is already a block in the slot of the next
    /// one.
    pub(crate) need_nodes: Option<usize>,
}

/// Returns how many levels a tree with this block number needs.
fn height_for(block: u64) -> u32 {
    (u64::BITS - block.leading_zeros()).div_ceil(NODE_SHIFT)
}

/// Returns the position, in a node of `height`, of the word that leads to `block`.
fn position(block: u64, height: u32) -> usize {
    (block >> ((height - 1) * NODE_SHIFT)) as usize & (NODE_WORDS - 1)
}

/// Whether a word is a block or a node.
fn is_live(word: u64) -> bool {
    matches!(Word::decode(word), Word::Block(_) | Word::Node(..))
}

/// Returns the height of the subtree under a word: 0 for a word that is not a node.
fn height_of(word: u64) -> u32 {
    match Word::decode(word) {
        Word::Node(_, height) => height,
        _ => 0,
    }
}

impl<T: Default> Index<T> {
    /// Creates an empty index. Its mutex has `rank` in the lock order, and its blocks get their
    /// tags from `tags`.
    pub(crate) fn ranked(rank: Rank, tags: Tags) -> Index<T> {
        Index {
            root: AtomicU64::new(0),
            tags,
            writer: Mutex::ranked(rank, Guarded::default()),
        }
    }
}

/// The path from the root to the word of a block, as far as its nodes exist.
struct Way<'n> {
    /// The block's word, or the word below which nodes are missing.
    slot: &'n AtomicU64,
    /// The node that contains `slot`, and the word that leads to this node. `None` if `slot` is the
    /// root word.
    node: Option<(FrameId, &'n AtomicU64)>,
    /// The number of nodes that have to be added before the block's word is reached.
    missing: usize,
}

/// Walks from the root word to the word of `block`. A reader calls this in a section, and uses only
/// `slot`, and only if `missing` is 0.
#[inline(always)]
fn walk<'n>(root: &'n AtomicU64, nodes: &'n impl Nodes, block: u64) -> Way<'n> {
    // Acquire, here and below, pairs with the Release stores of `IndexWriter`: a reader that sees
    // the link to a node also sees the words written to it before.
    let mut word = root.load(Ordering::Acquire);
    let (wanted, mut height) = (height_for(block), height_of(word));
    let (mut slot, mut node) = (root, None);
    let mut missing = 0;
    if wanted > height {
        // An insertion puts new roots above the old one, and then makes a separate path below the
        // top root.
        missing = match is_live(word) {
            true => (2 * wanted - height - 1) as usize,
            false => wanted as usize,
        };
        height = 0;
    }
    while height > 0 {
        let Word::Node(id, _) = Word::decode(word) else {
            missing = height as usize;
            break;
        };
        node = Some((id, slot));
        slot = &nodes.words(id)[position(block, height)];
        height -= 1;
        if height > 0 {
            word = slot.load(Ordering::Acquire);
        }
    }
    Way {
        slot,
        node,
        missing,
    }
}

/// Calls `visitor` for the blocks and shadows in `range` (not empty) below the word in `slot`,
/// until `visitor` returns a value, which is then returned. `base` is the first block number below
/// `slot`.
fn visit<R>(
    nodes: &impl Nodes,
    slot: &AtomicU64,
    base: u64,
    range: &Range<u64>,
    visitor: &mut impl FnMut(u64, &AtomicU64, Word) -> Option<R>,
) -> Option<R> {
    match Word::decode(slot.load(Ordering::Acquire)) {
        Word::Empty => None,
        Word::Node(node, height) => {
            let span_shift = (height - 1) * NODE_SHIFT;
            let place = |block: u64| block.saturating_sub(base) >> span_shift;
            let first = place(range.start).min(NODE_WORDS as u64);
            let end = match range.end > base {
                true => (place(range.end - 1) + 1).min(NODE_WORDS as u64),
                false => 0,
            };
            let words = nodes.words(node);
            (first..end).find_map(|place| {
                let base = base + (place << span_shift);
                visit(nodes, &words[place as usize], base, range, visitor)
            })
        }
        word if range.contains(&base) => visitor(base, slot, word),
        _ => None,
    }
}

impl<T> Index<T> {
    /// Returns the slot of the word of `block`, if the nodes on the path to it exist. The slot is
    /// valid while the caller's section is open.
    #[inline(always)]
    pub(crate) fn slot<'a>(&'a self, nodes: &'a impl Nodes, block: u64) -> Option<&'a AtomicU64> {
        // The usual height, two (files of 2 MiB to 1 GiB in 4 KiB blocks), is handled without a
        // loop: page faults and overwriting writes find their blocks here.
        if let Word::Node(top, 2) = Word::decode(self.root.load(Ordering::Acquire)) {
            let link = nodes.words(top).get((block >> NODE_SHIFT) as usize)?;
            let Word::Node(bottom, _) = Word::decode(link.load(Ordering::Acquire)) else {
                return None;
            };
            return Some(&nodes.words(bottom)[position(block, 1)]);
        }
        cold_path();
        let way = walk(&self.root, nodes, block);
        (way.missing == 0).then_some(way.slot)
    }

    /// Returns the tags of the index's blocks.
    #[inline(always)]
    pub(crate) fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Returns the word of `block`: [`Word::Empty`] if no node has a slot for it. The caller is in
    /// a section, as for [`Index::slot`].
    #[inline]
    pub(crate) fn load(&self, nodes: &impl Nodes, block: u64) -> Word {
        let slot = self.slot(nodes, block);
        slot.map_or(Word::Empty, |slot| {
            // If the slot is the root word, it may lead to a node by now.
            match Word::decode(slot.load(Ordering::Acquire)) {
                Word::Node(..) => Word::Empty,
                word => word,
            }
        })
    }

    /// Returns the number and frame of the first cached block at or after `from` and before `to`.
    /// The caller is in a section, as for [`Index::slot`].
    pub(crate) fn next_block(
        &self,
        nodes: &impl Nodes,
        from: u64,
        to: u64,
    ) -> Option<(u64, FrameId)> {
        if from >= to {
            return None;
        }
        visit(
            nodes,
            &self.root,
            0,
            &(from..to),
            &mut |block, _, word| match word {
                Word::Block(frame) => Some((block, frame)),
                _ => None,
            },
        )
    }

    /// Begins a change. Other writers wait until it ends.
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) -> IndexWriter<'_, T> {
        IndexWriter {
            root: &self.root,
            tags: &self.tags,
            guarded: self.writer.lock(),
        }
    }

    /// Locks the index mutex, for access to the `T` that it guards.
    #[inline]
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded<T>> {
        self.writer.lock()
    }

    /// Returns how many blocks, shadows and nodes are in the index.
    pub(crate) fn counts(&self) -> Counts {
        self.writer.lock().counts
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/recount.rs"]
mod validate;
