//! The allocator: magazines of single frames in front of the buddy lists.
//!
//! A magazine is a stack of up to 128 free frames on cache lines of its own. Each of the first
//! `OWNERS` threads has a magazine to itself, chosen by the thread's number. The thread uses it
//! with plain loads and stores (`sync::per_thread` has the protocol). All further threads share a
//! few magazines, each with a mutex. The magazines outlive all threads: the next thread with a
//! number finds the frames that the previous one left, so a thread that ends loses nothing and
//! needs no destructor. In this file, the buddy lists include the memory that was never given out,
//! which [`Buddy`] keeps as a range.
//!
//! The frame that was freed last is given out first, while it is still warm in the processor's
//! cache. A full magazine gives its colder half to the buddy lists, and an empty one takes half its
//! capacity from them.
//!
//! **Draining.** A thread that finds too little in the lists empties all magazines into them.
//! Meanwhile owners are kept out of their magazines, and go to the lists themselves. So a frame
//! that was in a magazine when the drain began is in the lists when it ends, and so is a frame that
//! is freed during the drain.
//!
//! A drainer holds the buddy mutex while it empties the magazines. It takes that mutex only after
//! all owners have left their magazines, because an owner at its magazine may wait for the mutex.
//! The owners may come back only after the drainer has its block. An owner that came back earlier
//! would fill its magazine with frames from the magazines of others.
//!
//! **A thread with a charge finds a frame.** While owners are kept out, all free frames are in the
//! lists, with one exception: frames that another thread is freeing, and whose charges it still
//! has. A frame is freed first, and its charge is given back after that (Release). A thread that
//! wants a frame takes the charge before it looks for the frame (Acquire, `group::counters`).
//!
//! *Counting* the magazines without keeping the owners out would not do. Of two frames, one may be
//! freed into a magazine that was counted already. The other may then be taken, by the charge just
//! given back, from a magazine that was not counted yet. The count misses both. Keeping owners out
//! is expensive. But it ensures that a thread that has a charge and finds too little in the lists
//! gets a frame, unless the reserve is in use or no block of the size it wants is free. In those
//! cases the next step, reclaim or the reserve, costs more.
//!
//! **The reserve.** Ordinary allocation never takes frames if fewer than `reserve` would be left in
//! the buddy lists. `Source::Reserve` may. While the lists have fewer frames than the reserve,
//! freed frames go to the lists and not to a magazine.
//!
//! **Locks.** A shared magazine's mutex, and inside it the buddy mutex. No other lock is taken
//! inside either.

use super::buddy::Buddy;
use super::meta::Meta;
use super::stack::{CAPACITY, Stack};
use crate::FrameId;
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::per_thread::{Draining, OWNERS, SHARED, ThreadSlots};
use crate::sync::{Mutex, Rank};

/// The maximum number of frames that a magazine takes or gives away in one step, except when it is
/// drained.
pub(crate) const HALF: usize = CAPACITY / 2;

/// Whether an allocation may use the reserved frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The allocation leaves the reserve alone.
    Ordinary,
    /// The allocation takes from the reserve if nothing else is left.
    Reserve,
}

/// The fields that all threads change. They have cache lines of their own, because every allocation
/// reads the allocator's other fields.
#[repr(align(128))]
#[derive(Debug)]
struct Common {
    lists: Mutex<Buddy>,
    /// The number of frames in the buddy lists. It is written under their mutex, and read without
    /// it.
    listed: AtomicU32,
}

/// Gives out frames and takes them back. It knows nothing of charges.
#[derive(Debug)]
pub(super) struct Allocator {
    common: Common,
    magazines: ThreadSlots<Stack>,
    /// The maximum number of frames in a magazine of this arena: in small arenas less than
    /// `CAPACITY`, down to 0.
    capacity: usize,
    reserve: u32,
    /// The number of drains so far; see [`Allocator::drains`].
    #[cfg(all(test, not(shuttle)))]
    drained: AtomicU32,
}

