//! Sections and grace periods: how a thread uses a translation or an index node without a shared
//! write, and how another takes it away.
//!
//! A [`Participant`] is the public side of one reader: a counter that is odd while the reader is in
//! a *section*, and a mailbox. An accessor owns one; any other thread that walks a table or an
//! index uses its own ([`Domain::reader`]).
//!
//! The reader
//!
//! 1. *enters*: `state` = odd, light barrier;
//! 2. looks whether anything is `pending`, and drains the mailbox if so;
//! 3. reads the words, and uses what they lead to;
//! 4. *leaves*: `state` = even, release.
//!
//! The revoker
//!
//! 1. makes the thing unreachable: it changes the word that leads to it;
//! 2. posts to the mailboxes of those that may have cached it, and sets `pending`;
//! 3. calls [`Domain::synchronize_with`]: heavy barrier, wait for every odd `state` to change;
//! 4. reuses the thing, cleans it, or returns.
//!
//! At least one of the two sees the other, and after the wait the revoker sees what the reader
//! wrote in its section. The argument is in `docs/protocols/sections.md`, also for systems without
//! `membarrier` and for readers that fence ([`fencing`]).
//!
//! # Sessions
//!
//! A session keeps one section open over many accesses and looks at `pending` before each: the
//! address of the reader's cache while nothing is pending, and of an empty cache while something is
//! ([`CacheBinding`]). A waiting revoker sets it, and the session passes a *safepoint* (leave,
//! drain, enter). A thread that is about to wait for others first leaves the sections of its own
//! sessions, and sets their `pending` ([`suspend_sessions`], called by every lock and wait of
//! `sync`). While an access itself is under way the session is not registered (`end_session`), and
//! nobody leaves its section for it.
//!
//! A session may stay open for as long as the program likes, so a grace period waits for the
//! sessions of those spaces alone that may hold what is taken away. Between two accesses, and in
//! one that hits, a session's section is *narrow* ([`Sections::narrow`]): it holds translations of
//! its own space, its *owner*, and nothing else. Why that is enough is in `docs/protocols`, in
//! `sections.md`.
//!
//! # Rules
//!
//! Nothing in a section sleeps, allocates frames, charges or does I/O. `synchronize` is never
//! called inside a section of the same thread (sessions excepted: they are suspended), nor with a
//! lock held that a section may take. Locking: the list of participants and each mailbox have a
//! mutex of their own, the innermost but for the allocator.

use std::hint::cold_path;

use super::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use super::members::{Members, Ticket};
use super::{Arc, Backoff, Mutex, Rank, order};
use crate::sys::barrier::{self, BarrierMode};
use crate::sys::process::Process;

/// Posts kept one by one; one more turns the mailbox into a single "forget everything".
pub(crate) const MAILBOX_LEN: usize = 64;

/// An accessor's `state` outside its sections.
const CLOSED: u64 = 0;

/// The bit of `state` that is set while the section is that of a session: between two accesses, or
/// in one that hits.
const SESSION: u64 = 1 << 63;

/// The owner of a reader that has no sessions, and of what no session holds.
pub(crate) const NO_OWNER: u64 = 0;

/// The owner of what the sessions of any space may hold.
pub(crate) const ANY_OWNER: u64 = u64::MAX;

/// The bit of `alone` that is set while something is pending. No number of a cached leaf has it.
const PENDING: u64 = 1 << 63;

/// The bit of `alone` that is set while the owner has to fence. No number of a cached leaf has it
/// either.
const FENCED: u64 = 1 << 62;

/// Two caches: the reader's own, and one that is always empty. While an invalidation is pending the
/// reader is shown the empty one, and misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheBinding {
    own: *mut (),
    empty: *mut (),
}

// SAFETY: addresses alone; nothing is read through them here.
unsafe impl Send for CacheBinding {}
// SAFETY: as above.
unsafe impl Sync for CacheBinding {}

impl CacheBinding {
    pub(crate) fn new<T>(own: *mut T, empty: *const T) -> CacheBinding {
        let binding = CacheBinding {
            own: own.cast(),
            empty: empty.cast_mut().cast(),
        };
        debug_assert_ne!(binding.own, binding.empty);
        binding
    }

    /// The binding of a reader that caches nothing.
    fn of_nothing() -> CacheBinding {
        static PLACES: [u8; 2] = [0; 2];
        CacheBinding::new((&raw const PLACES[0]).cast_mut(), &raw const PLACES[1])
    }
}

/// Whether something was pending when a reader with a section for one access looked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingMark(u64);

