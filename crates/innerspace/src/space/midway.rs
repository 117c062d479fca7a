//! The points of this layer where a test has something else happen.

pub(super) use crate::sync::midway::{reached, then};

/// Work for which a thread is to come to a point of this layer.
pub(super) type Awaited = crate::sync::midway::Awaited<Point>;

/// Where a thread is in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// In a structural change: the gate is closed, the words are changed, the mappings are not.
    Change,
    /// In a fault that makes its path the space's own, before it waits for its turn.
    Turn,
    /// In a fault that makes a page writable: those who watch it have been told, its word is not
    /// changed.
    Told,
    /// In a watch of code: the gate is closed on the page, and its word is not looked at.
    Waited,
    /// In a fault that copies a page: it is copied, and its word is not replaced.
    Copied,
    /// In a fault of a file's page: its block is had and locked, and the page is not mapped.
    BlockHad,
    /// In a fault that has put a copy in the place of a node: those who may remember what was below
    /// are not told.
    Replaced,
    /// In a copy of a leaf: the words are taken, and the leaf does not know of a borrower.
    LeafCopied,
    /// In the section of a revocation: the mappings are read, no word is looked at.
    Revocation,
    /// In a walk up a chain of leaves that borrow: at one that no parent has, and its word is not
    /// looked at.
    Climbing,
    /// In a leaf that is about to absorb its origin: it was found alone, and is not claimed.
    FoundAlone,
    /// In a leaf that has absorbed its origin: nobody counts there any more.
    Uncounted,
    /// At the end of a revocation: the space was asked, and no section is open.
    Revoked,
    /// In a walk to a leaf: the first node below the root is found, and whether it is shared is not
    /// looked at.
    Walk,
    /// In a load's walk to a leaf that may have to be made: the first node below the root is found.
    Filling,
    /// In a drop of pages where they are: a word is not empty, and not taken.
    Zap,
    /// In a take of what is dirty: the gate is closed, it is known what is named, and no word has
    /// lost its write validity.
    Taken,
    /// In a leaf that absorbs its origin: the pages are its own, and the next one up the chain does
    /// not know.
    Absorbed,
    /// In a change of a leaf's words: one is changed.
    Edited,
    /// In the end of a space: its table is let go, and what that retired is still there.
    TableGone,
}

impl crate::sync::midway::Point for Point {}
