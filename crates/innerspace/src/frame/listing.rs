//! The LRU's record of a frame, in one word: the frame's place, and the group on whose lists the
//! frame is.
//!
//! Lists and batches name frames that may have been freed and reused meanwhile, or that may be back
//! in the same place for another group. A thread that finds a frame in this way reads the word,
//! locks the lists of the group in it, and reads the word again. An unchanged word proves that the
//! frame is there, and that it stays there while the lists are locked
//! (`docs/protocols/per-thread.md`).

use crate::sync::atomic::{AtomicU32, Ordering};

const GROUP_SHIFT: u32 = 8;

/// A frame's place (0 is none), and the group under whose lock the frame leaves that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Listing {
    pub(crate) place: u8,
    pub(crate) group: u16,
}

/// The word with a frame's listing. All zeros mean that the frame is in no place.
#[derive(Default)]
pub(crate) struct Listed(AtomicU32);

impl Listed {
    /// Loads the listing. Acquire: pairs with `store`.
    #[inline(always)]
    pub(crate) fn load(&self) -> Listing {
        let word = self.0.load(Ordering::Acquire);
        Listing {
            place: word as u8,
            group: (word >> GROUP_SHIFT) as u16,
        }
    }

    /// Stores the listing. The caller holds the lock of the lists of the frame's group, or is the
    /// thread that lists the frame, which was in no place. Release: pairs with `load`, so that a
    /// thread that sees the place also sees everything set before.
    #[inline(always)]
    pub(crate) fn store(&self, Listing { place, group }: Listing) {
        let word = u32::from(group) << GROUP_SHIFT | u32::from(place);
        self.0.store(word, Ordering::Release);
    }

    /// Resets the listing of a newly allocated frame to no place.
    #[inline(always)]
    pub(super) fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Locks the lists of the group in `seen`, whose place must not be 0. Returns `None` if the
    /// frame has left that place.
    #[inline]
    pub(crate) fn lock_at<L>(&self, seen: Listing, lock: impl FnOnce(u16) -> L) -> Option<L> {
        let locked = lock(seen.group);
        (self.load() == seen).then_some(locked)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::model::Builder;

    use super::*;
    use crate::sync::{Arc, Mutex, thread};

    const WAITS: u8 = 1;
    const ON_LIST: u8 = 2;

    #[derive(Default)]
    struct World {
        listed: Listed,
        /// The number of frames on the lists of two groups.
        lists: [Mutex<u32>; 2],
    }

    impl World {
        fn add(&self, group: u16) {
            assert_eq!(self.listed.load().place, 0, "it is in nobody's hands");
            let place = WAITS;
            self.listed.store(Listing { place, group });
        }

        /// Takes the frame out of its place, as a thread that frees it does.
        fn remove(&self) {
            loop {
                let seen = self.listed.load();
                let locked = self.listed.lock_at(seen, |group| self.list(group).lock());
                if let Some(mut list) = locked {
                    *list -= u32::from(seen.place == ON_LIST);
                    self.listed.store(Listing { place: 0, ..seen });
                    return;
                }
            }
        }

        /// Drains the batch, as a thread that finds the frame's number in it does.
        fn drain(&self) {
            let seen = self.listed.load();
            if seen.place != WAITS {
                return;
            }
            let locked = self.listed.lock_at(seen, |group| self.list(group).lock());
            if let Some(mut list) = locked {
                *list += 1;
                let place = ON_LIST;
                self.listed.store(Listing { place, ..seen });
            }
        }

        fn list(&self, group: u16) -> &Mutex<u32> {
            &self.lists[usize::from(group)]
        }
    }

    // The frame is on a list of the first group, then of the second, and then on one of the first
    // again.
    #[test]
    fn a_frame_of_three_lives_is_never_taken_for_one_of_another() {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(4);
        builder.check(|| {
            let world = Arc::new(World::default());
            world.add(0);
            let theirs = world.clone();
            let drainer = thread::spawn(move || theirs.drain());
            world.remove();
            world.add(1);
            world.remove();
            world.listed.begin();
            drainer.join().unwrap();
            assert_eq!(world.listed.load().place, 0);
            for list in &world.lists {
                assert_eq!(*list.lock(), 0, "listed in nobody's hands");
            }
        });
    }
}
