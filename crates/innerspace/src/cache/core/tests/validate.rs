//! Recomputes a file's own counters: the file's part of `Memory::validate`.

use crate::cache::core::FileCore;
use crate::cache::index::Word;
use crate::frame::{FlagSet, Tag};
use crate::sync::atomic::Ordering;

/// Recomputes the file's own counters, and panics if one is wrong. The file must not be in use.
pub(crate) fn validate(core: &FileCore) {
    core.wait_all_landed();
    core.blocks.index.validate(core.frames());
    let section = core.pool.domain.reader();
    let mut next = 0;
    let mut dirty_blocks = 0u64;
    let dirty = core.dirty();
    let readers = core.blocks.block_readers.load(Ordering::Relaxed);
    assert_eq!(dirty.writing(), 0, "a write is under way at rest");
    while let Some((block, frame)) = core.blocks.index.next_block(core.frames(), next, u64::MAX) {
        let meta = core.frames().meta(frame);
        let flags = meta.flags.load();
        let hold = meta.hold.load();
        assert_eq!(
            (meta.owner(), meta.index()),
            (core.id.owner.0, block),
            "I10: {meta:?}"
        );
        assert_eq!(meta.order(), core.id.order, "I10: {meta:?}");
        let tag = core.blocks.index.tags().given(block);
        // A block that was tagged before the file grew too long for tags still has its tag.
        assert!(
            meta.tag() == tag || tag == Tag::NONE,
            "I10: block {block} has another tag: {meta:?}"
        );
        assert!(
            hold.is_cached() && (1..=1 + readers).contains(&hold.refs().into()),
            "I1: block {block} at rest: {meta:?}"
        );
        assert!(!hold.has_writer(), "I7: block {block} at rest: {meta:?}");
        assert!(
            hold.views() == 0 || !hold.is_wmapped(),
            "views of a writable page: {meta:?}"
        );
        assert!(
            flags.contains(FlagSet::UPTODATE),
            "P20: block {block} at rest: {meta:?}"
        );
        assert!(
            hold.is_cold() || meta.is_marked(),
            "P1: block {block} is hot with a mark to make: {meta:?}"
        );
        let busy = FlagSet::LOCKED | FlagSet::WRITEBACK;
        assert!(
            !flags.intersects(busy),
            "I7: block {block} at rest: {meta:?}"
        );
        let is_dirty = flags.contains(FlagSet::DIRTY);
        assert_eq!(
            dirty.contains(block),
            is_dirty,
            "I5: block {block}: {meta:?}"
        );
        dirty_blocks += u64::from(is_dirty);
        next = block + 1;
    }
    for block in dirty.unsynced(0..u64::MAX).flatten() {
        let word = core.blocks.index.load(core.frames(), block);
        assert!(
            matches!(word, Word::Block(_)),
            "I5: block {block} is not synced, and {word:?}"
        );
    }
    drop(section);
    let blocks = core.size().div_ceil(core.block_bytes());
    core.blocks.extents.lock().punched.validate(blocks);
    assert_eq!(
        dirty.counts().dirty,
        dirty_blocks,
        "I5: dirty blocks that are not in the index"
    );
    assert!(
        core.blocks.fill_errors.lock().is_empty(),
        "P20: an error of a fill is left over"
    );
}

impl FileCore {
    /// Waits for all requests, until they have released their blocks as well.
    pub(crate) fn wait_all_landed(&self) {
        self.wait_landed(&(0..u64::MAX));
        self.requests.wait_quiet();
    }
}
