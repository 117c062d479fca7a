//! Adaptive fencing decides which side orders the beginning of a section: the revoker, by an
//! interrupt of every processor, or each reader, by a fence.
//!
//! Where grace periods follow one another closely, heavy barriers would be most of the work. The
//! readers are then told to fence: each *enter* executes a full fence, and a grace period executes
//! one too and interrupts no processor. Once the readers enter far more often than grace periods
//! begin, the next reader to notice tells all of them to stop. The steps, and why a grace period
//! without a heavy barrier is valid, are in `docs/protocols/sections.md`.
//!
//! A reader's flag `fenced` is a bit of a word that shares a cache line with its `state`. An access
//! with a section of its own compares the whole word with what it has cached, because pending mail
//! is marked in the same word. The flag therefore costs such an access nothing; a reader that was
//! told to fence takes the slow path and fences there
//! ([`Sections::alone`](super::Sections::alone)).
//!
//! The models in `fencing/models.rs` try every interleaving. They include the processor's store
//! buffers, which no model checker simulates.

use std::hint::cold_path;
use std::time::{Duration, Instant};

use super::{Domain, FENCED, Participant, Participants};
use crate::sync::MutexGuard;
use crate::sync::atomic::{Ordering, fence};
use crate::sys::barrier;

/// The number of fences after which a reader judges whether grace periods are frequent enough to
/// justify them.
const LOOK_EVERY: u32 = 4096;

/// The approximate cost of a fence in nanoseconds.
const FENCE: u64 = 6;

/// The number of heavy barriers that are judged together.
const WINDOW: u32 = 16;

/// Heavy barriers are too expensive if they take more than 1 / `DEAR` of the time that their window
/// lasts.
const DEAR: u32 = 8;

/// The longest time that one barrier counts for, because its thread may have lost the processor
/// during the barrier.
const LONGEST: Duration = Duration::from_micros(50);

/// Measures the share of time that heavy barriers take.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time at which the first heavy barrier of the current window began.
    since: Option<Instant>,
    count: u32,
    spent: Duration,
}

impl Pace {
    /// Counts a heavy barrier that began at `begun` and took `took`. If it is the last of its
    /// window, and the barriers of the window were too expensive, returns their average time.
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
    /// Loads the word with the flag `fenced` and the pending mark.
    #[inline(always)]
    pub(super) fn lone_word(&self) -> u64 {
        let word = self.alone.load(Ordering::Relaxed);
        if cfg!(not(loom)) {
            // Acquire: pairs with the release in `have_readers_stop`. It is a fence, and not a load
            // with acquire: on ARM such a load is ordered after earlier stores with release, so it
            // would wait for the store to `state`.
            fence(Ordering::Acquire);
        }
        word
    }

    /// Orders the opening of a section where the barrier is asymmetric: the last step of *enter*.
    /// Returns whether [`Domain::judge_fences`] is due.
    #[inline(always)]
    pub(super) fn order(&self) -> bool {
        barrier::BarrierMode::Membarrier.light();
        // Under loom the light barrier is a fence, and readers are never told to fence.
        if cfg!(loom) || self.lone_word() & FENCED == 0 {
            return false;
        }
        cold_path();
        fence(Ordering::SeqCst);
        // Relaxed: only the owner uses `fences`.
        let fences = self.fences.load(Ordering::Relaxed) + 1;
        self.fences.store(fences, Ordering::Relaxed);
        fences >= LOOK_EVERY
    }
}

impl Domain {
    /// Performs the revoker's barrier and locks the list of readers. If a reader in that list has
    /// an even `state`, it has left its sections, or finds the words as the caller has changed
    /// them.
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

    /// Tells the readers to fence. `each` is the average time that a heavy barrier takes.
    pub(super) fn have_readers_fence(&self, participants: &Participants, each: Duration) {
        let nanoseconds = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.barrier_cost.store(nanoseconds, Ordering::Relaxed);
        for participant in participants.iter() {
            participant.alone.fetch_or(FENCED, Ordering::Relaxed);
        }
        barrier::heavy();
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// Tells the readers to stop fencing if the caller's fences since its last judgement took more
    /// time than heavy barriers would have. Called when [`Participant::order`] says that it is due.
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
        // The caller may be in a section, so it does not wait for the lock. If another thread holds
        // it, the next judgement tries again.
        if let Some(participants) = self.participants.try_lock() {
            self.have_readers_stop(&participants);
        }
    }

    fn have_readers_stop(&self, participants: &Participants) {
        self.fenced.store(false, Ordering::Relaxed);
        for participant in participants.iter() {
            // Release: pairs with the fence in `lone_word`. A reader that no longer fences thus
            // sees the changes of the revokers that locked the list before and relied on its
            // fences.
            participant.alone.fetch_and(!FENCED, Ordering::Release);
        }
    }
}

// The models try all states, which would take Miri a long time, and touch no memory of the library.
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod models;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
