//! Requests for memory: the hit, and the path when it fails.
//!
//! A hit takes a charge and a frame from the thread's stock and magazine. Everything else is cold:
//! [`Pool::relieve`] for a request that is over `high`, and [`Pool::finish`] for one that is stuck.
//!
//! ```text
//!   attempted --- got, below `high` ---------------------------------> Ok
//!       | `--- got, over `high` ----> free some, slow down ----------> Ok, or OverHigh (M9)
//!     stuck
//!       |--- NoWait ---------------------------------------------------> WouldBlock
//!       `--- Wait, NoIo ----> make room <-------- stuck ----.
//!                                `----> attempt again ------'----------> Ok
//!                                            | no room is left to make
//!                                            `--> of what is set aside -> Ok, or NothingEvictable
//! ```
//!
//! **In a call to a store** a request evicts clean pages, and calls no store. If that is not
//! enough, it gets pages that the file set aside when it was opened, and is refused when these are
//! used up: nothing is granted over a limit. The store's caller makes room with nothing locked, and
//! tries again (`cache/core/gate.rs`).

use super::frame::PoolFrame;
use super::trial::note_failure;
use crate::frame::{OwnedFrame, Source};
use crate::group::{Charge, GroupId, LimitError, LimitReason, Reach, SetAside};
use crate::reclaim::evict::{Rounds, age_if_due};
use crate::reclaim::owners::Io;
use crate::reclaim::pool::Pool;
use crate::reclaim::scope::{Scope, StoreScope};
use crate::stats::Event;
use crate::sync::{Rank, order};
use crate::units::{FrameId, PageCount};

/// The least and the most extra pages that one round of direct reclaim frees, so that not every
/// request reclaims. Their number is a 64th of the group's limit, kept within these bounds, but at
/// most a sixteenth of the limit.
const EXTRA_PAGES: u64 = 32;
const MOST_EXTRA_PAGES: u64 = 256;

/// The most pages over `high` that one request frees.
const HIGH_PAGES: u64 = 128;

/// A request that may not wait succeeds up to this many pages above `high`, or an eighth of `high`
/// if that is less, but at least one page.
const HIGH_SLACK: u64 = 64;

/// How far a request for memory may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocMode {
    /// The request may evict, write back data that the group itself pays for, and wait for other
    /// threads. It is made outside every section, with no block lock held.
    Wait,
    /// The request may take a free frame, and otherwise fails with "would block".
    NoWait,
    /// The request may evict clean blocks, but never call a store. A block lock may be held.
    NoIo,
}

impl AllocMode {
    #[inline(always)]
    fn may_reclaim(self) -> bool {
        matches!(self, AllocMode::Wait | AllocMode::NoIo)
    }

    /// Checks the lock order: a request that reclaims may call owners, which take the locks of
    /// files, from their lists of mappings inwards.
    #[inline(always)]
    fn check_order(self) {
        if self.may_reclaim() {
            order::may_wait(Rank::Mappings);
        }
    }
}

/// The reason why an attempt failed.
#[derive(Clone, Copy, Debug)]
enum Stuck {
    /// This group refused the charge.
    Charge(GroupId),
    /// The charge fits, but no block of the requested order is free.
    NoFrame,
}

impl Stuck {
    /// Returns the group in which reclaim must begin.
    fn group(self) -> GroupId {
        match self {
            Stuck::Charge(group) => group,
            Stuck::NoFrame => GroupId::ROOT,
        }
    }
}

impl From<GroupId> for Stuck {
    fn from(refused: GroupId) -> Stuck {
        Stuck::Charge(refused)
    }
}

/// A further attempt on the cold path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    /// An attempt within the limits, after room was made.
    Again,
    /// An attempt with the pages set aside for the present call to a store, and with the reserve.
    SetAside,
}

