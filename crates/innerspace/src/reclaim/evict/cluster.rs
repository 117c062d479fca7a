//! A cluster: frames that a reclaimer takes from the tail of a list, judges and evicts together.

use std::collections::HashSet;

use crate::frame::{Bit, FlagSet, HoldState, Kind, Meta, Uses};
use crate::group::GroupId;
use crate::reclaim::lists::{Evictable, ListKind, pages_of, thread_batch};
use crate::reclaim::owners::{Io, Owner, OwnerId};
use crate::reclaim::pool::Pool;
use crate::stats::Event;
use crate::sync::panics::Panics;
use crate::units::{FrameId, PageCount};

/// How thorough a pass is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effort {
    /// Frames that were used since reclaim last looked at them stay. So do frames that were read
    /// ahead, if their reader may still come to them.
    Spare,
    /// Every frame that can be evicted is evicted.
    Force,
}

/// The result of one call to [`Pool::shrink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shrunk {
    /// Pages freed.
    pub(crate) freed: PageCount,
    /// Pages examined.
    pub(crate) scanned: PageCount,
    /// Pages written.
    pub(crate) written: PageCount,
    /// Pages passed over because they would have to be written or synced first.
    pub(crate) dirty: PageCount,
    /// A block that could not be evicted because it was locked or being written, if any. It is
    /// named, not held.
    pub(crate) waits_for: Option<(FrameId, Bit)>,
    /// Whether some block could not be evicted because there was a reference to it, perhaps only
    /// for a moment.
    pub(crate) referenced: bool,
}

impl Shrunk {
    /// Notes the block as one to wait for if it is locked or being written. Otherwise, if it is not
    /// viewed, notes whether there is a reference to it besides the index's.
    fn note_wait(&mut self, id: FrameId, meta: &Meta) {
        let flags = meta.flags.load();
        if flags.contains(FlagSet::WRITEBACK) {
            self.waits_for.get_or_insert((id, Bit::Writeback));
        } else if flags.contains(FlagSet::LOCKED) {
            self.waits_for.get_or_insert((id, Bit::Locked));
        } else {
            let hold = meta.hold.load();
            self.referenced |= hold.views() == 0 && hold.refs() > 1;
        }
    }
}

/// A decision about an isolated frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Put it back at the head of the list that its flags name.
    Keep,
    /// Like [`Verdict::Keep`], for a frame that would have to be written first.
    KeepDirty,
    /// Move it to the unevictable list: its state will not change until it is freed.
    SetAside,
    /// Evict it.
    Evict,
    /// Write it, then evict it.
    Clean,
}

/// Frames taken off a list, and the results of the call to `shrink` so far.
pub(super) struct Cluster<'p> {
    pub(super) pool: &'p Pool,
    /// The stores that the call to `shrink` may use; one of its passes may use fewer.
    pub(super) io: Io,
    taken: Vec<FrameId>,
    /// The taken frames that were used through a mapping since reclaim last looked at them.
    used: HashSet<FrameId>,
    pub(super) done: Shrunk,
}

