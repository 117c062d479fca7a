//! One call to reclaim: passes over the groups of a subtree.
//!
//! One call frees about as much as requested. Each pass gives every group of the subtree a share in
//! proportion to its size, and looks at that many pages from the tail of its inactive list; each
//! further pass looks at four times as many. The last pass looks at everything until enough is
//! freed, and no longer spares blocks that were used recently. So a call looks at a small multiple
//! of its target when memory is easy to free, and otherwise at each page a bounded number of times
//! before it gives up. It always ends.
//!
//! Pages that a group's `low` protects are passed over. If nothing else could be freed, the passes
//! are made once more with `min` alone. The first passes also pass over dirty blocks, and request
//! that the flusher write them: a clean block costs nothing to evict. An owner whose store failed
//! to write skips more and more of the calls to write, until the next tick.

use super::cluster::{Cluster, Effort, Shrunk};
use crate::frame::{End, FlagSet};
use crate::group::{GroupId, Portion, Spared};
use crate::reclaim::lists::{Evictable, ListKind, pages_of};
use crate::reclaim::owners::Io;
use crate::reclaim::pool::Pool;
use crate::stats::Event;
use crate::units::PageCount;

/// The fewest frames of a cluster, unless the list has fewer, or protection leaves fewer.
const CLUSTER: usize = 32;

/// The most frames of a cluster: a request of the usual size to a store. Each cluster of mapped
/// pages costs a grace period, and frames that are freed together are contiguous when they are
/// allocated again.
const MOST_CLUSTER: u64 = 256;

/// A cluster is 1 / `CLUSTER_PART` of the evictable pages, within the bounds above.
const CLUSTER_PART: u64 = 64;

/// The last pass moves 1 / `FORCED_PART` of an active list at a time, as often as needed. This
/// serves a loop over slightly more pages than memory has, all of which become active after some
/// rounds. Such a loop finds 36 % of its pages with eighths of the list, 28 % with halves, 29 %
/// with sixteenths, 27 % if the whole list is moved at once, and none if only as many pages are
/// moved as must be freed.
const FORCED_PART: u64 = 8;

/// The number of passes before the last one.
const PASSES: u32 = 4;

/// The number of passes, from the first on, that leave dirty blocks to the flusher.
const CLEAN_PASSES: u32 = 3;

/// The part of a pass that is done in one group.
#[derive(Clone, Copy)]
struct Share {
    group: GroupId,
    /// The number of the pass.
    pass: u32,
    /// The group has freed its share once the whole call has freed this many pages.
    enough: u64,
    /// The number of frames of a cluster.
    cluster: usize,
}

impl Share {
    fn effort(&self) -> Effort {
        match self.pass {
            PASSES => Effort::Force,
            _ => Effort::Spare,
        }
    }
}

/// Frees about `target` pages charged to `group` or below it, or all that can be freed if those are
/// fewer. No section is open, and the caller is counted as working.
pub(super) fn shrink(pool: &Pool, group: GroupId, target: PageCount, io: Io) -> Shrunk {
    // In this scope, requests made by owners evict nothing, so they do not re-enter reclaim.
    let _scope = pool.owner_scope();
    pool.lru.drain_batches(&pool.frames);
    let mut cluster = Cluster::new(pool, io);
    for spared in [Spared::Low, Spared::Min] {
        let passed_over = cluster.passes(group, target, spared);
        if cluster.done.freed.0 > 0 || !passed_over {
            break;
        }
    }
    let done = cluster.done;
    if done.dirty.0 > 0 {
        pool.background.want_flush();
    }
    pool.counters.add(Event::PgSteal, done.freed.0);
    done
}

