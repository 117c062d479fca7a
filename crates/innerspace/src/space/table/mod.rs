//! The page table: a radix tree of 512-word nodes in the arena's frames, whose subtrees are shared
//! by forks.
//!
//! Four levels of nine bits over pages of 4 KiB: 48 bits of address. Level 0 is the leaf
//! ([`crate::space::table::pte`]); a word of an upper node is a child's frame number, shifted, or
//! 0. The root belongs to its space; every other node is kept by its hold word: `refs` counts the
//! parents that lead to it, `mapped` the leaves that borrow from it. Of an anonymous page `refs`
//! counts the leaves that own it, `mapped` its pins.
//!
//! Fork copies the root and takes one more ref on each child. A node with more than one ref, or
//! below such a node, is *shared*, and changes only in ways right for every sharer (I11).
//! Everything else first makes the path the space's own, from the top (`Nodes::own_path`): a copied
//! upper node takes one more ref on each child; a copied leaf *borrows* the anonymous pages of the
//! leaf that it was copied from, its shadow (`shadow`). A chain longer than `MAX_DEPTH` is cut by
//! taking a ref on each frame instead. Sharing and borrowing are explained in
//! `docs/protocols/borrowing.md`.
//!
//! Locking: words change by compare-exchange, or by plain stores where no other thread can change
//! them (`pte::take_alone`; child words under `paths`, or of a range in which no fault works);
//! copying and creating nodes by faults is serialised by the space's `paths` mutex, never held over
//! anything that sleeps. A fault that finds its path the space's own stores without it; so the path
//! counts as nobody's own from before a node is replaced until every accessor that may remember the
//! old node has mail (`PendingInvalidation`). Node frames are always freed after a grace period,
//! for walkers that may still be in them.

pub(crate) mod compare;
pub(crate) mod edit;
pub(crate) mod leaf;
pub(crate) mod moving;
pub(crate) mod nodes;
pub(crate) mod pinned;
pub(crate) mod pte;
pub(crate) mod report;
pub(crate) mod shadow;
pub(crate) mod still;
pub(crate) mod zero_leaf;

pub(crate) use self::nodes::PATH_NODES;
pub(crate) use super::core::address::{ADDRESS_BITS, ROOT_LEVEL, slot_index, span};