impl<'p> Cluster<'p> {
    pub(super) fn new(pool: &'p Pool, io: Io) -> Cluster<'p> {
        Cluster {
            pool,
            io,
            taken: Vec::new(),
            used: HashSet::new(),
            done: Shrunk::default(),
        }
    }

    /// Isolates up to `max` frames from the tail of a list. They replace the frames that were taken
    /// before. Returns how many pages they have.
    pub(super) fn take(&mut self, group: GroupId, kind: ListKind, max: usize) -> u64 {
        self.taken.clear();
        let Pool { lru, frames, .. } = self.pool;
        lru.isolate(frames, group, kind, max, &mut self.taken)
    }

    /// Returns the taken frames, each with whether [`Cluster::age`] has found that it was used.
    pub(super) fn aged(&self) -> impl Iterator<Item = (FrameId, bool)> {
        self.taken.iter().map(|id| (*id, self.used.contains(id)))
    }

    /// Clears the accessed bits of those taken frames that are mapped and that `which` accepts, and
    /// notes which had one set. Each owner is called once for each run of consecutive blocks.
    pub(super) fn age(&mut self, which: impl Fn(&Meta) -> bool) {
        let Cluster {
            pool, taken, used, ..
        } = self;
        let meta = |id: &FrameId| pool.frames.meta(*id);
        let is_mapped = |id: &FrameId| meta(id).hold.load().mapped() > 0 && which(meta(id));
        let mut mapped: Vec<FrameId> = taken.iter().copied().filter(is_mapped).collect();
        used.clear();
        by_owner(pool, &mut mapped, |owner, frames| {
            let follows =
                |one: &FrameId, next: &FrameId| meta(one).index() + 1 == meta(next).index();
            for run in frames.chunk_by(follows) {
                let first = meta(&run[0]).index();
                owner.age(first..first + run.len() as u64, &mut |index| {
                    used.insert(run[(index - first) as usize]);
                });
                for id in run {
                    let uses = &meta(id).uses;
                    if uses.has(Uses::TOUCHED) && uses.clear(Uses::TOUCHED) {
                        used.insert(*id);
                    }
                    // A page that fault-around mapped may still be marked as read ahead. It has
                    // been used now, so reclaim need not wait for its reader any more. Without the
                    // mark it is evicted together with its neighbours, so that their free frames
                    // are contiguous.
                    if used.contains(id) && uses.has(Uses::AHEAD) {
                        uses.clear(Uses::AHEAD);
                    }
                }
            }
        });
    }

    /// Decides what is done with each taken frame, and does it. Frames that stay are put back.
    pub(super) fn reclaim(&mut self, effort: Effort, io: Io) {
        let pool = self.pool;
        self.age(|meta| effort == Effort::Spare && !is_in_use(meta.hold.load(), meta.flags.load()));
        let (mut keep, mut set_aside) = (Vec::new(), Vec::new());
        let (mut evict, mut clean) = (Vec::new(), Vec::new());
        let mut busy = 0;
        for id in &self.taken {
            let (id, used) = (*id, self.used.contains(id));
            let meta = pool.frames.meta(id);
            self.done.note_wait(id, meta);
            let verdict = verdict(pool, id, used, effort, io);
            let list = match verdict {
                Verdict::Keep | Verdict::KeepDirty => &mut keep,
                Verdict::SetAside => &mut set_aside,
                Verdict::Evict => &mut evict,
                Verdict::Clean => &mut clean,
            };
            list.push(id);
            if !matches!(verdict, Verdict::Evict | Verdict::Clean) {
                busy += pages_of(meta);
            }
            if verdict == Verdict::KeepDirty {
                self.done.dirty.0 += pages_of(meta);
            }
        }
        pool.counters.add(Event::PgBusy, busy);
        pool.lru.put_back(&pool.frames, &keep, Evictable::Yes);
        pool.lru.put_back(&pool.frames, &set_aside, Evictable::No);
        evict_chosen(pool, evict, clean, self.io, &mut self.done);
    }
}

/// Returns whether a page was read ahead and is met by reclaim for the first time, and notes that
/// it was met. The page then gets another round, as a used page does: its reader may not have come
/// this far yet.
pub(super) fn is_awaited(meta: &Meta) -> bool {
    let is_met_first = meta.uses.has(Uses::AHEAD) && !meta.uses.has(Uses::PASSED_OVER);
    if is_met_first {
        meta.uses.set(Uses::PASSED_OVER);
    }
    is_met_first
}

/// Returns whether a frame cannot be evicted now: it is being freed or in use, or has become active
/// since it was isolated.
fn is_in_use(hold: HoldState, flags: FlagSet) -> bool {
    let in_hand = flags.intersects(FlagSet::LOCKED | FlagSet::WRITEBACK | FlagSet::ACTIVE);
    let is_held = hold.views() > 0 || hold.refs() > 1 || hold.has_writer();
    !hold.is_cached() || is_held || in_hand
}

fn verdict(pool: &Pool, id: FrameId, used: bool, effort: Effort, io: Io) -> Verdict {
    let meta = pool.frames.meta(id);
    let hold = meta.hold.load();
    if hold.is_viewed_only() || meta.kind() == Kind::Anonymous {
        return Verdict::SetAside;
    }
    let flags = meta.flags.load();
    if is_in_use(hold, flags) {
        return Verdict::Keep;
    }
    if used {
        // The first use through a mapping gives the frame another round, the second makes it
        // active.
        pool.used_through_mapping(id);
        return Verdict::Keep;
    }
    if effort == Effort::Spare && is_awaited(meta) {
        return Verdict::Keep;
    }
    if effort == Effort::Spare && meta.take_again() {
        pool.lru
            .activate(&pool.frames, &pool.counters, id, thread_batch());
        return Verdict::Keep;
    }
    // A single use by a read does not keep a frame. A second use would have made it active.
    if !flags.contains(FlagSet::DIRTY) {
        return Verdict::Evict;
    }
    match io.includes(pool.groups.path(GroupId(meta.group()))) {
        true => Verdict::Clean,
        false => Verdict::KeepDirty,
    }
}

/// Has the owners write and evict isolated frames. Frames that stay are put back.
fn evict_chosen(
    pool: &Pool,
    mut evict: Vec<FrameId>,
    mut clean: Vec<FrameId>,
    io: Io,
    done: &mut Shrunk,
) {
    // A store may panic. Isolated frames are put back nevertheless.
    let mut panics = Panics::default();
    by_owner(pool, &mut clean, |owner, frames| {
        panics.catch(|| {
            let written = owner.clean(frames, io);
            done.written.0 += written.0;
            pool.counters.add(Event::PgWriteback, written.0);
        });
    });
    evict.append(&mut clean);
    by_owner(pool, &mut evict, |owner, frames| {
        panics.catch(|| {
            // Read before the eviction: afterwards, evicted frames may be in other blocks.
            let pages = pages_of(pool.frames.meta(frames[0]));
            let count = owner.evict(frames, io);
            done.freed.0 += count.freed.0;
            let busy = u64::from(count.busy) * pages;
            if count.unsynced {
                done.dirty.0 += busy;
            }
            pool.counters.add(Event::PgBusy, busy);
        });
    });
    pool.lru.put_back(&pool.frames, &evict, Evictable::Yes);
    panics.go_on();
}

/// Calls `each` once for each owner that is still registered, with its frames in the order of their
/// block numbers.
fn by_owner(pool: &Pool, frames: &mut [FrameId], mut each: impl FnMut(&dyn Owner, &[FrameId])) {
    let key = |id: &FrameId| {
        let meta = pool.frames.meta(*id);
        (meta.owner(), meta.index())
    };
    frames.sort_by_cached_key(key);
    for of_one in frames.chunk_by(|a, b| key(a).0 == key(b).0) {
        if let Some(owner) = pool.owners.get(OwnerId(key(&of_one[0]).0)) {
            each(&*owner, of_one);
        }
    }
}