/// Requests, and their path as long as nothing has to be freed.
impl Pool {
    /// Allocates a block of `1 << order` frames charged to `group`. Its bytes are whatever its last
    /// user left.
    ///
    /// # Errors
    /// The group, or one above it, is full, or the arena has no such block, and the call could not
    /// change that within the bounds of `mode`. Or one of these groups is too far above its `high`
    /// for a request that may not wait, or this is a child of fork(2). The error of a request that
    /// could reclaim says what holds the memory. Nothing was charged.
    #[inline]
    pub(crate) fn alloc(
        &self,
        group: GroupId,
        order: u8,
        mode: AllocMode,
    ) -> Result<PoolFrame<'_>, LimitError> {
        mode.check_order();
        self.check_process(|pid| LimitError::other_process(pid, PageCount(1 << order)))?;
        if mode.may_reclaim() {
            age_if_due(self);
        }
        match self.attempt(group, order, Reach::Max) {
            Ok(frame) if frame.charge().over_high().is_none() => Ok(frame),
            attempted => self.alloc_slow(group, order, mode, attempted),
        }
    }

    /// Charges pages that are in no frame: for memory that a layer above keeps on the heap.
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`].
    pub(crate) fn charge(
        &self,
        group: GroupId,
        pages: PageCount,
        mode: AllocMode,
    ) -> Result<Charge<'_>, LimitError> {
        mode.check_order();
        self.check_process(|pid| LimitError::other_process(pid, pages))?;
        match self.groups.charge(group, pages, Reach::Max) {
            Ok(charge) if charge.over_high().is_none() => Ok(charge),
            Ok(charge) => self.relieve(&charge, group, mode).map(|()| charge),
            Err(refused) => self.finish(group, pages, mode, refused.into(), |attempt| {
                self.charge_again(group, pages, attempt)
            }),
        }
    }

    /// Does what [`Pool::charge`] does with [`AllocMode::NoWait`].
    pub(in crate::reclaim) fn charge_nowait(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, LimitError> {
        self.charge(group, pages, AllocMode::NoWait)
    }

    /// Does what [`Pool::alloc_from_thread_cache`] does, for a caller that may wait, and that calls
    /// [`Pool::alloc`] if this returns `None`.
    #[inline(always)]
    pub(crate) fn alloc_page_from_thread_cache(
        &self,
        group: GroupId,
    ) -> Option<(PoolFrame<'_>, Option<FrameId>)> {
        AllocMode::Wait.check_order();
        age_if_due(self);
        self.alloc_from_thread_cache(group)
    }

    /// Returns a frame if this thread's stock pays for it, and the thread has a magazine of its own
    /// that contains a frame or can be refilled. Also returns, as a hint, the frame that this
    /// thread gets next, if it is known. May be called inside a section.
    #[inline(always)]
    pub(crate) fn alloc_from_thread_cache(
        &self,
        group: GroupId,
    ) -> Option<(PoolFrame<'_>, Option<FrameId>)> {
        let charge = self.groups.charge(group, PageCount(1), Reach::Stock);
        let charge = charge.ok()?;
        let (frame, next) = self.frames.alloc_from_thread_cache()?;
        Some((PoolFrame::new(self, frame, charge), next))
    }

    /// Returns a frame, if the charge stays below every limit and mark and a frame is free. Frees
    /// nothing and waits for nothing, so it may be called inside a section. `None` gives no reason,
    /// and does not count as a refusal; call [`Pool::alloc`] outside the section then.
    #[inline(always)]
    pub(crate) fn try_alloc(&self, group: GroupId) -> Option<PoolFrame<'_>> {
        self.attempt(group, 0, Reach::High).ok()
    }

    /// Returns up to `most` frames of one page, but no more than a thread's first batch of stock
    /// has pages. Stops when the thread's stock is empty and gets no further batch, or no frame is
    /// free. So in a small memory, or in a group near its limit, there are few or none. The caller
    /// may wait, as for [`AllocMode::Wait`], but the call does not wait for memory.
    pub(crate) fn alloc_some(&self, group: GroupId, most: usize) -> Vec<PoolFrame<'_>> {
        AllocMode::Wait.check_order();
        age_if_due(self);
        let most = most.min(self.groups.first_batch());
        let mut frames = Vec::with_capacity(most);
        let next = |_| self.attempt(group, 0, Reach::Batch).ok();
        frames.extend((0..most).map_while(next));
        frames
    }

    /// Wakes the service thread if the charge changed the root's usage, and memory runs low.
    #[inline(always)]
    fn note_charged(&self, charge: &Charge<'_>) {
        if !charge.is_from_stock() {
            self.kick_if_low();
        }
    }

    /// Charges, then takes a frame, so that a refused request has touched no frame.
    #[inline(always)]
    fn attempt(&self, group: GroupId, order: u8, reach: Reach) -> Result<PoolFrame<'_>, Stuck> {
        let charge = self.groups.charge(group, PageCount(1 << order), reach)?;
        let frame = self.frames.alloc(order, Source::Ordinary);
        let frame = frame.ok_or(Stuck::NoFrame)?;
        self.note_charged(&charge);
        Ok(PoolFrame::new(self, frame, charge))
    }
}

/// The cold path.
impl Pool {
    #[cold]
    #[inline(never)]
    fn alloc_slow<'p>(
        &'p self,
        group: GroupId,
        order: u8,
        mode: AllocMode,
        attempted: Result<PoolFrame<'p>, Stuck>,
    ) -> Result<PoolFrame<'p>, LimitError> {
        let pages = PageCount(1 << order);
        let attempt = |attempt| {
            let charge = self.charge_again(group, pages, attempt)?;
            let mut frame = self.frames.alloc(order, Source::Ordinary);
            if frame.is_none() && attempt == Attempt::SetAside {
                frame = self.frames.alloc(order, Source::Reserve);
                let pages = frame.as_ref().map_or(0, |_| pages.0);
                self.counters.add(Event::ReserveUse, pages);
            }
            let frame = frame.or_else(|| self.gather(order));
            let frame = frame.ok_or(Stuck::NoFrame)?;
            self.note_charged(&charge);
            Ok(PoolFrame::new(self, frame, charge))
        };
        let attempted = match attempted {
            Err(Stuck::NoFrame) if order > 0 => attempt(Attempt::Again),
            attempted => attempted,
        };
        match attempted {
            Ok(frame) => self.relieve(frame.charge(), group, mode).map(|()| frame),
            Err(stuck) => self.finish(group, pages, mode, stuck, attempt),
        }
    }

    /// Charges once more, or borrows pages that were set aside, as the attempt says.
    fn charge_again(
        &self,
        group: GroupId,
        pages: PageCount,
        attempt: Attempt,
    ) -> Result<Charge<'_>, Stuck> {
        match attempt {
            Attempt::Again => Ok(self.groups.charge(group, pages, Reach::MaxAgain)?),
            Attempt::SetAside => {
                let lend = |aside: &SetAside| aside.lend(&self.groups, group, pages);
                StoreScope::aside(self.domain.id(), lend).ok_or(Stuck::Charge(group))
            }
        }
    }

    /// Does the rest of a request that is stuck; see the module's documentation.
    #[cold]
    fn finish<T>(
        &self,
        group: GroupId,
        pages: PageCount,
        mode: AllocMode,
        mut stuck: Stuck,
        attempt: impl Fn(Attempt) -> Result<T, Stuck>,
    ) -> Result<T, LimitError> {
        let Some(io) = self.reclaim_io(group, mode) else {
            self.counters.count(Event::WouldBlock);
            let reason = LimitReason::WouldBlock;
            return Err((self.groups).limit_error(stuck.group(), pages, reason, None));
        };
        if let Stuck::Charge(group) = stuck {
            self.counters.count(Event::ChargeRefused);
            self.groups.count_max(group);
        }
        self.counters.count(Event::DirectReclaim);
        let _stalled = self.groups.stall(group);
        let mut rounds = Rounds::new();
        loop {
            let room = self.make_room(stuck.group(), self.need(stuck, pages), io, &mut rounds);
            // This is tried even if no room was made, since other threads may have freed memory
            // meanwhile.
            match attempt(Attempt::Again) {
                Ok(got) => return Ok(got),
                Err(still) => stuck = still,
            }
            if room.is_none() {
                break;
            }
        }
        // All memory that could be freed may be in dirty blocks, whose write may wait for this very
        // request.
        if let Ok(got) = attempt(Attempt::SetAside) {
            return Ok(got);
        }
        if let Some(this) = self.groups.reclaimer() {
            StoreScope::note_short(&this, stuck.group(), group);
        }
        let reason = match stuck {
            Stuck::NoFrame if pages.0 > 1 => LimitReason::Fragmented,
            _ => LimitReason::NothingEvictable,
        };
        Err(self.limit_error(stuck.group(), pages, reason))
    }

    /// Finishes a request of `payer` that succeeded. If the charge has taken a group over its
    /// `high`, frees some pages, and slows the caller down if that does not help. A request that
    /// may not wait succeeds a little above `high`, and is refused further above it (M9).
    #[cold]
    fn relieve(
        &self,
        charge: &Charge<'_>,
        payer: GroupId,
        mode: AllocMode,
    ) -> Result<(), LimitError> {
        let Some(group) = charge.over_high() else {
            return Ok(());
        };
        let high = self.groups.high(group).map_or(u64::MAX, |high| high.0);
        let Some(io) = self.reclaim_io(payer, mode) else {
            let slack = (high / 8).clamp(1, HIGH_SLACK);
            if self.over_high(group) > slack {
                // Pages in stock are not in use, so they are not a reason to refuse.
                self.groups.drain_stocks(group);
            }
            self.background.want_under_high(group);
            if self.over_high(group) > slack {
                self.counters.count(Event::WouldBlock);
                let reason = LimitReason::OverHigh;
                return Err(self.groups.limit_error(group, charge.pages(), reason, None));
            }
            return Ok(());
        };
        self.counters.count(Event::DirectReclaim);
        let _stalled = self.groups.stall(group);
        self.groups.drain_stocks(group);
        let target = self.over_high(group).min(HIGH_PAGES);
        if target > 0 {
            self.shrink(group, PageCount(target), io);
        }
        slow_down(self.over_high(group), high, io);
        Ok(())
    }

    /// Returns which stores a request with this mode may call to make room, in the scope that the
    /// thread is in; `None` if it may not make room. A store's own requests to another pool may
    /// call stores there, but files that may be above the store are skipped.
    fn reclaim_io(&self, payer: GroupId, mode: AllocMode) -> Option<Io> {
        match (mode, StoreScope::innermost(self.domain.id())) {
            (AllocMode::NoWait, _) => None,
            // This is read-ahead in a call to a store, or a request by an owner that reclaim or the
            // background work has called.
            (AllocMode::NoIo, Some(_)) | (_, Some(Scope::Owner)) => None,
            (AllocMode::NoIo, None) | (_, Some(Scope::Store)) => Some(Io::Forbidden),
            (AllocMode::Wait, None) => Some(Io::Of(payer)),
        }
    }

    /// Makes a block of single frames, which need not be consecutive.
    fn gather(&self, order: u8) -> Option<OwnedFrame<'_>> {
        if order == 0 || self.frames.free_frames() < 1 << order {
            return None;
        }
        let singles = (0..1 << order).map(|_| self.frames.alloc(0, Source::Ordinary));
        let singles = singles.collect::<Option<_>>()?;
        self.frames.window(order, 1)?.place(singles).pop()
    }

    /// Returns how many pages to free: the missing ones and a few more, fewer in small groups.
    fn need(&self, stuck: Stuck, pages: PageCount) -> PageCount {
        let group = stuck.group();
        let usage = self.groups.charged(group).0;
        let max = self.groups.limit(group);
        let missing = match stuck {
            Stuck::Charge(_) => (usage + pages.0).saturating_sub(max),
            // There may be free frames that are not adjacent, or are in other threads' magazines.
            // So room is made for two whole blocks.
            Stuck::NoFrame => pages.0 * 2,
        };
        let extra = (max / 64).clamp(EXTRA_PAGES, MOST_EXTRA_PAGES);
        PageCount(missing + extra.min(max / 16))
    }

    /// Counts a request that has failed, or keeps the refusal while this thread is in a trial.
    /// Creates the error.
    pub(crate) fn limit_error(
        &self,
        group: GroupId,
        pages: PageCount,
        reason: LimitReason,
    ) -> LimitError {
        note_failure(self, group);
        self.groups.limit_error(group, pages, reason, Some(self))
    }
}

/// Sleeps if the caller's group is over `high` by more than a sixteenth: the further, the longer,
/// up to a tenth of a second. Does not sleep if `io` forbids calls to stores.
fn slow_down(over: u64, high: u64, io: Io) {
    if io == Io::Forbidden || over <= high / 16 {
        return;
    }
    let share = over as f64 / high as f64;
    let seconds = (share * share).min(0.1);
    crate::sync::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}
