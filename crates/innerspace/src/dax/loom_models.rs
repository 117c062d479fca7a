//! Models of an entry's lock: the steps of `grab`, over words of a loom build. The bytes of each
//! page are a loom cell, so loom reports two holders of one page. A lost wake-up appears as loom's
//! report of a deadlock.

use loom::cell::UnsafeCell;
use loom::model::Builder;

use super::entry::{Content, Entry, Size, Word};
use super::grab::{self, Held, RangeWords, Step, Wanted, WordAt};
use super::waits::Waits;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, hint, thread};
use crate::units::FrameId;

/// The number of pages of the range.
const PAGES: usize = 2;
/// The number of nodes to which the range's word may lead; the last belongs to one thread.
const NODES: usize = 4;

struct World {
    range: AtomicU64,
    nodes: [[AtomicU64; PAGES]; NODES],
    waits: Waits,
    bytes: [UnsafeCell<u64>; PAGES],
}

// SAFETY: the locks under test guard the cells; loom reports an unordered access to them.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl RangeWords for World {
    type Word = AtomicU64;

    fn range(&self) -> &AtomicU64 {
        &self.range
    }

    fn pages(&self, node: FrameId) -> &[AtomicU64] {
        &self.nodes[node.index()]
    }
}

impl World {
    fn new(range: u64) -> Arc<World> {
        Arc::new(World {
            range: AtomicU64::new(range),
            nodes: Default::default(),
            waits: Waits::default(),
            bytes: Default::default(),
        })
    }

    /// Locks the wanted entry; `spare` is a node that belongs to the caller. Returns `None` at a
    /// conflict.
    fn lock(&self, page: u64, wanted: Wanted, spare: u32) -> Option<Held> {
        self.lock_with(page, wanted, &mut vec![FrameId(spare)])
    }

    fn lock_with(&self, page: u64, wanted: Wanted, spare: &mut Vec<FrameId>) -> Option<Held> {
        if wanted == Wanted::Large {
            // As `Entries::find` does.
            grab::unlink(self);
        }
        loop {
            match grab::step(self, &self.waits, page, wanted, true, spare) {
                Step::Held(held) => return Some(held),
                Step::Wait(sleeper) => drop(sleeper.sleep(None)),
                Step::Refused => return None,
                Step::NeedNode => panic!("each thread needs one node"),
                Step::Again => {
                    hint::spin_loop();
                    thread::yield_now();
                }
            }
        }
    }

    /// Locks a page to change it, as `DaxCore::lock_for` does: a large hole is replaced by a node.
    fn lock_for_change(&self, page: u64, spare: u32) -> Held {
        let mut spare = vec![FrameId(spare)];
        loop {
            let held = self.lock_with(page, Wanted::Cover, &mut spare);
            let held = held.expect("made where there is none");
            if held.entry != Entry::new(Size::Large, Content::Zero) {
                return held;
            }
            let node = spare.pop().expect("a hole is split once");
            self.release(held, Word::node(node));
        }
    }

    fn release(&self, held: Held, unlocked: u64) {
        let word = match held.place {
            WordAt::Range => &self.range,
            WordAt::Page(node) => &self.nodes[node.index()][held.first as usize % PAGES],
        };
        held.release(&self.waits, word, unlocked);
    }

    /// Writes the pages that an entry covers; only the entry's holder may do that.
    fn touch(&self, held: &Held) {
        let pages = match held.place {
            WordAt::Range => 0..PAGES,
            WordAt::Page(_) => held.first as usize..held.first as usize + 1,
        };
        for page in pages {
            // SAFETY: loom checks that accesses are ordered.
            self.bytes[page].with_mut(|bytes| unsafe { *bytes += 1 });
        }
    }

    /// Does a read fault: an empty entry becomes a hole.
    fn read_fault(&self, page: u64, spare: u32) {
        let held = self
            .lock(page, Wanted::Cover, spare)
            .expect("made where there is none");
        self.touch(&held);
        let zero = Entry::new(held.entry.size(), Content::Zero);
        self.release(held, zero.word());
    }

