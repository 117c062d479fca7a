//! Sections and grace periods: how a thread uses a translation or an index node without a shared
//! write, and how another thread takes it away.
//!
//! A [`Participant`] is the side of a reader that other threads see: a counter that is odd while
//! the reader is in a *section*, and a mailbox. Each accessor owns one. Any other thread that walks
//! a page table or an index uses its own ([`Domain::reader`]).
//!
//! The reader
//!
//! 1. *enters*: `state` = odd, light barrier;
//! 2. checks whether anything is `pending`, and drains the mailbox if so;
//! 3. reads the words, and uses what they lead to;
//! 4. *leaves*: `state` = even, release.
//!
//! The revoker
//!
//! 1. makes the thing unreachable: it changes the word that leads to the thing;
//! 2. posts to the mailboxes of the readers that may have cached the thing, and sets their
//!    `pending`;
//! 3. calls [`Domain::synchronize_with`]: heavy barrier, then a wait for every odd `state` to
//!    change;
//! 4. reuses the thing, cleans it, or returns.
//!
//! At least one of the two sees the other. After the wait the revoker sees what the reader wrote in
//! its section. The argument is in `docs/protocols/sections.md`, which also covers systems without
//! `membarrier` and readers that fence ([`fencing`]).
//!
//! # Sessions
//!
//! A session keeps one section open over many accesses and checks `pending` before each. `pending`
//! holds the address of the reader's cache while no message waits, and the address of an empty
//! cache while one does ([`CacheBinding`]). A waiting revoker sets `pending`, and the session
//! passes a *safepoint* (leave, drain, enter).
//!
//! A thread that is about to wait for others first leaves the sections of its own sessions, and
//! sets their `pending` ([`suspend_sessions`], called whenever `sync` waits for a lock or an
//! event). While an access is under way its session is not registered (`end_session`), so a wait
//! does not leave that section.
//!
//! A session may stay open for as long as the program likes. A grace period therefore waits only
//! for the sessions of those spaces that may hold what is taken away. Between two accesses, and in
//! an access that hits, a session's section is *narrow* ([`Sections::narrow`]): the section then
//! holds nothing but translations of its own space, which is its *owner*.
//! `docs/protocols/sections.md` says why that is enough.
//!
//! # Many accessors
//!
//! A grace period looks at the readers that are *online*. An accessor begins offline and goes
//! online in its next section ([`offline`]), so accessors that are not in use cost a grace period
//! nothing.
//!
//! # Rules
//!
//! Nothing in a section sleeps, waits for memory or does I/O. A section may take a frame and its
//! charge if both are available immediately. `synchronize` is never called inside a section of the
//! same thread (except in sessions, which are suspended), nor while a lock is held that a section
//! may take.
//!
//! Locking: the list of participants and each mailbox have a mutex of their own. Only the
//! allocator's locks are further in.

use super::atomic::{AtomicBool, AtomicU64, Ordering};
use super::members::Members;
use super::{Arc, Backoff, Mutex, Rank, order};
use crate::sys::barrier::{self, BarrierMode};
use crate::sys::process::Process;

mod fencing;
#[cfg(all(test, loom))]
mod loom_models;
mod offline;
mod participant;
#[cfg(not(loom))]
mod reader;
#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

pub(crate) use participant::{ANY_OWNER, CacheBinding, NO_OWNER, Participant, PendingMark, Post};
use participant::{CLOSED, FENCED, OFFLINE, PENDING, SESSION};
#[cfg(not(loom))]
pub(crate) use reader::Reader;

/// The readers of a domain, and the pace of their grace periods.
#[derive(Debug, Default)]
struct Participants {
    /// The readers of threads without an accessor.
    threads: Members<Arc<Participant>>,
    /// The accessors that are online ([`offline`]), in the order in which they went online.
    accessors: Members<Arc<Participant>>,
    pace: fencing::Pace,
}

impl Participants {
    fn iter(&self) -> impl Iterator<Item = &Arc<Participant>> {
        self.threads.iter().chain(self.accessors.iter())
    }
}

