//! Sections and grace periods: how a thread uses a translation or an index node without writing anything shared, and
//! how another takes it away.
//!
//! # Protocol
//!
//! A [`Participant`] is what one reader shows to the world: a counter that is odd while the reader is in a *section*, and
//! a mailbox. An accessor owns one; any other thread that walks a table or an index uses its own ([`Domain::reader`]).
//!
//! | step | reader | revoker |
//! |---|---|---|
//! | 1 | *enter*: `state` = odd, light barrier | make the thing unreachable (change the word that leads to it) |
//! | 2 | compare `posted` with what was drained; drain the mailbox if they differ | post to the mailboxes of those that may have cached it, bump `posted` |
//! | 3 | read the words, use what they lead to | [`Domain::synchronize`]: heavy barrier, wait for every odd `state` to change |
//! | 4 | *leave*: `state` = even, release | reuse, clean, return |
//!
//! The pair (1, 2) of the reader against (1, 3) of the revoker is Dekker's: the reader writes `state` and then reads the
//! words; the revoker writes the words and then reads `state`. With a full barrier in between on both sides at least one
//! sees the other: either the reader finds the words changed (and the post), or the revoker finds it in a section and
//! waits. The reader's barrier is free where `membarrier` exists, because the revoker's then acts on both sides
//! (`sys::barrier`). Elsewhere, and under the race detector, *enter*, *leave* and the revoker's read of `state` are all
//! read-modify-writes: each takes what the one before it in the word's modification order released, so a section that
//! comes after the revoker's read has seen the revocation, and no lone fence is needed. (*leave* too: a plain store there
//! would cut the chain between the revoker's read and the reader's next section.)
//!
//! What a reader wrote inside its section is visible to the revoker after the wait: *leave* is a release store that the
//! revoker's read acquires. So a store through a translation that was revoked is in memory before `synchronize` returns.
//!
//! # Sessions
//!
//! A session keeps one section open over many accesses and compares `posted` before each ([`Sections::has_mail`]): a
//! waiting revoker bumps it, and the session passes a *safepoint* (leave, drain, enter). Between two accesses the user's
//! code runs, and may call this library: a thread that is about to wait for others first leaves the sections of its own
//! sessions ([`suspend_sessions`], called by every lock and wait of `sync`), so that two threads with open sessions never
//! wait for each other. It bumps `posted` too, so the session finds out before it uses anything it remembers. While an
//! access itself is under way the session is not registered (`end_session`), and nobody leaves its section for it.
//!
//! # Rules
//!
//! Nothing in a section sleeps, allocates frames, charges or does I/O. `synchronize` is never called inside a section of
//! the same thread (sessions excepted: they are suspended), nor with a lock held that a section may take. Locking: the list of participants
//! and each mailbox have a mutex of their own, the innermost but for the allocator.

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::{Arc, Backoff, Mutex};
use crate::sys::barrier::{self, BarrierMode};

/// Posts kept one by one; one more turns the mailbox into a single "forget everything".
pub(crate) const MAILBOX_LEN: usize = 64;

/// What one reader shows to revokers.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Participant {
    /// Odd while in a section. Written by the owner alone; read by revokers.
    state: AtomicU64,
    /// Bumped after each post and each request to pass a safepoint; compared by the owner with what it has drained.
    posted: AtomicU64,
    /// Nesting of [`Reader`]s; touched by the owner alone.
    depth: AtomicU32,
    /// What the owner has to forget.
    mailbox: Mutex<Mailbox>,
}

#[derive(Debug)]
struct Mailbox {
    posts: Vec<u64>,
    flush: bool,
}

/// One message to a reader that caches things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Post {
    /// Forget the entry with this number.
    One(u64),
    /// Forget everything.
    All,
}

impl Participant {
    fn new() -> Participant {
        Participant {
            state: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            mailbox: Mutex::new(Mailbox {
                posts: Vec::new(),
                flush: false,
            }),
        }
    }

    /// Leaves a message that the owner reads before it uses anything it has cached. Never waits for the owner.
    pub(crate) fn post(&self, post: Post) {
        let mut mailbox = self.mailbox.lock();
        match post {
            Post::One(number) if !mailbox.flush && mailbox.posts.len() < MAILBOX_LEN => {
                mailbox.posts.push(number);
            }
            _ => {
                mailbox.posts.clear();
                mailbox.flush = true;
            }
        }
        // Under the lock, so that a drain which has seen this number has seen the message too. Release: pairs with the
        // load in `Sections::has_mail` where that is followed by the lock; for A6 the poster's later data store carries it.
        self.posted.fetch_add(1, Ordering::Release);
    }

