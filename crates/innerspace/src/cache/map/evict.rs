//! The calls from reclaim to a file, such as age, evict, clean and flush.
//!
//! Reclaim names frames without holding them: each may belong to another block by now. So an
//! eviction takes a reference to a cached frame, checks its owner, locks it without waiting, and
//! checks that the file's index leads to it. After that, the frame is a block of the file, and
//! stays in the index. Cleaning checks only the owner: it writes whatever dirty blocks the file has
//! at the block numbers in the frames' metadata.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::dirty::flush::{flush_here, flush_in_its_lane};
use crate::cache::dirty::index::WriteReason;
use crate::cache::dirty::sync::{retain_synced, sync_before_eviction};
use crate::cache::dirty::write_depth::write_range;
use crate::cache::lookup::block::{BlockRef, Locked};
use crate::cache::map::mappers::Revoke;
use crate::cache::wait::Wait;
use crate::frame::{FlagSet, Uses};
use crate::reclaim::{EvictCount, FlushRequest, Io, Owner, Retired};
use crate::stats::Event;
use crate::sync::domain::ANY_OWNER;
use crate::sync::failpoint;
use crate::units::{FrameId, PageCount};

/// Which of the named blocks are evicted, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evicting {
    /// All blocks that are clean and that the store can no longer lose, unless they are viewed,
    /// otherwise held, or kept in memory by a mapper. Eviction revokes their translations and waits
    /// for a grace period.
    All,
    /// Like [`Evicting::All`], but no mapped blocks that a session may hold for a long time: the
    /// caller may belong to another group, and should not wait for these sessions.
    Unheld,
    /// Like [`Evicting::All`], but no mapped blocks. This never waits.
    Unmapped,
    /// Like [`Evicting::Unmapped`], for this one block, which an uncached read brought in. The
    /// block leaves no shadow, since its return is not to count as a refault. A frame that belongs
    /// to another block by now stays.
    Uncached { block: u64 },
}

impl FileCore {
    /// Locks a frame that reclaim named, if it is (still) a block of this file and its lock is
    /// free.
    fn lock_named(&self, frame: FrameId) -> Option<Locked<'_>> {
        let meta = self.frames().meta(frame);
        if !meta.hold.try_get_cached() {
            return None;
        }
        // The reference keeps the frame from being reused, so owner and index do not change.
        let held = BlockRef::new(self, frame, meta.index());
        if meta.owner() != self.id.owner.0 || !self.frames().lock_of(frame).try_lock() {
            return None;
        }
        if !self.is_still(held.block, frame) {
            self.frames().lock_of(frame).unlock();
            return None;
        }
        Some(Locked::new(held))
    }

    /// Requests a safepoint of all sessions of spaces that map the file, and waits briefly. Returns
    /// whether all sessions reached one.
    fn sessions_pass(&self) -> bool {
        let domain = &self.pool.domain;
        domain.sessions_pass(|owner| self.mappers.has_owner(owner))
    }

    /// Waits until no access uses a translation that was revoked before. With [`Evicting::Unheld`],
    /// waits for sessions only briefly, and returns false if a session of a space that maps the
    /// file is still open then: it may use such a translation for a long time.
    fn grace_of(&self, which: Evicting) -> bool {
        if which != Evicting::Unheld {
            self.grace();
            return true;
        }
        let maps = |owner| self.mappers.has_owner(owner);
        let open = self.pool.domain.synchronize_but_sessions(maps);
        open.is_empty()
    }

    /// Evicts those blocks among `frames` that `which` allows. Frames that a session may still hold
    /// are freed once no session holds them.
    pub(crate) fn evict_frames(&self, frames: &[FrameId], which: Evicting) -> EvictCount {
        let mut locked: Vec<Locked<'_>> = Vec::with_capacity(frames.len());
        locked.extend(frames.iter().filter_map(|frame| self.lock_named(*frame)));
        let can_go = |one: &Locked<'_>| {
            let (flags, hold) = (one.meta().flags.load(), one.meta().hold.load());
            let stays_mapped = hold.mapped() > 0
                && (!matches!(which, Evicting::All | Evicting::Unheld)
                    || self.is_locked_in_memory(one.block()));
            let is_another = matches!(which, Evicting::Uncached { block } if block != one.block());
            !flags.intersects(FlagSet::DIRTY | FlagSet::WRITEBACK)
                && hold.views() == 0
                && !stays_mapped
                && !is_another
        };
        locked.retain(can_go);
        let is_mapped = |one: &Locked<'_>| one.meta().hold.load().mapped() > 0;
        let has_mapped = locked.iter().any(is_mapped);
        if which == Evicting::Unheld && has_mapped && !self.sessions_pass() {
            locked.retain(|one| !is_mapped(one));
        }
        failpoint!(SessionsAsked);
        retain_synced(self, &mut locked);
        let mut mapped: Vec<u64> = Vec::with_capacity(locked.len());
        for one in locked.iter().filter(|one| is_mapped(one)) {
            mapped.push(one.block());
            // The block was probably used through the mapping: loads through a mapping make no call
            // that would clear this mark.
            one.meta().uses.clear(Uses::AHEAD);
        }
        // The blocks are mostly sorted, so each mapper is called once for a run of adjacent blocks.
        for run in mapped.chunk_by(|a, b| a + 1 == *b) {
            self.revoke(run[0]..run[run.len() - 1] + 1, Revoke::All);
        }
        let is_held = !mapped.is_empty() && !self.grace_of(which);
        let mut gone = Vec::with_capacity(locked.len());
        for one in locked {
            let frame = one.frame();
            if self.evict_locked(one, which) {
                gone.push(frame);
            }
        }
        if is_held {
            let retire = |frame| self.pool.retire_of(ANY_OWNER, Retired::Frame(frame));
            gone.drain(..).for_each(retire);
        }
        let freed = gone.len() as u64;
        match self.id.order {
            0 => self.pool.free_evicted(&mut gone),
            _ => gone.iter().for_each(|frame| self.pool.free(*frame)),
        }
        count(&self.counters.evicted, freed);
        let busy = (frames.len() as u64 - freed) as u32;
        EvictCount {
            freed: PageCount(freed << self.id.order),
            busy,
            unsynced: false,
        }
    }

    /// Removes a locked, clean block without translations from the index, unless another thread
    /// holds it. Returns whether it did; the caller then frees the frame.
    fn evict_locked(&self, locked: Locked<'_>, which: Evicting) -> bool {
        // Freezing fails unless there are exactly two references: the index's and this call's.
        if !locked.meta().hold.freeze(2) {
            return false;
        }
        let (block, frame) = (locked.block(), locked.frame());
        let is_unused = locked.meta().uses.has(Uses::AHEAD);
        if is_unused {
            self.count_unused();
        }
        let pages = PageCount(self.block_pages());
        // A block that was never used leaves no shadow: if such blocks became active on their
        // return, streams would evict one another's blocks.
        let leaves_shadow = !matches!(which, Evicting::Uncached { .. }) && !is_unused;
        let shadow = leaves_shadow.then(|| self.pool.shadow_pack(self.id.group.id(), pages));
        self.unlink(block, frame, shadow);
        locked.unlock_frozen();
        true
    }

    /// Counts a block that was read ahead and evicted before its first use.
    fn count_unused(&self) {
        count(&self.counters.unused, 1);
        let pages = self.block_pages();
        self.pool.counters.add(Event::PgReadAheadUnused, pages);
    }

    /// Evicts a block of an uncached read, unless it was used meanwhile. The block may also have
    /// been removed by a cut, and its frame may belong to another block by now.
    pub(crate) fn drop_unless_wanted(&self, frame: FrameId, block: u64) {
        let flags = self.frames().meta(frame).flags.load();
        if !flags.intersects(FlagSet::REFERENCED | FlagSet::ACTIVE) {
            self.evict_frames(&[frame], Evicting::Uncached { block });
        }
    }

    /// Evicts the blocks of a range that can be evicted. Returns how many pages were freed.
    pub(crate) fn evict_range(&self, blocks: Range<u64>, which: Evicting) -> PageCount {
        let mut freed = 0;
        let mut next = blocks.start;
        loop {
            let mut batch = Vec::with_capacity(32);
            {
                let _section = self.pool.domain.reader();
                while batch.len() < 32
                    && let Some((block, frame)) =
                        self.blocks
                            .index
                            .next_block(self.frames(), next, blocks.end)
                {
                    batch.push(frame);
                    next = block + 1;
                }
            }
            if batch.is_empty() {
                return PageCount(freed);
            }
            freed += self.evict_frames(&batch, which).freed.0;
        }
    }
}

