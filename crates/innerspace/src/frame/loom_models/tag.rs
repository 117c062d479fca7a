//! Models of `tag`: what a reader knows of a frame that it found by a guess.

use super::*;
use crate::frame::tag::{HeldOf, Tags};

/// A frame that is block 0 of file 1, with the bytes 10.
fn world() -> (Arc<World>, Tags) {
    let world = World::new(5, FlagSet::UPTODATE, HoldState::NONE);
    let tags = Tags::of_file(1);
    world.write(10);
    world.meta.publish(HoldState::cached(1));
    world.meta.set_tag(tags.given(0));
    (world, tags)
}

/// Evicts the frame, if nobody holds it, and makes another block of it.
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
        let seen = world.meta.try_view_of(tags.sought(0).unwrap());
        if seen == HeldOf::Sought {
            assert_eq!(world.read(), 10, "a view of another block");
        }
        if seen != HeldOf::Refused {
            assert_eq!(world.meta.hold.put_view(), PutView::Kept);
        }
        evictor.join().unwrap();
    });
}

// The same for a reference.
#[test]
fn a_block_that_was_got_by_its_tag_stays_that_block() {
    loom::model(|| {
        let (world, tags) = world();
        let evictor = spawn(&world, reuse);
        let seen = world.meta.try_get_of(tags.sought(0).unwrap());
        if seen == HeldOf::Sought {
            assert_eq!(world.read(), 10, "another block");
        }
        if seen != HeldOf::Refused {
            assert_eq!(world.meta.hold.put(), Dropped::Held);
        }
        evictor.join().unwrap();
    });
}

// The block leaves its index while others hold it: whoever has seen that it is gone does not guess it any more, and whoever guesses a
// block that comes finds it in the index.
#[test]
fn a_tag_is_in_step_with_the_index() {
    loom::model(|| {
        let (world, tags) = world();
        let slot = Arc::new(AtomicU32::new(1));
        let puncher = {
            let slot = slot.clone();
            spawn(&world, move |world| {
                world.meta.set_tag(Tag::NONE);
                slot.store(0, Ordering::Release);
                slot.store(2, Ordering::Release);
                world.meta.set_tag(Tags::of_file(1).given(1));
            })
        };
        let before = slot.load(Ordering::Acquire);
        let sought = |block| world.meta.try_view_of(tags.sought(block).unwrap());
        let (old, new) = (sought(0), sought(1));
        if before != 1 {
            assert_ne!(old, HeldOf::Sought, "a block that was gone");
        }
        if new == HeldOf::Sought {
            assert_eq!(
                slot.load(Ordering::Acquire),
                2,
                "a block that is not there yet"
            );
        }
        puncher.join().unwrap();
    });
}
