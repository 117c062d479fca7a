//! A file without bytes: its blocks are in a map, its mappings are a counter and an accessed bit.

use std::collections::HashMap;
use std::ops::Range;

use crate::frame::{FlagSet, HoldState, Kind};
use crate::group::{GroupId, LimitError};
use crate::reclaim::lists::LruState;
use crate::reclaim::*;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::{FrameId, PageCount};

/// Creates a pool of `frames` usable frames, `reserve` of them reserved.
pub(super) fn pool_of(frames: u32, reserve: u32) -> Arc<Pool> {
    let mut options = PoolOptions::new(frames);
    options.arena.reserve = reserve;
    Pool::new(&options).expect("a small arena")
}

#[derive(Default)]
pub(super) struct Blocks {
    pub(super) frames: HashMap<u64, FrameId>,
    /// The shadows of evicted blocks.
    pub(super) shadows: HashMap<u64, u64>,
    /// The accessed bits of the mapped blocks.
    pub(super) accessed: HashMap<u64, bool>,
}

/// The mock owner.
pub(super) struct MockFile {
    pub(super) pool: Arc<Pool>,
    pub(super) group: GroupId,
    pub(super) order: u8,
    pub(super) id: OwnerId,
    pub(super) blocks: Mutex<Blocks>,
    /// The number of pages written successfully.
    pub(super) written: AtomicU64,
    /// While this is above 0, each write fails and decrements it.
    pub(super) failures: AtomicU64,
    pub(super) evict_calls: AtomicU64,
    /// Called when a frame is next aged, before its bit is read.
    pub(super) when_aged: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl MockFile {
    pub(super) fn new(pool: &Arc<Pool>, group: GroupId, order: u8) -> Arc<MockFile> {
        Arc::new_cyclic(|weak: &Weak<MockFile>| {
            let owner: Weak<dyn Owner> = weak.clone();
            MockFile {
                pool: pool.clone(),
                group,
                order,
                id: pool.owners.register(owner),
                blocks: Mutex::new(Blocks::default()),
                written: AtomicU64::new(0),
                failures: AtomicU64::new(0),
                evict_calls: AtomicU64::new(0),
                when_aged: Mutex::new(None),
            }
        })
    }

    pub(super) fn meta(&self, id: FrameId) -> &crate::frame::Meta {
        self.pool.frames.meta(id)
    }

    /// Returns the block's frame if it is cached.
    pub(super) fn peek(&self, index: u64) -> Option<FrameId> {
        self.blocks.lock().frames.get(&index).copied()
    }

    /// Brings a block in with `flags`, without using it.
    pub(super) fn bring(
        &self,
        index: u64,
        flags: FlagSet,
        mode: AllocMode,
    ) -> Result<FrameId, LimitError> {
        let shadow = self.blocks.lock().shadows.remove(&index);
        let mut frame = self.pool.alloc(self.group, self.order, mode)?;
        let mut flags = flags | FlagSet::UPTODATE;
        let pages = PageCount(1 << self.order);
        if let Some(shadow) = shadow
            && self.pool.refault_decision(shadow, pages) == Refault::Activate
        {
            flags |= FlagSet::ACTIVE;
            self.pool.count_active_refault(pages);
        }
        frame.set_kind(Kind::Cached);
        frame.set_owner(self.id.0);
        frame.set_index(index);
        frame.set_flags(flags);
        let mut blocks = self.blocks.lock();
        if let Some(there) = blocks.frames.get(&index) {
            // Another thread was faster. This frame is freed and its charge given back.
            return Ok(*there);
        }
        if flags.contains(FlagSet::DIRTY) {
            self.pool.owners.set_flushable(self.id, true);
            self.pool
                .counters
                .add(crate::stats::Event::PgDirtied, pages.0);
        }
        let id = frame.publish(HoldState::cached(1));
        blocks.frames.insert(index, id);
        // The index's mutex stands in for the block lock: the block cannot be freed yet.
        self.pool.lru_add(id);
        Ok(id)
    }

    /// Reads a block as a cache would: finds and marks it, or brings it in referenced.
    pub(super) fn read(&self, index: u64) -> Result<(), LimitError> {
        let blocks = self.blocks.lock();
        if let Some(id) = blocks.frames.get(&index) {
            self.pool.mark_accessed(*id);
            return Ok(());
        }
        drop(blocks);
        self.bring(index, FlagSet::REFERENCED, AllocMode::Wait)
            .map(|_| ())
    }

    /// Uses a block through a mapping: maps it on first use, and sets its accessed bit.
    pub(super) fn touch_mapped(&self, index: u64) -> Result<(), LimitError> {
        let mut blocks = self.blocks.lock();
        if !blocks.frames.contains_key(&index) {
            drop(blocks);
            self.bring(index, FlagSet::EMPTY, AllocMode::Wait)?;
            blocks = self.blocks.lock();
        }
        // The block is evicted again already. The next touch brings it in.
        let Some(id) = blocks.frames.get(&index).copied() else {
            return Ok(());
        };
        if blocks.accessed.insert(index, true).is_none() {
            assert!(self.meta(id).hold.try_map());
        }
        Ok(())
    }

    /// Takes a block out as a truncation does. Views keep its frame.
    pub(super) fn truncate(&self, index: u64) {
        let mut blocks = self.blocks.lock();
        if let Some(id) = blocks.frames.remove(&index) {
            if blocks.accessed.remove(&index).is_some() {
                let _held = self.meta(id).hold.unmap();
            }
            if self.meta(id).flags.load().contains(FlagSet::DIRTY) {
                let pages = 1 << self.order;
                self.pool
                    .counters
                    .add(crate::stats::Event::PgCleaned, pages);
            }
            if self.pool.uncache(id) == crate::frame::Dropped::Last {
                self.pool.free(id);
            }
        }
    }

    pub(super) fn truncate_all(&self) {
        let all: Vec<u64> = self.blocks.lock().frames.keys().copied().collect();
        all.into_iter().for_each(|index| self.truncate(index));
    }

    /// Returns how many of these blocks are cached.
    pub(super) fn resident(&self, blocks: impl IntoIterator<Item = u64>) -> usize {
        let map = self.blocks.lock();
        blocks
            .into_iter()
            .filter(|index| map.frames.contains_key(index))
            .count()
    }

    pub(super) fn place(&self, index: u64) -> LruState {
        LruState::load(self.meta(self.peek(index).expect("cached")))
    }

    pub(super) fn is(&self, index: u64, flag: FlagSet) -> bool {
        self.meta(self.peek(index).expect("cached"))
            .flags
            .load()
            .contains(flag)
    }

    /// Returns the index of a frame if it is this file's block there.
    fn own_index(&self, blocks: &Blocks, id: FrameId) -> Option<u64> {
        let index = self.meta(id).index();
        (blocks.frames.get(&index) == Some(&id)).then_some(index)
    }
}

impl Owner for MockFile {
    fn age(&self, indexes: Range<u64>, used: &mut dyn FnMut(u64)) {
        let work = self.when_aged.lock().take();
        if let Some(work) = work {
            work();
        }
        let mut blocks = self.blocks.lock();
        for index in indexes {
            if blocks.accessed.get_mut(&index).is_some_and(std::mem::take) {
                used(index);
            }
        }
    }