impl PendingMark {
    /// Nothing is pending, for a reader that has looked by other means.
    pub(crate) const NONE: PendingMark = PendingMark(0);

    /// The number of a cached leaf, or one that no leaf has if something is pending: one comparison
    /// tests both.
    #[inline(always)]
    pub(crate) fn mark(self, number: u64) -> u64 {
        debug_assert_eq!(number & (PENDING | FENCED), 0);
        number | self.0
    }
}

/// The side of a reader that revokers see.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Participant {
    /// Odd while in a section; with [`SESSION`] if it is that of a session. Written by the owner
    /// alone; read by revokers.
    state: AtomicU64,
    /// The binding's empty cache while there are posts or safepoint requests that the owner has not
    /// seen yet, else its own cache.
    pending: AtomicPtr<()>,
    binding: CacheBinding,
    /// [`PENDING`] while there are posts or requests to take the slow path, [`FENCED`] while the
    /// owner has to fence when it enters ([`fencing`]). An access with a section of its own looks
    /// at this word.
    alone: AtomicU64,
    /// Nesting of [`Reader`]s; touched by the owner alone.
    depth: AtomicU32,
    /// Fences so far, and the number of grace periods at the last look; touched by the owner
    /// alone.
    fences: AtomicU32,
    graces_seen: AtomicU64,
    /// The space whose translations its sessions hold, or [`NO_OWNER`].
    owner: u64,
    /// Its place in the domain's list.
    ticket: Ticket,
    /// Removed together with its one [`Reader`].
    passing: bool,
    /// The invalidations that the owner has to apply.
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
    fn new(binding: CacheBinding) -> Participant {
        Participant {
            state: AtomicU64::new(0),
            pending: AtomicPtr::new(binding.own),
            binding,
            alone: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            fences: AtomicU32::new(0),
            graces_seen: AtomicU64::new(0),
            owner: NO_OWNER,
            ticket: Ticket::NONE,
            passing: false,
            mailbox: Mutex::ranked(
                Rank::Mailbox,
                Mailbox {
                    posts: Vec::new(),
                    flush: false,
                },
            ),
        }
    }

    /// Posts a message that the owner reads before it uses anything it has cached. Never waits.
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
        self.mark(&mailbox);
    }

    /// Makes the owner's next access, in a session or not, take the slow path, where it reads its
    /// mail.
    pub(crate) fn request_safepoint(&self) {
        self.mark(&self.mailbox.lock());
    }

    /// Called with the mailbox locked, so that a drain that clears the marks has seen the message
    /// too. Release: pairs with the load in `Sections::has_mail` where that is followed by the
    /// lock; for A6 the poster's later data store carries it.
    fn mark(&self, _mailbox: &Mailbox) {
        self.alone.fetch_or(PENDING, Ordering::Release);
        self.request();
    }

    /// Sets whether the owner is in a section (odd) or not (even); see the module for the
    /// orderings.
    #[inline(always)]
    fn set_state(&self, state: u64, mode: BarrierMode) {
        match mode {
            // Release, which costs a store nothing on x86: a revoker that finds the next section
            // open has then acquired the end of the one before it.
            BarrierMode::Membarrier => self.state.store(state, Ordering::Release),
            BarrierMode::Fences => {
                cold_path();
                self.state.swap(state, Ordering::SeqCst);
            }
        }
    }

    /// Opens the section of one access, and returns its number, given the last one's.
    #[inline(always)]
    fn open_alone(&self, last: u64, mode: BarrierMode) -> u64 {
        // Under loom every load of `state` is one more thing to explore.
        debug_assert!(cfg!(loom) || !self.is_open(), "I6: open already");
        self.set_state(last + 2, mode);
        if mode == BarrierMode::Membarrier {
            mode.light();
        }
        last + 2
    }

    /// Asks an open session to pass a safepoint. An access that has a section of its own leaves it
    /// soon.
    ///
    /// A swap, not a store: a drain acquires what every requester released, and not the last one
    /// alone.
    pub(crate) fn request(&self) {
        self.pending.swap(self.binding.empty, Ordering::Release);
    }

    /// Whether a section is open. For the owner.
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: only the owner changes it.
        self.state.load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether something was posted or requested since the last drain. For the owner.
    #[inline(always)]
    fn has_mail(&self) -> bool {
        self.visible() != self.binding.own
    }

    /// The cache for the owner to look at: its own, or the empty one if something was posted or
    /// requested since the last drain.
    #[inline(always)]
    pub(crate) fn visible(&self) -> *mut () {
        // Relaxed: within a section the barrier of `enter` orders it (Dekker); for an upgrade by a
        // thread we have synchronised with since, coherence forbids an older value. Either cache
        // was written by the owner alone, or never.
        self.pending.load(Ordering::Relaxed)
    }
}

