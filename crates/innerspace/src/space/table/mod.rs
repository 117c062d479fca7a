//! The page table: a radix tree of 512-word nodes in the arena's frames, whose subtrees are shared
//! by forks.
//!
//! There are four levels of nine bits over pages of 4 KiB, for addresses of 48 bits. Level 0 is the
//! leaf: `pte` defines the bits of its words, and says which code may change them. A word of an
//! upper node is a child's frame number, shifted, or 0 without a child. The root belongs to its
//! space. Every other node is kept by its hold word: `refs` counts the parents that lead to it,
//! `mapped` the leaves that borrow from it. For an anonymous page, `refs` counts the leaves that
//! own it, `mapped` its pins.
//!
//! A fork copies the root and takes one more ref on each child. A node that has more than one ref
//! or a borrower, or is below a node with more than one ref, is *shared*: it changes only in ways
//! that are right for every sharer (I11). Before any other change the path is made the space's own,
//! from the top (`Nodes::own_path`). A copied upper node takes one more ref on each child. A copied
//! leaf *borrows* the anonymous pages of the leaf that it was copied from, its shadow (`shadow`).
//! If a chain of shadows would be longer than `MAX_BORROW_DEPTH` (in `nodes`), the copy takes a ref
//! on each frame instead. `docs/protocols/borrowing.md` explains sharing and borrowing.
//!
//! Locking: words change by atomic read-modify-writes, or by plain stores where these lose no
//! change that matters (`pte` lists the ones in leaves; child words under `paths`, or of a range in
//! which no fault is under way). The space's `paths` mutex serialises the copying and creating of
//! nodes by faults, and is never held across anything that sleeps. A fault whose path is already
//! the space's own stores without the mutex. So before a node is replaced, its path is made to
//! count as shared. The path stays shared until every accessor that may have cached the old node
//! has been sent an invalidation (`edit`). Frames of nodes are always freed after a grace period,
//! because walkers may still be in them.

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
#[cfg(any(test, feature = "test-util"))]
mod tests;
pub(crate) mod zero_leaf;

pub(crate) use self::nodes::PATH_NODES;
pub(crate) use super::core::address::{ADDRESS_BITS, ROOT_LEVEL, slot_index, span};