    fn evict(&self, frames: &[FrameId], _: Io) -> EvictCount {
        self.evict_calls.fetch_add(1, Ordering::Relaxed);
        let mut count = EvictCount::default();
        let mut blocks = self.blocks.lock();
        for id in frames {
            let meta = self.meta(*id);
            let Some(index) = self.own_index(&blocks, *id) else {
                count.busy += 1;
                continue;
            };
            if meta.flags.load().contains(FlagSet::DIRTY) || meta.hold.load().views() > 0 {
                count.busy += 1;
                continue;
            }
            if blocks.accessed.remove(&index).is_some() {
                let _held = meta.hold.unmap();
            }
            if meta.hold.freeze(1) {
                blocks.frames.remove(&index);
                let pages = PageCount(1 << self.order);
                let shadow = self.pool.shadow_pack(GroupId(meta.group()), pages);
                blocks.shadows.insert(index, shadow);
                self.pool.free(*id);
                count.freed.0 += pages.0;
            } else {
                count.busy += 1;
            }
        }
        count
    }

    fn clean(&self, frames: &[FrameId], _: Io) -> PageCount {
        let mut written = PageCount(0);
        let blocks = self.blocks.lock();
        for id in frames {
            if self.own_index(&blocks, *id).is_none() {
                continue;
            }
            if self.failures.load(Ordering::Relaxed) > 0 {
                self.failures.fetch_sub(1, Ordering::Relaxed);
            } else if self
                .meta(*id)
                .flags
                .test_and_clear(FlagSet::DIRTY)
                .contains(FlagSet::DIRTY)
            {
                written.0 += 1 << self.order;
            }
        }
        self.written.fetch_add(written.0, Ordering::Relaxed);
        self.pool
            .counters
            .add(crate::stats::Event::PgCleaned, written.0);
        written
    }

    fn flush(&self, request: &FlushRequest) -> PageCount {
        let dirty: Vec<FrameId> = {
            let blocks = self.blocks.lock();
            let mut dirty: Vec<FrameId> = blocks.frames.values().copied().collect();
            dirty.retain(|id| self.meta(*id).flags.load().contains(FlagSet::DIRTY));
            dirty.truncate(request.pages.0 as usize);
            dirty
        };
        self.clean(&dirty, Io::Of(GroupId::ROOT))
    }
}