/// The readers of one `Memory`, and its grace periods.
#[derive(Debug)]
pub(crate) struct Domain {
    mode: BarrierMode,
    /// The number that distinguishes this domain from others in a thread's own list of readers. It
    /// is never reused.
    id: u64,
    /// The process that created the domain. A child of fork(2) contains none of that process's
    /// other threads.
    maker: Process,
    participants: Mutex<Participants>,
    /// Whether readers fence when they enter. It changes only with the list of participants locked
    /// ([`fencing`]).
    fenced: AtomicBool,
    /// The average time of a heavy barrier in nanoseconds, measured when readers were last told to
    /// fence.
    barrier_cost: AtomicU64,
    /// The number of grace periods that have begun, which is also the number of the latest one.
    grace_periods: AtomicU64,
    /// The highest number of a grace period that is over.
    passed: AtomicU64,
}

impl Domain {
    /// Creates a domain that uses the best barrier of this machine.
    pub(crate) fn new() -> Arc<Domain> {
        Domain::with_mode(barrier::mode())
    }

    /// Creates a domain with the given barrier, for tests that run both. Without membarrier the
    /// domain uses read-modify-writes, whatever the caller asks for.
    pub(crate) fn with_mode(mode: BarrierMode) -> Arc<Domain> {
        let granted = cfg!(loom) || barrier::mode() == BarrierMode::Membarrier;
        let mode = if granted { mode } else { BarrierMode::Fences };
        use std::sync::atomic as plain;
        static NEXT_ID: plain::AtomicU64 = plain::AtomicU64::new(1);
        Arc::new(Domain {
            mode,
            id: NEXT_ID.fetch_add(1, plain::Ordering::Relaxed),
            maker: Process::current(),
            participants: Mutex::ranked(Rank::Participants, Participants::default()),
            fenced: AtomicBool::new(false),
            barrier_cost: AtomicU64::new(0),
            grace_periods: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        })
    }

    /// Creates an accessor's reader with this binding, whose sessions hold translations of `owner`.
    /// The reader starts outside a section and offline, with an empty mailbox.
    pub(crate) fn register_at(domain: &Arc<Domain>, binding: CacheBinding, owner: u64) -> Sections {
        Sections {
            participant: Arc::new(Participant {
                owner,
                alone: AtomicU64::new(OFFLINE),
                ..Participant::new(binding)
            }),
            mode: domain.mode,
            domain: domain.clone(),
            last: 1,
            #[cfg(loom)]
            stays_online: false,
        }
    }

    /// Returns the process that created the domain, unless that is the calling process.
    #[inline]
    pub(crate) fn foreign_maker(&self) -> Option<Process> {
        (!self.maker.is_current()).then_some(self.maker)
    }

    /// Waits until every section that was open at the call has been left. Sessions are passed over
    /// if `may_hold` says that their owner can have no translation of what was made unreachable.
    /// After the call, what was made unreachable before it can be reused. In a child of fork(2),
    /// does not wait.
    pub(crate) fn synchronize_with(&self, may_hold: impl Fn(u64) -> bool) {
        self.grace(may_hold, SessionWait::ToTheEnd);
    }

    /// Waits like `synchronize_with`, but for a session only as long as a session in use takes to
    /// pass a safepoint. Returns the owners of the sessions that are still open.
    pub(crate) fn synchronize_but_sessions(&self, may_hold: impl Fn(u64) -> bool) -> Vec<u64> {
        self.grace(may_hold, SessionWait::Briefly)
    }

    /// Asks the sessions of the owners that `may_hold` selects to pass a safepoint, one after the
    /// other, and waits for each as long as a session in use takes to do so. Returns `true` if all
    /// of them have. Returns `false` at the first that has not, and does not ask the others. In a
    /// child of fork(2), asks none and returns `true`.
    pub(crate) fn sessions_pass(&self, may_hold: impl Fn(u64) -> bool) -> bool {
        if self.foreign_maker().is_some() {
            return true;
        }
        #[cfg(not(loom))]
        suspend_sessions();
        // The read needs no ordering: a session that is missed here was opened just now.
        let mut waiting = self.odd(&self.participants.lock());
        waiting.retain(|(it, seen)| seen & SESSION != 0 && may_hold(it.owner));
        let passes = |(it, seen): (Arc<Participant>, u64)| {
            it.request();
            self.wait_for(&it, seen, Some(SessionWait::Briefly))
        };
        waiting.into_iter().all(passes)
    }

