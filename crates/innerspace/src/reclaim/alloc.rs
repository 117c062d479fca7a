//! Getting a frame: charge, take, and what to do when either is refused.

use std::ops::{Deref, DerefMut};

use super::pool::Pool;
use super::progress::{Room, Rounds};
use super::shrink::Io;
use crate::frame::{HoldState, Kind, MOST_SINGLES, OwnedFrame, Singles, Source};
use crate::group::{Charge, GroupId, LimitError, LimitReason, Refused};
use crate::stats::Event;
use crate::sync::{Rank, order};
use crate::units::{FrameId, PAGE_SIZE, PageCount};

/// What one round of direct reclaim frees beyond the need, so that not every request reclaims: a
/// 64th of the group between these two, and no more than a sixteenth.
const EXTRA_PAGES: u64 = 32;
const MOST_EXTRA_PAGES: u64 = 256;

/// Pages over `high` that one request frees at most.
const HIGH_PAGES: u64 = 128;

/// Pages over `high` up to which requests that may not wait are let pass; an eighth of it in small
/// groups.
const HIGH_SLACK: u64 = 64;

/// Pages over a limit up to which single pages are had for calls of stores of other memories: what
/// one takes before it can be freed.
const STORE_SLACK: u64 = 16;

/// How far a request for memory may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocMode {
    /// Evict, write back, wait for others. Outside every section, with no block lock held.
    Wait,
    /// Take what is free or fail with "would block".
    NoWait,
    /// Evict clean blocks, never call a store. A block lock may be held.
    NoIo,
    /// Go over the limit and into the reserve. For writeback and for what cannot be undone.
    Must,
}

impl AllocMode {
    /// Such a request may call owners, which take the locks of files, from their lists of mappings
    /// inwards.
    #[inline(always)]
    fn check_order(self) {
        if matches!(self, AllocMode::Wait | AllocMode::NoIo) {
            order::may_wait(Rank::Mappings);
        }
    }
}

/// An owned frame with its charge. Dropped, both go back; published, both stay.
#[must_use = "dropping a frame frees it and gives its charge back"]
#[derive(Debug)]
pub(crate) struct PoolFrame<'p> {
    // Dropped in this order: a charge that succeeds must find the frame.
    frame: OwnedFrame<'p>,
    charge: Charge<'p>,
    pool: &'p Pool,
}

impl<'p> Deref for PoolFrame<'p> {
    type Target = OwnedFrame<'p>;

    fn deref(&self) -> &OwnedFrame<'p> {
        &self.frame
    }
}

impl<'p> DerefMut for PoolFrame<'p> {
    fn deref_mut(&mut self) -> &mut OwnedFrame<'p> {
        &mut self.frame
    }
}

impl PoolFrame<'_> {
    /// Has the root pay in place of the group that it was got for, which was given room for it: for
    /// what serves all.
    pub(crate) fn paid_by_root(self) -> Self {
        let (pool, pages) = (self.pool, self.charge.pages());
        // A page more than there is, for a moment: the other charge goes when this one is there, so
        // that nobody has it meanwhile.
        pool.wrap(self.frame, pool.groups.charge_must(GroupId::ROOT, pages))
    }

    /// Makes the frame visible, held as `initial` says; it stays charged until [`Pool::free`].
    #[inline(always)]
    pub(crate) fn publish(self, initial: HoldState) -> FrameId {
        let has_words = self.frame.meta().kind().has_words();
        self.commit(has_words, initial)
    }

    /// The same, of a frame that is to be of this kind.
    #[inline(always)]
    pub(crate) fn publish_as(mut self, kind: Kind, initial: HoldState) -> FrameId {
        self.frame.set_kind(kind);
        self.commit(kind.has_words(), initial)
    }

    #[inline(always)]
    fn commit(self, has_words: bool, initial: HoldState) -> FrameId {
        let PoolFrame {
            frame,
            charge,
            pool,
        } = self;
        let pages = charge.pages();
        debug_assert_eq!(
            frame.meta().group(),
            charge.group().0,
            "I3: the frame names its payer"
        );
        // Committed before anybody can find the frame, and free it.
        let group = charge.commit();
        if has_words {
            pool.groups.count_tables(group, pages.0 as i64);
        }
        pool.counters.add(Event::PgAlloc, pages.0);
        frame.publish(initial)
    }
}

