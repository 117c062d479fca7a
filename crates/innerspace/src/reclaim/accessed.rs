//! The accessed state of a frame: what a use does to it.
//!
//! | before | after a use |
//! |---|---|
//! | inactive | inactive, referenced |
//! | inactive, referenced | active |
//! | active | active, referenced |
//! | active, referenced | the same |
//! | unevictable | referenced is set, nothing else |
//!
//! "Active" is the flag ACTIVE; it changes only under the lock of the place the frame is in, so
//! that list and flag agree. So it is with two lists; S3-FIFO only remembers the second use until
//! the frame is at the tail.
//!
//! A frame in this thread's batch is marked there and joins the active list when the batch is
//! drained; in another thread's batch it stays inactive and referenced, and the next use after the
//! drain makes it active.

use std::time::Instant;

use super::batch::own_batch;
use super::lru::{ListKind, Place, pages_of};
use super::miss_curve::Sampler;
use super::owners::OwnerId;
use super::policy::SecondUse;
use super::pool::Pool;
use crate::frame::{FlagSet, Kind, Meta, Uses};
use crate::group::GroupId;
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::units::FrameId;

impl Pool {
    /// A block was used: the caller holds it (reference, view, or lock).
    #[inline]
    pub(crate) fn mark_accessed(&self, id: FrameId) {
        self.mark_accessed_at(id, self.frames.meta(id).flags.load());
    }

    /// Like [`Pool::mark_accessed`], with the block's flags as they were just now.
    #[inline(always)]
    pub(crate) fn mark_accessed_at(&self, id: FrameId, flags: FlagSet) {
        if self.samples() {
            self.sample(id);
        }
        if !flags.contains(FlagSet::REFERENCED | FlagSet::ACTIVE) {
            self.mark_changed(id, flags);
        }
    }

    /// After a use of a block, which the caller holds: if it has no mark to make any more the next
    /// one need not look, unless it is to be sampled.
    #[inline]
    pub(crate) fn warm_if_marked(&self, id: FrameId) {
        let meta = self.frames.meta(id);
        if meta.is_marked() && !self.samples() {
            meta.warm();
            // A stretch that began meanwhile may have passed this block before: whoever sees what
            // it did to the word sees that it is on.
            if self.samples() {
                meta.hold.cool();
            }
        }
    }

    /// Whether uses are sampled now.
    #[inline(always)]
    pub(crate) fn samples(&self) -> bool {
        self.sampler.as_ref().is_some_and(Sampler::is_on)
    }

    /// A page of this block is used through a mapping, by somebody in a section. Whether the next
    /// use has to be seen as well: then the caller takes the accessed bit away, which is kept here.
    #[cold]
    pub(crate) fn sample_mapped(&self, head: FrameId) -> bool {
        let meta = self.frames.meta(head);
        let sampler = self.sampler.as_ref();
        let sampled = sampler.is_some_and(|sampler| sampler.see_mapped(meta, pages_of(meta)));
        if sampled {
            meta.uses.set(Uses::TOUCHED);
        }
        sampled
    }

    /// Begins another stretch of samples when it is time. Outside every section.
    pub(crate) fn tick_samples(&self, now: Instant) {
        if self
            .sampler
            .as_ref()
            .is_some_and(|sampler| sampler.tick(now))
        {
            self.age_samples();
        }
    }

    /// The next use of each block by a call is to be seen, and that of each sampled page that is
    /// mapped.
    fn age_samples(&self) {
        for meta in self.frames.metas() {
            // mutant: H3 (test: uses_of_hot_pages_by_calls_are_seen_in_every_stretch)
            if !cfg!(mutant = "H3") {
                meta.hold.cool();
            }
            let mapped = meta.kind() == Kind::Cached && meta.hold.load().mapped() > 0;
            if !(mapped && meta.uses.has(Uses::SAMPLED)) {
                continue;
            }
            let Some(owner) = self.owners.get(OwnerId(meta.owner())) else {
                continue;
            };
            let block = meta.index();
            owner.age(block..block + 1, &mut |_| meta.uses.set(Uses::TOUCHED));
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&self, id: FrameId) {
        if let Some(sampler) = &self.sampler {
            let meta = self.frames.meta(id);
            sampler.see(meta, pages_of(meta));
        }
    }

    /// A use that changes the frame's state.
    #[cold]
    #[inline(never)]
    fn mark_changed(&self, id: FrameId, flags: FlagSet) {
        if !flags.contains(FlagSet::REFERENCED) {
            self.frames.meta(id).flags.set(FlagSet::REFERENCED);
        } else {
            self.used_again(id);
        }
    }

    /// An inactive, referenced frame was used again.
    #[cold]
    pub(super) fn used_again(&self, id: FrameId) {
        match self.policy.second_use() {
            SecondUse::Activate => self.activate(id, own_batch()),
            SecondUse::Remember => {
                let uses = &self.frames.meta(id).uses;
                if !uses.has(Uses::AGAIN) {
                    uses.set(Uses::AGAIN);
                }
            }
        }
    }

    /// An inactive, referenced frame was used again, by a thread whose batch has the number
    /// `batch`.
    #[cold]
    pub(super) fn activate(&self, id: FrameId, batch: u8) {
        let metas = self.frames.metas();
        let meta = &metas[id.index()];
        let seen = meta.lru.load();
        let activated = match Place::of(seen) {
            Place::None | Place::List(ListKind::Unevictable | ListKind::Active) => false,
            Place::Batch(number) if number != batch => false,
            // Whoever isolated it puts it back to the list its flags say, and so does who drains
            // the batch.
            Place::Batch(_) | Place::Isolated => match self.lru.lock_at(meta, seen) {
                Some(_locked) => {
                    set_active(meta);
                    true
                }
                None => false,
            },
            Place::List(ListKind::Inactive) => match self.lru.lock_at(meta, seen) {
                Some(mut locked) => {
                    set_active(meta);
                    locked.take(metas, id, ListKind::Inactive);
                    locked.insert(metas, id, ListKind::Active);
                    true
                }
                None => false,
            },
        };
        if activated {
            let pages = pages_of(meta);
            self.counters.add(Event::PgActivate, pages);
            let lists = self.lru.group(GroupId(meta.group()));
            lists.clock.fetch_add(pages, Ordering::Relaxed);
        }
    }
}

fn set_active(meta: &Meta) {
    meta.flags.set(FlagSet::ACTIVE);
    meta.take_mark(FlagSet::REFERENCED);
}
