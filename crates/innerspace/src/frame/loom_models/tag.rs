//! Loom models of `tag`: what a reader knows of a frame that it found by a guess.

use super::*;
use crate::frame::hold::Hold;
use crate::frame::tag::{HeldOf, Slot, Tags, empty, fill, refill};
use crate::sync::atomic::AtomicU64;

/// Makes a frame that is block 0 of file 1, with the bytes 10.
fn world() -> (Arc<World>, Tags) {
    let world = World::new(5, FlagSet::UPTODATE, HoldState::NONE);
    let tags = Tags::of_file(1);
    world.write(10);
    world.meta.publish(HoldState::cached(1));
    world.meta.set_tag(tags.given(0));
    (world, tags)
}

/// Evicts the frame if it is not held, and makes another block of it.
fn reuse(world: &World) {
    if world.meta.hold.freeze(1) {
        world.meta.set_tag(Tag::NONE);
        world.write(20);
        world.meta.publish(HoldState::cached(1));
        world.meta.set_tag(Tags::of_file(1).given(1));
    }
}

// The frame's part of I10 for a view.
#[test]
fn a_block_that_was_viewed_by_its_tag_stays_that_block() {
    loom::model(|| {
        let (world, tags) = world();
        let evictor = spawn(&world, reuse);
        let seen = world.meta.try_hold_of(tags.sought(0), Hold::try_view);
        if seen == HeldOf::Sought {
            assert_eq!(world.read(), 10, "a view of another block");
        }
        if seen != HeldOf::Refused {
            assert_eq!(world.meta.hold.put_view(), PutView::Kept);
        }
        evictor.join().unwrap();
    });
}

// The frame's part of I10 for a reference.
#[test]
fn a_block_that_was_got_by_its_tag_stays_that_block() {
    loom::model(|| {
        let (world, tags) = world();
        let evictor = spawn(&world, reuse);
        let seen = world.meta.try_hold_of(tags.sought(0), Hold::try_get_cached);
        if seen == HeldOf::Sought {
            assert_eq!(world.read(), 10, "another block");
        }
        if seen != HeldOf::Refused {
            assert_eq!(world.meta.hold.put(), Dropped::Held);
        }
        evictor.join().unwrap();
    });
}

impl Slot for AtomicU64 {
    fn store(&self, word: u64, order: Ordering) {
        self.store(word, order);
    }
    fn swap(&self, word: u64, order: Ordering) -> u64 {
        self.swap(word, order)
    }
}

/// The words of slots: no frame, and these frames.
const NOTHING: u64 = 0;
const FRAME: u64 = 1;
const OTHER: u64 = 2;

// The block leaves its index while others hold it. A thread that has seen this no longer guesses
// the block, and a thread that guesses a new block finds it in the index.
#[test]
fn a_tag_is_in_step_with_the_index() {
    loom::model(|| {
        let (world, tags) = world();
        let slots = Arc::new([FRAME, NOTHING].map(AtomicU64::new));
        let changer = {
            let slots = slots.clone();
            spawn(&world, move |world| {
                let set = |tag| world.meta.set_tag(tag);
                assert_eq!(empty(&slots[0], NOTHING, || set(Tag::NONE)), FRAME);
                fill(&slots[1], FRAME, || set(Tags::of_file(1).given(1)));
            })
        };
        let before = slots[0].load(Ordering::Acquire);
        let sought = |block| world.meta.try_hold_of(tags.sought(block), Hold::try_view);
        let (old, new) = (sought(0), sought(1));
        if before == NOTHING {
            assert_ne!(old, HeldOf::Sought, "a block that was gone");
        }
        if new == HeldOf::Sought {
            let there = slots[1].load(Ordering::Acquire);
            assert_eq!(there, FRAME, "a block that is not there yet");
        }
        changer.join().unwrap();
    });
}

// A block moves to another frame. Tag and index agree in the same way.
#[test]
fn a_tag_moves_in_step_with_the_index() {
    loom::model(|| {
        let (world, tags) = world();
        let other = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let slot = Arc::new(AtomicU64::new(FRAME));
        let mover = {
            let (slot, other) = (slot.clone(), other.clone());
            spawn(&world, move |world| {
                let tag = Tags::of_file(1).given(0);
                let untag = || world.meta.set_tag(Tag::NONE);
                let before = refill(&*slot, OTHER, untag, || other.meta.set_tag(tag));
                assert_eq!(before, FRAME);
            })
        };
        let sought = tags.sought(0);
        let before = slot.load(Ordering::Acquire);
        let (old, new) = (
            world.meta.try_hold_of(sought, Hold::try_view),
            other.meta.try_hold_of(sought, Hold::try_view),
        );
        if before == OTHER {
            assert_ne!(old, HeldOf::Sought, "what the block was");
        }
        if new == HeldOf::Sought {
            let there = slot.load(Ordering::Acquire);
            assert_eq!(there, OTHER, "what the block is not yet");
        }
        mover.join().unwrap();
    });
}
