//! The allocator: magazines of single frames in front of the buddy lists.
//!
//! A magazine is a stack of up to 128 free frames on cache lines of its own. A thread has the
//! magazine with its number, which it alone uses, with plain loads and stores (`sync::per_thread`
//! has the protocol); threads beyond those share a few, each with a mutex. The magazines outlive
//! all threads: the next thread with a number finds the frames that the last one left, so a thread
//! that ends loses nothing and needs no destructor. Frames come back last in, first out, while
//! they are warm in the processor's cache. A full magazine gives its colder half to the buddy
//! lists, an empty one takes as many from them.
//!
//! **Draining.** A thread that finds too little in the lists empties all magazines into them.
//! Owners are kept away meanwhile, and go to the lists themselves. So a frame that was in a
//! magazine when the drain began is in the lists when it ends, and so is one freed in between. A
//! drainer holds the buddy mutex while it is at the magazines. It takes that mutex when no owner is
//! at its magazine any more, because an owner may wait for it in its turn. The owners come back
//! when the drainer has its block; one that came earlier would fill its magazine with frames from
//! those of others. The same holds for threads that share magazines: the holder of such a
//! magazine's mutex looks whether a drain is under way, and a drainer announces itself before it
//! takes that mutex.
//!
//! **A thread with a charge finds a frame.** With the owners away all free frames are in the lists,
//! except those that another thread is freeing and still has the charges of: a frame is freed
//! first, and its charge given back after that (Release). A thread that looks for a frame takes the
//! charge before it looks (Acquire, `group::counters`). *Counting* the magazines without keeping
//! the owners away would give no answer. Of two frames one may be freed into a magazine that was
//! counted already, and the other be taken, with the charge just given back, from one that was not;
//! the count misses both. Keeping owners away is expensive. But a thread that has a charge and
//! finds too little in the lists gets a frame from it, unless the reserve is in use or no block of
//! its size is free, and then the next step, reclaim or the reserve, costs more.
//!
//! The reserve: ordinary allocation never brings the buddy lists below `reserve` frames.
//! `Source::Reserve` may, and frames that are freed while the lists are below the reserve go to
//! them and not to a magazine.
//!
//! Locks: a shared magazine's mutex, then the buddy mutex; nothing is taken inside either.

use super::buddy::Buddy;
use super::meta::{Kind, Meta};
use super::stack::{CAPACITY, Stack};
use crate::FrameId;
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::per_thread::{Draining, Drains, OWNERS, PerThread};
use crate::sync::{Mutex, Rank};

/// Frames that a magazine takes or gives away at once, at most.
pub(crate) const HALF: usize = CAPACITY / 2;

/// Magazines that all further threads share.
const SHARED: usize = 4;

/// Whether an allocation may use the frames kept for writeback and bounce buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Leave the reserve alone.
    Ordinary,
    /// Take from the reserve when nothing else is left.
    Reserve,
}

/// A magazine that threads share, on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Shared {
    lock: Mutex<()>,
    /// Changed with the mutex held.
    magazine: Stack,
}

/// The part that all threads change, on lines of its own: every allocation reads the rest.
#[repr(align(128))]
#[derive(Debug)]
struct Common {
    lists: Mutex<Buddy>,
    /// Frames in the buddy lists, written under their mutex, read without.
    listed: AtomicU32,
}

/// Hands out and takes back frames. It knows nothing of charges.
#[derive(Debug)]
pub(super) struct Allocator {
    common: Common,
    /// The drains under way.
    drains: Drains,
    /// The magazines of threads with small numbers.
    owned: Box<[PerThread<Stack>]>,
    /// The magazines that all other threads share.
    shared: Box<[Shared]>,
    /// Frames a magazine may hold here: less than `CAPACITY` in small arenas, down to 0.
    capacity: usize,
    reserve: u32,
    /// See [`Allocator::drains`].
    #[cfg(all(test, not(shuttle)))]
    drained: AtomicU32,
}

