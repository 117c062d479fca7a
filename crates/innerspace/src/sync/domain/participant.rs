//! The side of a reader that revokers see: its state, its pending mark and its mailbox.

use std::hint::cold_path;
use std::sync::atomic as plain;

use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::members::Ticket;
use crate::sync::{Mutex, Rank};
use crate::sys::barrier::BarrierMode;

/// The largest number of posts that a mailbox keeps one by one. One more turns all of them into a
/// single "forget everything".
pub(super) const MAILBOX_LEN: usize = 64;

/// The value of an accessor's `state` outside its sections. (That of a thread's own reader is any
/// even number.)
pub(super) const CLOSED: u64 = 0;

/// The bit of `state` that is set while a session's section is narrow: between two accesses, or in
/// an access that hits.
pub(super) const SESSION: u64 = 1 << 63;

/// The owner of a reader that has no sessions. A revoker also names it for things that no session
/// can hold.
pub(crate) const NO_OWNER: u64 = 0;

/// All spaces, as the owner of something that the sessions of any space may hold.
pub(crate) const ANY_OWNER: u64 = u64::MAX;

/// The bit of `alone` that is set while a message is pending. No number of a cached leaf has this
/// bit.
pub(super) const PENDING: u64 = 1 << 63;

/// The bit of `alone` that is set while the owner must fence. No number of a cached leaf has this
/// bit either.
pub(super) const FENCED: u64 = 1 << 62;

/// The bit of `alone` that is set while no grace period looks at the reader. It changes only with
/// the list of participants locked. No number of a cached leaf has this bit.
pub(super) const OFFLINE: u64 = 1 << 61;

/// Two caches: the reader's own, and one that is always empty. While an invalidation is pending,
/// the reader is given the empty one, and misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheBinding {
    pub(super) own: *mut (),
    pub(super) empty: *mut (),
}

// SAFETY: the binding holds addresses only, and never reads through them.
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

    /// Returns the binding of a reader that caches nothing.
    pub(super) fn of_nothing() -> CacheBinding {
        static PLACES: [u8; 2] = [0; 2];
        CacheBinding::new((&raw const PLACES[0]).cast_mut(), &raw const PLACES[1])
    }
}

/// The pending mark, as a reader with a section for one access loaded it. It is set if there is
/// mail, or if the reader must first fence or go online.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingMark(pub(super) u64);

impl PendingMark {
    /// A mark that is not set, for a reader that has checked by other means.
    pub(crate) const NONE: PendingMark = PendingMark(0);

    /// Returns `number`, that of a cached leaf, if the mark is not set; otherwise a number that no
    /// leaf has. One comparison thus tests both.
    #[inline(always)]
    pub(crate) fn mark(self, number: u64) -> u64 {
        debug_assert_eq!(number & (PENDING | FENCED | OFFLINE), 0);
        number | self.0
    }
}

/// The side of a reader that revokers see.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Participant {
    /// Odd while the reader is in a section; with the bit [`SESSION`] while that section is narrow.
    /// Only the owner writes it; revokers read it.
    pub(super) state: AtomicU64,
    /// The binding's empty cache while there are posts or safepoint requests that the owner has not
    /// seen yet; otherwise the owner's cache.
    pub(super) pending: AtomicPtr<()>,
    pub(super) binding: CacheBinding,
    /// Three bits: [`PENDING`], set while there are posts or requests to take the slow path;
    /// [`FENCED`], set while the owner must fence when it enters ([`fencing`](super::fencing)); and
    /// [`OFFLINE`], set while the owner must go online when it enters
    /// ([`offline`](super::offline)). An access with a section of its own loads this word.
    pub(super) alone: AtomicU64,
    /// The nesting depth of [`Reader`](super::Reader)s. Only the owner uses it.
    pub(super) depth: AtomicU32,
    /// The number of fences since the reader last judged them
    /// ([`Domain::judge_fences`](super::Domain::judge_fences)), and the number of grace periods at
    /// that time. Only the reader's own thread uses these two.
    pub(super) fences: AtomicU32,
    pub(super) graces_seen: AtomicU64,
    /// The space whose translations this reader's sessions hold, or [`NO_OWNER`].
    pub(super) owner: u64,
    /// The value of `state` in the session's section for which a brief wait last ended in vain.
    /// Later brief waits pass over that section.
    pub(super) idle: AtomicU64,
    /// The participant's place in the domain's list; [`Ticket::NONE`] while it is offline. It is
    /// used only with the list locked, so a model checker need not see it.
    pub(super) ticket: plain::AtomicU64,
    /// Whether the participant is removed together with its only [`Reader`](super::Reader).
    pub(super) passing: bool,
    /// The invalidations that the owner must apply.
    pub(super) mailbox: Mutex<Mailbox>,
}

