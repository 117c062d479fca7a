//! The allocator: magazines of single frames in front of the buddy lists.
//!
//! A magazine is a stack of up to 32 free frames in a slot of its own cache lines. A thread uses the slot its number
//! chooses; the slots outlive all threads, so a thread that ends leaves nothing behind and needs no destructor. Two
//! threads may share a slot: its mutex makes that safe, and rare contention makes it cheap. Frames come back last in,
//! first out, while they are warm in the processor's cache. An empty magazine takes half a load from the buddy lists, a
//! full one gives its colder half back.
//!
//! The reserve: ordinary allocation never brings the buddy lists below `reserve` frames. `Source::Reserve` may, and
//! frames that are freed while the lists are below the reserve go to them and not to a magazine.
//!
//! Locks: a slot's mutex, then the buddy mutex; nothing is taken inside either.

use super::buddy::Buddy;
use super::meta::{Kind, Meta};
use crate::FrameId;
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, Rank, thread};

/// The most frames a magazine holds.
const CAPACITY: usize = 32;

/// Whether an allocation may use the frames kept for writeback and bounce buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Leave the reserve alone.
    Ordinary,
    /// Take from the reserve when nothing else is left.
    Reserve,
}

/// A stack of free frames.
#[derive(Debug)]
struct Magazine {
    frames: [u32; CAPACITY],
    len: usize,
}

impl Magazine {
    const EMPTY: Magazine = Magazine {
        frames: [0; CAPACITY],
        len: 0,
    };

    fn push(&mut self, id: FrameId) {
        self.frames[self.len] = id.0;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<FrameId> {
        self.len = self.len.checked_sub(1)?;
        Some(FrameId(self.frames[self.len]))
    }

    /// Hands the `count` coldest frames to `each`.
    fn take_coldest(&mut self, count: usize, mut each: impl FnMut(FrameId)) {
        let count = count.min(self.len);
        self.frames[..count]
            .iter()
            .for_each(|&id| each(FrameId(id)));
        self.frames.copy_within(count..self.len, 0);
        self.len -= count;
    }
}

/// One magazine on cache lines of its own (two: the adjacent line is prefetched with it).
#[repr(align(128))]
#[derive(Debug)]
struct Slot {
    magazine: Mutex<Magazine>,
    /// The magazine's length, written under its mutex, read by whoever counts.
    len: AtomicU32,
}

/// Hands out and takes back frames. It knows nothing of charges.
#[derive(Debug)]
pub(super) struct Allocator {
    buddy: Mutex<Buddy>,
    /// Frames in the buddy lists, written under their mutex, read without.
    listed: AtomicU32,
    slots: Box<[Slot]>,
    /// Frames a magazine may hold here: less than `CAPACITY` in small arenas, down to 0.
    capacity: usize,
    reserve: u32,
}

impl Allocator {
    /// An allocator of all frames of `metas` but the zero frame.
    pub(super) fn new(metas: &[Meta], reserve: u32) -> Allocator {
        let buddy = Buddy::new(metas);
        let threads = thread::available_parallelism().map_or(2, usize::from);
        let slots = (2 * threads).next_power_of_two().clamp(4, 64);
        // All magazines together keep at most a sixteenth of the arena from blocks and from other threads.
        let capacity = (metas.len() / (16 * slots)).min(CAPACITY);
        Allocator {
            listed: AtomicU32::new(buddy.free()),
            buddy: Mutex::ranked(Rank::Buddy, buddy),
            slots: (0..slots)
                .map(|_| Slot {
                    magazine: Mutex::ranked(Rank::Magazine, Magazine::EMPTY),
                    len: AtomicU32::new(0),
                })
                .collect(),
            capacity: if capacity < 2 { 0 } else { capacity },
            reserve,
        }
    }

    /// The frames ordinary allocation leaves alone.
    pub(super) fn reserve(&self) -> u32 {
        self.reserve
    }

    /// Free frames, in lists and magazines; exact when nobody allocates or frees.
    pub(super) fn free_frames(&self) -> u32 {
        let loaded: u32 = self
            .slots
            .iter()
            .map(|slot| slot.len.load(Ordering::Relaxed))
            .sum();
        self.listed.load(Ordering::Relaxed) + loaded
    }

