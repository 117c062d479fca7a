//! The access protocol under loom, at most three threads a model. Each model is small: one word
//! that leads to one page (or two), one reader, one revoker. The reader's and the revoker's
//! barriers are sequentially consistent fences in `Membarrier` mode and read-modify-writes in
//! `Fences` mode; every model runs in both.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicBool;
use loom::thread;

fn both_modes(model: impl Fn(BarrierMode) + Send + Sync + Copy + 'static) {
    for mode in [BarrierMode::Membarrier, BarrierMode::Fences] {
        let builder = loom::model::Builder::new();
        builder.check(move || model(mode));
    }
}

/// A page of bytes that loom watches for races.
struct Page(UnsafeCell<u64>);
// SAFETY: loom itself checks that no two threads use the cell at once; a race is the model's
// failure.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

impl Page {
    fn new(value: u64) -> Page {
        Page(UnsafeCell::new(value))
    }

    fn read(&self) -> u64 {
        // SAFETY: see `Sync`.
        self.0.with(|page| unsafe { *page })
    }

    fn write(&self, value: u64) {
        // SAFETY: see `Sync`.
        self.0.with_mut(|page| unsafe { *page = value });
    }
}

/// A frame is revoked and reused while a reader may be using it: loom finds the race if the grace
/// period is missing.
// spec: A2
#[test]
fn a2_a_freed_frame_is_not_reused_in_use() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = Domain::register(&domain);
        let reader = {
            let (entry, page) = (entry.clone(), page.clone());
            thread::spawn(move || {
                sections.enter();
                if entry.load(Ordering::Relaxed) == 1 {
                    assert_eq!(page.read(), 5);
                }
                sections.leave();
            })
        };
        entry.store(0, Ordering::Relaxed);
        domain.synchronize();
        page.write(9);
        reader.join().unwrap();
    });
}

/// The flusher cleans a page while a writer may hold a writable translation: the store is in the
/// written bytes, or the page is dirty again.
// spec: A1
#[test]
fn a1_a_store_is_written_or_the_page_is_dirty_again() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let valid_w = Arc::new(AtomicBool::new(true));
        let block = Arc::new(Mutex::new(true)); // the block lock, and "dirty"
        let byte = Arc::new(AtomicU64::new(0));
        let mut sections = Domain::register(&domain);
        let writer = {
            let (valid_w, block, byte) = (valid_w.clone(), block.clone(), byte.clone());
            thread::spawn(move || {
                sections.enter();
                if !valid_w.load(Ordering::Relaxed) {
                    sections.leave();
                    // The fault: under the block lock, dirty first and then writable again.
                    let mut dirty = block.lock();
                    *dirty = true;
                    valid_w.store(true, Ordering::Relaxed);
                    drop(dirty);
                    sections.enter();
                }
                byte.store(1, Ordering::Relaxed);
                sections.leave();
            })
        };
        let mut dirty = block.lock();
        valid_w.store(false, Ordering::Relaxed);
        domain.synchronize();
        *dirty = false;
        let written = byte.load(Ordering::Relaxed);
        drop(dirty);
        writer.join().unwrap();
        let lost = byte.load(Ordering::Relaxed) != written && !*block.lock();
        assert!(!lost, "a store was neither written nor dirty");
    });
}

/// A reader caches what it found; a revocation that races with the fill must reach the cached copy.
// spec: A3
#[test]
fn a3_a_fill_outlives_no_revocation() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = Domain::register(&domain);
        let theirs = sections.participant().clone();
        let reader = {
            let (entry, page) = (entry.clone(), page.clone());
            thread::spawn(move || {
                sections.enter();
                if sections.has_mail() {
                    sections.drain(|_| ()); // nothing is cached yet
                }
                let mut cached = entry.load(Ordering::Relaxed);
                for access in 0..2 {
                    if access == 1 {
                        sections.enter();
                        if sections.has_mail() {
                            sections.drain(|_| cached = 0);
                        }
                    }
                    if cached == 1 {
                        assert_eq!(page.read(), 5);
                    }
                    sections.leave();
                }
            })
        };
        entry.store(0, Ordering::Relaxed);
        theirs.post(Post::One(0));
        domain.synchronize();
        page.write(9);
        reader.join().unwrap();
    });
}