    fn grace(&self, may_hold: impl Fn(u64) -> bool, sessions: SessionWait) -> Vec<u64> {
        // In a child of fork(2) no thread is left that could leave the sections that were open in
        // the parent.
        if self.foreign_maker().is_some() {
            return Vec::new();
        }
        // Acquire: pairs with `begun`, so that this grace period covers everything that was
        // unreachable when `begun` was called.
        let number = self.grace_periods.fetch_add(1, Ordering::AcqRel) + 1;
        // A section may take the lock `paths` and all locks further in, so the caller must hold
        // none of them.
        order::may_wait(Rank::Paths);
        #[cfg(not(loom))]
        suspend_sessions();
        let mut left = Vec::new();
        for (participant, seen) in self.open_sections() {
            let owner = participant.owner;
            let sessions = (owner == NO_OWNER || may_hold(owner)).then_some(sessions);
            if seen & SESSION == 0 || sessions.is_some() {
                participant.request();
                if !self.wait_for(&participant, seen, sessions) {
                    left.push(owner);
                }
            }
        }
        // Release: pairs with the load in `has_passed`.
        self.passed.fetch_max(number, Ordering::AcqRel);
        left
    }

    /// Returns the readers that are in a section now, each with the state that was read. Any other
    /// reader finds the words as the caller has changed them.
    fn open_sections(&self) -> Vec<(Arc<Participant>, u64)> {
        // The list may change once it is unlocked. A reader that registers later has nothing
        // cached. It takes this lock after the caller, so it reads the words as the caller left
        // them.
        let participants = match self.mode {
            BarrierMode::Membarrier => self.ordered(),
            // The read-modify-writes of `state` order everything.
            BarrierMode::Fences => self.participants.lock(),
        };
        self.odd(&participants)
    }

    fn odd(&self, participants: &Participants) -> Vec<(Arc<Participant>, u64)> {
        let odd = participants.iter().filter_map(|p| {
            let seen = self.read_state(p);
            (seen & 1 == 1).then(|| (p.clone(), seen))
        });
        odd.collect()
    }

    /// Returns the number of grace periods that have begun: one with a higher number begins after
    /// this call. The load is a read-modify-write, so that such a grace period acquires what the
    /// caller did before.
    pub(crate) fn begun(&self) -> u64 {
        self.grace_periods.fetch_add(0, Ordering::AcqRel)
    }

    /// Returns whether a grace period with a number above `begun` is over. Acquire: pairs with the
    /// release in `grace`. So the sections that the grace period waited for are over for the
    /// caller, too.
    pub(crate) fn has_passed(&self, begun: u64) -> bool {
        self.passed.load(Ordering::Acquire) > begun
    }

    /// Loads a reader's `state`. Acquire: pairs with the release store in `Sections::leave`.
    fn read_state(&self, participant: &Participant) -> u64 {
        match self.mode {
            BarrierMode::Membarrier => participant.state.load(Ordering::Acquire),
            BarrierMode::Fences => participant.state.fetch_add(0, Ordering::SeqCst),
        }
    }

    /// Waits until the reader has left the section with the state `seen`. If `sessions` is `None`,
    /// the wait also ends when that section has become a session's. Returns `false` if a session is
    /// still in that section after the time that `sessions` allows.
    fn wait_for(
        &self,
        participant: &Participant,
        seen: u64,
        sessions: Option<SessionWait>,
    ) -> bool {
        let mut backoff = Backoff::new();
        loop {
            // Acquire: pairs with the release in `set_state`.
            let state = participant.state.load(Ordering::Acquire);
            let is_session = state & SESSION != 0;
            if (state ^ seen) & !SESSION != 0 || (is_session && sessions.is_none()) {
                return true;
            }
            let is_brief = is_session && sessions == Some(SessionWait::Briefly);
            // Relaxed: a hint that this section was waited for in vain. Each section has a number
            // of its own.
            if is_brief && participant.idle.load(Ordering::Relaxed) == seen | SESSION {
                return false;
            }
            if !backoff.is_spent() {
                backoff.snooze();
                continue;
            }
            if is_brief {
                participant.idle.store(seen | SESSION, Ordering::Relaxed);
                return false;
            }
            if cfg!(any(loom, shuttle)) {
                backoff.snooze();
                continue;
            }
            // A section is short. One this long belongs to a thread that lost its processor, or to
            // a session that has drained the request without leaving its section. The session must
            // be asked again.
            participant.request();
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    }

    /// Returns the number that tells domains apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of grace periods that have begun.
    pub(crate) fn grace_periods(&self) -> u64 {
        self.grace_periods.load(Ordering::Relaxed)
    }
}

/// How long a grace period waits for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionWait {
    ToTheEnd,
    /// As long as a session in use takes to come to its next access.
    Briefly,
}

