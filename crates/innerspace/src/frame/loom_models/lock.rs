//! Loom models of the lock and its waiters.

use super::super::flags::FlagSet;
use super::super::hold::{Dropped, HoldState};
use super::super::lock::ReadEnd;
use super::super::wait_table::Bit;
use super::{World, model, spawn};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, WaitEnd, thread};

// spec: L3
#[test]
fn an_unlock_wakes_who_waits_for_the_lock() {
    for patience in [0, 1, 5] {
        loom::model(move || {
            let world = World::new(patience, FlagSet::LOCKED, HoldState::NONE);
            let waiter = spawn(&world, |world| {
                world.lock().lock();
                world.write(world.read() + 1);
                world.lock().unlock();
            });
            world.write(1);
            world.lock().unlock();
            waiter.join().unwrap();
            assert_eq!(world.read(), 2);
            world.assert_at_rest();
        });
    }
}

// spec: L3
#[test]
fn two_waiters_and_an_unlocker_all_get_on() {
    // With a patience of 1 a waiter is passed once, and then gets the lock handed over.
    for patience in [0, 1, 2] {
        model(2, move || {
            let world = World::new(patience, FlagSet::LOCKED, HoldState::NONE);
            let each = |world: &World| {
                world.lock().lock();
                world.write(world.read() + 1);
                world.lock().unlock();
            };
            let waiters = [spawn(&world, each), spawn(&world, each)];
            world.write(1);
            world.lock().unlock();
            waiters
                .into_iter()
                .for_each(|waiter| waiter.join().unwrap());
            assert_eq!(world.read(), 3);
            world.assert_at_rest();
        });
    }
}