    /// Takes a block; its first frame's kind is `Magazine`. `None` when there is no block of that order, even after the
    /// magazines were drained.
    pub(super) fn take(&self, metas: &[Meta], order: u8, source: Source) -> Option<FrameId> {
        if order == 0
            && self.capacity > 0
            && let Some(id) = self.take_single(metas)
        {
            return Some(id);
        }
        if let Some(id) = self.take_block(metas, order, source) {
            return Some(id);
        }
        self.drain_magazines(metas);
        self.take_block(metas, order, source)
    }

    /// Takes a block back.
    pub(super) fn give(&self, metas: &[Meta], id: FrameId, order: u8) {
        let short = self.listed.load(Ordering::Relaxed) < self.reserve;
        if order > 0 || self.capacity == 0 || short {
            self.with_buddy(|buddy| buddy.give(metas, id, order));
            return;
        }
        let slot = self.slot();
        let mut magazine = slot.magazine.lock();
        if magazine.len == self.capacity {
            self.with_buddy(|buddy| {
                magazine.take_coldest(self.capacity / 2, |id| buddy.give(metas, id, 0));
            });
        }
        magazine.push(id);
        slot.len.store(magazine.len as u32, Ordering::Relaxed);
    }

    /// Returns the frames of all magazines to the buddy lists.
    pub(super) fn drain_magazines(&self, metas: &[Meta]) {
        for slot in &self.slots {
            let mut magazine = slot.magazine.lock();
            if magazine.len > 0 {
                self.with_buddy(|buddy| {
                    magazine.take_coldest(CAPACITY, |id| buddy.give(metas, id, 0));
                });
                slot.len.store(0, Ordering::Relaxed);
            }
        }
    }

    fn take_single(&self, metas: &[Meta]) -> Option<FrameId> {
        let slot = self.slot();
        let mut magazine = slot.magazine.lock();
        if magazine.len == 0 {
            self.with_buddy(|buddy| {
                let spare = buddy.free().saturating_sub(self.reserve) as usize;
                for _ in 0..spare.min(self.capacity / 2) {
                    match buddy.take(metas, 0) {
                        Some(id) => magazine.push(id),
                        None => break,
                    }
                }
                // The lowest on top: neighbours in a file are neighbours in the arena, which the CPU prefetches.
                let filled = magazine.len;
                magazine.frames[..filled].reverse();
            });
        }
        let id = magazine.pop()?;
        slot.len.store(magazine.len as u32, Ordering::Relaxed);
        Some(id)
    }

    fn take_block(&self, metas: &[Meta], order: u8, source: Source) -> Option<FrameId> {
        self.with_buddy(|buddy| {
            let keep = match source {
                Source::Ordinary => self.reserve,
                Source::Reserve => 0,
            };
            if buddy.free() < keep + (1 << order) {
                return None;
            }
            buddy.take(metas, order)
        })
    }

    fn with_buddy<R>(&self, work: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.buddy.lock();
        let result = work(&mut buddy);
        self.listed.store(buddy.free(), Ordering::Relaxed);
        result
    }

    fn slot(&self) -> &Slot {
        // A schedule that is replayed must meet the same slots; sharing one gives the most contention.
        let number = if cfg!(shuttle) { 0 } else { thread_number() };
        &self.slots[number & (self.slots.len() - 1)]
    }

    /// Checks lists, magazines and counts, and calls `block` for each free block. Nobody may allocate or free meanwhile.
    pub(super) fn validate(&self, metas: &[Meta], mut block: impl FnMut(FrameId, u8)) {
        for slot in &self.slots {
            let magazine = slot.magazine.lock();
            assert_eq!(
                magazine.len,
                slot.len.load(Ordering::Relaxed) as usize,
                "a magazine's length"
            );
            for &id in &magazine.frames[..magazine.len] {
                let meta = &metas[id as usize];
                assert_eq!(meta.kind(), Kind::Magazine, "frame {id} is in a magazine");
                assert_eq!(meta.order(), 0, "frame {id} is in a magazine");
                block(FrameId(id), 0);
            }
        }
        let buddy = self.buddy.lock();
        assert_eq!(
            buddy.free(),
            self.listed.load(Ordering::Relaxed),
            "listed frames"
        );
        buddy.validate(metas, block);
    }
}