/// A reader's own side of its [`Participant`]. Nothing else enters its sections. `leave_all` may
/// leave those of sessions.
#[derive(Debug)]
pub(crate) struct Sections {
    participant: Arc<Participant>,
    domain: Arc<Domain>,
    /// A copy of the domain's mode.
    mode: BarrierMode,
    /// The value of `participant.state` in the last section: odd, and different for each section.
    last: u64,
    /// Whether no thread of the model takes the reader offline. The reader then skips the load of
    /// the flag, which would be one more step to explore.
    #[cfg(loom)]
    stays_online: bool,
}

impl Sections {
    /// Returns the reader's shared side, for threads that post to it.
    pub(crate) fn participant(&self) -> &Arc<Participant> {
        &self.participant
    }

    /// Returns the domain to which this reader belongs.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Opens a section. The reader must not be in one.
    #[inline(always)]
    pub(crate) fn enter(&mut self) {
        self.last = self.participant.open_alone(self.last, self.mode);
        self.order();
    }

    /// Opens a section for one access, and runs the access with the pending mark. The mark is set
    /// if there is mail. It is also set if the section has yet to be ordered: the reader must first
    /// fence or go online. An access with the mark set uses nothing cached, and fails. If the
    /// access succeeds, the section is closed; otherwise the caller calls [`Sections::order`] next.
    #[inline(always)]
    pub(crate) fn alone<R>(&mut self, access: impl FnOnce(PendingMark) -> Option<R>) -> Option<R> {
        // Loaded once, because the compiler has to assume that the access changes them.
        let (participant, mode) = (&*self.participant, self.mode);
        self.last = participant.open_alone(self.last, mode);
        let done = access(PendingMark(participant.lone_word()))?;
        participant.set_state(CLOSED, mode);
        Some(done)
    }

    /// Narrows the section: from here on it holds nothing but translations of the owner, and counts
    /// as a session's.
    ///
    /// Release, as for all changes of `state`: a revoker that reads the narrow state has acquired
    /// what the section did before.
    #[inline(always)]
    pub(crate) fn narrow(&mut self) {
        debug_assert!(self.is_open());
        self.participant.set_state(self.last | SESSION, self.mode);
    }

    /// Ends [`Sections::narrow`] in the same section: from here on, the section may read anything.
    /// A revoker that has passed over the session changed the words before this call's barrier, as
    /// with [`Sections::enter`], so the section reads the changed words.
    #[inline(always)]
    pub(crate) fn widen(&mut self) {
        debug_assert!(self.is_open());
        self.participant.set_state(self.last, self.mode);
        self.order();
    }

    /// Orders the opening of the section before the reads in it, and brings the reader online. This
    /// is the last step of [`Sections::enter`].
    #[inline(always)]
    pub(crate) fn order(&mut self) {
        if cfg!(not(loom)) {
            // Costs no instruction. In the other mode, the write to `state` has ordered the
            // opening.
            BarrierMode::Membarrier.light();
            if self.participant.lone_word() & (FENCED | OFFLINE) == 0 {
                return;
            }
        }
        self.order_slowly();
    }

    #[cold]
    #[inline(never)]
    fn order_slowly(&mut self) {
        if self.mode == BarrierMode::Membarrier && self.participant.order() {
            self.domain.judge_fences(&self.participant);
        }
        #[cfg(loom)]
        if self.stays_online {
            return;
        }
        if self.participant.is_offline() {
            self.domain.go_online(&self.participant);
        }
    }

