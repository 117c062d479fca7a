//! The points of this layer where a test has something else happen.

pub(super) use crate::sync::midway::reached;
#[cfg(not(loom))]
pub(super) use crate::sync::midway::then;

/// Where a thread is in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// In a view: the index said where the block is, and no view of that frame has been taken.
    WordRead,
    /// In a fault that takes a block beside its own: it has been looked at, and is not counted as
    /// mapped.
    BesideSeen,
    /// The same: it is counted, and not locked.
    BesideCounted,
    /// In a punch, a truncation: blocks are out of the index, and those who map them have been
    /// looked for.
    CutOff,
    /// The same: they are gone, and unlocked.
    Gone,
    /// In a cut: writes that had begun are over, and nothing is cut off.
    Cutting,
    /// In a write to a block: it is not cached.
    NotCached,
    /// The same: the store has a hole there, and the block has not been made.
    HoleFound,
    /// The same, of a file that is mapped: the block is there, and unlocked.
    HoleFilled,
    /// In an append into the last block that does not wait: where it goes is known, and the block
    /// is not locked.
    Appending,
    /// In an invalidation: the store has told its length.
    LengthTold,
    /// In a write back: its blocks are locked and pinned, their lengths known, and its write has
    /// not begun.
    Beginning,
    /// In a sync that a cut has kept from writing: about to wait for it.
    PutOff,
    /// In a sync, a close: it has written what was dirty, and waits for the writes of others next.
    OwnWritten,
    /// The same: those are over.
    OthersWritten,
    /// In a wait for writes: it is known for which, and one of them is under way. The index of what
    /// is dirty is locked.
    Awaiting,
    /// In a close that has left something unwritten: nobody else begins a write.
    Closing,
    /// In a punch: the store has answered, and nothing is noted.
    Punched,
    /// In a sync that has failed: others may sync again.
    SyncFailed,
    /// In taking back what is in doubt: it is known which blocks are, and none is locked.
    DoubtListed,
}

impl crate::sync::midway::Point for Point {}
