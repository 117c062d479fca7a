//! A note that somebody is due to be woken, set by many and taken by whoever wakes.
//!
//! A future waits for several blocks of a file. The first fill that concerns it lists it, and
//! whoever empties the list wakes it. A fill in between finds it noted and leaves it at that. The
//! wake-up that is still to come has to show the future that fill's block, too; otherwise the
//! future finds the block missing, and nobody wakes it again.
//!
//! So both operations are exchanges of one word, which have one order. A note that finds the word
//! set comes before the take that clears it, and every change of the word from the one to the other
//! is an exchange: the take reads the note's value, or one that continues its release sequence.
//! What came before the note (Release) has therefore happened for what follows the take (Acquire),
//! which is the wake-up. A take that merely stored would read nothing, and promise nothing where
//! the processor does not order by itself.

use crate::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Due(AtomicBool);

impl Due {
    /// Something has changed for the sleeper. Whether the caller has to list it: otherwise it is
    /// listed, and is woken after a [`Due::take`] that sees what the caller has done.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// It was taken out of the list, and is woken next.
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
            // Another block of the future has been filled.
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