/// The readers of a domain.
#[derive(Debug, Default)]
struct Participants {
    list: Members<Arc<Participant>>,
    pace: fencing::Pace,
}

/// The readers of one `Memory`, and the grace periods between them.
#[derive(Debug)]
pub(crate) struct Domain {
    mode: BarrierMode,
    /// Tells domains apart in a thread's own list of readers; never reused.
    id: u64,
    /// The process that made it. A child of fork(2) has none of its threads.
    maker: Process,
    participants: Mutex<Participants>,
    /// Whether readers fence when they enter; changed with the participants locked ([`fencing`]).
    fenced: AtomicBool,
    /// The time a heavy barrier took when readers were told to fence, in nanoseconds.
    barrier_cost: AtomicU64,
    /// Grace periods begun so far; the number of each.
    grace_periods: AtomicU64,
    /// The highest number of one that is over.
    passed: AtomicU64,
}

impl Domain {
    /// A domain that uses the best barrier of this machine.
    pub(crate) fn new() -> Arc<Domain> {
        Domain::with_mode(barrier::mode())
    }

    /// A domain with the given barrier, for tests that run both. Without membarrier it uses
    /// read-modify-writes whatever is asked for.
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

    /// Adds a reader with this binding, whose sessions hold translations of `owner`; it starts
    /// outside a section with an empty mailbox.
    pub(crate) fn register_at(domain: &Arc<Domain>, binding: CacheBinding, owner: u64) -> Sections {
        Sections {
            participant: domain.add(Participant {
                owner,
                ..Participant::new(binding)
            }),
            mode: domain.mode,
            domain: domain.clone(),
            last: 1,
        }
    }

    /// Adds a reader that caches nothing.
    #[cfg(test)]
    pub(crate) fn register(domain: &Arc<Domain>) -> Sections {
        Domain::register_at(domain, CacheBinding::of_nothing(), NO_OWNER)
    }

    fn add(&self, mut participant: Participant) -> Arc<Participant> {
        // As in `unregister`.
        if self.foreign_maker().is_some() {
            return Arc::new(participant);
        }
        let mut participants = self.participants.lock();
        if self.fenced.load(Ordering::Relaxed) {
            participant.alone.fetch_or(FENCED, Ordering::Relaxed);
        }
        let graces = self.grace_periods();
        participant.graces_seen.store(graces, Ordering::Relaxed);
        let join = |ticket| {
            participant.ticket = ticket;
            Arc::new(participant)
        };
        participants.list.join_with(join).clone()
    }

    /// The process that made the domain, unless it is the calling one.
    #[inline]
    pub(crate) fn foreign_maker(&self) -> Option<Process> {
        (!self.maker.is_current()).then_some(self.maker)
    }

    fn unregister(&self, participant: &Participant) {
        // Another thread of the parent may have had the lock.
        if self.foreign_maker().is_some() {
            return;
        }
        let left = self.participants.lock().list.leave(participant.ticket);
        drop(left);
    }

    /// Waits until every section that was open at the call has been left, except for sessions of
    /// owners that hold no translation of what was made unreachable. Anything that was before the
    /// call can be reused after it.
    pub(crate) fn synchronize_with(&self, may_hold: impl Fn(u64) -> bool) {
        self.grace(may_hold, SessionWait::ToTheEnd);
    }

    /// The same, whoever may hold it.
    #[cfg(test)]
    pub(crate) fn synchronize(&self) {
        self.synchronize_with(|_| true);
    }

    /// The same, but waits for a session only as long as one takes that is in use. Returns the
    /// owners of those that are still open.
    pub(crate) fn synchronize_but_sessions(&self) -> Vec<u64> {
        self.grace(|_| true, SessionWait::Briefly)
    }

    /// Asks the sessions of these owners to pass a safepoint, and waits as long as that takes where
    /// they are in use. Returns whether all have.
    pub(crate) fn sessions_pass(&self, may_hold: impl Fn(u64) -> bool) -> bool {
        if self.foreign_maker().is_some() {
            return true;
        }
        #[cfg(not(loom))]
        suspend_sessions();
        // Not ordered against anything: a session that is missed here has just been opened.
        let mut waiting = self.odd(&self.participants.lock());
        waiting.retain(|(it, seen)| seen & SESSION != 0 && may_hold(it.owner));
        let passes = |(it, seen): (Arc<Participant>, u64)| {
            it.request();
            self.wait_for(&it, seen, Some(SessionWait::Briefly))
        };
        waiting.into_iter().all(passes)
    }

