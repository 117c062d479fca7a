use super::participant::MAILBOX_LEN;
use super::*;
use crate::sync::thread;

const MODES: [BarrierMode; 2] = [BarrierMode::Membarrier, BarrierMode::Fences];

// spec: A9
#[test]
fn idle_readers_are_not_waited_for() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let _idle: Vec<Sections> = (0..10).map(|_| Domain::register(&domain)).collect();
        domain.synchronize(); // would hang if an idle reader counted
        assert_eq!(domain.grace_periods(), 1);
    }
}

// spec: A11
#[test]
fn a_full_mailbox_becomes_one_flush_and_loses_nothing() {
    let domain = Domain::new();
    let mut sections = Domain::register(&domain);
    for number in 0..MAILBOX_LEN as u64 {
        sections.participant().post(Post::One(number));
    }
    let mut seen = Vec::new();
    sections.drain(|post| seen.push(post));
    assert_eq!(
        seen,
        (0..MAILBOX_LEN as u64).map(Post::One).collect::<Vec<_>>()
    );
    assert!(!sections.has_mail());
    for number in 0..=MAILBOX_LEN as u64 {
        sections.participant().post(Post::One(number));
    }
    sections.participant().post(Post::One(7));
    seen.clear();
    assert!(sections.has_mail());
    sections.drain(|post| seen.push(post));
    assert_eq!(seen, [Post::All]);
}

#[test]
fn synchronize_waits_for_an_open_section_and_no_later_one() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let mut sections = Domain::register(&domain);
        sections.enter();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = {
            let domain = domain.clone();
            thread::spawn(move || {
                domain.synchronize();
                sender.send(()).unwrap();
            })
        };
        while !sections.has_mail() {
            thread::yield_now(); // the request says that the waiter has seen our section
        }
        assert!(receiver.try_recv().is_err());
        sections.leave();
        sections.enter(); // the waiter does not wait for a new section
        receiver.recv().unwrap();
        sections.leave();
        waiter.join().unwrap();
    }
}

/// A drain clears a request that was meant for the section in which it runs, and the section goes
/// on.
// spec: A15
#[test]
fn a_request_that_was_drained_away_is_made_again() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let mut sections = Domain::register(&domain);
        sections.enter();
        let waiter = {
            let domain = domain.clone();
            thread::spawn(move || domain.synchronize())
        };
        for _ in 0..3 {
            while !sections.has_mail() {
                thread::yield_now(); // would hang if the waiter asked only once
            }
            sections.drain(|_| ());
        }
        sections.leave();
        waiter.join().unwrap();
    }
}

#[test]
fn a_session_of_the_same_thread_is_suspended_and_told() {
    let domain = Domain::new();
    let mut sections = Domain::register(&domain);
    sections.enter();
    sections.begin_session();
    domain.synchronize();
    assert!(sections.has_mail());
    sections.end_session();
    sections.leave();
}

/// Two threads each have a session open and wait for a grace period.
// spec: A7
#[test]
fn threads_with_sessions_do_not_wait_for_each_other() {
    let domain = Domain::new();
    let start = Arc::new(std::sync::Barrier::new(2));
    let work = |domain: Arc<Domain>, start: Arc<std::sync::Barrier>| {
        let mut sections = Domain::register(&domain);
        sections.enter();
        sections.begin_session();
        start.wait();
        for _ in 0..100 {
            domain.synchronize();
            sections.end_session();
            assert!(sections.has_mail());
            sections.leave();
            sections.enter();
            sections.drain(|_| ());
            sections.begin_session();
        }
        sections.end_session();
    };
    let other = {
        let (domain, start) = (domain.clone(), start.clone());
        thread::spawn(move || work(domain, start))
    };
    work(domain, start);
    other.join().unwrap();
}

// spec: A10
#[test]
fn a_dropped_or_panicking_reader_leaves_no_section_open() {
    let domain = Domain::new();
    let mut sections = Domain::register(&domain);
    sections.enter();
    drop(sections);
    let theirs = domain.clone();
    let end = thread::spawn(move || {
        let _reader = theirs.reader();
        let _nested = theirs.reader();
        let mut sections = Domain::register(&theirs);
        sections.enter();
        panic!("on purpose");
    })
    .join();
    assert!(end.is_err());
    domain.synchronize();
    assert!(domain.participants.lock().iter().next().is_none());
}

