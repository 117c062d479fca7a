//! Loom models of the layer's small protocols: the lock and its waiters, magazines, the hold word,
//! publishing, tags.
//!
//! The bytes of a frame are a loom cell, so loom reports an access that is not ordered after the
//! previous one, even if its value happens to be right. Loom reports a lost wake-up as a deadlock.

mod lock;
mod magazine;
mod tag;

use loom::cell::UnsafeCell;
use loom::model::Builder;

use super::flags::FlagSet;
use super::hold::{Dropped, HoldState, PutView};
use super::lock::FrameLock;
use super::meta::{Kind, Meta};
use super::tag::Tag;
use super::wait_table::WaitTable;
use crate::FrameId;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::self_ref::SelfRef;
use crate::sync::{Arc, thread};

/// A frame, its bytes, and the table in which its waiters sleep.
struct World {
    meta: Meta,
    waits: WaitTable,
    bytes: UnsafeCell<u64>,
}

// SAFETY: the protocols under test guard the cell; loom reports an unordered access to it.
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
            waits: WaitTable::new(patience),
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
        // SAFETY: loom checks the access.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    fn write(&self, value: u64) {
        // SAFETY: loom checks the access.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    /// Checks that no thread waits any more, and that the lock is free and works.
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

/// Two owners of an anonymous page release it, and a third thread unpins it, each after it has used
/// the page's bytes. One of them frees the page, and no thread uses it after that.
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

// The frame's part of P28. Writers that move to another frame belong to the cache.
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
            assert!(world.meta.hold.try_clone_view().is_some());
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
        let (me, keep) = (Arc::new(()), Arc::new(SelfRef::new()));
        let (count, kept) = (frees.clone(), keep.clone());
        let view = spawn(&world, move |world| {
            assert_eq!(world.read(), 0);
            if world.meta.hold.put_view() == PutView::Detached {
                let (dropped, own) = world.meta.detached_view_gone(&kept);
                end(world, &count, dropped);
                drop(own);
            }
        });
        let count = frees.clone();
        let mapping = spawn(&world, move |world| {
            assert_eq!(world.read(), 0);
            end(world, &count, world.meta.hold.unmap());
        });
        let dropped = world.meta.uncache(&keep, &me);
        end(&world, &frees, dropped);
        view.join().unwrap();
        mapping.join().unwrap();
        assert_eq!(frees.load(Ordering::Relaxed), 1);
        assert_eq!(world.meta.hold.load(), HoldState::NONE);
    });
}

/// An arena with one frame. Dropping the arena writes to `world`, and `frees` counts how often the
/// frame is freed.
struct Kept {
    keep: SelfRef<Kept>,
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

/// The address by which a view knows its owner.
struct Address(*const Kept);
// SAFETY: the address is dereferenced only while the owner lives; otherwise the model fails.
unsafe impl Send for Address {}

// Views hold no reference. Their file keeps the arena, and after that the arena keeps itself.
#[test]
fn an_arena_stays_for_views_that_outlive_their_file() {
    model(3, || {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let frees = Arc::new(AtomicU32::new(0));
        let kept = Arc::new(Kept {
            keep: SelfRef::new(),
            world: world.clone(),
            frees: frees.clone(),
        });
        assert!(world.meta.hold.try_view() && world.meta.hold.try_clone_view().is_some());
        let view = |address: Address| {
            spawn(&world, move |world| {
                let Address(kept) = address;
                assert_eq!(world.read(), 0);
                if world.meta.hold.put_view() == PutView::Detached {
                    // SAFETY: the view is counted until `detached_view_gone`.
                    let own = unsafe { &*kept }.keep.get();
                    let (dropped, last) = world.meta.detached_view_gone(&own.keep);
                    own.end(dropped);
                    drop((own, last));
                }
            })
        };
        let views = [(); 2].map(|()| view(Address(Arc::as_ptr(&kept))));
        kept.end(world.meta.uncache(&kept.keep, &kept));
        drop(kept);
        for view in views {
            view.join().unwrap();
        }
        assert_eq!(frees.load(Ordering::Relaxed), 1);
        assert_eq!(world.read(), 9, "the arena is gone, too");
    });
}

// A view is cloned while its block leaves the file, and the clone is dropped on another thread than
// the original.
#[test]
fn a_view_that_is_made_a_second_time_is_counted_once() {
    model(3, || {
        let world = World::new(5, FlagSet::UPTODATE, HoldState::cached(1));
        let frees = Arc::new(AtomicU32::new(0));
        let kept = Arc::new(Kept {
            keep: SelfRef::new(),
            world: world.clone(),
            frees: frees.clone(),
        });
        let put = |world: &World, kept: &Arc<Kept>| {
            if world.meta.hold.put_view() == PutView::Detached {
                let (dropped, last) = world.meta.detached_view_gone(&kept.keep);
                kept.end(dropped);
                drop(last);
            }
        };
        assert!(world.meta.hold.try_view());
        let mine = kept.clone();
        let viewer = spawn(&world, move |world| {
            let second = world.meta.hold.try_clone_view().unwrap();
            if second == PutView::Detached {
                world.meta.detached_view_made(&mine.keep);
            }
            put(world, &mine);
            assert_eq!(world.read(), 0, "the second one keeps it");
            put(world, &mine);
        });
        kept.end(world.meta.uncache(&kept.keep, &kept));
        viewer.join().unwrap();
        assert_eq!(frees.load(Ordering::Relaxed), 1);
        assert_eq!(world.meta.hold.load(), HoldState::NONE);
    });
}

#[test]
fn a_hot_block_has_no_mark_to_make() {
    model(3, || {
        let marked = FlagSet::UPTODATE | FlagSet::REFERENCED | FlagSet::ACTIVE;
        let world = World::new(5, marked, HoldState::cached(2));
        let aging = spawn(&world, |world| {
            world.meta.take_mark(FlagSet::REFERENCED);
        });
        let other = spawn(&world, |world| world.meta.warm());
        world.meta.warm();
        aging.join().unwrap();
        other.join().unwrap();
        assert!(world.meta.hold.load().is_cold());
        world.meta.flags.set(FlagSet::REFERENCED);
        world.meta.warm();
        assert!(!world.meta.hold.load().is_cold() && world.meta.hold.try_view_hot());
    });
}

// The frame's part of I10: a speculative get, and the second check of the place in which the frame
// was found.
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
                // The frame is used again, as a block of another place.
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

// The frame's part of P2 and P3. The owner's settings are there before another thread can see the
// frame, and they overwrite nothing that others set on the published frame.
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
