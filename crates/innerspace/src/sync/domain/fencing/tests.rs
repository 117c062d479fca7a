use super::super::*;
use super::*;
use crate::sync::thread;

/// Returns a domain with the asymmetric barrier, if this machine has one.
fn asymmetric() -> Option<Arc<Domain>> {
    let domain = Domain::with_mode(BarrierMode::Membarrier);
    (domain.mode == BarrierMode::Membarrier).then_some(domain)
}

fn tell_to_fence(domain: &Domain) {
    domain.have_readers_fence(&domain.participants.lock(), Duration::from_micros(20));
}

fn told(domain: &Domain) -> Vec<bool> {
    let participants = domain.participants.lock();
    let told = |one: &Arc<Participant>| one.alone.load(Ordering::Relaxed) & FENCED != 0;
    participants.iter().map(told).collect()
}

#[test]
fn barriers_are_dear_if_they_take_much_of_the_time_between_them() {
    let start = Instant::now();
    let window = |every: Duration, took: Duration| {
        let mut pace = Pace::default();
        let judged = (0..WINDOW).map(|number| pace.count(start + every * number, took));
        judged.collect::<Vec<_>>()
    };
    let micros = Duration::from_micros;
    let dear = window(micros(30), micros(20));
    assert_eq!(dear.last(), Some(&Some(micros(20))));
    assert!(dear[..dear.len() - 1].iter().all(Option::is_none));
    assert_eq!(window(micros(300), micros(20)).last(), Some(&None));
    assert_eq!(window(micros(20), micros(1)).last(), Some(&None));

    // A barrier whose thread lost its processor counts for `LONGEST` at most.
    let mut pace = Pace::default();
    for number in 0..WINDOW {
        let late = number > 0;
        let begun = start + micros(10) * number + micros(4000) * u32::from(late);
        let took = if late { micros(1) } else { micros(4000) };
        assert_eq!(pace.count(begun, took), None);
    }
}

#[test]
fn who_comes_while_readers_fence_fences_and_the_grace_period_waits_for_it() {
    let Some(domain) = asymmetric() else { return };
    let mut before = Domain::register(&domain);
    tell_to_fence(&domain);
    let after = Domain::register(&domain);
    drop(domain.reader()); // registers the calling thread's own participant
    assert_eq!(told(&domain), [true; 3]);

    before.enter();
    let waiter = {
        let domain = domain.clone();
        thread::spawn(move || domain.synchronize())
    };
    while !before.has_mail() {
        thread::yield_now();
    }
    before.leave();
    waiter.join().unwrap();
    drop(after);
}

#[test]
fn readers_stop_when_there_are_few_grace_periods_for_their_fences() {
    let Some(domain) = asymmetric() else { return };
    let mut sections = Domain::register(&domain);
    tell_to_fence(&domain);
    let mut read = |times: u32, graces: u32| {
        for number in 0..times {
            sections.enter();
            sections.leave();
            if number < graces {
                domain.synchronize();
            }
        }
    };
    // Grace periods are frequent enough here that fences cost less than heavy barriers.
    for _ in 0..3 {
        read(LOOK_EVERY, 10);
    }
    assert_eq!(told(&domain), [true]);
    read(2 * LOOK_EVERY, 0);
    assert_eq!(told(&domain), [false]);
    assert!(!domain.fenced.load(Ordering::Relaxed));
}

#[test]
fn who_comes_while_readers_fence_judges_by_the_grace_periods_since() {
    let Some(domain) = asymmetric() else { return };
    tell_to_fence(&domain);
    (0..100).for_each(|_| domain.synchronize());
    let mut sections = Domain::register(&domain);
    for _ in 0..LOOK_EVERY {
        sections.enter();
        sections.leave();
    }
    assert_eq!(told(&domain), [false]);
}

/// The way in which a reader of the test below opens its sections.
#[derive(Clone, Copy)]
enum Enter {
    Whole,
    Alone,
    Reader,
}

/// Readers use the page that a word leads to. A revoker replaces the page, and spoils the old one
/// after a grace period. All the while a third thread tells readers to fence and to stop.
// spec: A2
#[test]
fn nothing_is_reused_in_use_while_readers_are_told_to_fence_and_to_stop() {
    let Some(domain) = asymmetric() else { return };
    const ROUNDS: u64 = 20_000;
    const SPOILT: u64 = u64::MAX;
    let things: Arc<Vec<AtomicU64>> = Arc::new((0..2).map(AtomicU64::new).collect());
    let word = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let reader = |enter: Enter| {
        let (domain, word, things, over) =
            (domain.clone(), word.clone(), things.clone(), over.clone());
        thread::spawn(move || {
            let mut sections = Domain::register(&domain);
            let mut used = 0_u64;
            while !over.load(Ordering::Relaxed) || used == 0 {
                let used_one = || {
                    let at = word.load(Ordering::Relaxed);
                    let seen = things[at as usize].load(Ordering::Relaxed);
                    assert_ne!(seen, SPOILT, "used after a grace period");
                };
                match enter {
                    Enter::Whole => {
                        sections.enter();
                        used_one();
                        sections.leave();
                    }
                    Enter::Alone => {
                        let done = sections.alone(|mark| (mark.0 == 0).then(used_one));
                        if done.is_none() {
                            sections.order();
                            used_one();
                            sections.leave();
                        }
                    }
                    Enter::Reader => {
                        let _reader = domain.reader();
                        used_one();
                    }
                }
                used += 1;
            }
        })
    };
    let readers = [Enter::Whole, Enter::Alone, Enter::Reader].map(reader);
    let teller = {
        let (domain, over) = (domain.clone(), over.clone());
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                tell_to_fence(&domain);
                thread::yield_now();
                domain.have_readers_stop(&domain.participants.lock());
                thread::yield_now();
            }
        })
    };
    for round in 0..ROUNDS {
        let (old, new) = (round % 2, (round + 1) % 2);
        things[new as usize].store(round, Ordering::Relaxed);
        word.store(new, Ordering::Release);
        domain.synchronize();
        things[old as usize].store(SPOILT, Ordering::Relaxed);
    }
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    teller.join().unwrap();
}
