//! Models of the layer's small protocols: the lock and its waiters, the hold word, publishing.
//!
//! The bytes of a frame are a loom cell, so an access that is not ordered after the one before it is reported even where
//! its value happens to be right. A lost wake-up shows as loom's deadlock report.

mod magazine;

use loom::cell::UnsafeCell;
use loom::model::Builder;

use super::flags::FlagSet;
use super::hold::{Dropped, HoldState, PutView};
use super::lock::{FrameLock, LockResult, ReadEnd};
use super::meta::{Kind, Meta};
use super::wait_table::{Bit, WaitTable};
use crate::FrameId;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::keep::KeepSelf;
use crate::sync::{Arc, thread};

/// A frame, its bytes, and the table its waiters sleep in.
struct World {
    meta: Meta,
    waits: Arc<WaitTable>,
    bytes: UnsafeCell<u64>,
}

// SAFETY: the cell is what the protocols under test guard; loom reports an unordered access to it.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(patience: u32, flags: FlagSet, hold: HoldState) -> Arc<World> {
        let meta = Meta::new();
        meta.flags.store_owned(flags);
        if hold != HoldState::NONE {
            meta.publish(hold);
        }
        Arc::new(World {
            meta,
            waits: Arc::new(WaitTable::new(patience)),
            bytes: UnsafeCell::new(0),
        })
    }

    fn lock(&self) -> FrameLock<'_> {
        FrameLock {
            id: FrameId(1),
            flags: &self.meta.flags,
            waits: &self.waits,
        }
    }

    fn read(&self) -> u64 {
        // SAFETY: checked by loom.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    fn write(&self, value: u64) {
        // SAFETY: checked by loom.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    /// Nobody is left waiting, and the lock works.
    fn assert_at_rest(&self) {
        assert_eq!(self.waits.entries(), 0, "a waiter is left");
        assert!(self.lock().try_lock(), "the lock is orphaned");
        self.lock().unlock();
    }
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

/// Two owners of an anonymous page let it go, and a third thread unpins it, each after it has used its bytes: one of them
/// frees it, and then nobody uses it.
#[test]
fn the_last_owner_of_a_page_has_it_to_itself() {
    model(3, || {
        let world = World::new(0, FlagSet::EMPTY, HoldState::refs_only(2));
        assert!(world.meta.hold.try_map(), "pinned");
        let free = |world: &World, dropped| {
            if dropped == Dropped::Last {
                assert_eq!(world.meta.hold.load(), HoldState::NONE);
                world.write(1);
            }
            u32::from(dropped == Dropped::Last)
        };
        let freed = Arc::new(AtomicU32::new(0));
        let count = |end: fn(&World) -> Dropped| {
            let freed = freed.clone();
            move |world: &World| {
                world.read();
                let last = free(world, end(world));
                freed.fetch_add(last, Ordering::Relaxed);
            }
        };
        let owner = spawn(&world, count(|world| world.meta.hold.put_owner()));
        let pin = spawn(&world, count(|world| world.meta.hold.unmap()));
        count(|world| world.meta.hold.put_owner())(&world);
        owner.join().unwrap();
        pin.join().unwrap();
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

/// Explores all schedules with at most `preemptions` forced switches.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

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
    for patience in [0, 2] {
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
    for patience in [0, 1] {
        loom::model(move || {
            let world = World::new(patience, FlagSet::LOCKED, HoldState::NONE);
            let waiter = spawn(&world, |world| {
                if world.lock().lock_timeout(std::time::Duration::ZERO) == LockResult::Locked {
                    world.write(world.read() + 1);
                    world.lock().unlock();
                }
            });
            world.write(1);
            world.lock().unlock();
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
            if world.lock().lock_timeout(std::time::Duration::ZERO) == LockResult::Locked {
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

// Between the release and the unlocker's look at the queue the lock is free, and yet not for all.
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
        while world.waits.entries() == 0 {
            thread::yield_now();
        }
        let owner = spawn(&world, |world| world.lock().unlock());
        if world.lock().try_lock() {
            assert_eq!(had.load(Ordering::Relaxed), 1, "the waiter was passed");
            world.lock().unlock();
        }
        owner.join().unwrap();
        waiter.join().unwrap();
        world.assert_at_rest();
    });
}

// Who takes the lock under the queue's mutex wakes those who wait to see it clear: their own waker may come too late, and this
// one does not let go before they are awake.
#[test]
fn who_waits_for_a_lock_to_be_clear_is_woken_by_who_takes_it() {
    model(2, || {
        let world = World::new(5, FlagSet::LOCKED, HoldState::NONE);
        let over = Arc::new(AtomicU32::new(0));
        let flag = over.clone();
        let others = spawn(&world, move |world| {
            while world.waits.entries() == 0 {
                thread::yield_now();
            }
            // The owner's part: the lock is clear, and the look at the queue is yet to come.
            let waiters = world
                .meta
                .flags
                .byte()
                .fetch_and(!FlagSet::LOCKED.0, Ordering::Release);
            assert!(FlagSet(waiters).contains(FlagSet::WAITERS));
            assert!(world.lock().try_lock());
            while flag.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            world.lock().unlock();
        });
        world.lock().wait(Bit::Locked, None);
        over.store(1, Ordering::Relaxed);
        others.join().unwrap();
        world.assert_at_rest();
    });
}

// spec: L9
#[test]
fn nothing_touches_the_frame_after_the_put() {
    loom::model(|| {
        let world = World::new(5, FlagSet::LOCKED, HoldState::refs_only(2));
        // Whoever drops the last reference begins the frame's next life, locked by an owner that never unlocks it.
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
        // A stale WAITERS bit sends the first end of writeback to the queue, late.
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

// The cache holds the frame until `end_writeback` has returned, and `Frames` asserts it. Even if it did not, a late look at
// the queue would wake nobody of the next life.
// spec: L11
#[test]
fn the_end_of_a_writeback_wakes_nobody_of_the_frames_next_life() {
    for next in [FlagSet::LOCKED, FlagSet::LOCKED | FlagSet::WRITEBACK] {
        model(3, move || {
            // A stale WAITERS bit sends the end of the writeback to the queue, late.
            let world = World::new(5, FlagSet::WRITEBACK | FlagSet::WAITERS, HoldState::NONE);
            let ended = Arc::new(AtomicU32::new(0));
            let first = spawn(&world, |world| world.lock().end_writeback());
            while world.meta.flags.load().contains(FlagSet::WRITEBACK) {
                thread::yield_now();
            }
            // No plain store: loom would let it fall between the two halves of a concurrent RMW.
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

// The frame's part of P28; the moving of writers is the cache's.
#[test]
fn a_view_never_sees_its_bytes_change() {
    loom::model(|| {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let writer = spawn(&world, |world| {
            if world.meta.hold.try_begin_write() {
                world.write(1);
                world.meta.hold.end_write();
            }
        });
        if world.meta.hold.try_view() {
            let first = world.read();
            thread::yield_now();
            assert_eq!(world.read(), first);
            assert_eq!(world.meta.hold.put_view(), PutView::Kept);
        }
        writer.join().unwrap();
    });
}

#[test]
fn no_view_beside_write_translations() {
    loom::model(|| {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let mapper = spawn(&world, |world| {
            if world.meta.hold.try_set_wmapped() {
                world.write(1);
                world.meta.hold.clear_wmapped();
            }
        });
        if world.meta.hold.try_view() {
            world.read();
            assert!(world.meta.hold.try_clone_view());
            assert_eq!(world.meta.hold.put_view(), PutView::Kept);
            world.read();
            assert_eq!(world.meta.hold.put_view(), PutView::Kept);
        }
        mapper.join().unwrap();
    });
}

#[test]
fn the_last_dropper_frees_exactly_once() {
    model(3, || {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        assert!(world.meta.hold.try_view() && world.meta.hold.try_map());
        let frees = Arc::new(AtomicU32::new(0));
        let end = |world: &World, frees: &AtomicU32, dropped: Dropped| {
            if dropped == Dropped::Last {
                world.write(9);
                frees.fetch_add(1, Ordering::Relaxed);
            }
        };
        let count = frees.clone();
        let view = spawn(&world, move |world| {
            assert_eq!(world.read(), 0);
            if let PutView::LastOutside(dropped) = world.meta.hold.put_view() {
                end(world, &count, dropped);
            }
        });
        let count = frees.clone();
        let mapping = spawn(&world, move |world| {
            assert_eq!(world.read(), 0);
            end(world, &count, world.meta.hold.unmap());
        });
        let me = Arc::new(());
        let dropped = world.meta.hold.uncache(&KeepSelf::new(), &me);
        end(&world, &frees, dropped);
        view.join().unwrap();
        mapping.join().unwrap();
        assert_eq!(frees.load(Ordering::Relaxed), 1);
        assert_eq!(world.meta.hold.load(), HoldState::NONE);
    });
}

/// An arena with one frame; `world` notices when it goes, and when the frame is freed.
struct Kept {
    keep: KeepSelf<Kept>,
    world: Arc<World>,
    frees: Arc<AtomicU32>,
}

impl Kept {
    fn end(&self, dropped: Dropped) {
        if dropped == Dropped::Last {
            self.frees.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.world.write(9);
    }
}

/// A view knows its keeper by address alone.
struct Address(*const Kept);
// SAFETY: it is dereferenced while the keeper lives, or the model fails.
unsafe impl Send for Address {}

// A view counts on nobody: its file keeps the arena, and then the arena itself.
#[test]
fn an_arena_stays_for_views_that_outlive_their_file() {
    model(3, || {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let frees = Arc::new(AtomicU32::new(0));
        let kept = Arc::new(Kept {
            keep: KeepSelf::new(),
            world: world.clone(),
            frees: frees.clone(),
        });
        assert!(world.meta.hold.try_view() && world.meta.hold.try_clone_view());
        let view = |address: Address| {
            spawn(&world, move |world| {
                let Address(kept) = address;
                assert_eq!(world.read(), 0);
                if let PutView::LastOutside(dropped) = world.meta.hold.put_view() {
                    // SAFETY: counted until `end`.
                    let own = unsafe { &*kept }.keep.get();
                    own.end(dropped);
                    let last = own.keep.end();
                    drop((own, last));
                }
            })
        };
        let views = [(); 2].map(|()| view(Address(Arc::as_ptr(&kept))));
        kept.end(world.meta.hold.uncache(&kept.keep, &kept));
        drop(kept);
        for view in views {
            view.join().unwrap();
        }
        assert_eq!(frees.load(Ordering::Relaxed), 1);
        assert_eq!(world.read(), 9, "the arena is gone, too");
    });
}

// The frame's part of I10: a speculative get, and the second look at where the frame was found.
#[test]
fn a_frozen_frame_is_never_got_for_its_old_place() {
    const HERE: u32 = 1;
    loom::model(|| {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        world.write(10);
        let index = Arc::new(AtomicU32::new(HERE));
        let slot = index.clone();
        let evictor = spawn(&world, move |world| {
            if world.meta.hold.freeze(1) {
                // The frame lives again as a block of another place.
                slot.store(0, Ordering::Relaxed);
                world.write(20);
                world.meta.publish(HoldState::cached(1));
            }
        });
        if index.load(Ordering::Acquire) == HERE && world.meta.hold.try_get() {
            if index.load(Ordering::Acquire) == HERE {
                assert_eq!(world.read(), 10, "got a frame that lives elsewhere");
            }
            let _ = world.meta.hold.put();
        }
        evictor.join().unwrap();
    });
}

// The frame's part of P2 and P3: what the owner set is there before anybody can see the frame, and nothing that
// others set on the published frame is overwritten.
// spec: P2
#[test]
fn a_published_frame_has_what_its_owner_set_and_loses_nothing() {
    loom::model(|| {
        let world = World::new(5, FlagSet::EMPTY, HoldState::NONE);
        let marked = Arc::new(AtomicU32::new(0));
        let mark = marked.clone();
        let finder = spawn(&world, move |world| {
            if world.meta.hold.try_get() {
                assert_eq!(world.meta.kind(), Kind::Cached);
                let before = world.meta.flags.test_and_set(FlagSet::ACTIVE);
                assert!(
                    before.contains(FlagSet::REFERENCED),
                    "visible but not referenced"
                );
                assert_eq!(world.read(), 3);
                assert_eq!(world.meta.hold.put(), Dropped::Held);
                mark.store(1, Ordering::Relaxed);
            }
        });
        world.write(3);
        world.meta.set_kind(Kind::Cached);
        world
            .meta
            .flags
            .store_owned(FlagSet::REFERENCED | FlagSet::UPTODATE);
        world.meta.publish(HoldState::cached(1));
        finder.join().unwrap();
        let active = world.meta.flags.load().contains(FlagSet::ACTIVE);
        assert_eq!(
            active,
            marked.load(Ordering::Relaxed) == 1,
            "a mark was lost"
        );
    });
}