    /// Asks an open session to pass a safepoint.
    fn request(&self) {
        self.posted.fetch_add(1, Ordering::Release);
    }
}

/// The readers of one `Memory`, and the grace periods between them.
#[derive(Debug)]
pub(crate) struct Domain {
    mode: BarrierMode,
    /// Tells domains apart in a thread's own list of readers; never reused.
    id: u64,
    participants: Mutex<Vec<Arc<Participant>>>,
    /// Grace periods so far.
    grace_periods: AtomicU64,
}

impl Domain {
    /// A domain that uses the best barrier of this machine.
    pub(crate) fn new() -> Arc<Domain> {
        Domain::with_mode(barrier::mode())
    }

    /// A domain with the given barrier, for tests that run both; read-modify-writes where the kernel refuses membarrier.
    pub(crate) fn with_mode(mode: BarrierMode) -> Arc<Domain> {
        let granted = cfg!(loom) || barrier::mode() == BarrierMode::Membarrier;
        let mode = if granted { mode } else { BarrierMode::Fences };
        use std::sync::atomic as plain;
        static NEXT_ID: plain::AtomicU64 = plain::AtomicU64::new(1);
        Arc::new(Domain {
            mode,
            id: NEXT_ID.fetch_add(1, plain::Ordering::Relaxed),
            participants: Mutex::new(Vec::new()),
            grace_periods: AtomicU64::new(0),
        })
    }

    /// Adds a reader; it starts outside a section with an empty mailbox.
    pub(crate) fn register(domain: &Arc<Domain>) -> Sections {
        let participant = Arc::new(Participant::new());
        domain.participants.lock().push(participant.clone());
        Sections {
            participant,
            mode: domain.mode,
            domain: domain.clone(),
            state: 0,
            drained: 0,
        }
    }

    fn unregister(&self, participant: &Arc<Participant>) {
        self.participants
            .lock()
            .retain(|other| !Arc::ptr_eq(other, participant));
    }

    /// Waits until every section that was open at the call has been left. What was made unreachable before the call can
    /// be reused after it.
    pub(crate) fn synchronize(&self) {
        self.grace_periods.fetch_add(1, Ordering::Relaxed);
        if cfg!(mutant = "A2") {
            // mutant: A2 (loom: a2_) no grace period
            return;
        }
        #[cfg(not(loom))]
        suspend_sessions();
        self.barrier();
        // The list may change once unlocked: who registers later starts with nothing cached and, having taken this lock
        // after us, reads the words as we left them.
        let waiting: Vec<(Arc<Participant>, u64)> = {
            let participants = self.participants.lock();
            let odd = participants.iter().filter_map(|p| {
                let seen = self.read_state(p);
                (seen & 1 == 1).then(|| (p.clone(), seen))
            });
            odd.collect()
        };
        for (participant, seen) in waiting {
            participant.request();
            self.wait_for(&participant, seen);
        }
    }

    fn barrier(&self) {
        match self.mode {
            BarrierMode::Membarrier => barrier::heavy(),
            // The read-modify-writes on `state` order everything.
            BarrierMode::Fences => {}
        }
    }

    /// Acquire: pairs with the release store in `Sections::leave`.
    fn read_state(&self, participant: &Participant) -> u64 {
        match self.mode {
            BarrierMode::Membarrier => participant.state.load(Ordering::Acquire),
            BarrierMode::Fences => participant.state.fetch_add(0, Ordering::SeqCst),
        }
    }

    fn wait_for(&self, participant: &Participant, seen: u64) {
        let mut backoff = Backoff::new();
        while participant.state.load(Ordering::Acquire) == seen {
            if backoff.is_spent() && cfg!(not(any(loom, shuttle))) {
                // A section is short; one this long belongs to a thread that lost its processor.
                std::thread::sleep(std::time::Duration::from_micros(20));
            } else {
                backoff.snooze();
            }
        }
    }

    /// Tells domains apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Grace periods waited for so far.
    pub(crate) fn grace_periods(&self) -> u64 {
        self.grace_periods.load(Ordering::Relaxed)
    }
}

