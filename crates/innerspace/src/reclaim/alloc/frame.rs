//! Frames with their charges.

use std::ops::{Deref, DerefMut};

use crate::frame::{HoldState, Kind, OwnedFrame, Window};
use crate::group::{Charge, GroupId};
use crate::reclaim::pool::Pool;
use crate::stats::Event;
use crate::units::FrameId;

/// An owned frame with its charge. Dropping it gives both back, unless it was published.
#[must_use = "dropping a frame frees it and gives its charge back"]
#[derive(Debug)]
pub(crate) struct PoolFrame<'p> {
    // Fields are dropped in this order. The frame is freed before its charge is given back, so that
    // a charge that succeeds finds a frame.
    frame: OwnedFrame<'p>,
    charge: Charge<'p>,
    pool: &'p Pool,
}

impl<'p> PoolFrame<'p> {
    #[inline(always)]
    pub(super) fn new(pool: &'p Pool, mut frame: OwnedFrame<'p>, charge: Charge<'p>) -> Self {
        frame.set_group(charge.group().0);
        PoolFrame {
            frame,
            charge,
            pool,
        }
    }

    #[inline(always)]
    pub(super) fn charge(&self) -> &Charge<'p> {
        &self.charge
    }
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

impl<'p> PoolFrame<'p> {
    /// Exchanges frames for the next blocks of a window. Returns the blocks, which take over the
    /// charges.
    ///
    /// # Panics
    /// If a frame is not a block of the order of the window, or the window has no room for all of
    /// them.
    pub(crate) fn place(frames: Vec<PoolFrame<'p>>, window: &mut Window<'p>) -> Vec<PoolFrame<'p>> {
        let Some(pool) = frames.first().map(|frame| frame.pool) else {
            return Vec::new();
        };
        let parts = frames.into_iter().map(|one| (one.frame, one.charge));
        let (owned, charges): (Vec<_>, Vec<_>) = parts.unzip();
        let placed = window.place(owned);
        assert_eq!(placed.len(), charges.len(), "blocks of the window's order");
        let paid = placed.into_iter().zip(charges);
        paid.map(|(frame, charge)| PoolFrame::new(pool, frame, charge))
            .collect()
    }
}

impl PoolFrame<'_> {
    /// Moves the charge from the group that the frame was requested for to the root group. For
    /// frames that serve all groups.
    pub(crate) fn paid_by_root(self) -> Self {
        let PoolFrame {
            frame,
            charge,
            pool,
        } = self;
        let pages = charge.pages();
        let charge = (pool.groups).transfer(charge.commit(), GroupId::ROOT, pages);
        PoolFrame::new(pool, frame, charge.expect("the root counts it already"))
    }

    /// Makes the frame visible, with the hold word `initial`. The frame stays charged until
    /// [`Pool::free`].
    #[inline(always)]
    pub(crate) fn publish(self, initial: HoldState) -> FrameId {
        let kind = self.frame.meta().kind();
        self.publish_as(kind, initial)
    }

    /// Sets the kind, then makes the frame visible as [`PoolFrame::publish`] does.
    #[inline(always)]
    pub(crate) fn publish_as(mut self, kind: Kind, initial: HoldState) -> FrameId {
        self.frame.set_kind(kind);
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
        // The charge is committed before another thread can find the frame, and free it.
        let group = charge.commit();
        if kind.has_words() {
            pool.groups.count_tables(group, pages.0 as i64);
        }
        pool.counters.add(Event::PgAlloc, pages.0);
        frame.publish(initial)
    }
}
