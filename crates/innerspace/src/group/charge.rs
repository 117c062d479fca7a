//! The hierarchical counter and the charge guard.

use super::tree::Node;
use super::{GroupId, GroupTree, MAX_LEVELS, Refused, Underflow};
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

/// Whether a level's `max` can refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ceiling {
    /// It can.
    Enforced,
    /// The charge must succeed; going over is counted.
    Ignored,
}

/// Pages charged to a group, not yet carried by a frame. Dropped, they are given back.
#[must_use = "a charge that is dropped is given back at once"]
pub(crate) struct Charge<'t> {
    tree: &'t GroupTree,
    group: GroupId,
    pages: PageCount,
}

impl std::fmt::Debug for Charge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Charge({} pages, group {})", self.pages.0, self.group.0)
    }
}

impl Charge<'_> {
    /// The group charged.
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// The pages charged.
    pub(crate) fn pages(&self) -> PageCount {
        self.pages
    }

    /// The pages stay charged; whoever takes the number over gives them back by [`GroupTree::uncharge`].
    pub(crate) fn commit(self) -> GroupId {
        let group = self.group;
        std::mem::forget(self);
        group
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.tree.uncharge(self.group, self.pages);
    }
}

impl Node {
    /// Adds to `usage` unless that would pass `max`; returns the new usage. Compare-and-swap rather than add-and-undo, so that
    /// usage is at or under `max` at every instant and a charge that will be undone refuses nobody on its own level.
    #[inline]
    fn try_add(&self, pages: u64, ceiling: Ceiling) -> Option<u64> {
        let mut usage = self.usage.load(Ordering::Relaxed);
        loop {
            let new = usage.checked_add(pages)?;
            if ceiling == Ceiling::Enforced && new > self.max.load(Ordering::Relaxed) {
                return None;
            }
            match self
                .usage
                .compare_exchange_weak(usage, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(new),
                Err(now) => usage = now,
            }
        }
    }
}

/// Takes `pages` off a counter; `Err` with its value when there are fewer, and nothing changed.
#[inline]
fn checked_take(counter: &crate::sync::atomic::AtomicU64, pages: u64) -> Result<u64, u64> {
    // SeqCst: `GroupTree::remove` stores its state and then reads usage; the last uncharge writes usage and then reads the
    // state. One of the two sees the other (on x86-64 the ordering is free here).
    counter
        .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |value| {
            value.checked_sub(pages)
        })
        .map(|old| old - pages)
}

impl GroupTree {
    /// Charges `pages` to `group` and to every group above it, or nothing at all. All or nothing for a block, too (M13).
    #[inline]
    pub(crate) fn try_charge(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        self.charge_levels(group, pages, Ceiling::Enforced)
    }

    /// Charges over any limit. For writeback and what else must not fail; counted as one event, by the nearest group that is
    /// over its limit now.
    pub(crate) fn charge_must(&self, group: GroupId, pages: PageCount) -> Charge<'_> {
        match self.charge_levels(group, pages, Ceiling::Ignored) {
            Ok(charge) => charge,
            Err(refused) => unreachable!("group {} holds 2^64 pages", refused.group.0),
        }
    }

    fn charge_levels(
        &self,
        group: GroupId,
        pages: PageCount,
        ceiling: Ceiling,
    ) -> Result<Charge<'_>, Refused> {
        let mut reached = [0u64; MAX_LEVELS];
        let mut levels = 0;
        let mut next = Some(group);
        while let Some(id) = next {
            let node = self.node(id);
            let Some(usage) = node.try_add(pages.0, ceiling) else {
                node.refusals.fetch_add(1, Ordering::Relaxed);
                self.undo_levels(group, levels, pages);
                return Err(Refused { group: id });
            };
            reached[levels] = usage;
            levels += 1;
            next = node.parent();
        }
        // Every level agreed: only now may anything but `usage` move.
        self.node(group).own.fetch_add(pages.0, Ordering::Relaxed);
        let mut counted = ceiling == Ceiling::Enforced;
        let mut next = Some(group);
        for usage in &reached[..levels] {
            let Some(id) = next else { break };
            let node = self.node(id);
            if *usage > node.peak.load(Ordering::Relaxed) {
                node.peak.fetch_max(*usage, Ordering::Relaxed);
            }
            if !counted && *usage > node.max.load(Ordering::Relaxed) {
                node.forced.fetch_add(1, Ordering::Relaxed);
                counted = true;
            }
            next = node.parent();
        }
        Ok(Charge {
            tree: self,
            group,
            pages,
        })
    }

    /// Takes the charge of the first `levels` nodes from `group` up back off.
    fn undo_levels(&self, group: GroupId, levels: usize, pages: PageCount) {
        let mut next = Some(group);
        for _ in 0..levels {
            let Some(id) = next else { break };
            let node = self.node(id);
            checked_take(&node.usage, pages.0).expect("the level was charged just now");
            next = node.parent();
        }
    }

    /// Gives back `pages` that a committed charge left with `group`.
    ///
    /// # Panics
    /// When fewer are charged: the books are wrong, and going on would let the limit be passed (M14).
    pub(crate) fn uncharge(&self, group: GroupId, pages: PageCount) {
        if let Err(underflow) = self.try_uncharge(group, pages) {
            panic!("{underflow}");
        }
    }

    /// Like [`GroupTree::uncharge`], reporting instead of panicking; then no counter moved.
    pub(crate) fn try_uncharge(&self, group: GroupId, pages: PageCount) -> Result<(), Underflow> {
        checked_take(&self.node(group).own, pages.0).map_err(|charged| Underflow {
            group,
            charged,
            wanted: pages.0,
        })?;
        let mut next = Some(group);
        while let Some(id) = next {
            let node = self.node(id);
            // Read first: once its last page is taken off, the node may start another life.
            next = node.parent();
            let left = checked_take(&node.usage, pages.0).expect("usage covers own (I8)");
            if left == 0 && node.is_deleted() {
                // Each level by itself: another thread may have released the one below already.
                self.release(id);
            }
        }
        Ok(())
    }
}