    fn grace(&self, may_hold: impl Fn(u64) -> bool, sessions: SessionWait) -> Vec<u64> {
        // In a child of fork(2) no thread leaves the sections that were open in the parent.
        if self.foreign_maker().is_some() {
            return Vec::new();
        }
        // Acquire: pairs with `begun`, so that this grace period covers everything that was
        // unreachable when `begun` was called.
        let number = self.grace_periods.fetch_add(1, Ordering::AcqRel) + 1;
        // Sections take locks from `paths` inwards.
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
        // Release: pairs with `has_passed`.
        self.passed.fetch_max(number, Ordering::AcqRel);
        left
    }

    /// The readers that are in a section now, and its number. A reader that is not one of them
    /// finds the words as the caller has changed them.
    fn open_sections(&self) -> Vec<(Arc<Participant>, u64)> {
        // The list may change once unlocked. A reader that registers later starts with nothing
        // cached and, having taken this lock after us, reads the words as we left them.
        let participants = match self.mode {
            BarrierMode::Membarrier => self.ordered(),
            // The read-modify-writes on `state` order everything.
            BarrierMode::Fences => self.participants.lock(),
        };
        self.odd(&participants)
    }

    fn odd(&self, participants: &Participants) -> Vec<(Arc<Participant>, u64)> {
        let odd = participants.list.iter().filter_map(|p| {
            let seen = self.read_state(p);
            (seen & 1 == 1).then(|| (p.clone(), seen))
        });
        odd.collect()
    }

    /// Grace periods begun so far: one with a higher number begins after this call. A
    /// read-modify-write, so that such a grace period acquires what the caller did before.
    pub(crate) fn begun(&self) -> u64 {
        self.grace_periods.fetch_add(0, Ordering::AcqRel)
    }

    /// Whether a grace period with a number above `begun` is over. Acquire: so are, for the caller,
    /// the sections it waited for.
    pub(crate) fn has_passed(&self, begun: u64) -> bool {
        self.passed.load(Ordering::Acquire) > begun
    }

    /// Acquire: pairs with the release store in `Sections::leave`.
    fn read_state(&self, participant: &Participant) -> u64 {
        match self.mode {
            BarrierMode::Membarrier => participant.state.load(Ordering::Acquire),
            BarrierMode::Fences => participant.state.fetch_add(0, Ordering::SeqCst),
        }
    }

