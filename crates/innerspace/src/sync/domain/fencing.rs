//! Adaptive fencing: whether the revoker orders the beginning of sections, by an interrupt of every
//! processor, or each reader does, by a fence.
//!
//! Where grace periods follow one another, heavy barriers would be most of the work done. Then the
//! readers are told to fence: each *enter* takes a full fence, and a grace period takes a fence as
//! well and interrupts no processor. Once grace periods are few for what the readers do, the next
//! reader to notice tells all of them to stop. The steps, and why a grace period without a heavy
//! barrier is one, are in `docs/protocols/sections.md`.
//!
//! The reader's `fenced` is a bit of a word on the line of its `state`. An access with a section of
//! its own compares the whole word with what it has cached, because pending mail is marked there
//! too. Telling readers to fence therefore costs such an access nothing; a reader that is told
//! takes the slow path and fences there ([`Sections::enter_alone`](super::Sections::enter_alone)).
//!
//! The models that enumerate this are in `fencing/models.rs`. They include the processor's store
//! buffers, which no model checker simulates.

use std::hint::cold_path;
use std::time::{Duration, Instant};

use super::{Domain, FENCED, Participant, Participants};
use crate::sync::MutexGuard;
use crate::sync::atomic::{Ordering, fence};
use crate::sys::barrier;

/// Fences of a reader after which it looks whether grace periods are worth them.
const LOOK_EVERY: u32 = 4096;

/// The approximate cost of a fence in nanoseconds.
const FENCE: u64 = 6;

/// Heavy barriers that are judged together.
const WINDOW: u32 = 16;

/// Heavy barriers are too expensive if they take more than one part in this many of the time in
/// which they follow each other.
const DEAR: u32 = 8;

/// The greatest time that one of them counts for: its thread may have lost its processor meanwhile.
const LONGEST: Duration = Duration::from_micros(50);

/// The share of the time that heavy barriers take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the first heavy barrier of this window began.
    since: Option<Instant>,
    count: u32,
    spent: Duration,
}

impl Pace {
    /// Counts one that began at `begun` and took `took`. Returns the time each takes, if they are
    /// too expensive.
    fn count(&mut self, begun: Instant, took: Duration) -> Option<Duration> {
        let since = *self.since.get_or_insert(begun);
        self.count += 1;
        self.spent += took.min(LONGEST);
        if self.count < WINDOW {
            return None;
        }
        let whole = (begun + took).saturating_duration_since(since);
        let spent = std::mem::take(self).spent;
        (spent * DEAR > whole).then_some(spent / WINDOW)
    }
}

impl Participant {
    /// Loads the word with `fenced` and the pending mark.
    #[inline(always)]
    pub(super) fn lone_word(&self) -> u64 {
        let word = self.alone.load(Ordering::Relaxed);
        if cfg!(not(loom)) {
            // Pairs with `have_readers_stop`. Not a load that acquires: where those are in order
            // after stores that release, as on ARM, it would wait for that of `state`.
            fence(Ordering::Acquire);
        }
        word
    }

    /// The end of *enter* with an asymmetric barrier. Returns whether [`Domain::judge_fences`] is
    /// due.
    #[inline(always)]
    pub(super) fn order(&self) -> bool {
        barrier::BarrierMode::Membarrier.light();
        // Under loom the light side is a fence, and readers are never told to fence.
        if cfg!(loom) || self.lone_word() & FENCED == 0 {
            return false;
        }
        cold_path();
        fence(Ordering::SeqCst);
        // Relaxed: touched by the owner alone.
        let fences = self.fences.load(Ordering::Relaxed) + 1;
        self.fences.store(fences, Ordering::Relaxed);
        fences >= LOOK_EVERY
    }
}

impl Domain {
    /// Performs the revoker's barrier and locks the list. A reader whose `state` is even in it has
    /// left its sections, or finds the words as the caller has changed them.
    pub(super) fn ordered(&self) -> MutexGuard<'_, Participants> {
        if self.fenced.load(Ordering::Relaxed) {
            let participants = self.participants.lock();
            if self.fenced.load(Ordering::Relaxed) {
                fence(Ordering::SeqCst);
                return participants;
            }
        }
        if cfg!(loom) {
            barrier::heavy();
            return self.participants.lock();
        }
        let begun = Instant::now();
        barrier::heavy();
        let took = begun.elapsed();
        let mut participants = self.participants.lock();
        if let Some(each) = participants.pace.count(begun, took) {
            self.have_readers_fence(&participants, each);
        }
        participants
    }

    /// Tells the readers to fence; a heavy barrier takes `each`.
    pub(super) fn have_readers_fence(&self, participants: &Participants, each: Duration) {
        let nanoseconds = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.barrier_cost.store(nanoseconds, Ordering::Relaxed);
        for participant in participants.list.iter() {
            participant.alone.fetch_or(FENCED, Ordering::Relaxed);
        }
        barrier::heavy();
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// Tells the readers to stop if the fences of the caller since it last came here took more time
    /// than heavy barriers would have. When [`Participant::order`] says that it is due.
    #[cold]
    pub(super) fn judge_fences(&self, own: &Participant) {
        let fences = own.fences.load(Ordering::Relaxed);
        own.fences.store(0, Ordering::Relaxed);
        let now = self.grace_periods.load(Ordering::Relaxed);
        let since = own.graces_seen.load(Ordering::Relaxed);
        own.graces_seen.store(now, Ordering::Relaxed);
        let barriers = (now - since).saturating_mul(self.barrier_cost.load(Ordering::Relaxed));
        if barriers >= u64::from(fences) * FENCE {
            return;
        }
        // The caller may be in a section, and this is not worth a wait.
        if let Some(participants) = self.participants.try_lock() {
            self.have_readers_stop(&participants);
        }
    }

    fn have_readers_stop(&self, participants: &Participants) {
        self.fenced.store(false, Ordering::Relaxed);
        for participant in participants.list.iter() {
            // Release: pairs with `lone_word`, for revokers that held the list before us.
            participant.alone.fetch_and(!FENCED, Ordering::Release);
        }
    }
}

// It tries all states, which takes Miri long, and touches no memory of the library.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod models;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
