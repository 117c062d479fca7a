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
    assert!(domain.participants.lock().list.len() == 0);
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