impl Allocator {
    /// Makes an allocator of all frames of `metas` but the zero frame.
    pub(super) fn new(metas: &[Meta], reserve: u32) -> Allocator {
        let buddy = Buddy::new(metas);
        // All magazines together, those of idle threads included, withhold at most a quarter of the
        // arena, until a thread finds too little and drains them; then idle ones stay empty.
        let capacity = (metas.len() / (4 * (OWNERS + SHARED))).min(CAPACITY);
        let shared = || Shared {
            lock: Mutex::ranked(Rank::Magazine, ()),
            magazine: Stack::new(),
        };
        Allocator {
            common: Common {
                listed: AtomicU32::new(buddy.free()),
                lists: Mutex::ranked(Rank::Buddy, buddy),
            },
            drains: Drains::new(),
            owned: (0..OWNERS).map(|_| PerThread::new(Stack::new())).collect(),
            shared: (0..SHARED).map(|_| shared()).collect(),
            // Half of a single frame would gain nothing.
            capacity: if capacity < 4 { 0 } else { capacity },
            reserve,
            #[cfg(all(test, not(shuttle)))]
            drained: AtomicU32::new(0),
        }
    }

    /// The frames ordinary allocation leaves alone.
    pub(super) fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Free frames, in lists and magazines; exact while no thread allocates or frees.
    pub(super) fn free_frames(&self) -> u32 {
        let magazines: usize = self.magazines().map(Stack::len).sum();
        self.common.listed.load(Ordering::Relaxed) + magazines as u32
    }

    /// All magazines, for reading.
    fn magazines(&self) -> impl Iterator<Item = &Stack> {
        let shared = self.shared.iter().map(|shared| &shared.magazine);
        self.owned.iter().map(PerThread::look).chain(shared)
    }

    /// Takes a block; its first frame's kind is `Magazine`. `None` when there is no block of that
    /// order, even after the magazines were drained.
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
    /// its own and finds one there or in the lists. Also returns the frame that the thread gets
    /// next, if that is known.
    #[inline(always)]
    pub(super) fn take_from_thread_cache(
        &self,
        metas: &[Meta],
    ) -> Option<(FrameId, Option<FrameId>)> {
        let magazine = self.owned.get(magazine_number())?.enter(&self.drains)?;
        let popped = magazine.pop();
        let id = popped.or_else(|| self.take_half(metas, &magazine))?;
        Some((id, magazine.top()))
    }