#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) posts: Vec<u64>,
    pub(super) flush: bool,
}

/// A message to a reader that caches translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Post {
    /// Forget the entry with this number.
    One(u64),
    /// Forget everything.
    All,
}

impl Participant {
    pub(super) fn new(binding: CacheBinding) -> Participant {
        Participant {
            state: AtomicU64::new(0),
            pending: AtomicPtr::new(binding.own),
            binding,
            alone: AtomicU64::new(0),
            depth: AtomicU32::new(0),
            fences: AtomicU32::new(0),
            graces_seen: AtomicU64::new(0),
            owner: NO_OWNER,
            idle: AtomicU64::new(CLOSED),
            ticket: plain::AtomicU64::new(Ticket::NONE.0),
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

    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.ticket.load(plain::Ordering::Relaxed))
    }

    pub(super) fn set_ticket(&self, ticket: Ticket) {
        self.ticket.store(ticket.0, plain::Ordering::Relaxed);
    }

    /// Posts a message. The owner reads it before it uses anything that it has cached. Never waits.
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

    /// Marks the mailbox as not empty. The caller holds the mailbox's lock, so a drain that clears
    /// the marks has seen the message too. Release: pairs with the acquires in `Sections::drain`,
    /// which the reader calls when `Sections::has_mail` has found the mark. In case A6 of
    /// docs/spec/accessor.md, the poster's later store of data carries the ordering.
    fn mark(&self, _mailbox: &Mailbox) {
        self.alone.fetch_or(PENDING, Ordering::Release);
        self.request();
    }

    /// Stores whether the owner is in a section (odd) or not (even). `docs/protocols/sections.md`
    /// argues the orderings.
    #[inline(always)]
    pub(super) fn set_state(&self, state: u64, mode: BarrierMode) {
        match mode {
            // Release, which costs a store nothing on x86: a revoker that reads the state of the
            // next section has thereby acquired the end of the previous one.
            BarrierMode::Membarrier => self.state.store(state, Ordering::Release),
            BarrierMode::Fences => {
                cold_path();
                self.state.swap(state, Ordering::SeqCst);
            }
        }
    }

    /// Opens a section. Takes the number of the last section and returns the number of the new one.
    #[inline(always)]
    pub(super) fn open_alone(&self, last: u64, mode: BarrierMode) -> u64 {
        // Skipped under loom, where every load of `state` is one more step to explore.
        debug_assert!(cfg!(loom) || !self.is_open(), "I6: open already");
        self.set_state(last + 2, mode);
        if mode == BarrierMode::Membarrier {
            mode.light();
        }
        last + 2
    }

    /// Asks an open session to pass a safepoint. An access that has a section of its own needs no
    /// request, because it leaves its section soon.
    ///
    /// The write is a swap and not a store, so that a drain acquires what every requester released,
    /// and not only what the last one did.
    pub(crate) fn request(&self) {
        self.pending.swap(self.binding.empty, Ordering::Release);
    }

    /// Returns whether a section is open. Only the owner calls this.
    pub(crate) fn is_open(&self) -> bool {
        // Relaxed: only the owner changes `state`.
        self.state.load(Ordering::Relaxed) & 1 == 1
    }

    /// Returns whether anything was posted or requested since the last drain. Only the owner calls
    /// this.
    #[inline(always)]
    pub(super) fn has_mail(&self) -> bool {
        self.visible() != self.binding.own
    }

    /// Returns the cache that the owner may use: its own, or the empty one if anything was posted
    /// or requested since the last drain.
    #[inline(always)]
    pub(crate) fn visible(&self) -> *mut () {
        // Relaxed: within a section the barrier of `enter` orders the load (Dekker). If another
        // thread has upgraded a page and has synchronised with this one since, coherence forbids an
        // older value. Only the owner writes its own cache, and nothing writes the empty one.
        self.pending.load(Ordering::Relaxed)
    }
}