/// A bounded stress of the barrier on the hardware, which no model covers.
// spec: A2
#[test]
fn a_word_is_never_reused_while_a_reader_uses_it() {
    use crate::sync::atomic::AtomicBool;
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let slot = Arc::new(AtomicU64::new(0));
        let cells: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = {
            let (domain, slot, cells, stop) =
                (domain.clone(), slot.clone(), cells.clone(), stop.clone());
            thread::spawn(move || {
                let mut sections = Domain::register(&domain);
                while !stop.load(Ordering::Relaxed) {
                    sections.enter();
                    // Acquire: pairs with the store below, after which the cell is clean again.
                    let which = slot.load(Ordering::Acquire) as usize;
                    for _ in 0..3 {
                        assert_eq!(cells[which].load(Ordering::Relaxed), 0, "reused in use");
                    }
                    sections.leave();
                }
            })
        };
        for round in 0..2_000u64 {
            let old = (round & 1) as usize;
            slot.store(1 - old as u64, Ordering::Release);
            domain.synchronize();
            cells[old].store(1, Ordering::Relaxed); // "reused"
            cells[old].store(0, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }
}

/// More accessors than may be online. Miri takes minutes for a thousand.
const MANY: usize = if cfg!(miri) { 300 } else { 1000 };

/// Makes readers of accessors, each of which has opened a section once.
fn used(domain: &Arc<Domain>, count: usize) -> Vec<Sections> {
    let binding = CacheBinding::of_nothing();
    let each = |_| {
        let mut sections = Domain::register_at(domain, binding, 1);
        sections.enter();
        sections.leave();
        sections
    };
    (0..count).map(each).collect()
}

/// Returns how many readers a grace period looks at.
fn looked_at(domain: &Domain) -> u64 {
    crate::sync::failpoint::count("MemberSeen", || domain.synchronize())
}

// spec: N9
#[test]
fn a_grace_period_looks_at_few_accessors_however_many_there_are() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let binding = CacheBinding::of_nothing();
        let unused = |_| Domain::register_at(&domain, binding, 1);
        let unused: Vec<_> = (0..MANY).map(unused).collect();
        assert_eq!(looked_at(&domain), 0);
        let mut used = used(&domain, if cfg!(miri) { MANY } else { 5 * MANY });
        assert!((1..=256).contains(&looked_at(&domain)));
        for sections in used.iter_mut().rev() {
            sections.enter();
            sections.leave();
        }
        assert!((1..=256).contains(&looked_at(&domain)));
        drop((unused, used));
        assert_eq!(looked_at(&domain), 0);
    }
}

// spec: N9, A9
#[test]
fn an_accessor_in_a_section_stays_online_and_is_waited_for() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let mut inside = Domain::register_at(&domain, CacheBinding::of_nothing(), 1);
        inside.enter();
        let others = used(&domain, MANY);
        let waiter = {
            let domain = domain.clone();
            thread::spawn(move || domain.synchronize())
        };
        // The request says that the waiter has seen our section.
        while !inside.has_mail() {
            assert!(!waiter.is_finished(), "an open section was not waited for");
            thread::yield_now();
        }
        inside.leave();
        waiter.join().unwrap();
        drop(others);
    }
}

// spec: N9, N7
#[test]
fn a_thread_with_many_sessions_keeps_few_sections_open() {
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let mut sessions = used(&domain, MANY);
        for sections in &mut sessions {
            sections.begin_session();
            sections.enter();
            sections.narrow();
        }
        let is_open = |sections: &&Sections| sections.is_open();
        assert_eq!(
            sessions.iter().filter(is_open).count(),
            MANY % MOST_OPEN_SESSIONS
        );
        assert!(looked_at(&domain) <= 256);
        for sections in &mut sessions {
            // A session whose section was left finds that out from its mail.
            assert!(sections.is_open() || sections.has_mail());
            sections.end_session();
        }
    }
}

/// Readers go online and offline all the time while what they read is taken away.
// spec: A2, N9
#[test]
fn accessors_that_go_online_use_nothing_that_was_taken_away() {
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 3000 };
    for mode in MODES {
        let domain = Domain::with_mode(mode);
        let word = Arc::new(AtomicU64::new(0));
        let freed = Arc::new([const { AtomicBool::new(false) }; 2]);
        let over = Arc::new(AtomicBool::new(false));
        let readers = [(); 2].map(|()| {
            let (domain, word, freed, over) =
                (domain.clone(), word.clone(), freed.clone(), over.clone());
            thread::spawn(move || {
                let mut accessors = used(&domain, 300);
                while !over.load(Ordering::Relaxed) {
                    for sections in &mut accessors {
                        sections.enter();
                        let place = word.load(Ordering::Relaxed) as usize;
                        let is_freed = freed[place].load(Ordering::Relaxed);
                        assert!(!is_freed, "a section reads what was taken away");
                        sections.leave();
                    }
                }
            })
        });
        for round in 0..ROUNDS {
            let (old, new) = (round as usize % 2, (round as usize + 1) % 2);
            freed[new].store(false, Ordering::SeqCst);
            word.store(new as u64, Ordering::Relaxed);
            domain.synchronize();
            freed[old].store(true, Ordering::SeqCst);
        }
        over.store(true, Ordering::Relaxed);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    }
}
