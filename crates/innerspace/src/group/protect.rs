//! The pages of each group that are spared when a group above has to shrink.
//!
//! After the published rules of Linux's `memory.low` and `memory.min`
//! (Documentation/admin-guide/cgroup-v2.rst, with `memory_recursiveprot`): a group's protection is
//! bounded by that of the groups above it, up to the one that is shrunk, whose own does not count.
//! Children that ask for more than there is get shares in proportion to their use of it, up to what
//! they asked for. The rest is shared in proportion to the pages that are not protected yet.

use super::tree::Shape;
use super::{GroupId, GroupTree};
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

/// The protection that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spared {
    /// `low`, and `min`.
    Low,
    /// `min` alone: no other pages are left.
    Min,
}

/// One group's own pages, and how many of them are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Portion {
    pub(crate) group: GroupId,
    /// Pages charged to the group itself.
    pub(crate) own: PageCount,
    /// The protected ones among these.
    pub(crate) spared: PageCount,
}

impl Portion {
    /// Pages that may go.
    pub(crate) fn exposed(&self) -> u64 {
        self.own.0.saturating_sub(self.spared.0)
    }
}

/// `part` of `whole`, scaled so that `whole` becomes `to`; rounded up, or each call could take the
/// page that rounding exposed.
fn scaled(part: u64, to: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (u128::from(part) * u128::from(to)).div_ceil(u128::from(whole)) as u64,
    }
}

impl GroupTree {
    /// The group and all below it, deleted ones that still have pages included: the pages of each
    /// that may be evicted for `top`.
    pub(crate) fn portions(&self, top: GroupId, spared: Spared) -> Vec<Portion> {
        let shape = self.shape.lock();
        let mut portions = Vec::new();
        self.add_portions(&shape, top, None, spared, &mut portions);
        portions
    }

    /// `granted`: pages of the group and those below it that are protected; `None` for the group
    /// that is shrunk.
    fn add_portions(
        &self,
        shape: &Shape,
        id: GroupId,
        granted: Option<u64>,
        spared: Spared,
        portions: &mut Vec<Portion>,
    ) {
        let own = self.node(id).own.load(Ordering::Relaxed);
        let entry = shape.entry(id);
        let children: Vec<GroupId> = entry.iter().flat_map(|entry| entry.children()).collect();
        // The protected pages that each uses of those it asks for, and the rest of its usage.
        let claims: Vec<(u64, u64)> = children
            .iter()
            .map(|child| {
                let usage = self.charged(*child).0;
                let (low, min) = self.protection(*child);
                let asked = match spared {
                    Spared::Low => low.max(min).0,
                    Spared::Min => min.0,
                };
                (usage.min(asked), usage - usage.min(asked))
            })
            .collect();
        let claimed: u64 = claims.iter().map(|(claim, _)| claim).sum();
        let unclaimed: u64 = own + claims.iter().map(|(_, rest)| rest).sum::<u64>();
        let left_over = granted.unwrap_or(0).saturating_sub(claimed).min(unclaimed);
        portions.push(Portion {
            group: id,
            own: PageCount(own),
            spared: PageCount(scaled(own, left_over, unclaimed)),
        });
        for (child, (claim, rest)) in children.iter().zip(claims) {
            let granted = match granted {
                None => claim,
                Some(granted) if claimed > granted => scaled(claim, granted, claimed),
                Some(_) => claim + scaled(rest, left_over, unclaimed),
            };
            self.add_portions(shape, *child, Some(granted), spared, portions);
        }
    }
}