impl Cluster<'_> {
    /// Makes passes until `target` pages are freed, or all passes are made. Returns whether some
    /// page was passed over because of its group's `low`.
    fn passes(&mut self, group: GroupId, target: PageCount, spared: Spared) -> bool {
        let mut passed_over = false;
        for number in 0..=PASSES {
            let want = target.0.saturating_sub(self.done.freed.0);
            if want == 0 {
                break;
            }
            // Freed pages may be in a stock, where they would count as used, and so as protected.
            self.pool.groups.drain_stocks(group);
            let portions = self.pool.groups.portions(group, spared);
            passed_over = spared == Spared::Low
                && portions.iter().any(|portion| {
                    portion.spared.0 > 0 && self.pool.lru.sizes(portion.group).evictable() > 0
                });
            self.pass(number, &portions, want);
        }
        passed_over
    }

    fn pass(&mut self, number: u32, portions: &[Portion], want: u64) {
        // Each group frees pages in proportion to those of its pages that are evictable and not
        // protected.
        let weights: Vec<u64> = portions
            .iter()
            .map(|portion| {
                let evictable = self.pool.lru.sizes(portion.group).evictable();
                match portion.spared.0 {
                    0 => evictable,
                    _ => {
                        (u128::from(evictable) * u128::from(portion.exposed())
                            / u128::from(portion.own.0)) as u64
                    }
                }
            })
            .collect();
        let total: u64 = weights.iter().sum();
        if total == 0 {
            return;
        }
        let shares = shares(want, &weights, self.pool.next_offset(total));
        for ((portion, weight), share) in portions.iter().zip(weights).zip(shares) {
            self.shrink_group(number, portion, weight, share);
        }
    }

    /// Frees a group's share of a pass.
    fn shrink_group(&mut self, pass: u32, portion: &Portion, weight: u64, share: u64) {
        let group = portion.group;
        let size = self.pool.lru.sizes(group).evictable();
        let (scan, enough) = match pass {
            PASSES if weight > 0 => (size, share.max(1)),
            PASSES => (0, 0),
            _ => ((share << (2 * pass)).min(size), share),
        };
        if scan == 0 {
            return;
        }
        let before = self.done.freed.0;
        // A protected group loses no more pages than its protection allows. Other groups lose whole
        // clusters.
        let (enough, cluster) = match portion.spared.0 {
            0 => {
                let whole = (size / CLUSTER_PART).clamp(CLUSTER as u64, MOST_CLUSTER);
                (before + enough, whole as usize)
            }
            _ => {
                let enough = enough.min(portion.exposed());
                (before + enough, CLUSTER.min(enough as usize))
            }
        };
        let share = Share {
            group,
            pass,
            enough,
            cluster,
        };
        match share.effort() {
            Effort::Spare => {
                self.balance(share, scan);
                self.shrink_inactive(share, scan);
            }
            Effort::Force => self.force(share),
        }
        let freed = PageCount(self.done.freed.0 - before);
        if freed.0 > 0 {
            self.pool.groups.count_reclaimed(group, freed);
        }
    }

    /// Looks at the whole of both lists until enough pages are freed. Active blocks are used most,
    /// so they are evicted last, but then even if they were used recently. They are moved to the
    /// inactive list one part at a time, so that the parts that are not needed keep their places.
    fn force(&mut self, share: Share) {
        let sizes = self.pool.lru.sizes(share.group);
        self.shrink_inactive(share, sizes.inactive.0);
        let part = (sizes.active.0 / FORCED_PART).max(CLUSTER as u64);
        let mut active = sizes.active.0;
        while active > 0 && self.done.freed.0 < share.enough {
            let moved = self.balance(share, part.min(active));
            if moved == 0 {
                break;
            }
            active = active.saturating_sub(moved);
            self.shrink_inactive(share, moved);
        }
        // Each scan above was as long as the part just moved. It may have met frames nearer to the
        // tail that cannot be evicted, and so missed some of that part. So the list is scanned once
        // more.
        let inactive = self.pool.lru.sizes(share.group).inactive.0;
        self.shrink_inactive(share, inactive);
    }

    /// Moves frames from the tail of the active list to the inactive one while the policy says so,
    /// or always in the last pass. Returns how many pages it looked at.
    fn balance(&mut self, share: Share, scan: u64) -> u64 {
        let pool = self.pool;
        let policy = pool.lru.policy;
        let is_forced = share.effort() == Effort::Force;
        let mut scanned = 0;
        while scanned < scan {
            let sizes = pool.lru.sizes(share.group);
            if sizes.active.0 == 0 || !(is_forced || policy.takes_from_active(&sizes)) {
                break;
            }
            let max = CLUSTER.min((scan - scanned) as usize);
            let pages = self.take(share.group, ListKind::Active, max);
            if pages == 0 {
                break;
            }
            scanned += pages;
            self.age(|_| true);
            let (mut keep, mut demote) = (Vec::new(), Vec::new());
            for (id, used) in self.aged() {
                let meta = pool.frames.meta(id);
                let before = meta.take_mark(FlagSet::REFERENCED);
                if is_forced || !(used || before.contains(FlagSet::REFERENCED)) {
                    pool.counters.add(Event::PgDeactivate, pages_of(meta));
                    demote.push(id);
                } else {
                    keep.push(id);
                }
            }
            pool.lru.put_back(&pool.frames, &keep, Evictable::Yes);
            let end = policy.demotes_to();
            if end == End::Back {
                // The frames were taken oldest first. The oldest is put back last, at the very
                // tail.
                demote.reverse();
            }
            pool.lru.put_back_inactive(&pool.frames, &demote, end);
        }
        pool.counters.add(Event::PgRefill, scanned);
        self.done.scanned.0 += scanned;
        scanned
    }

    /// Looks at up to `scan` pages from the tail of the inactive list, until enough pages are
    /// freed.
    fn shrink_inactive(&mut self, share: Share, scan: u64) {
        let io = match share.pass {
            0..CLEAN_PASSES => Io::Forbidden,
            _ => self.io,
        };
        let mut scanned = 0;
        while scanned < scan && self.done.freed.0 < share.enough {
            let max = share.cluster.min((scan - scanned) as usize);
            let pages = self.take(share.group, ListKind::Inactive, max);
            if pages == 0 {
                break;
            }
            scanned += pages;
            self.pool.counters.add(Event::PgScan, pages);
            self.reclaim(share.effort(), io);
        }
        self.done.scanned.0 += scanned;
    }
}

/// Splits `want` pages among groups in proportion to their weights. The shares add up to `want`.
/// `offset` decides how they are rounded: if it differs from call to call, small groups also get
/// their part in the long run.
fn shares(want: u64, weights: &[u64], offset: u64) -> Vec<u64> {
    let total: u64 = weights.iter().sum();
    let up_to = |sum: u64| {
        let share = u128::from(sum) * u128::from(want) + u128::from(offset);
        (share / u128::from(total)) as u64
    };
    let mut before = 0;
    let share = |weight: &u64| {
        let from = before;
        before += weight;
        up_to(before) - up_to(from)
    };
    weights.iter().map(share).collect()
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_follow_the_sizes() {
        let sizes = [1000, 10, 0, 500, 490];
        let total = sizes.iter().sum();
        let mut sums = [0; 5];
        for offset in 0..total {
            let round = shares(32, &sizes, offset);
            assert_eq!(round.iter().sum::<u64>(), 32);
            sums.iter_mut()
                .zip(round)
                .for_each(|(sum, share)| *sum += share);
        }
        assert_eq!(
            sums,
            sizes.map(|size| size * 32),
            "exactly proportional over all offsets"
        );
    }
}