/// A reader's own side of its [`Participant`]: the only one who enters and leaves.
#[derive(Debug)]
pub(crate) struct Sections {
    participant: Arc<Participant>,
    domain: Arc<Domain>,
    /// The domain's, at hand.
    mode: BarrierMode,
    /// Private copy of `participant.state`.
    state: u64,
    /// The value of `participant.posted` up to which the mailbox was drained.
    drained: u64,
}

impl Sections {
    /// The shared side, for those who post to this reader.
    pub(crate) fn participant(&self) -> &Arc<Participant> {
        &self.participant
    }

    /// The domain this reader belongs to.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Opens a section. Must be outside one.
    #[inline(always)]
    pub(crate) fn enter(&mut self) {
        debug_assert!(self.state & 1 == 0, "I6: a section is open already");
        self.state += 1;
        match self.mode {
            BarrierMode::Membarrier => {
                // Release, which costs a store nothing on x86: a revoker that finds the next section open has then
                // acquired the end of the one before it.
                self.participant.state.store(self.state, Ordering::Release);
                BarrierMode::Membarrier.light();
            }
            BarrierMode::Fences => {
                self.participant.state.swap(self.state, Ordering::SeqCst);
            }
        }
    }

    /// Closes the section. Release: what was done inside is visible to a revoker that saw it closed.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        debug_assert!(self.state & 1 == 1, "I6: no section is open");
        self.state += 1;
        match self.mode {
            BarrierMode::Membarrier => {
                self.participant.state.store(self.state, Ordering::Release);
            }
            BarrierMode::Fences => {
                self.participant.state.swap(self.state, Ordering::SeqCst);
            }
        }
    }

    /// Whether a section is open.
    pub(crate) fn is_open(&self) -> bool {
        self.state & 1 == 1
    }

    /// Whether something was posted or requested since the last drain. Looked at inside the section, before anything
    /// cached is used.
    #[inline(always)]
    pub(crate) fn has_mail(&self) -> bool {
        // Relaxed: within a section the barrier of `enter` orders it (Dekker); for an upgrade by a thread we have
        // synchronised with since, coherence forbids an older value.
        self.participant.posted.load(Ordering::Relaxed) != self.drained
    }

    /// Takes the mail out, oldest first, and hands each message to `forget`.
    #[cold]
    pub(crate) fn drain(&mut self, mut forget: impl FnMut(Post)) {
        let mut mailbox = self.participant.mailbox.lock();
        self.drained = self.participant.posted.load(Ordering::Acquire);
        if mailbox.flush {
            forget(Post::All);
        }
        for number in mailbox.posts.drain(..) {
            forget(Post::One(number));
        }
        mailbox.flush = false;
    }

    /// Registers the open section as a session of the calling thread that is between two accesses.
    #[cfg(not(loom))]
    pub(crate) fn begin_session(&mut self) {
        let open = OpenSession {
            participant: self.participant.clone(),
            mode: self.mode,
        };
        SESSIONS.with(|sessions| sessions.borrow_mut().push(open));
    }

    /// Ends the registration of [`Sections::begin_session`], in the same thread. The section may have been left meanwhile;
    /// then there is mail.
    #[cfg(not(loom))]
    pub(crate) fn end_session(&mut self) {
        let is_own = |open: &OpenSession| Arc::ptr_eq(&open.participant, &self.participant);
        SESSIONS.with(|sessions| {
            let mut sessions = sessions.borrow_mut();
            if let Some(place) = sessions.iter().rposition(is_own) {
                sessions.swap_remove(place);
            }
        });
    }
}

impl Drop for Sections {
    fn drop(&mut self) {
        if self.is_open() {
            self.leave();
        }
        self.domain.unregister(&self.participant);
    }
}

/// A session of this thread that is between two accesses.
#[cfg(not(loom))]
struct OpenSession {
    participant: Arc<Participant>,
    mode: BarrierMode,
}

