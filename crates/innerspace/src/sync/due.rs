//! A flag that says that a future is due to be woken. Many threads set it; the thread that wakes
//! the future clears it.
//!
//! A future waits for several blocks of a file. The first fill that concerns the future puts it in
//! a list, and the thread that empties the list wakes it. A fill that comes after the first, and
//! before that thread clears the flag, finds the flag set and does nothing more. The wake-up to
//! come must then show that fill's block to the future as well. Otherwise the future finds the
//! block missing and is never woken again.
//!
//! Both operations are therefore exchanges of one word, which puts them in one order. A note that
//! finds the word set comes before the take that clears it. Every change between the two is an
//! exchange too, so the take reads the note's value, or one that continues the note's release
//! sequence. Everything before the note (Release) thus happens before everything after the take
//! (Acquire), which includes the wake-up. A take by a plain store would acquire nothing.

use crate::sync::atomic::{AtomicBool, Ordering};

/// The flag that this module describes.
#[derive(Debug, Default)]
pub(crate) struct Due(AtomicBool);

impl Due {
    /// Notes a change that the waiting future has to see. Returns `true` if the caller must put the
    /// future in the list. If `false`, the future is already in the list, and is woken after a
    /// [`Due::take`] that sees the caller's change.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Notes that the future was removed from the list and is woken next.
    pub(crate) fn take(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::{Arc, Mutex, thread};

    // spec: R20
    #[test]
    fn r20_whoever_finds_a_future_noted_is_seen_by_its_wake_up() {
        loom::model(|| {
            let due = Arc::new(Due::default());
            let is_filled = Arc::new(AtomicBool::new(false));
            let list = Arc::new(Mutex::new(0));
            // An earlier fill of another block has put the future in the list.
            assert!(due.note());
            *list.lock() += 1;
            let filler = {
                let (due, is_filled, list) = (due.clone(), is_filled.clone(), list.clone());
                thread::spawn(move || {
                    is_filled.store(true, Ordering::Relaxed);
                    let lists = due.note();
                    if lists {
                        *list.lock() += 1;
                    }
                    lists
                })
            };
            let listed = std::mem::take(&mut *list.lock());
            assert_eq!(listed, 1, "once, whoever has noted it");
            due.take();
            let saw = is_filled.load(Ordering::Relaxed);
            let lists = filler.join().unwrap();
            assert!(saw || lists, "nobody wakes it for that block");
            assert_eq!(*list.lock(), u32::from(lists));
        });
    }
}
