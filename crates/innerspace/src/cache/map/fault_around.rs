//! Fault-around: a page fault that maps a block also maps blocks near it, if that needs neither
//! waiting nor a mutex.
//!
//! A block is taken if it is cached, up to date, not locked and not waited for. To take it, the
//! fault locks the block, and counts one of its pages as installed; that count holds the frame as a
//! reference would, and goes into the page table with the page. So a neighbour is installed under
//! its block's lock, like the page of the fault. An operation that evicts, cuts off, punches or
//! moves the block holds its lock, too. If it has the lock when the fault tries to take it, the
//! fault skips the block. If it gets the lock after the fault, it finds the page.
//!
//! The locks are taken in the section in which the pages are installed, by a single try that does
//! not use the wait table. They are released after the section, because unlocking may wake a
//! thread.

use crate::cache::core::FileCore;
use crate::cache::index::Word;
use crate::frame::FlagSet;
use crate::reclaim::{Pool, Retired};
use crate::sync::{failpoint, interleave, raw};
use crate::units::FrameId;

/// The blocks that one fault has taken. [`FaultAround::release`] unlocks them.
#[derive(Debug)]
pub(crate) struct FaultAround {
    /// The first frames of locked blocks.
    taken: [FrameId; FaultAround::MOST],
    len: usize,
    /// A bit for each block in `taken` that cannot be used: when it was locked, it had left the
    /// index, or was not up to date. `release` gives back the count on such a block.
    strays: u32,
}

impl FaultAround {
    /// The most blocks that one fault takes.
    pub(crate) const MOST: usize = 16;

    pub(crate) const NONE: FaultAround = FaultAround {
        taken: [FrameId(0); FaultAround::MOST],
        len: 0,
        strays: 0,
    };

    /// Locks a block of the file if its lock is free, and counts one of its pages as installed.
    /// Returns the block's first frame; the caller installs the page or gives the count back.
    /// Returns `None` if the block's lock is not free, or the block turns out to be gone or not up
    /// to date. Called in a section: takes no mutex and wakes no thread.
    pub(crate) fn take(&mut self, file: &FileCore, block: u64) -> Option<FrameId> {
        let place = self.taken.get_mut(self.len)?;
        let (frame, stays) = try_lock_counted(file, block)?;
        *place = frame;
        self.strays |= u32::from(!stays) << self.len;
        self.len += 1;
        stays.then_some(frame)
    }

    /// Unlocks the taken blocks. Called with no section open. The frames are held only by pages
    /// that are still installed; `frame::lock` explains why that is enough.
    #[inline]
    pub(crate) fn release(&mut self, pool: &Pool) {
        if self.len > 0 {
            self.unlock_all(pool);
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_all(&mut self, pool: &Pool) {
        for (place, frame) in self.taken[..self.len].iter().enumerate() {
            pool.frames.lock_of(*frame).unlock();
            if self.strays & 1 << place != 0 {
                pool.unmap(*frame);
            }
        }
        (self.len, self.strays) = (0, 0);
    }
}

impl Drop for FaultAround {
    fn drop(&mut self) {
        debug_assert!(self.len == 0 || std::thread::panicking(), "still locked");
    }
}

/// Locks the block if it is cached, up to date, unlocked and not waited for, and counts a page of
/// it as installed. Also returns whether the block is still in the index, and up to date.
fn try_lock_counted(core: &FileCore, block: u64) -> Option<(FrameId, bool)> {
    let frames = core.frames();
    let slot = core.blocks.index.slot(frames, block)?;
    let word = slot.load(raw::Ordering::Acquire);
    let Word::Block(frame) = Word::decode(word) else {
        return None;
    };
    let meta = frames.meta(frame);
    let flags = meta.flags.load();
    if flags.intersects(FlagSet::LOCKED | FlagSet::WAITERS) || !flags.contains(FlagSet::UPTODATE) {
        return None;
    }
    interleave();
    failpoint!(NeighbourSeen);
    if !meta.hold.try_map_cached() {
        return None;
    }
    interleave();
    failpoint!(NeighbourCounted);
    if !frames.lock_of(frame).try_lock_alone() {
        // The count just taken may be the last hold on the frame, and nothing is freed in a
        // section.
        core.pool.retire(Retired::Unmap(frame));
        return None;
    }
    interleave();
    // The block is locked now, so if the index still has it, it stays there. A fill sets UPTODATE
    // before it unlocks the block, so the flag is final.
    let stays = slot.load(raw::Ordering::Acquire) == word;
    Some((
        frame,
        stays && meta.flags.load().contains(FlagSet::UPTODATE),
    ))
}