    /// Closes the section. A session's section may be closed already, if the session was suspended.
    /// Release: what was done inside is visible to a revoker that has seen the section closed.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.participant.set_state(CLOSED, self.mode);
    }

    /// Returns whether a section is open. The section of a suspended session is not.
    pub(crate) fn is_open(&self) -> bool {
        self.participant.is_open()
    }

    /// Returns whether anything was posted or requested since the last drain. The owner checks this
    /// inside its section, before it uses anything cached.
    #[inline(always)]
    pub(crate) fn has_mail(&self) -> bool {
        self.participant.has_mail()
    }

    /// Returns the cache to use, which is the empty one if there is mail.
    #[inline(always)]
    pub(crate) fn visible(&self) -> *mut () {
        self.participant.visible()
    }

    /// Returns the word that `visible` loads. The word lives as long as the participant.
    #[cfg(all(feature = "layout", not(any(loom, shuttle))))]
    pub(crate) fn visible_word(&self) -> &super::atomic::AtomicPtr<()> {
        &self.participant.pending
    }

    /// Clears the marks, empties the mailbox, and passes each message to `forget`, oldest first.
    #[cold]
    pub(crate) fn drain(&mut self, mut forget: impl FnMut(Post)) {
        let mut mailbox = self.participant.mailbox.lock();
        // Acquire: pairs with the releases in `Participant::mark` and `Participant::request`.
        let participant = &self.participant;
        participant
            .pending
            .swap(participant.binding.own, Ordering::Acquire);
        participant.alone.fetch_and(!PENDING, Ordering::Acquire);
        if mailbox.flush {
            forget(Post::All);
        }
        for number in mailbox.posts.drain(..) {
            forget(Post::One(number));
        }
        mailbox.flush = false;
    }

    /// Registers the open section as a session of the calling thread that is between two accesses.
    /// If the thread has [`MOST_OPEN_SESSIONS`] already, leaves their sections first.
    #[cfg(not(loom))]
    pub(crate) fn begin_session(&mut self) {
        let open = OpenSession {
            participant: self.participant.clone(),
            mode: self.mode,
        };
        SESSIONS.with(|sessions| {
            let mut sessions = sessions.borrow_mut();
            if sessions.len() == MOST_OPEN_SESSIONS {
                leave_all(&mut sessions);
            }
            sessions.push(open);
        });
    }

    /// Ends the registration of [`Sections::begin_session`], in the same thread. If the section was
    /// left meanwhile, there is mail, and the registration has ended with the section.
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
        self.domain.end_accessor(&self.participant);
    }
}

/// The most sessions of one thread that keep their sections open between two accesses. Grace
/// periods look at each of them.
#[cfg(not(loom))]
const MOST_OPEN_SESSIONS: usize = 64;

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

/// Leaves the sections of this thread's sessions before the thread waits. All these sessions are
/// between two accesses.
#[cfg(not(loom))]
#[cold]
pub(crate) fn suspend_sessions() {
    // A thread that is ending has no sessions.
    let _ = SESSIONS.try_with(|sessions| leave_all(&mut sessions.borrow_mut()));
}

/// Leaves the sections of these sessions, which are the calling thread's and between two accesses.
/// Sets their `pending`, and empties the list.
#[cfg(not(loom))]
fn leave_all(sessions: &mut Vec<OpenSession>) {
    for open in sessions.drain(..) {
        let participant = &open.participant;
        // Relaxed: a session is not `Send`, so only this thread changes `state` while the session
        // is registered.
        let state = participant.state.load(Ordering::Relaxed);
        if state & 1 == 0 {
            continue;
        }
        participant.request();
        // Release, as in `Sections::leave`.
        participant.set_state(CLOSED, open.mode);
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Domain {
        /// Creates a reader that caches nothing and is online.
        pub(crate) fn register(domain: &Arc<Domain>) -> Sections {
            #[cfg_attr(not(loom), expect(unused_mut))]
            let mut sections = Domain::register_at(domain, CacheBinding::of_nothing(), NO_OWNER);
            domain.bring_online(&mut domain.participants.lock(), &sections.participant);
            #[cfg(loom)]
            {
                sections.stays_online = true;
            }
            sections
        }

        /// Waits like `synchronize_with`, for the sessions of all owners.
        pub(crate) fn synchronize(&self) {
            self.synchronize_with(|_| true);
        }
    }
}