impl Allocator {
    /// Makes an allocator in which all frames before `end` except the zero frame are free. The
    /// arena has addresses for `all` frames.
    pub(super) fn new(all: u32, end: u32, reserve: u32) -> Allocator {
        let buddy = Buddy::new(all, end);
        // All magazines together, including those of idle threads, withhold at most a quarter of
        // the arena. That lasts until a thread finds too little and drains them; after that,
        // magazines of idle threads stay empty.
        let capacity = (end as usize / (4 * (OWNERS + SHARED))).min(CAPACITY);
        Allocator {
            common: Common {
                listed: AtomicU32::new(buddy.free()),
                lists: Mutex::ranked(Rank::Buddy, buddy),
            },
            magazines: ThreadSlots::new(Rank::Slot, Stack::new),
            // A magazine of fewer than four frames would gain nothing.
            capacity: if capacity < 4 { 0 } else { capacity },
            reserve,
            #[cfg(all(test, not(shuttle)))]
            drained: AtomicU32::new(0),
        }
    }

    /// Returns the number of frames that ordinary allocation leaves alone.
    pub(super) fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Returns the number of free frames, in lists and magazines. It is exact while no thread
    /// allocates or frees.
    pub(super) fn free_frames(&self) -> u32 {
        let magazines: usize = self.magazines.all().map(Stack::len).sum();
        self.common.listed.load(Ordering::Relaxed) + magazines as u32
    }

    /// Takes a block, whose first frame gets the kind `Magazine` or `Fresh`. Returns `None` if
    /// there is no block of that order even after the magazines were drained, or if `source` must
    /// leave the free frames to the reserve.
    #[inline(always)]
    pub(super) fn take(&self, metas: &[Meta], order: u8, source: Source) -> Option<FrameId> {
        if order == 0
            && self.capacity > 0
            && let Some(Some(id)) = self.with_magazine(|magazine| {
                magazine.pop().or_else(|| self.take_half(metas, magazine))
            })
        {
            return Some(id);
        }
        self.take_listed(metas, order, source)
    }

    /// Takes a single frame as [`Allocator::take`] does, if the calling thread has a magazine of
    /// its own, finds a frame there or in the lists, and no thread is draining the magazines. Also
    /// returns the frame that the thread gets next, if that is known.
    #[inline(always)]
    pub(super) fn take_from_thread_cache(
        &self,
        metas: &[Meta],
    ) -> Option<(FrameId, Option<FrameId>)> {
        let magazine = self.magazines.enter_own(magazine_number())?;
        let popped = magazine.pop();
        let id = popped.or_else(|| self.take_half(metas, &magazine))?;
        Some((id, magazine.top()))
    }