/// Fork takes the parent's write permission away before it reads the page for the child.
// spec: A4
#[test]
fn a4_no_store_of_the_parent_reaches_the_child_after_fork() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let shared = Arc::new(AtomicBool::new(false));
        let page = Arc::new(AtomicU64::new(0));
        let copy = Arc::new(AtomicU64::new(0));
        let mut sections = Domain::register(&domain);
        let parent = sections.participant().clone();
        let writer = {
            let (shared, page, copy) = (shared.clone(), page.clone(), copy.clone());
            thread::spawn(move || {
                let mut may_write = true; // the write tag of the leaf
                sections.enter();
                if sections.has_mail() {
                    sections.drain(|_| may_write = false);
                }
                if may_write || !shared.load(Ordering::Relaxed) {
                    page.store(1, Ordering::Relaxed);
                } else {
                    copy.store(1, Ordering::Relaxed);
                }
                sections.leave();
            })
        };
        shared.store(true, Ordering::Relaxed);
        parent.post(Post::All);
        domain.synchronize();
        let at_fork = page.load(Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(
            page.load(Ordering::Relaxed),
            at_fork,
            "the child saw a store made after fork"
        );
    });
}

/// One thread reads the zero page, another upgrades it and synchronises with the first: the first
/// must see the bytes.
// spec: A6
#[test]
fn a6_an_upgrade_is_seen_by_who_synchronised_with_it() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let leaf = Arc::new(AtomicU64::new(0)); // which of the two pages is current
        let pages = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let ready = Arc::new(AtomicBool::new(false));
        let mut sections = Domain::register(&domain);
        let theirs = sections.participant().clone();
        let reader = {
            let (leaf, pages, ready) = (leaf.clone(), pages.clone(), ready.clone());
            thread::spawn(move || {
                sections.enter();
                let mut cached = leaf.load(Ordering::Relaxed) as usize;
                sections.leave();
                let synchronised = ready.load(Ordering::Acquire);
                sections.enter();
                if sections.has_mail() {
                    sections.drain(|_| cached = leaf.load(Ordering::Relaxed) as usize);
                }
                let value = pages[cached].load(Ordering::Relaxed);
                sections.leave();
                if synchronised {
                    assert_eq!(value, 7, "the upgraded page's bytes were not seen");
                }
            })
        };
        leaf.store(1, Ordering::Relaxed);
        theirs.post(Post::One(0));
        pages[1].store(7, Ordering::Relaxed);
        ready.store(true, Ordering::Release);
        reader.join().unwrap();
    });
}

/// Two threads that each wait for a grace period do not wait for each other: neither is in a
/// section meanwhile.
// spec: A7
#[test]
fn a7_two_revokers_do_not_wait_for_each_other() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let mut sections = Domain::register(&domain);
        let other = {
            let domain = domain.clone();
            thread::spawn(move || {
                sections.enter();
                sections.leave(); // a fault leaves its section before it reclaims
                domain.synchronize();
            })
        };
        domain.synchronize();
        other.join().unwrap();
    });
}

/// A session that is passed over reads nothing of what was taken away: it had read it before, or
/// finds the word changed once it has widened its section.
// spec: N7
#[test]
fn n7_a_session_that_is_passed_over_holds_nothing_of_others() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = Domain::register_at(&domain, CacheBinding::of_nothing(), 1);
        let reader = {
            let (entry, page) = (entry.clone(), page.clone());
            thread::spawn(move || {
                sections.enter();
                sections.narrow();
                sections.widen();
                if entry.load(Ordering::Relaxed) == 1 {
                    assert_eq!(page.read(), 5);
                }
                sections.narrow();
                sections.leave();
            })
        };
        entry.store(0, Ordering::Relaxed);
        domain.synchronize_with(|owner| owner != 1);
        page.write(9);
        reader.join().unwrap();
    });
}

/// A narrow section of an owner that may hold the page is waited for, also where the section was
/// wide when the grace period began.
// spec: N7
#[test]
fn n7_a_session_of_the_owner_is_waited_for() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = Domain::register_at(&domain, CacheBinding::of_nothing(), 1);
        let reader = {
            let (entry, page) = (entry.clone(), page.clone());
            thread::spawn(move || {
                sections.enter();
                let found = entry.load(Ordering::Relaxed) == 1;
                sections.narrow();
                if found {
                    assert_eq!(page.read(), 5);
                }
                sections.leave();
            })
        };
        entry.store(0, Ordering::Relaxed);
        domain.synchronize_with(|owner| owner == 1);
        page.write(9);
        reader.join().unwrap();
    });
}