impl Owner for FileCore {
    fn age(&self, blocks: Range<u64>, used: &mut dyn FnMut(u64)) {
        let order = self.id.order;
        let mut page_used = |page: u64| used(page >> order);
        self.mappers.age(self.pages_of(blocks), &mut page_used);
    }

    fn evict(&self, frames: &[FrameId], io: Io) -> EvictCount {
        let is_synced = sync_before_eviction(self, frames, self.may_call_for(io));
        let count = self.evict_frames(frames, Evicting::Unheld);
        EvictCount {
            unsynced: !is_synced,
            ..count
        }
    }

    fn failed_block_freed(&self, frame: FrameId) {
        let mut errors = self.blocks.fill_errors.lock();
        errors.retain(|(failed, _)| *failed != frame);
    }

    fn give_up_read(&self, block: u64) -> bool {
        // If the memory has threads, they are about to make the read. In an abandoned one, no
        // thread would call the wakers of the futures that wait for the block.
        let stays = self.cache.is_served() || self.cache.is_abandoned() && self.ready.len() > 0;
        !stays && self.requests.take_queued(block).is_some()
    }

    fn clean(&self, frames: &[FrameId], io: Io) -> PageCount {
        let own = |frame: &&FrameId| self.frames().meta(**frame).owner() == self.id.owner.0;
        let index = |frame: &FrameId| self.frames().meta(*frame).index();
        let mut blocks: Vec<u64> = frames.iter().filter(own).map(index).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let (backoff, now) = (&self.writes.clean_backoff, self.pool.background.now());
        if !self.may_call_for(io) || !backoff.may_try(now) {
            return PageCount(0);
        }
        let (mut written, mut failed) = (0, 0);
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let range = run[0]..run[run.len() - 1] + 1;
            let end = write_range(self, range, WriteReason::Pressure, Wait::No, u64::MAX);
            written += end.written;
            failed += end.failed;
        }
        backoff.note(written, failed, now);
        PageCount(written << self.id.order)
    }

    fn flush(&self, request: &FlushRequest) -> PageCount {
        let mut dirty = self.dirty();
        if !dirty.has_since(u64::MAX) && dirty.set_flushable(false) {
            self.pool.owners.set_flushable(self.id.owner, false);
        }
        let is_due = dirty.has_since(request.dirtied_by);
        drop(dirty);
        if !is_due || !self.may_call_unasked() {
            return PageCount(0);
        }
        if self.pool.background.is_served() {
            flush_in_its_lane(self, *request);
            return PageCount(0);
        }
        let (end, now) = (flush_here(self, request), self.pool.background.now());
        self.writes.clean_backoff.note(end.written, end.failed, now);
        PageCount(end.written << self.id.order)
    }
}