#[test]
fn the_end_of_writeback_wakes_who_waits_for_it() {
    loom::model(|| {
        let world = World::new(5, FlagSet::WRITEBACK, HoldState::NONE);
        let writer = spawn(&world, |world| {
            assert_eq!(world.read(), 0);
            world.lock().end_writeback();
        });
        world.lock().wait(Bit::Writeback, None);
        world.write(1);
        writer.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: L6
#[test]
fn a_timeout_that_races_with_a_handoff_has_the_lock() {
    // The next release hands the lock to a waiter that was passed as often as its patience allows.
    for passes in [0, 1] {
        model(3, move || {
            let world = World::new(passes, FlagSet::LOCKED, HoldState::NONE);
            let waiter = spawn(&world, |world| {
                if world.lock().lock_timeout(std::time::Duration::ZERO) == WaitEnd::Woken {
                    world.write(world.read() + 1);
                    world.lock().unlock();
                }
            });
            world.write(1);
            world.lock().unlock();
            if passes == 1 && world.lock().try_lock() {
                world.write(world.read() + 1);
                world.lock().unlock();
            }
            waiter.join().unwrap();
            world.assert_at_rest();
        });
    }
}

// spec: L6
#[test]
fn a_timeout_does_not_swallow_the_wake_of_the_next_waiter() {
    model(2, || {
        let world = World::new(5, FlagSet::LOCKED, HoldState::NONE);
        let impatient = spawn(&world, |world| {
            if world.lock().lock_timeout(std::time::Duration::ZERO) == WaitEnd::Woken {
                world.lock().unlock();
            }
        });
        let patient = spawn(&world, |world| {
            world.lock().lock();
            world.lock().unlock();
        });
        world.lock().unlock();
        impatient.join().unwrap();
        patient.join().unwrap();
        world.assert_at_rest();
    });
}

// Between a release and the unlocker's visit to the queue the lock is free, but only some threads
// may take it.
// spec: L7
#[test]
fn nobody_passes_a_waiter_that_has_no_patience_left() {
    model(3, || {
        let world = World::new(0, FlagSet::LOCKED, HoldState::NONE);
        let had = Arc::new(AtomicU32::new(0));
        let flag = had.clone();
        let waiter = spawn(&world, move |world| {
            world.lock().lock();
            flag.store(1, Ordering::Relaxed);
            world.lock().unlock();
        });
        let passer = spawn(&world, move |world| {
            if world.waits.entries() == 1 && world.lock().try_lock() {
                assert_eq!(had.load(Ordering::Relaxed), 1, "the waiter was passed");
                world.lock().unlock();
            }
        });
        world.lock().unlock();
        passer.join().unwrap();
        waiter.join().unwrap();
        world.assert_at_rest();
    });
}

// A thread takes the lock before its unlocker is at the queue, and wakes no waiter. It keeps the
// lock until the waiter is awake.
#[test]
fn who_waits_for_a_lock_to_be_clear_is_woken_though_it_is_taken_again() {
    model(3, || {
        let world = World::new(5, FlagSet::LOCKED, HoldState::NONE);
        let over = Arc::new(AtomicU32::new(0));
        let flag = over.clone();
        let waiter = spawn(&world, move |world| {
            world.lock().wait(Bit::Locked, None);
            flag.store(1, Ordering::Relaxed);
        });
        let taker = spawn(&world, move |world| {
            if world.waits.entries() == 1 && world.lock().try_lock() {
                while over.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                world.lock().unlock();
            }
        });
        world.lock().unlock();
        taker.join().unwrap();
        waiter.join().unwrap();
        world.assert_at_rest();
    });
}

// Here a thread that may not pass the first waiter hands the lock over to it, with the same result.
// The unlocker comes to the queue last.
#[test]
fn who_waits_for_a_lock_to_be_clear_is_woken_though_it_is_handed_over() {
    model(3, || {
        let world = World::new(0, FlagSet::LOCKED, HoldState::NONE);
        let (both, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (are_there, is_over) = (both.clone(), over.clone());
        let first = spawn(&world, move |world| {
            world.lock().lock();
            while are_there.load(Ordering::Relaxed) == 1 && is_over.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            world.lock().unlock();
        });
        let waiter = spawn(&world, move |world| {
            world.lock().wait(Bit::Locked, None);
            over.store(1, Ordering::Relaxed);
        });
        if world.waits.entries() == 2 {
            both.store(1, Ordering::Relaxed);
        }
        let byte = world.meta.flags.byte();
        byte.fetch_and(!FlagSet::LOCKED.0, Ordering::Release);
        if world.lock().try_lock() {
            world.lock().unlock();
        }
        world.lock().wake_cleared(Bit::Locked);
        first.join().unwrap();
        waiter.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: L9
#[test]
fn nothing_touches_the_frame_after_the_put() {
    loom::model(|| {
        let world = World::new(5, FlagSet::LOCKED, HoldState::refs_only(2));
        // The thread that drops the last reference reuses the frame, with the lock held by an owner
        // that never unlocks it.
        fn next_life(world: &World, dropped: Dropped) {
            if dropped == Dropped::Last {
                world.write(1);
                world.meta.flags.store_owned(FlagSet::LOCKED);
            }
        }
        let waiter = spawn(&world, |world| {
            let dropped = world.lock().put_and_wait(Bit::Locked, || {
                let dropped = world.meta.hold.put();
                next_life(world, dropped);
                dropped
            });
            let _ = dropped;
        });
        world.lock().unlock();
        next_life(&world, world.meta.hold.put());
        waiter.join().unwrap();
        assert_eq!(world.waits.entries(), 0);
        assert_eq!(
            world.meta.flags.load(),
            FlagSet::LOCKED,
            "something touched the next life"
        );
    });
}

// spec: L12
#[test]
fn a_late_wake_does_not_end_a_wait_for_the_next_writeback() {
    model(3, || {
        // A WAITERS bit that is out of date sends the first end of writeback to the queue, late.
        let world = World::new(5, FlagSet::WRITEBACK | FlagSet::WAITERS, HoldState::NONE);
        let ended = Arc::new(AtomicU32::new(0));
        let first = spawn(&world, |world| world.lock().end_writeback());
        while world.meta.flags.load().contains(FlagSet::WRITEBACK) {
            thread::yield_now();
        }
        world.lock().set_writeback();
        let flag = ended.clone();
        let second = spawn(&world, move |world| {
            flag.store(1, Ordering::Relaxed);
            world.lock().end_writeback();
        });
        world.lock().wait(Bit::Writeback, None);
        assert_eq!(
            ended.load(Ordering::Relaxed),
            1,
            "woken by the end of the writeback before"
        );
        first.join().unwrap();
        second.join().unwrap();
        world.assert_at_rest();
    });
}

// The cache holds the frame until `end_writeback` has returned, and `Frames` asserts that. Even
// without this, a late visit to the queue would wake no waiter on the reused frame.
// spec: L11
#[test]
fn the_end_of_a_writeback_wakes_nobody_of_the_frames_next_life() {
    for next in [FlagSet::LOCKED, FlagSet::LOCKED | FlagSet::WRITEBACK] {
        model(3, move || {
            // A WAITERS bit that is out of date sends the end of the writeback to the queue, late.
            let world = World::new(5, FlagSet::WRITEBACK | FlagSet::WAITERS, HoldState::NONE);
            let ended = Arc::new(AtomicU32::new(0));
            let first = spawn(&world, |world| world.lock().end_writeback());
            while world.meta.flags.load().contains(FlagSet::WRITEBACK) {
                thread::yield_now();
            }
            // Not a plain store, which loom would let fall between the two halves of a concurrent
            // read-modify-write.
            world.meta.flags.byte().fetch_or(next.0, Ordering::Relaxed);
            let flag = ended.clone();
            let second = spawn(&world, move |world| {
                flag.store(1, Ordering::Relaxed);
                world.lock().unlock();
            });
            world.lock().wait(Bit::Locked, None);
            let ended = ended.load(Ordering::Relaxed);
            assert_eq!(ended, 1, "woken for the life before");
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(world.waits.entries(), 0, "a waiter is left");
        });
    }
}

// spec: L15
#[test]
fn who_sees_a_read_block_unlocked_sees_it_up_to_date() {
    loom::model(|| {
        let world = World::new(5, FlagSet::LOCKED, HoldState::NONE);
        let reader = spawn(&world, |world| {
            world.write(7);
            world.lock().end_read(ReadEnd::Filled);
        });
        let before = world.meta.flags.load();
        assert!(
            before.intersects(FlagSet::LOCKED | FlagSet::UPTODATE),
            "{before:?}"
        );
        world.lock().wait(Bit::Locked, None);
        assert!(world.meta.flags.load().contains(FlagSet::UPTODATE));
        assert_eq!(world.read(), 7);
        reader.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: L15
#[test]
fn a_lock_taken_after_a_read_finds_the_block_up_to_date() {
    for patience in [0, 5] {
        loom::model(move || {
            let world = World::new(patience, FlagSet::LOCKED, HoldState::NONE);
            let reader = spawn(&world, |world| {
                world.write(7);
                world.lock().end_read(ReadEnd::Filled);
            });
            world.lock().lock();
            assert!(world.meta.flags.load().contains(FlagSet::UPTODATE));
            assert_eq!(world.read(), 7);
            world.lock().unlock();
            reader.join().unwrap();
            world.assert_at_rest();
        });
    }
}