/// Frames of one page each with their charges, got together. What is left when this is dropped goes
/// back.
#[must_use = "the frames go back when this is dropped"]
#[derive(Debug)]
pub(crate) struct PoolFrames<'p> {
    // Dropped in this order, as in `PoolFrame`.
    frames: Singles<'p>,
    /// Of the frames that are left.
    charge: Charge<'p>,
    pool: &'p Pool,
}

impl<'p> PoolFrames<'p> {
    /// Frames that are left.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// See [`Singles::stream_in`].
    pub(crate) fn stream_in(&mut self, pages: &[[u8; PAGE_SIZE]]) -> bool {
        self.frames.stream_in(pages)
    }

    /// One of them.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<PoolFrame<'p>> {
        let frame = self.frames.next()?;
        let charge = self.charge.split(PageCount(1));
        Some(self.pool.wrap(frame, charge))
    }
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug)]
enum Stuck {
    /// This group refused the charge.
    Charge(GroupId),
    /// The charge fits, but no block of this order is free.
    NoFrame,
}

impl Stuck {
    /// Where reclaim has to begin.
    fn group(self) -> GroupId {
        match self {
            Stuck::Charge(group) => group,
            Stuck::NoFrame => GroupId::ROOT,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct Want {
    /// Whom it is for.
    group: GroupId,
    pages: PageCount,
    order: u8,
}

/// What a mode comes to, where the request is made.
#[derive(Clone, Copy, Debug)]
enum Effort {
    Refuse,
    Must,
    Reclaim(Io),
}

impl Pool {
    /// A block of `1 << order` frames charged to `group`. Its bytes are what its last user left.
    ///
    /// # Errors
    /// The group, or one above it, is full (or the arena has no such block) and stayed so within
    /// what `mode` allows. The error says what holds the memory; nothing was charged.
    #[inline]
    pub(crate) fn alloc(
        &self,
        group: GroupId,
        order: u8,
        mode: AllocMode,
    ) -> Result<PoolFrame<'_>, LimitError> {
        mode.check_order();
        self.check_process(PageCount(1 << order))?;
        if matches!(mode, AllocMode::Wait | AllocMode::NoIo) {
            self.age_if_due();
        }
        let attempted = self.attempt(group, order);
        self.settle(group, order, mode, attempted)
    }

    /// Refuses memory to a child of fork(2).
    #[inline]
    fn check_process(&self, pages: PageCount) -> Result<(), LimitError> {
        match self.foreign_maker() {
            None => Ok(()),
            Some(maker) => Err(LimitError::other_process(maker.id(), pages)),
        }
    }

    /// What is left to do after the first attempt.
    #[inline]
    fn settle<'p>(
        &'p self,
        group: GroupId,
        order: u8,
        mode: AllocMode,
        attempted: Result<PoolFrame<'p>, Stuck>,
    ) -> Result<PoolFrame<'p>, LimitError> {
        match attempted {
            Ok(frame) => match frame.charge.over_high() {
                None => Ok(frame),
                Some(over) => self
                    .relieve(over, frame.charge.pages(), mode)
                    .map(|()| frame),
            },
            Err(stuck) => self.alloc_slow(group, order, mode, stuck),
        }
    }

    /// [`Pool::alloc_at_hand`] for who may wait: [`Pool::alloc`] of one page has it, if this has
    /// none.
    #[inline(always)]
    pub(crate) fn alloc_page_at_hand(
        &self,
        group: GroupId,
    ) -> Option<(PoolFrame<'_>, Option<FrameId>)> {
        AllocMode::Wait.check_order();
        self.age_if_due();
        self.alloc_at_hand(group)
    }