#[cfg(not(loom))]
super::thread_local! {
    static SESSIONS: std::cell::RefCell<Vec<OpenSession>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Leaves the sections of this thread's sessions, which are all between two accesses: the thread is about to wait.
#[cfg(not(loom))]
#[cold]
pub(crate) fn suspend_sessions() {
    // A thread that is ending has none.
    let _ = SESSIONS.try_with(|sessions| {
        for open in sessions.borrow().iter() {
            let participant = &open.participant;
            // Relaxed: only this thread changes it while the session is registered.
            let state = participant.state.load(Ordering::Relaxed);
            if state & 1 == 0 {
                continue;
            }
            participant.request();
            // As `Sections::leave`; the session's own copy of the state catches up there with the same value.
            match open.mode {
                BarrierMode::Membarrier => participant.state.store(state + 1, Ordering::Release),
                BarrierMode::Fences => {
                    participant.state.swap(state + 1, Ordering::SeqCst);
                }
            }
        }
    });
}

#[cfg(not(loom))]
pub(crate) use reader::Reader;

#[cfg(not(loom))]
mod reader {
    use super::*;
    use crate::sync::Weak;
    use std::cell::RefCell;

    /// A thread's own participant in one domain; gone with the thread.
    struct Own {
        domain_id: u64,
        domain: Weak<Domain>,
        participant: Arc<Participant>,
    }

    impl Drop for Own {
        fn drop(&mut self) {
            if let Some(domain) = self.domain.upgrade() {
                domain.unregister(&self.participant);
            }
        }
    }

    crate::sync::thread_local! {
        static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
    }

    /// An open section of the calling thread; closed when dropped. May be nested.
    #[derive(Debug)]
    pub(crate) struct Reader<'domain> {
        /// Bound to the thread by being a raw pointer, kept by the thread's list.
        participant: *const Participant,
        domain: &'domain Domain,
    }

    impl Domain {
        /// Opens a section of the calling thread.
        #[inline]
        pub(crate) fn reader(self: &Arc<Domain>) -> Reader<'_> {
            let participant = OWN.with(|own| {
                let own = own.borrow();
                match own.iter().find(|own| own.domain_id == self.id) {
                    Some(own) => Arc::as_ptr(&own.participant),
                    None => {
                        drop(own);
                        self.register_thread()
                    }
                }
            });
            let reader = Reader {
                participant,
                domain: self,
            };
            reader.enter(self.mode);
            reader
        }

        #[cold]
        fn register_thread(self: &Arc<Domain>) -> *const Participant {
            let participant = Arc::new(Participant::new());
            self.participants.lock().push(participant.clone());
            let pointer = Arc::as_ptr(&participant);
            let domain = Arc::downgrade(self);
            OWN.with(|own| {
                let mut own = own.borrow_mut();
                own.retain(|own| own.domain.strong_count() > 0);
                own.push(Own {
                    domain_id: self.id,
                    domain,
                    participant,
                });
            });
            pointer
        }
    }

    impl Reader<'_> {
        /// The domain the section is one of.
        pub(crate) fn domain(&self) -> &Domain {
            self.domain
        }

        fn participant(&self) -> &Participant {
            // SAFETY: the thread's list holds an `Arc` of it until the thread ends or the domain is gone; a `Reader` is
            // neither `Send` nor outlives the domain it borrows.
            unsafe { &*self.participant }
        }

        #[inline]
        fn enter(&self, mode: BarrierMode) {
            let participant = self.participant();
            // Relaxed: `depth` and the value of `state` belong to this thread.
            let depth = participant.depth.load(Ordering::Relaxed);
            participant.depth.store(depth + 1, Ordering::Relaxed);
            if depth > 0 {
                return;
            }
            let odd = participant.state.load(Ordering::Relaxed) + 1;
            match mode {
                BarrierMode::Membarrier => {
                    participant.state.store(odd, Ordering::Release);
                    BarrierMode::Membarrier.light();
                }
                BarrierMode::Fences => {
                    participant.state.swap(odd, Ordering::SeqCst);
                }
            }
        }
    }

    impl Drop for Reader<'_> {
        #[inline]
        fn drop(&mut self) {
            let participant = self.participant();
            let depth = participant.depth.load(Ordering::Relaxed);
            participant.depth.store(depth - 1, Ordering::Relaxed);
            if depth == 1 {
                let even = participant.state.load(Ordering::Relaxed) + 1;
                match self.domain.mode {
                    BarrierMode::Membarrier => participant.state.store(even, Ordering::Release),
                    BarrierMode::Fences => {
                        participant.state.swap(even, Ordering::SeqCst);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
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
                thread::yield_now(); // the request says that the waiter has seen us
            }
            assert!(receiver.try_recv().is_err());
            sections.leave();
            sections.enter(); // a new section is none of its business
            receiver.recv().unwrap();
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

    /// Each of two threads has a session open and waits for a grace period.
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
        assert!(domain.participants.lock().is_empty());
    }

    /// Bounded stress on the hardware: the barrier itself, which no model covers.
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
                        // Acquire: pairs with the store below, which says that the cell is clean again.
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
}

#[cfg(all(test, loom))]
mod loom_models;
