//! Eviction: which frames go when a group has to become smaller.
//!
//! One call frees about what it was asked for, in passes. Each pass gives every group of the
//! subtree a share in proportion to its size and looks at that many pages of its inactive tail;
//! each further pass looks at four times as many; the last looks at everything, until enough is
//! freed, and no longer spares what is in use but could go. So a call looks at a small multiple of
//! its target when memory is easy to free, at each page a bounded number of times when it is not,
//! and then says 0: it always ends.
//!
//! What a group's `low` protects is passed over; if nothing else could be freed, the passes are
//! made once more with `min` alone. Dirty blocks are passed over in the first passes, too, and the
//! flusher is asked for them: a clean block is had for nothing. An owner whose store failed to
//! write is asked ever more rarely, until the next tick.

use super::lru::{End, Evictable, ListKind, pages_of};
use super::owners::{Owner, OwnerId};
use super::policy::Demotion;
use super::pool::Pool;
use crate::frame::{Bit, FlagSet, HoldState, Kind, Meta, Uses};
use crate::group::{GroupId, Portion, Spared};
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::panics::Panics;
use crate::units::{FrameId, PageCount};

/// Frames in one reclaimer's hands at a time, at least.
const CLUSTER: usize = 32;

/// The same at most: a request of the usual size to a store. Each cluster of mapped pages costs a
/// grace period, and what is freed together comes out of the allocator in a row.
const MOST_CLUSTER: u64 = 256;

/// A cluster is this part of what could be evicted, between the two.
const CLUSTER_PART: u64 = 64;

/// The last pass moves so many parts of an active list, one after the other, as long as it has to.
/// A loop slightly larger than memory, of which all is active after some rounds, keeps most in
/// memory so: 36 % of what it asks for is found, of which 28 are by halves, 29 by sixteenths, 27 if
/// all is moved at once, and none if only as much is as has to go.
const FORCED_PART: u64 = 8;

/// Passes before the last one.
const PASSES: u32 = 4;

/// Passes that leave dirty blocks to the flusher.
const CLEAN_PASSES: u32 = 3;

/// Whether stores may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Io {
    /// Dirty blocks are written.
    Allowed,
    /// Dirty blocks stay.
    Forbidden,
}

/// What one call of [`Pool::shrink`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shrunk {
    /// Pages freed.
    pub(crate) freed: PageCount,
    /// Pages looked at.
    pub(crate) scanned: PageCount,
    /// Pages written.
    pub(crate) written: PageCount,
    /// Pages passed over because they would have to be written.
    pub(crate) dirty: PageCount,
    /// Some block that could not go because it was locked or being written; named, not held.
    pub(crate) waits_for: Option<(FrameId, Bit)>,
    /// Some block could not go because somebody had a reference, perhaps for a moment only.
    pub(crate) referenced: bool,
}

/// One pass: its number, how hard it tries, and whether stores are called.
#[derive(Clone, Copy, Debug)]
struct Pass {
    number: u32,
    effort: Effort,
    io: Io,
}

impl Pass {
    fn new(number: u32, io: Io) -> Pass {
        Pass {
            number,
            effort: match number {
                PASSES => Effort::Force,
                _ => Effort::Spare,
            },
            io: match number {
                0..CLEAN_PASSES => Io::Forbidden,
                _ => io,
            },
        }
    }
}

/// How hard a pass tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effort {
    /// Frames that were used since they were last looked at stay.
    Spare,
    /// Whatever can go goes.
    Force,
}

/// What becomes of an isolated frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Back to the head of the list its flags say.
    Keep,
    /// The same, because it would have to be written first.
    Later,
    /// To the unevictable list: nothing will change until it is freed.
    SetAside,
    /// Evict it.
    Evict,
    /// Write it, then evict it.
    Clean,
}

/// Lists reused from cluster to cluster.
#[derive(Default)]
pub(super) struct Hands {
    pub(super) taken: Vec<FrameId>,
    pub(super) keep: Vec<FrameId>,
    set_aside: Vec<FrameId>,
    pub(super) evict: Vec<FrameId>,
    clean: Vec<FrameId>,
    /// Of each that is taken: whether it was used through a mapping since it was last looked at.
    pub(super) used: Vec<bool>,
    /// Those that are mapped: owner, place there, place among the taken.
    mapped: Vec<(OwnerId, u64, usize)>,
    /// Frames to take at a time.
    cluster: usize,
}

