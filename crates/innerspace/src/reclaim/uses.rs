//! Uses of blocks: marks for reclaim, and the sample for the miss curve. `lists/accessed.rs` has
//! the effect of a use on the lists.
//!
//! # When a block counts as used
//!
//! - a view: `cache/read/take_view.rs`, `take_cached`, `take_held`
//! - a read that does not continue where the last read of the block ended: `cache/read/copy.rs`,
//!   `is_new_use`; a read through a `BlockReader`: `cache/read/block_reader.rs`
//! - a write, or a store over a hole: `cache/lookup/get.rs`, for lookups with `Get::ACCESSED`; an
//!   entirely new block: `cache/write/new_blocks.rs`, which creates it with REFERENCED
//! - accesses through a mapping. Reclaim looks at the page from time to time, and all accesses
//!   since its last look count as one use. They set the accessed bit (VALID_R or VALID_X,
//!   `space/table/pte.rs`). Reclaim collects this bit by `Owner::age`, and calls
//!   [`Pool::used_through_mapping`] (`evict/cluster.rs`, `verdict`; `evict/aging.rs`, `age_tail`).
//!
//! None of these is a use: read-ahead, fault-around, a prefetch, an uncached read. A block that
//! comes back soon after its eviction may become active immediately: `lists/refault.rs`, for the
//! lookups that `note_refault` in `cache/lookup/get.rs` counts as uses.

use std::time::Instant;

use super::lists::pages_of;
use super::owners::OwnerId;
use super::pool::Pool;
use super::sampling::Sampler;
use crate::frame::{FlagSet, Kind, Uses};
use crate::units::FrameId;

impl Pool {
    /// Notes that a block was used. The caller holds it (by a reference, a view or its lock).
    #[inline]
    pub(crate) fn mark_accessed(&self, id: FrameId) {
        self.mark_accessed_at(id, self.frames.meta(id).flags.load());
    }

    /// Like [`Pool::mark_accessed`], with the block's flags as just read.
    #[inline(always)]
    pub(crate) fn mark_accessed_at(&self, id: FrameId, flags: FlagSet) {
        if self.samples() {
            self.sample(id);
        }
        if !flags.contains(FlagSet::REFERENCED | FlagSet::ACTIVE) {
            self.mark_changed(id, flags);
        }
    }

    /// Makes a block hot if it has all marks and uses are not being sampled. Its next use then does
    /// no marking. Called after a use of the block, which the caller holds.
    #[inline]
    pub(crate) fn warm_if_marked(&self, id: FrameId) {
        let meta = self.frames.meta(id);
        if meta.is_marked() && !self.samples() {
            meta.warm();
            // Another thread may have begun a sampling stretch meanwhile, and have cooled this
            // block before it was made hot here. In that case, the change of the hold word above
            // read the cooled value, so the check below sees that sampling is on.
            if self.samples() {
                meta.hold.cool();
            }
        }
    }

    /// Returns whether uses are sampled now.
    #[inline(always)]
    pub(crate) fn samples(&self) -> bool {
        self.sampler.as_ref().is_some_and(Sampler::is_on)
    }

    /// Samples a use of a page of this block through a mapping. The caller is in a section. Returns
    /// whether the page's next use must also be seen. If so, the caller clears the accessed bit,
    /// and [`Uses::TOUCHED`] preserves the use for reclaim.
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

    /// Begins another sampling stretch when it is time. The caller is outside every section.
    pub(crate) fn tick_samples(&self, now: Instant) {
        if self
            .sampler
            .as_ref()
            .is_some_and(|sampler| sampler.tick(now))
        {
            self.age_samples();
        }
    }

    /// Lets the sampler see the next use of each block by a call, and the next use of each sampled
    /// page through a mapping.
    fn age_samples(&self) {
        for meta in self.frames.metas() {
            meta.hold.cool();
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

    /// Notes that an isolated frame was used through a mapping since reclaim last looked at it. The
    /// first time marks the frame, the second makes it active.
    pub(super) fn used_through_mapping(&self, id: FrameId) {
        let before = self.frames.meta(id).flags.test_and_set(FlagSet::REFERENCED);
        if before.contains(FlagSet::REFERENCED) {
            self.lru.used_again(&self.frames, &self.counters, id);
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

    /// Notes a use that changes the frame's marks.
    #[cold]
    #[inline(never)]
    fn mark_changed(&self, id: FrameId, flags: FlagSet) {
        if !flags.contains(FlagSet::REFERENCED) {
            self.frames.meta(id).flags.set(FlagSet::REFERENCED);
        } else {
            self.lru.used_again(&self.frames, &self.counters, id);
        }
    }
}
