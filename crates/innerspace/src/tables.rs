//! What the published tables need beside the public interface: the old ways, and the page lock by
//! itself.
//!
//! Built with the feature `tables`, which no default or release build has. Not part of the
//! interface.

use crate::FrameId;
use crate::frame::{ArenaOptions, FrameLock, Frames, HoldState, Kind, Source};

pub use crate::frame::old_ways::{HoleRead, Mark, Unlock, set_hole_read, set_mark, set_unlock};
pub use crate::memory::charging::Charging;
pub use crate::space::replay::{VmaReplay, VmaScheme};
pub use crate::sys::flush::flush_lines;

/// Frames whose locks can be taken, and nothing else.
#[derive(Debug)]
pub struct PageLocks {
    frames: Frames,
    ids: Vec<FrameId>,
}

impl PageLocks {
    /// So many locks. A waiter loses its lock at most `patience` times to a later comer; 0 is first
    /// come, first served.
    ///
    /// # Panics
    /// When there is no memory for them.
    pub fn new(locks: u32, patience: u32) -> PageLocks {
        let frames = Frames::new(&ArenaOptions {
            patience,
            ..ArenaOptions::new(locks + 512)
        });
        let frames = frames.expect("a small arena can be had");
        let publish = |_| {
            let mut frame = frames.alloc(0, Source::Ordinary).expect("there are enough");
            frame.set_kind(Kind::Cached);
            frame.publish(HoldState::refs_only(1))
        };
        let ids = (0..locks).map(publish).collect();
        PageLocks { frames, ids }
    }

    /// One of them, found once.
    #[inline]
    pub fn at(&self, number: usize) -> PageLock<'_> {
        PageLock(self.frames.lock_of(self.ids[number]))
    }
}

/// The lock of one page.
#[derive(Clone, Copy, Debug)]
pub struct PageLock<'a>(FrameLock<'a>);

impl PageLock<'_> {
    /// Takes the lock.
    #[inline]
    pub fn lock(&self) {
        self.0.lock();
    }

    /// Releases the lock, which is held.
    #[inline]
    pub fn unlock(&self) {
        self.0.unlock();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    #[test]
    fn the_old_ways_of_unlocking_lose_no_waiter() {
        for way in [
            Unlock::ClearThenTest,
            Unlock::ClearThenLook,
            Unlock::OneOperation,
        ] {
            set_unlock(way);
            let locks = Arc::new(PageLocks::new(2, 5));
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let locks = locks.clone();
                    thread::spawn(move || {
                        for round in 0..2_000 {
                            let lock = locks.at(round % 2);
                            lock.lock();
                            lock.unlock();
                        }
                    })
                })
                .collect();
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            assert_eq!(locks.frames.waits().entries(), 0, "{way:?}");
        }
    }
}