/// Whether a page was read ahead and is met by reclaim for the first time: pages that were used
/// before it keep their places for another round as well, so its reader may not have come so far
/// yet.
pub(super) fn is_awaited(meta: &Meta) -> bool {
    let is_met_first = meta.uses.has(Uses::AHEAD) && !meta.uses.has(Uses::PASSED_OVER);
    if is_met_first {
        meta.uses.set(Uses::PASSED_OVER);
    }
    is_met_first
}

/// Whether a frame cannot go now: dying, in use this moment, or marked active while it was in the
/// reclaimer's hands.
fn is_in_use(hold: HoldState, flags: FlagSet) -> bool {
    let in_hand = flags.intersects(FlagSet::LOCKED | FlagSet::WRITEBACK | FlagSet::ACTIVE);
    let is_held = hold.views() > 0 || hold.refs() > 1 || hold.has_writer();
    !hold.is_cached() || is_held || in_hand
}

impl Pool {
    /// Frees about `target` pages charged to `group` or below it; fewer when there are fewer to
    /// free. No section open.
    pub(crate) fn shrink(&self, group: GroupId, target: PageCount, io: Io) -> Shrunk {
        let _working = self.progress.begin();
        self.shrink_working(group, target, io)
    }

    /// [`Pool::shrink`] for who is counted as working already.
    pub(super) fn shrink_working(&self, group: GroupId, target: PageCount, io: Io) -> Shrunk {
        // What owners and stores ask for meanwhile must not come back here.
        let _scope = self.store_scope();
        self.lru.drain_batches(&self.frames);
        let mut done = Shrunk::default();
        let mut hands = Hands::default();
        for spared in [Spared::Low, Spared::Min] {
            let passed_over = self.shrink_passes(group, target, spared, io, &mut hands, &mut done);
            if done.freed.0 > 0 || !passed_over {
                break;
            }
        }
        if done.dirty.0 > 0 && io == Io::Allowed {
            self.want_flush();
        }
        self.counters.add(Event::PgSteal, done.freed.0);
        done
    }

    /// All passes; returns whether something was passed over for its group's `low`.
    fn shrink_passes(
        &self,
        group: GroupId,
        target: PageCount,
        spared: Spared,
        io: Io,
        hands: &mut Hands,
        done: &mut Shrunk,
    ) -> bool {
        let mut passed_over = false;
        for number in 0..=PASSES {
            let want = target.0.saturating_sub(done.freed.0);
            if want == 0 {
                break;
            }
            // What was freed so far may lie in stock: it would be taken for use, and protected.
            self.groups.drain_stocks(group);
            let portions = self.groups.portions(group, spared);
            passed_over = spared == Spared::Low
                && portions.iter().any(|portion| {
                    portion.spared.0 > 0 && self.lru.group(portion.group).evictable_pages() > 0
                });
            self.shrink_pass(&portions, want, Pass::new(number, io), hands, done);
        }
        passed_over
    }