    /// Returns, as a hint, the single frame that the calling thread gets next. Returns `None` if
    /// its magazine is empty, if magazines are being drained, or if the thread has no magazine of
    /// its own, because a hint does not justify locking a mutex.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<FrameId> {
        self.magazines.enter_own(thread_number())?.top()
    }

    #[cold]
    fn take_listed(&self, metas: &[Meta], order: u8, source: Source) -> Option<FrameId> {
        let listed = self.take_block(metas, order, source);
        if listed.is_some() || self.capacity == 0 {
            return listed;
        }
        let _away = self.drain_magazines(metas);
        self.take_block(metas, order, source)
    }

    /// Takes single frames back. May sort `ids`.
    #[inline]
    pub(super) fn give_singles(&self, metas: &[Meta], ids: &mut [FrameId]) {
        let short = self.common.listed.load(Ordering::Relaxed) < self.reserve;
        let given = self.capacity > 0
            && !short
            && self
                .with_magazine(|magazine| {
                    // The first frame of `ids` goes on top, so that the frames come out in the
                    // order of `ids`, which is usually ascending (see `take_half`).
                    for id in ids.iter().rev() {
                        if magazine.len() == self.capacity {
                            self.give_half(metas, magazine);
                        }
                        magazine.push(*id);
                    }
                })
                .is_some();
        if !given {
            self.give_to_lists(metas, ids);
        }
    }

    /// Takes single frames back and bypasses the magazines, so that neighbours become a block
    /// again. Sorts `ids`.
    pub(super) fn give_to_lists(&self, metas: &[Meta], ids: &mut [FrameId]) {
        self.with_lists(|buddy| buddy.give_singles(metas, ids));
    }

    /// Takes a block back.
    #[inline]
    pub(super) fn give(&self, metas: &[Meta], id: FrameId, order: u8) {
        match order {
            0 => self.give_singles(metas, &mut [id]),
            _ => self.with_lists(|buddy| buddy.give(metas, id, order)),
        }
    }

    /// Runs `work` on the magazine of the calling thread. Returns `None` while magazines are being
    /// drained.
    #[inline(always)]
    fn with_magazine<R>(&self, work: impl FnOnce(&Stack) -> R) -> Option<R> {
        self.magazines.with(magazine_number(), work)
    }

    /// Moves the frames of all magazines to the buddy lists. No thread uses a magazine until the
    /// result is dropped.
    pub(super) fn drain_magazines(&self, metas: &[Meta]) -> Draining<'_> {
        #[cfg(all(test, not(shuttle)))]
        self.drained.fetch_add(1, Ordering::Relaxed);
        let draining = self.magazines.drain();
        self.with_lists(|buddy| {
            for magazine in self.magazines.all() {
                give_coldest(magazine, CAPACITY, buddy, metas);
            }
        });
        draining
    }

    /// Returns the number of frames that a magazine takes or gives away in one step, except when it
    /// is drained.
    fn half(&self) -> usize {
        self.capacity / 2
    }

    /// Fills an empty magazine to half its capacity, as far as the lists have frames to spare, and
    /// takes one of these frames.
    #[cold]
    fn take_half(&self, metas: &[Meta], magazine: &Stack) -> Option<FrameId> {
        self.with_lists(|buddy| {
            let spare = buddy.free().saturating_sub(self.reserve) as usize;
            let mut half = [FrameId(0); HALF];
            let wanted = spare.min(self.half());
            let taken = buddy.take_singles(metas, &mut half[..wanted]);
            // The lowest frame of a block goes on top, so that neighbours in a file become
            // neighbours in the arena. Some processors prefetch from one page into the next higher
            // one (`copy::prefetch`): clearing a page right after its lower neighbour takes 40 % of
            // the time that it takes after any other page.
            half[..taken].iter().rev().for_each(|id| magazine.push(*id));
        });
        magazine.pop()
    }

    /// Gives the colder half of a full magazine to the lists.
    #[cold]
    fn give_half(&self, metas: &[Meta], magazine: &Stack) {
        self.with_lists(|buddy| give_coldest(magazine, self.half(), buddy, metas));
    }

    /// Takes a block from the lists, if that leaves at least the frames that `source` must keep.
    fn take_block(&self, metas: &[Meta], order: u8, source: Source) -> Option<FrameId> {
        let keep = match source {
            Source::Ordinary => self.reserve,
            Source::Reserve => 0,
        };
        self.with_lists(|buddy| match buddy.free() >= keep + (1 << order) {
            true => buddy.take(metas, order),
            false => None,
        })
    }

    pub(super) fn with_lists<R>(&self, work: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.common.lists.lock();
        let result = work(&mut buddy);
        self.common.listed.store(buddy.free(), Ordering::Relaxed);
        result
    }
}

/// Returns the number of the calling thread's magazine. Under shuttle all threads share one
/// magazine: a replayed schedule then finds the same one again, and contention is highest.
#[inline(always)]
fn magazine_number() -> usize {
    if cfg!(shuttle) {
        OWNERS
    } else {
        thread_number()
    }
}

/// Gives up to `most` of the coldest frames of a magazine to the lists.
fn give_coldest(magazine: &Stack, most: usize, buddy: &mut Buddy, metas: &[Meta]) {
    let mut ids = [FrameId(0); CAPACITY];
    let mut len = 0;
    magazine.take_coldest(most, |id| {
        ids[len] = id;
        len += 1;
    });
    buddy.give_singles(metas, &mut ids[..len]);
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Allocator {
        /// Returns the number of free frames that are in no magazine.
        pub(crate) fn listed_frames(&self) -> u32 {
            self.common.listed.load(Ordering::Relaxed)
        }

        /// Returns the number of magazines that have frames.
        pub(crate) fn magazines_in_use(&self) -> usize {
            self.magazines.all().filter(|one| one.len() > 0).count()
        }

        /// Returns how many times magazines were drained.
        pub(crate) fn drains(&self) -> u32 {
            self.drained.load(Ordering::Relaxed)
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/magazines.rs"]
mod validate;