    /// Waits until the section that was `seen` is left, or is a session's that need not be waited
    /// for; `false`: a session has not ended in time.
    fn wait_for(
        &self,
        participant: &Participant,
        seen: u64,
        sessions: Option<SessionWait>,
    ) -> bool {
        let mut backoff = Backoff::new();
        loop {
            // Acquire: pairs with the release of `set_state`.
            let state = participant.state.load(Ordering::Acquire);
            let is_session = state & SESSION != 0;
            if (state ^ seen) & !SESSION != 0 || (is_session && sessions.is_none()) {
                return true;
            }
            if !backoff.is_spent() {
                backoff.snooze();
                continue;
            }
            if is_session && sessions == Some(SessionWait::Briefly) {
                return false;
            }
            if cfg!(any(loom, shuttle)) {
                backoff.snooze();
                continue;
            }
            // A section is short. One this long belongs to a thread that lost its processor, or to
            // a session that has drained the request without leaving its section.
            participant.request();
            std::thread::sleep(std::time::Duration::from_micros(20));
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

/// How long a grace period waits for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionWait {
    ToTheEnd,
    /// As long as one that is in use takes to come to its next access.
    Briefly,
}

/// A reader's own side of its [`Participant`], the only one that enters and leaves.
#[derive(Debug)]
pub(crate) struct Sections {
    participant: Arc<Participant>,
    domain: Arc<Domain>,
    /// A copy of the domain's value.
    mode: BarrierMode,
    /// The value of `participant.state` in the last section: odd, and different in each.
    last: u64,
}

impl Sections {
    /// The shared side, for threads that post to this reader.
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
        self.enter_alone();
        self.order();
    }

    /// Opens a section for one access. The access looks at [`Sections::pending_mark`] before it
    /// uses anything cached, and calls [`Sections::order`] if the mark is set: a reader that is
    /// told to fence has not fenced yet.
    #[inline(always)]
    pub(crate) fn enter_alone(&mut self) {
        self.last = self.participant.open_alone(self.last, self.mode);
    }

    /// Opens such a section and runs the access with the mark. If the access succeeds, the section
    /// is closed.
    #[inline(always)]
    pub(crate) fn alone<R>(&mut self, access: impl FnOnce(PendingMark) -> Option<R>) -> Option<R> {
        // Loaded once: as far as the compiler knows, the access may store to any of it.
        let (participant, mode) = (&*self.participant, self.mode);
        self.last = participant.open_alone(self.last, mode);
        let done = access(PendingMark(participant.lone_word()))?;
        participant.set_state(CLOSED, mode);
        Some(done)
    }

    /// The section holds nothing from here on but translations of the owner: it is a session's.
    ///
    /// Release, as all changes of `state`: a revoker that finds this has acquired what the section
    /// did before.
    #[inline(always)]
    pub(crate) fn narrow(&mut self) {
        debug_assert!(self.is_open());
        self.participant.set_state(self.last | SESSION, self.mode);
    }

    /// Ends [`Sections::narrow`], in the same section: what is read from here on may be anything. A
    /// revoker that has passed over the session has changed its words before this is ordered, as
    /// with [`Sections::enter`].
    #[inline(always)]
    pub(crate) fn widen(&mut self) {
        debug_assert!(self.is_open());
        self.participant.set_state(self.last, self.mode);
        self.order();
    }

    /// The end of [`Sections::enter`].
    #[inline(always)]
    pub(crate) fn order(&mut self) {
        if self.mode == BarrierMode::Membarrier && self.participant.order() {
            self.domain.judge_fences(&self.participant);
        }
    }

    /// The mark: set if there is mail, or if the section has yet to be ordered.
    #[inline(always)]
    pub(crate) fn pending_mark(&self) -> PendingMark {
        PendingMark(self.participant.lone_word())
    }

    /// Closes the section; that of a session may have been left already, when it was suspended.
    /// Release: what was done inside is visible to a revoker that saw it closed.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.participant.set_state(CLOSED, self.mode);
    }

    /// Whether a section is open. That of a suspended session is not.
    pub(crate) fn is_open(&self) -> bool {
        self.participant.is_open()
    }

    /// Whether something was posted or requested since the last drain. The owner looks inside its
    /// section, before it uses anything cached.
    #[inline(always)]
    pub(crate) fn has_mail(&self) -> bool {
        self.participant.has_mail()
    }

    /// The cache to look at, which is the empty one if there is mail.
    #[inline(always)]
    pub(crate) fn visible(&self) -> *mut () {
        self.participant.visible()
    }

    /// The word that `visible` looks at; it lives as long as the participant.
    #[cfg(all(feature = "layout", not(any(loom, shuttle))))]
    pub(crate) fn visible_word(&self) -> &AtomicPtr<()> {
        &self.participant.pending
    }

    /// Takes the mail out, oldest first, and hands each message to `forget`.
    #[cold]
    pub(crate) fn drain(&mut self, mut forget: impl FnMut(Post)) {
        let mut mailbox = self.participant.mailbox.lock();
        // Acquire: pairs with the release of posts and requests.
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
    #[cfg(not(loom))]
    pub(crate) fn begin_session(&mut self) {
        let open = OpenSession {
            participant: self.participant.clone(),
            mode: self.mode,
        };
        SESSIONS.with(|sessions| sessions.borrow_mut().push(open));
    }

    /// Ends the registration of [`Sections::begin_session`], in the same thread. The section may
    /// have been left meanwhile; then there is mail.
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

/// Leaves the sections of this thread's sessions, which are all between two accesses, before the
/// thread waits.
#[cfg(not(loom))]
#[cold]
pub(crate) fn suspend_sessions() {
    // A thread that is ending has none.
    let _ = SESSIONS.try_with(|sessions| {
        for open in sessions.borrow().iter() {
            let participant = &open.participant;
            // Relaxed: only this thread changes it while the session is registered, which is not
            // `Send`.
            let state = participant.state.load(Ordering::Relaxed);
            if state & 1 == 0 {
                continue;
            }
            participant.request();
            // As `Sections::leave`.
            participant.set_state(CLOSED, open.mode);
        }
    });
}

mod fencing;

#[cfg(not(loom))]
pub(crate) use reader::Reader;

#[cfg(not(loom))]
mod reader;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

#[cfg(all(test, loom))]
mod loom_models;