    /// A frame, if the charge stays below every limit and mark and one is free, with nothing freed
    /// and nothing waited for: may be called inside a section. `None` says nothing about why, and
    /// counts as no refusal; ask [`Pool::alloc`] outside.
    #[inline(always)]
    pub(crate) fn try_alloc(&self, group: GroupId) -> Option<PoolFrame<'_>> {
        let charge = self.groups.try_charge_unrefused(group)?;
        let frame = self.frames.alloc(0, Source::Ordinary)?;
        if !charge.is_from_stock() {
            self.wake_background_if_low();
        }
        Some(self.wrap(frame, charge))
    }

    /// The same, if the charge is in this thread's stock and the frame in its magazine, as most
    /// are, or a load for that is to be had; and the frame that this thread gets after it, if it is
    /// known: a hint.
    #[inline(always)]
    pub(crate) fn alloc_at_hand(&self, group: GroupId) -> Option<(PoolFrame<'_>, Option<FrameId>)> {
        let charge = self.groups.try_charge_stocked(group)?;
        let (frame, next) = self.frames.alloc_at_hand()?;
        Some((self.wrap(frame, charge), next))
    }

    /// Up to `most` frames of one page, as many as are had from this thread's stock of charges and
    /// magazine by one turn at each; `None` where there is none, or a limit is near: ask
    /// [`Pool::alloc`] for one. Waits as [`AllocMode::Wait`] does.
    pub(crate) fn alloc_some(&self, group: GroupId, most: usize) -> Option<PoolFrames<'_>> {
        AllocMode::Wait.check_order();
        self.age_if_due();
        let pages = most.min(MOST_SINGLES) as u64;
        let mut charge = self.groups.try_charge_some(group, PageCount(pages))?;
        if !charge.is_from_stock() {
            self.wake_background_if_low();
        }
        let frames = self.frames.alloc_singles(charge.pages().0 as usize);
        if frames.len() == 0 {
            return None;
        }
        // Charges for frames that there were not go back.
        let charge = charge.split(PageCount(frames.len() as u64));
        Some(PoolFrames {
            frames,
            charge,
            pool: self,
        })
    }

    /// Charges, then takes a frame: what is refused has touched none.
    #[inline(always)]
    fn attempt(&self, group: GroupId, order: u8) -> Result<PoolFrame<'_>, Stuck> {
        // mutant: M1 (test: a_refused_request_moves_no_counter_and_takes_no_frame)
        #[cfg(mutant = "M1")]
        return self.attempt_charging_last(group, order);
        #[cfg(not(mutant = "M1"))]
        self.attempt_charging_first(group, order)
    }

    /// One page, the old way, or nothing: for comparison.
    #[cfg(feature = "tables")]
    pub(crate) fn alloc_charging_last(&self, group: GroupId) -> Option<PoolFrame<'_>> {
        self.attempt_charging_last(group, 0).ok()
    }

    /// The old way: a frame is taken and marked up to date, and then may be refused.
    #[cfg(any(mutant = "M1", feature = "tables"))]
    #[inline]
    fn attempt_charging_last(&self, group: GroupId, order: u8) -> Result<PoolFrame<'_>, Stuck> {
        let frame = self.frames.alloc(order, Source::Ordinary);
        let mut frame = frame.ok_or(Stuck::NoFrame)?;
        frame.set_flags(crate::frame::FlagSet::UPTODATE);
        crate::sync::atomic::fence(crate::sync::atomic::Ordering::SeqCst);
        let charge = self
            .groups
            .try_charge(group, PageCount(1 << order))
            .map_err(|refused| Stuck::Charge(refused.group))?;
        self.wake_background_if_low();
        Ok(self.wrap(frame, charge))
    }

    #[cfg(not(mutant = "M1"))]
    #[inline(always)]
    fn attempt_charging_first(&self, group: GroupId, order: u8) -> Result<PoolFrame<'_>, Stuck> {
        let pages = PageCount(1 << order);
        let charge = self
            .groups
            .try_charge(group, pages)
            .map_err(|refused| Stuck::Charge(refused.group))?;
        let frame = self
            .frames
            .alloc(order, Source::Ordinary)
            .ok_or(Stuck::NoFrame)?;
        if !charge.is_from_stock() {
            self.wake_background_if_low();
        }
        Ok(self.wrap(frame, charge))
    }

    /// [`Pool::attempt`] once more, after some memory was freed for it.
    #[cold]
    #[inline(never)]
    fn attempt_again(&self, group: GroupId, order: u8) -> Result<PoolFrame<'_>, Stuck> {
        let charge = self
            .groups
            .try_charge_again(group, PageCount(1 << order))
            .map_err(|refused| Stuck::Charge(refused.group))?;
        let frame = self.frames.alloc(order, Source::Ordinary);
        let frame = frame.ok_or(Stuck::NoFrame)?;
        self.wake_background_if_low();
        Ok(self.wrap(frame, charge))
    }

    #[inline(always)]
    fn wrap<'p>(&'p self, mut frame: OwnedFrame<'p>, charge: Charge<'p>) -> PoolFrame<'p> {
        frame.set_group(charge.group().0);
        PoolFrame {
            frame,
            charge,
            pool: self,
        }
    }

    #[cold]
    fn alloc_slow(
        &self,
        group: GroupId,
        order: u8,
        mode: AllocMode,
        stuck: Stuck,
    ) -> Result<PoolFrame<'_>, LimitError> {
        let want = Want {
            group,
            pages: PageCount(1 << order),
            order,
        };
        match self.effort(mode) {
            Effort::Must => self.alloc_must(group, order),
            Effort::Refuse => Err(self.would_block(stuck, want)),
            Effort::Reclaim(io) => {
                let passed_over = Pool::passed_over();
                let got = self.reclaiming(want, io, stuck, || self.attempt_again(group, order));
                got.or_else(|stuck| {
                    // What was passed over may be all that could be freed, and stand above this
                    // very call.
                    let may_go_over = io == Io::Allowed
                        && order == 0
                        && Pool::in_any_store_scope()
                        && Pool::passed_over() != passed_over;
                    let over = may_go_over.then(|| self.alloc_over(group)).flatten();
                    over.ok_or_else(|| self.refusal(stuck, want))
                })
            }
        }
    }

    /// Charges pages that are in no frame: what a layer above keeps on the heap.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; [`AllocMode::Must`] never fails.
    pub(crate) fn charge(
        &self,
        group: GroupId,
        pages: PageCount,
        mode: AllocMode,
    ) -> Result<Charge<'_>, LimitError> {
        mode.check_order();
        if !matches!(mode, AllocMode::Must) {
            self.check_process(pages)?;
        }
        let stuck = |refused: Refused| Stuck::Charge(refused.group);
        let want = Want {
            group,
            pages,
            order: 0,
        };
        match self.groups.try_charge(group, pages).map_err(stuck) {
            Ok(charge) => match charge.over_high() {
                None => Ok(charge),
                Some(over) => self.relieve(over, pages, mode).map(|()| charge),
            },
            Err(first) => match self.effort(mode) {
                Effort::Must => Ok(self.groups.charge_must(group, pages)),
                Effort::Refuse => Err(self.would_block(first, want)),
                Effort::Reclaim(io) => {
                    let charged = self.reclaiming(want, io, first, || {
                        let charged = self.groups.try_charge_again(group, pages);
                        charged.map_err(stuck)
                    });
                    charged.map_err(|stuck| self.refusal(stuck, want))
                }
            },
        }
    }

    /// A charge went through, but `group` is over its `high`: frees some of what is over it, and
    /// goes slower when that does not help. Who may not wait is let pass a little above the mark,
    /// and then no more (M9).
    #[cold]
    fn relieve(&self, group: GroupId, pages: PageCount, mode: AllocMode) -> Result<(), LimitError> {
        let high = self.groups.high(group).map_or(u64::MAX, |high| high.0);
        let over = |pool: &Pool| pool.groups.charged(group).0.saturating_sub(high);
        match self.effort(mode) {
            Effort::Refuse => {
                let slack = (high / 8).clamp(1, HIGH_SLACK);
                if over(self) > slack {
                    // What lies in stock is nobody's: no reason to refuse.
                    self.groups.drain_stocks(group);
                }
                self.want_under_high();
                if over(self) > slack {
                    self.counters.count(Event::WouldBlock);
                    let reason = LimitReason::OverHigh;
                    return Err(self.groups.limit_error(group, pages, reason, None));
                }
            }
            Effort::Must => self.want_under_high(),
            Effort::Reclaim(io) => {
                self.counters.count(Event::DirectReclaim);
                let _stalled = self.groups.stall(group);
                self.groups.drain_stocks(group);
                let target = over(self).min(HIGH_PAGES);
                if target > 0 {
                    self.shrink(group, PageCount(target), io);
                }
                self.slow_down(over(self), high, io);
            }
        }
        Ok(())
    }

    /// Makes a caller slower the further its group is over `high`: nothing up to a sixteenth, then
    /// up to a tenth of a second.
    fn slow_down(&self, over: u64, high: u64, io: Io) {
        if io == Io::Forbidden || over <= high / 16 {
            return;
        }
        let share = over as f64 / high as f64;
        let seconds = (share * share).min(0.1);
        crate::sync::thread::sleep(std::time::Duration::from_secs_f64(seconds));
    }

    /// What a request that did not succeed at once may do. A store's own requests to another pool
    /// may reclaim there, but files that may stand above the store are passed over: if that is not
    /// enough, a few single pages come from the reserve ([`Pool::alloc_over`]).
    fn effort(&self, mode: AllocMode) -> Effort {
        match mode {
            AllocMode::NoWait => Effort::Refuse,
            AllocMode::Must => Effort::Must,
            // Read-ahead, which is nothing that the reserve is for.
            AllocMode::NoIo if self.in_store_scope() => Effort::Refuse,
            // A store's own requests: reclaim would call the store again.
            _ if self.in_store_scope() => Effort::Must,
            AllocMode::NoIo => Effort::Reclaim(Io::Forbidden),
            AllocMode::Wait => Effort::Reclaim(Io::Allowed),
        }
    }

    fn would_block(&self, stuck: Stuck, want: Want) -> LimitError {
        self.counters.count(Event::WouldBlock);
        let reason = LimitReason::WouldBlock;
        self.groups
            .limit_error(stuck.group(), want.pages, reason, None)
    }

    fn alloc_must(&self, group: GroupId, order: u8) -> Result<PoolFrame<'_>, LimitError> {
        let pages = PageCount(1 << order);
        let charge = self.groups.charge_must(group, pages);
        let frame = self.alloc_charged(charge, order);
        frame.ok_or_else(|| self.limit_error(GroupId::ROOT, pages, LimitReason::ReserveEmpty))
    }

    /// One page, though a limit is met, if it is then over none by more than [`STORE_SLACK`].
    fn alloc_over(&self, group: GroupId) -> Option<PoolFrame<'_>> {
        // Charged before it is looked at: of several who come to the last of it, some may get none,
        // but never too many some.
        let charge = self.groups.charge_must(group, PageCount(1));
        let is_too_much = |group| {
            let max = self.groups.max(group);
            max.is_some_and(|max| self.groups.charged(group).0 > max.0 + STORE_SLACK)
        };
        if self.groups.path(group).any(is_too_much) {
            return None;
        }
        self.alloc_charged(charge, 0)
    }

    /// A block for this charge, from the reserve if there is no other.
    fn alloc_charged<'p>(&'p self, charge: Charge<'p>, order: u8) -> Option<PoolFrame<'p>> {
        if let Some(frame) = self.frames.alloc(order, Source::Ordinary) {
            return Some(self.wrap(frame, charge));
        }
        let frame = self.frames.alloc(order, Source::Reserve)?;
        self.counters.add(Event::ReserveUse, 1 << order);
        Some(self.wrap(frame, charge))
    }

    /// Frees memory where the request is stuck and attempts it again, in bounded rounds.
    fn reclaiming<T>(
        &self,
        want: Want,
        io: Io,
        mut stuck: Stuck,
        attempt: impl Fn() -> Result<T, Stuck>,
    ) -> Result<T, Stuck> {
        if let Stuck::Charge(group) = stuck {
            self.counters.count(Event::ChargeRefused);
            self.groups.count_max(group);
        }
        self.counters.count(Event::DirectReclaim);
        let _stalled = self.groups.stall(want.group);
        let mut rounds = Rounds::new();
        loop {
            let room = self.make_room(stuck.group(), self.need(stuck, want), io, &mut rounds);
            // Also where there was none: others may have freed some before we looked for them.
            match attempt() {
                Ok(got) => return Ok(got),
                Err(still) => stuck = still,
            }
            if room == Room::None {
                return Err(stuck);
            }
        }
    }

    /// The error of a request for which nothing more could be freed.
    fn refusal(&self, stuck: Stuck, want: Want) -> LimitError {
        let reason = match stuck {
            Stuck::NoFrame if want.order > 0 => LimitReason::Fragmented,
            _ => LimitReason::NothingEvictable,
        };
        self.limit_error(stuck.group(), want.pages, reason)
    }

    /// Pages to free: what is missing and a little more, less in small groups.
    fn need(&self, stuck: Stuck, want: Want) -> PageCount {
        let group = stuck.group();
        let usage = self.groups.charged(group).0;
        let max = self.groups.max(group).map_or(u64::MAX, |max| max.0);
        let missing = match stuck {
            Stuck::Charge(_) => (usage + want.pages.0).saturating_sub(max),
            // Free frames are there but apart, or in others' hands: make room for a whole block
            // more.
            Stuck::NoFrame => want.pages.0 * 2,
        };
        let extra = (max / 64).clamp(EXTRA_PAGES, MOST_EXTRA_PAGES);
        PageCount(missing + extra.min(max / 16))
    }

    fn limit_error(&self, group: GroupId, pages: PageCount, reason: LimitReason) -> LimitError {
        self.note_failure(group);
        self.groups.limit_error(group, pages, reason, Some(self))
    }
}
