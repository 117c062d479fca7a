//! Loom models of the access protocol, with at most three threads each. Each model is small: one
//! word that leads to one page (or two), one reader, one revoker. The barriers of both sides are
//! sequentially consistent fences in `Membarrier` mode and read-modify-writes in `Fences` mode;
//! every model runs in both.

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

/// Makes an accessor's reader that is online.
fn online(domain: &Arc<Domain>, owner: u64) -> Sections {
    let sections = Domain::register_at(domain, CacheBinding::of_nothing(), owner);
    domain.go_online(&sections.participant);
    sections
}

/// A page of bytes whose races loom detects.
struct Page(UnsafeCell<u64>);
// SAFETY: loom itself checks that no two threads use the cell at the same time; a race fails the
// model.
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

/// A revoker reuses a frame that a reader may be using. `reader` makes the reader; `before` runs
/// concurrently with its section, before the frame is taken away.
fn reuse_beside(
    reader: impl Fn(&Arc<Domain>) -> Sections + Send + Sync + Copy + 'static,
    before: impl Fn(&Arc<Domain>) -> Option<Sections> + Send + Sync + Copy + 'static,
) {
    both_modes(move |mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = reader(&domain);
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
        let _other = before(&domain);
        entry.store(0, Ordering::Relaxed);
        domain.synchronize();
        page.write(9);
        reader.join().unwrap();
    });
}

/// If the grace period is missing, loom finds the race.
// spec: A2
#[test]
fn a2_a_freed_frame_is_not_reused_in_use() {
    reuse_beside(Domain::register, |_| None);
}

/// The flusher cleans a page while a writer may hold a writable translation. Afterwards the
/// writer's store is in the written bytes, or the page is dirty again.
// spec: A1
#[test]
fn a1_a_store_is_written_or_the_page_is_dirty_again() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let valid_w = Arc::new(AtomicBool::new(true));
        let block = Arc::new(Mutex::new(true)); // the block lock; its value is "dirty"
        let byte = Arc::new(AtomicU64::new(0));
        let mut sections = Domain::register(&domain);
        let writer = {
            let (valid_w, block, byte) = (valid_w.clone(), block.clone(), byte.clone());
            thread::spawn(move || {
                sections.enter();
                if !valid_w.load(Ordering::Relaxed) {
                    sections.leave();
                    // The fault takes the block lock, sets dirty, and then makes the page writable
                    // again.
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

/// A reader caches what it found. A revocation that races with the caching must reach the copy.
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

/// Fork revokes the parent's write permission before it reads the page for the child.
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

/// One thread reads the zero page, and another upgrades it to a page of its own and then
/// synchronises with the first. The first must see the new bytes.
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

/// Two threads that wait for a grace period each do not wait for each other, because neither is in
/// a section meanwhile.
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

/// A grace period passes over a session. The session reads nothing of what was taken away: it had
/// read it before, or finds the word changed after it has widened its section.
// spec: N7
#[test]
fn n7_a_session_that_is_passed_over_holds_nothing_of_others() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = online(&domain, 1);
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

/// A grace period waits for the narrow section of an owner that may hold the page, even if the
/// section was wide when the grace period began.
// spec: N7
#[test]
fn n7_a_session_of_the_owner_is_waited_for() {
    both_modes(|mode| {
        let domain = Domain::with_mode(mode);
        let entry = Arc::new(AtomicU64::new(1));
        let page = Arc::new(Page::new(5));
        let mut sections = online(&domain, 1);
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

/// An accessor that is offline goes online before it reads anything.
// spec: A2, N9
#[test]
fn n9_an_accessor_that_goes_online_uses_no_frame_that_is_reused() {
    let offline = |domain: &Arc<Domain>| Domain::register_at(domain, CacheBinding::of_nothing(), 1);
    reuse_beside(offline, |_| None);
}

/// An accessor goes online while another one, which is online, enters a section: either the latter
/// stays online, or it finds out that it is offline before it reads anything.
// spec: A2, N9
#[test]
fn n9_an_accessor_that_enters_a_section_is_not_taken_offline() {
    // The second accessor takes the first one offline, if the first one is in no section.
    reuse_beside(|domain| online(domain, 1), |domain| Some(online(domain, 2)));
}