    fn shrink_pass(
        &self,
        portions: &[Portion],
        want: u64,
        pass: Pass,
        hands: &mut Hands,
        done: &mut Shrunk,
    ) {
        // In proportion to what can be evicted and is not protected.
        let weights: Vec<u64> = portions
            .iter()
            .map(|portion| {
                let evictable = self.lru.group(portion.group).evictable_pages();
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
        let mut shares = Shares::new(want, total, self.background.next_offset(total));
        for (portion, weight) in portions.iter().zip(weights) {
            let share = shares.of(weight);
            let size = self.lru.group(portion.group).evictable_pages();
            let (scan, enough) = match pass.effort {
                Effort::Force if weight > 0 => (size, share.max(1)),
                Effort::Force => (0, 0),
                Effort::Spare => ((share << (2 * pass.number)).min(size), share),
            };
            if scan > 0 {
                let before = done.freed.0;
                let whole = (size / CLUSTER_PART).clamp(CLUSTER as u64, MOST_CLUSTER);
                // Of a protected group no page more than may go; of others a whole cluster at a
                // time.
                let (enough, cluster) = match portion.spared.0 {
                    0 => (before + enough, whole as usize),
                    _ => {
                        let enough = enough.min(portion.exposed());
                        (before + enough, CLUSTER.min(enough as usize))
                    }
                };
                hands.cluster = cluster;
                match pass.effort {
                    Effort::Spare => {
                        self.balance(portion.group, scan, pass.effort, hands, done);
                        self.shrink_inactive(portion.group, scan, enough, pass, hands, done);
                    }
                    Effort::Force => self.force(portion.group, enough, pass, hands, done),
                }
                let freed = PageCount(done.freed.0 - before);
                if freed.0 > 0 {
                    self.groups.count_reclaimed(portion.group, freed);
                }
            }
        }
    }

    /// Looks at the whole of both lists, until `enough` pages are freed in all. What is active is
    /// used most: it goes after all that is not, also where all of that was used of late, and a
    /// part at a time, for the others are to keep their places.
    fn force(&self, group: GroupId, enough: u64, pass: Pass, hands: &mut Hands, done: &mut Shrunk) {
        let sizes = self.lru.sizes(group);
        self.shrink_inactive(group, sizes.inactive.0, enough, pass, hands, done);
        let part = (sizes.active.0 / FORCED_PART).max(CLUSTER as u64);
        let mut active = sizes.active.0;
        while active > 0 && done.freed.0 < enough {
            let moved = self.balance(group, part.min(active), pass.effort, hands, done);
            if moved == 0 {
                break;
            }
            active = active.saturating_sub(moved);
            self.shrink_inactive(group, moved, enough, pass, hands, done);
        }
        // Those may have been others, which cannot go and are in front of what was moved.
        let inactive = self.lru.sizes(group).inactive.0;
        self.shrink_inactive(group, inactive, enough, pass, hands, done);
    }

    /// Moves frames from the tail of the active list to the inactive one while the policy says so.
    /// How many pages it looked at.
    fn balance(
        &self,
        group: GroupId,
        scan: u64,
        effort: Effort,
        hands: &mut Hands,
        done: &mut Shrunk,
    ) -> u64 {
        let mut scanned = 0;
        while scanned < scan {
            let sizes = self.lru.sizes(group);
            let takes = effort == Effort::Force || self.policy.takes_from_active(&sizes);
            if sizes.active.0 == 0 || !takes {
                break;
            }
            hands.taken.clear();
            hands.keep.clear();
            hands.evict.clear();
            let max = CLUSTER.min((scan - scanned) as usize);
            let pages =
                self.lru
                    .isolate(&self.frames, group, ListKind::Active, max, &mut hands.taken);
            if pages == 0 {
                break;
            }
            scanned += pages;
            self.age_taken(hands, |_| true);
            for at in 0..hands.taken.len() {
                let meta = self.frames.meta(hands.taken[at]);
                let before = meta.take_mark(FlagSet::REFERENCED);
                let used = before.contains(FlagSet::REFERENCED);
                if effort == Effort::Force || !(used || hands.used[at]) {
                    self.counters.add(Event::PgDeactivate, pages_of(meta));
                    hands.evict.push(hands.taken[at]);
                } else {
                    hands.keep.push(hands.taken[at]);
                }
            }
            self.lru.put_back(&self.frames, &hands.keep, Evictable::Yes);
            match self.policy.demotion() {
                Demotion::SecondChance => {
                    self.lru
                        .put_back_inactive(&self.frames, &hands.evict, End::Head);
                }
                Demotion::Next => {
                    // The oldest was taken first.
                    hands.evict.reverse();
                    self.lru
                        .put_back_inactive(&self.frames, &hands.evict, End::Tail);
                }
            }
        }
        self.counters.add(Event::PgRefill, scanned);
        done.scanned.0 += scanned;
        scanned
    }

    /// Looks at up to `scan` pages from the tail of the inactive list, until `enough` pages are
    /// freed in all.
    fn shrink_inactive(
        &self,
        group: GroupId,
        scan: u64,
        enough: u64,
        pass: Pass,
        hands: &mut Hands,
        done: &mut Shrunk,
    ) {
        let mut scanned = 0;
        while scanned < scan && done.freed.0 < enough {
            hands.taken.clear();
            let max = hands.cluster.min((scan - scanned) as usize);
            let pages = self.lru.isolate(
                &self.frames,
                group,
                ListKind::Inactive,
                max,
                &mut hands.taken,
            );
            if pages == 0 {
                break;
            }
            scanned += pages;
            self.counters.add(Event::PgScan, pages);
            self.judge(pass, hands, done);
            self.lru.put_back(&self.frames, &hands.keep, Evictable::Yes);
            self.lru
                .put_back(&self.frames, &hands.set_aside, Evictable::No);
            self.evict_chosen(hands, done);
        }
        done.scanned.0 += scanned;
    }

    /// Sorts the isolated frames by what is to become of them.
    fn judge(&self, pass: Pass, hands: &mut Hands, done: &mut Shrunk) {
        for list in [
            &mut hands.keep,
            &mut hands.set_aside,
            &mut hands.evict,
            &mut hands.clean,
        ] {
            list.clear();
        }
        self.age_taken(hands, |meta| {
            pass.effort == Effort::Spare && !is_in_use(meta.hold.load(), meta.flags.load())
        });
        for at in 0..hands.taken.len() {
            let id = hands.taken[at];
            let meta = self.frames.meta(id);
            note_waits(done, id, meta);
            let list = match self.verdict(pass, hands, at, meta) {
                Verdict::Keep => &mut hands.keep,
                Verdict::Later => {
                    done.dirty.0 += pages_of(meta);
                    &mut hands.keep
                }
                Verdict::SetAside => &mut hands.set_aside,
                Verdict::Evict => &mut hands.evict,
                Verdict::Clean => &mut hands.clean,
            };
            list.push(id);
        }
        let busy = hands.keep.iter().chain(&hands.set_aside);
        let busy = busy.map(|id| pages_of(self.frames.meta(*id)));
        self.counters.add(Event::PgBusy, busy.sum());
    }

    fn verdict(&self, pass: Pass, hands: &Hands, at: usize, meta: &Meta) -> Verdict {
        let hold = meta.hold.load();
        if hold.is_viewed_only() || meta.kind() == Kind::Anonymous {
            return Verdict::SetAside;
        }
        let flags = meta.flags.load();
        if is_in_use(hold, flags) {
            return Verdict::Keep;
        }
        if hands.used[at] {
            // Used once through a mapping: another round. Used again since: active.
            self.used_through_mapping(hands.taken[at]);
            return Verdict::Keep;
        }
        if pass.effort == Effort::Spare && is_awaited(meta) {
            return Verdict::Keep;
        }
        if pass.effort == Effort::Spare && meta.take_again() {
            self.activate(hands.taken[at], super::batch::own_batch());
            return Verdict::Keep;
        }
        // Referenced once by a read is no reason to stay: twice made it active.
        match (flags.contains(FlagSet::DIRTY), pass.io) {
            (false, _) => Verdict::Evict,
            (true, Io::Allowed) => Verdict::Clean,
            (true, Io::Forbidden) => Verdict::Later,
        }
    }

    /// Clears the accessed bits of those taken frames that are mapped and that `which` accepts, and
    /// notes in `used` which had one set. Each owner is asked once for blocks that lie side by
    /// side.
    pub(super) fn age_taken(&self, hands: &mut Hands, which: impl Fn(&Meta) -> bool) {
        let Hands {
            taken,
            used,
            mapped,
            ..
        } = hands;
        used.clear();
        used.resize(taken.len(), false);
        mapped.clear();
        for (at, id) in taken.iter().enumerate() {
            let meta = self.frames.meta(*id);
            if meta.hold.load().mapped() > 0 && which(meta) {
                mapped.push((OwnerId(meta.owner()), meta.index(), at));
            }
        }
        mapped.sort_unstable_by_key(|(owner, index, _)| (owner.0, *index));
        let mut owner: Option<(OwnerId, Option<Arc<dyn Owner>>)> = None;
        for run in mapped.chunk_by(|one, next| one.0 == next.0 && one.1 + 1 == next.1) {
            let (id, first, _) = run[0];
            if owner.as_ref().is_none_or(|(of, _)| *of != id) {
                owner = Some((id, self.owners.get(id)));
            }
            let Some((_, Some(owner))) = &owner else {
                continue;
            };
            owner.age(first..first + run.len() as u64, &mut |index| {
                used[run[(index - first) as usize].2] = true;
            });
            for (_, _, at) in run {
                let uses = &self.frames.meta(taken[*at]).uses;
                used[*at] |= uses.has(Uses::TOUCHED) && uses.clear(Uses::TOUCHED);
                // Mapped beside the page of a fault, it was still awaited: it goes with its
                // neighbours, or their frames would come back apart.
                if used[*at] && uses.has(Uses::AHEAD) {
                    uses.clear(Uses::AHEAD);
                }
            }
        }
    }

    /// Has the owners write and evict what was chosen; what did not go is put back.
    fn evict_chosen(&self, hands: &mut Hands, done: &mut Shrunk) {
        let Hands { evict, clean, .. } = hands;
        // A store may panic: what is in our hands goes back all the same.
        let mut panics = Panics::default();
        if !clean.is_empty() {
            self.by_owner(clean, |id, owner, frames| {
                if !self.owners.may_clean(id) {
                    return;
                }
                panics.catch(|| {
                    let count = owner.clean(frames);
                    self.owners.note_clean(id, &count);
                    done.written.0 += count.written.0;
                    self.counters.add(Event::PgWriteback, count.written.0);
                });
            });
            evict.append(clean);
        }
        self.by_owner(evict, |_, owner, frames| {
            panics.catch(|| {
                // Before: the frames that went may be others by then.
                let pages = frames
                    .first()
                    .map_or(1, |id| pages_of(self.frames.meta(*id)));
                let count = owner.evict(frames);
                done.freed.0 += count.freed.0;
                self.counters
                    .add(Event::PgBusy, u64::from(count.busy) * pages);
            });
        });
        self.lru.put_back(&self.frames, evict, Evictable::Yes);
        panics.go_on();
    }

    /// Calls `each` once per owner with its frames, in the order of their place in it.
    fn by_owner(
        &self,
        frames: &mut [FrameId],
        mut each: impl FnMut(OwnerId, &dyn Owner, &[FrameId]),
    ) {
        let key = |id: &FrameId| {
            let meta = self.frames.meta(*id);
            (meta.owner(), meta.index())
        };
        frames.sort_by_cached_key(key);
        let same_owner = |a: &FrameId, b: &FrameId| key(a).0 == key(b).0;
        for of_one in frames.chunk_by(same_owner) {
            let id = OwnerId(key(&of_one[0]).0);
            if let Some(owner) = self.owners.get(id) {
                each(id, &*owner, of_one);
            }
        }
    }
}

/// Remembers what a request that finds nothing else could wait for.
fn note_waits(done: &mut Shrunk, id: FrameId, meta: &Meta) {
    let flags = meta.flags.load();
    if flags.contains(FlagSet::WRITEBACK) {
        done.waits_for.get_or_insert((id, Bit::Writeback));
    } else if flags.contains(FlagSet::LOCKED) {
        done.waits_for.get_or_insert((id, Bit::Locked));
    } else {
        let hold = meta.hold.load();
        done.referenced |= hold.views() == 0 && hold.refs() > 1;
    }
}

/// Splits a number of pages among groups in proportion to their sizes, without losing any to
/// rounding: the shares add up, and over many calls with spread offsets each small group gets its
/// part.
struct Shares {
    want: u64,
    total: u64,
    offset: u64,
    before: u64,
}

impl Shares {
    fn new(want: u64, total: u64, offset: u64) -> Shares {
        Shares {
            want,
            total,
            offset,
            before: 0,
        }
    }

    /// The share of the next group, of `size`.
    fn of(&mut self, size: u64) -> u64 {
        let up_to = |sum: u64| {
            (u128::from(sum) * u128::from(self.want) + u128::from(self.offset))
                / u128::from(self.total)
        };
        let share = up_to(self.before + size) - up_to(self.before);
        self.before += size;
        share as u64
    }
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
            let mut shares = Shares::new(32, total, offset);
            let round = sizes.map(|size| shares.of(size));
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