    /// The single frame that the calling thread gets next, if it has a magazine of its own: a hint,
    /// not worth a mutex.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<FrameId> {
        let own = self.owned.get(thread_number())?;
        own.enter(&self.drains)?.top()
    }

    /// Takes single frames in one turn at the thread's magazine, which is filled when it is empty.
    /// Returns how many: none if [`Allocator::take`] has to go to the lists.
    pub(super) fn take_singles(&self, metas: &[Meta], into: &mut [FrameId]) -> usize {
        if self.capacity == 0 {
            return 0;
        }
        let taken = self.with_magazine(|magazine| {
            let mut taken = 0;
            for place in into {
                let popped = magazine.pop();
                let Some(id) = popped.or_else(|| self.take_half(metas, magazine)) else {
                    break;
                };
                *place = id;
                taken += 1;
            }
            taken
        });
        taken.unwrap_or(0)
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

    /// Takes single frames back. May sort them.
    pub(super) fn give_singles(&self, metas: &[Meta], ids: &mut [FrameId]) {
        let short = self.common.listed.load(Ordering::Relaxed) < self.reserve;
        let given = self.capacity > 0
            && !short
            && self
                .with_magazine(|magazine| {
                    // The first on top: frames that were freed in order come out in order, usually
                    // upwards (see `take_half`).
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

    /// Takes single frames back past the magazines, so that neighbours become a block again. Sorts
    /// them.
    pub(super) fn give_to_lists(&self, metas: &[Meta], ids: &mut [FrameId]) {
        self.with_lists(|buddy| buddy.give_singles(metas, ids));
    }

    /// Takes a block back.
    #[inline]
    pub(super) fn give(&self, metas: &[Meta], id: FrameId, order: u8) {
        let short = self.common.listed.load(Ordering::Relaxed) < self.reserve;
        let given = order == 0
            && self.capacity > 0
            && !short
            && self
                .with_magazine(|magazine| {
                    if magazine.len() == self.capacity {
                        self.give_half(metas, magazine);
                    }
                    magazine.push(id);
                })
                .is_some();
        if !given {
            self.with_lists(|buddy| buddy.give(metas, id, order));
        }
    }

    /// Runs `work` on the magazine of the calling thread; `None` while magazines are emptied.
    #[inline(always)]
    fn with_magazine<R>(&self, work: impl FnOnce(&Stack) -> R) -> Option<R> {
        let number = magazine_number();
        match self.owned.get(number) {
            Some(own) => own.enter(&self.drains).map(|magazine| work(&magazine)),
            None => {
                let shared = &self.shared[number % SHARED];
                let _alone = shared.lock.lock();
                // By the mutex, a thread that comes after a drainer sees its drain; one that sees
                // it ended comes after the drainer has its block.
                let is_ours = !self.drains.any();
                is_ours.then(|| work(&shared.magazine))
            }
        }
    }

    /// Returns the frames of all magazines to the buddy lists. No thread uses these until the
    /// result is dropped.
    pub(super) fn drain_magazines(&self, metas: &[Meta]) -> Draining<'_> {
        #[cfg(all(test, not(shuttle)))]
        self.drained.fetch_add(1, Ordering::Relaxed);
        let draining = self.drains.begin(&self.owned);
        self.with_lists(|buddy| {
            for own in &self.owned {
                give_coldest(own.look(), CAPACITY, buddy, metas);
            }
        });
        for shared in &self.shared {
            let _alone = shared.lock.lock();
            if shared.magazine.len() > 0 {
                self.with_lists(|buddy| give_coldest(&shared.magazine, CAPACITY, buddy, metas));
            }
        }
        draining
    }

    /// Frames of a half.
    fn half(&self) -> usize {
        self.capacity / 2
    }

    /// Fills an empty magazine by half and takes one of the frames.
    #[cold]
    fn take_half(&self, metas: &[Meta], magazine: &Stack) -> Option<FrameId> {
        self.with_lists(|buddy| {
            let spare = buddy.free().saturating_sub(self.reserve) as usize;
            let mut half = [FrameId(0); HALF];
            let wanted = spare.min(self.half());
            let taken = buddy.take_singles(metas, &mut half[..wanted]);
            // The lowest frame of a block on top, so that neighbours in a file are neighbours in
            // the arena. The processor fetches ahead upwards, across page ends too: clearing a page
            // right after its lower neighbour takes 40 % of the time it takes after any other.
            half[..taken].iter().rev().for_each(|id| magazine.push(*id));
        });
        magazine.pop()
    }

    /// Gives the colder half of a full magazine away.
    #[cold]
    fn give_half(&self, metas: &[Meta], magazine: &Stack) {
        self.with_lists(|buddy| give_coldest(magazine, self.half(), buddy, metas));
    }

    /// Takes a block from the lists.
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

    fn with_lists<R>(&self, work: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.common.lists.lock();
        let result = work(&mut buddy);
        self.common.listed.store(buddy.free(), Ordering::Relaxed);
        result
    }

    /// Checks lists, magazines and counts, and calls `block` for each free block. No thread may
    /// allocate or free meanwhile.
    pub(super) fn validate(&self, metas: &[Meta], mut block: impl FnMut(FrameId, u8)) {
        let buddy = self.common.lists.lock();
        for id in self.magazines().flat_map(Stack::iter) {
            let meta = &metas[id.index()];
            assert_eq!(meta.kind(), Kind::Magazine, "{id:?} is in a magazine");
            assert_eq!(meta.order(), 0, "{id:?} is in a magazine");
            block(id, 0);
        }
        assert_eq!(
            buddy.free(),
            self.common.listed.load(Ordering::Relaxed),
            "listed frames"
        );
        buddy.validate(metas, block);
    }
}

/// The number of the calling thread's magazine. A replayed schedule must meet the same one; sharing
/// one gives the most contention.
#[inline(always)]
fn magazine_number() -> usize {
    if cfg!(shuttle) {
        OWNERS
    } else {
        thread_number()
    }
}

/// Gives the `most` coldest frames of a magazine to the lists.
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
        /// Free frames in lists.
        pub(crate) fn listed_frames(&self) -> u32 {
            self.common.listed.load(Ordering::Relaxed)
        }

        /// The number of magazines that have frames.
        pub(crate) fn magazines_in_use(&self) -> usize {
            self.magazines().filter(|one| one.len() > 0).count()
        }

        /// How often magazines were emptied.
        pub(crate) fn drains(&self) -> u32 {
            self.drained.load(Ordering::Relaxed)
        }
    }
}