    fn assert_at_rest(&self) {
        assert_eq!(self.waits.len(), 0, "a waiter is left");
    }
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

// spec: D6
#[test]
fn d6_three_readers_of_one_absent_index_all_finish() {
    model(2, || {
        let world = World::new(0);
        let others = [1, 2].map(|spare| spawn(&world, move |w| w.read_fault(1, spare)));
        world.read_fault(1, 3);
        others.into_iter().for_each(|other| other.join().unwrap());
        world.assert_at_rest();
        // SAFETY: no other thread is left.
        world.bytes[1].with(|bytes| assert_eq!(unsafe { *bytes }, 3));
    });
}

// spec: D7
#[test]
fn d7_who_waits_for_a_large_entry_is_woken() {
    model(2, || {
        let world = World::new(0);
        let large = world.lock(0, Wanted::Large, 0).expect("nothing is there");
        // The waiter is in the queue that the holder of the whole range wakes, for whichever page
        // it came.
        let other = spawn(&world, |w| w.read_fault(1, 1));
        world.touch(&large);
        let entry = Entry::new(Size::Large, Content::Zero);
        world.release(large, entry.word());
        other.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: D7
#[test]
fn d7_a_large_fault_beside_a_locked_small_entry_falls_back() {
    model(2, || {
        let world = World::new(0);
        let small = world.lock(1, Wanted::Cover, 1).expect("nothing is there");
        let other = spawn(&world, |w| {
            assert!(
                w.lock(0, Wanted::Large, 0).is_none(),
                "a small entry was passed over"
            );
        });
        other.join().unwrap();
        world.touch(&small);
        let zero = Entry::new(Size::Small, Content::Zero);
        world.release(small, zero.word());
        world.assert_at_rest();
    });
}

// spec: D8
#[test]
fn d8_a_page_and_its_whole_range_are_never_held_at_once() {
    model(3, || {
        let world = World::new(Word::node(FrameId(0)));
        let other = spawn(&world, |w| {
            let small = w.lock_for_change(1, 1);
            w.touch(&small);
            match small.place {
                WordAt::Page(_) => w.release(small, 0),
                WordAt::Range => {
                    let word = small.entry.word();
                    w.release(small, word);
                }
            }
        });
        if let Some(large) = world.lock(0, Wanted::Large, 2) {
            world.touch(&large);
            world.release(large, 0);
        }
        other.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: D5, D9
#[test]
fn d9_two_changes_of_a_large_hole_meet_in_one_node() {
    model(2, || {
        let world = World::new(Entry::new(Size::Large, Content::Zero).word());
        let change = |w: &World, page, spare| {
            let held = w.lock_for_change(page, spare);
            assert!(
                matches!(held.place, WordAt::Page(_)),
                "a large hole was kept"
            );
            w.touch(&held);
            let block = Entry::new(Size::Small, Content::Block(spare.into()));
            w.release(held, block.word());
        };
        let other = spawn(&world, move |w| change(w, 1, 1));
        change(&world, 0, 2);
        other.join().unwrap();
        world.assert_at_rest();
        for page in [0, 1] {
            let held = world
                .lock(page, Wanted::Present, 3)
                .expect("both are there");
            assert!(matches!(held.entry.content(), Content::Block(_)));
            let word = held.entry.word();
            world.release(held, word);
        }
    });
}

// spec: D8
#[test]
fn d8_neighbours_locked_together_and_their_whole_range_are_never_held_at_once() {
    model(3, || {
        let world = World::new(Word::node(FrameId(0)));
        let other = spawn(&world, |w| {
            let mut all = Vec::new();
            let end = grab::run(w, &w.waits, 0..2, |_| true, |held| all.push(held));
            assert_eq!(end, all.len() as u64);
            all.iter().for_each(|held| w.touch(held));
            all.into_iter().for_each(|held| w.release(held, 0));
        });
        if let Some(large) = world.lock(0, Wanted::Large, 2) {
            world.touch(&large);
            world.release(large, 0);
        }
        other.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: D6
#[test]
fn d6_one_who_waits_for_a_page_of_a_run_is_woken() {
    model(2, || {
        let world = World::new(Word::node(FrameId(0)));
        let other = spawn(&world, |w| w.read_fault(1, 1));
        let mut all = Vec::new();
        grab::run(&*world, &world.waits, 0..2, |_| true, |held| all.push(held));
        all.iter().for_each(|held| world.touch(held));
        for mut held in all {
            held.entry = Entry::new(Size::Small, Content::Block(7));
            let word = held.entry.word();
            world.release(held, word);
        }
        other.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: D6
#[test]
fn d6_three_readers_of_one_hole_all_finish() {
    model(3, || {
        // An unlock wakes one waiter, since the hole stays as it is; the other one is left.
        let world = World::new(Entry::new(Size::Large, Content::Zero).word());
        let others = [1, 2].map(|spare| spawn(&world, move |w| w.read_fault(1, spare)));
        world.read_fault(1, 3);
        others.into_iter().for_each(|other| other.join().unwrap());
        world.assert_at_rest();
    });
}
