//! Computes which pages of each group are spared when a group above it must shrink.
//!
//! The rules are the published ones of Linux's `memory.low` and `memory.min`
//! (Documentation/admin-guide/cgroup-v2.rst, with `memory_recursiveprot`). A group's protection is
//! bounded by that of the groups above it, up to the group that is shrunk, whose own protection
//! does not count. A child claims protection for the pages that it uses, up to its own setting. If
//! the children claim more than their parent has, each gets a share in proportion to its claim. If
//! they claim less, the rest is shared in proportion to the pages that are not claimed.

use super::tree::Shape;
use super::{GroupId, GroupTree};
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

/// The kinds of protection that eviction respects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spared {
    /// `low` and `min`.
    Low,
    /// `min` alone, because only protected pages are left.
    Min,
}

/// One group's own pages, and how many of them are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Portion {
    pub(crate) group: GroupId,
    /// Pages charged to the group itself.
    pub(crate) own: PageCount,
    /// The protected pages among `own`.
    pub(crate) spared: PageCount,
}

impl Portion {
    /// Returns how many pages may be evicted.
    pub(crate) fn exposed(&self) -> u64 {
        self.own.0.saturating_sub(self.spared.0)
    }
}

/// Returns `part` of `whole`, scaled so that `whole` becomes `to`. Rounds up: otherwise reclaim
/// could take, again and again, the one page that rounding down exposes.
fn scaled(part: u64, to: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        _ => (u128::from(part) * u128::from(to)).div_ceil(u128::from(whole)) as u64,
    }
}

impl GroupTree {
    /// Returns the portions of `top` and of all groups below it, including deleted ones that still
    /// have pages: the pages of each, and how many of them are protected when `top` must shrink.
    pub(crate) fn portions(&self, top: GroupId, spared: Spared) -> Vec<Portion> {
        let shape = self.shape.lock();
        let mut portions = Vec::new();
        self.add_portions(&shape, top, None, spared, &mut portions);
        portions
    }

    /// Appends the portions of a group and of the groups below it. `granted` is how many pages of
    /// these groups together are protected, and `None` for the group that is to lose pages.
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
        // For each child: the pages that it uses of its protection, and the rest of its usage.
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
