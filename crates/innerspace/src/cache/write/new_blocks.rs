//! New blocks of a writer: when other threads can first see them, they are complete, up to date,
//! referenced, dirty, and not locked.
//!
//! The mutex of the index, which also guards the dirty index, takes the place of a block lock.
//! Under that mutex, the blocks enter the index, then the file becomes long enough for them, and
//! then they enter the dirty index. No thread writes the blocks back before that, and since they
//! are flagged DIRTY all the time, no thread evicts them. Another writer of such a block finds it
//! dirty; if that writer syncs, it waits for this mutex.
//!
//! **Appends.** A page at or past the end of the file is almost never cached: it is made without a
//! lookup, and if another thread made it first, the insertion finds it. `invalidate` is not held
//! either. The append is one step under the mutex of the index, and a thread that locks the file
//! exclusively notes this under the same mutex (`DirtyIndex::is_locked_alone`). So the append comes
//! wholly before or wholly after a cut. After a cut, it makes the file longer again, as any later
//! write would. If one step is not enough (a node is missing, a block is there, the last page is
//! not whole, there is now a mapping, the file is locked exclusively), the page is freed, and its
//! bytes take the path of other writes.
//!
//! **Runs.** A long write takes the resources for up to [`RUN`] whole pages together: charges,
//! frames, and places in the index, in the dirty index and on the LRU list. If these cannot be
//! obtained without waiting, the first of the pages is written alone, and waits, reclaims or fails
//! alone. So a write that fails half-way has written the pages before the failing one, and no more.
//!
//! **Past the caches.** If the bytes of a write and their frames would fill a core's cache, the
//! bytes are copied by non-temporal stores, which neither read a cache line before they fill it nor
//! evict other lines ([`PAST_CACHES`]). These stores are not ordered with others, so they are
//! fenced once for each run, before the first of its frames is published.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::dirty::index::DirtyIndex;
use crate::cache::dirty::limits::dirty_room;
use crate::cache::dirty::marks::{dirty_entry, publish};
use crate::cache::errors::FileError;
use crate::cache::index::spare_nodes::SpareNodes;
use crate::cache::lookup::get::Basis;
use crate::cache::read::holes::Content;
use crate::cache::write::in_place::clear_tail_before;
use crate::frame::{Dropped, FlagSet, HoldState, OwnedFrame};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::sync::atomic::Ordering;
use crate::sync::panics::Panics;
use crate::sys::copy::Quarter;
use crate::units::{FrameId, PAGE_SIZE};

/// The most pages of a long write that are allocated and inserted together.
const RUN: u64 = 16;

/// The new content of a part of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'b> {
    /// These bytes.
    Bytes(&'b [u8]),
    /// This many zeros.
    Zeros(usize),
}

/// The length of the shortest write whose bytes and frames together fill a second-level cache of 1
/// MiB. Writes of at least this length are copied past the caches. (On a Zen 4 with 1 MiB, writing
/// 16 or 128 MiB by calls of 512 KiB and 1 MiB takes 185 to 217 ns a page instead of 385 to 493. If
/// the bytes are also read back, immediately or at the end, the total is 487 to 561 ns instead of
/// 591 to 854. Shorter writes that reuse the same few frames, 2 MiB for example, are faster through
/// the caches.)
const PAST_CACHES: usize = match cfg!(any(shuttle, miri)) {
    true => 2 * PAGE_SIZE, // so that the checkers get here
    false => 512 << 10,
};

impl Source<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Zeros(len) => len,
        }
    }

    pub(crate) fn store_into(self, into: &mut [u8]) {
        match self {
            Source::Bytes(bytes) => into.copy_from_slice(bytes),
            Source::Zeros(_) => into.fill(0),
        }
    }
}

/// Makes a block of the bytes of `source`, with zeros around them. `content` is what the store has
/// there. Returns false if another thread made one first, or `basis` no longer holds.
pub(crate) fn write_new_block(
    core: &FileCore,
    block: u64,
    inside: Range<usize>,
    source: Source<'_>,
    (content, basis): (Content, Basis),
) -> Result<bool, FileError> {
    let end = (block << core.block_shift()) + inside.end as u64;
    let fill = |bytes: &mut [u8]| {
        if inside.len() < bytes.len() {
            bytes[..inside.start].fill(0);
            bytes[inside.end..].fill(0);
        }
        source.store_into(&mut bytes[inside.clone()]);
    };
    if content == Content::Hole && !core.mappers.is_empty() {
        let made = core.create_over_hole(block, end, basis, fill)?;
        return Ok(made.is_some());
    }
    let insert = |frame| {
        let holds = || core.holds(basis);
        let (made, result) = insert_complete(core, block, &[frame], end, AllocMode::Wait, holds);
        result.map(|()| made > 0)
    };
    write_new(core, block, fill, insert)
}

/// Makes a block. `fill` fills its frame, and `insert` inserts it in the index.
///
/// The free frame that will probably be allocated next is prefetched in quarters, while there is
/// other work to do. If it were prefetched as a whole, the thread would wait for its cache lines.
/// Two quarters are prefetched after a page is filled, and the other two before the next page is
/// filled.
#[inline(always)]
fn write_new(
    core: &FileCore,
    block: u64,
    fill: impl FnOnce(&mut [u8]),
    insert: impl FnOnce(FrameId) -> Result<bool, FileError>,
) -> Result<bool, FileError> {
    let (frames, group) = (core.frames(), core.id.group.id());
    let from_cache = match core.id.order {
        0 => core.pool.alloc_page_from_thread_cache(group),
        _ => None,
    };
    // The handle of a page from the thread's own cache stays in registers.
    match from_cache {
        Some((page, next)) => fill_and_insert(core, block, (page, next), fill, insert),
        None => {
            let page = core.alloc(AllocMode::Wait)?;
            fill_and_insert(core, block, (page, frames.next_single()), fill, insert)
        }
    }
}

/// Fills a frame and inserts it. Prefetches the second half of this frame before it is filled, and
/// the first half of the next frame afterwards.
#[inline(always)]
fn fill_and_insert(
    core: &FileCore,
    block: u64,
    (mut page, next): (PoolFrame<'_>, Option<FrameId>),
    fill: impl FnOnce(&mut [u8]),
    insert: impl FnOnce(FrameId) -> Result<bool, FileError>,
) -> Result<bool, FileError> {
    let frames = core.frames();
    page.prefetch(Quarter::Third);
    page.prefetch(Quarter::Fourth);
    fill(page.bytes_mut());
    if let Some(next) = next {
        frames.prefetch_free(next, Quarter::First);
    }
    let made = insert(publish_complete(core, page, block));
    if let Some(next) = next {
        frames.prefetch_free(next, Quarter::Second);
    }
    made
}

/// Writes the first page of `bytes` at or past the end of the file, in one step. Returns false,
/// with nothing written, if that takes more steps, if `bytes` is shorter than a page or has a
/// second whole page, or if the file's blocks are larger than a page.
#[inline]
pub(crate) fn append_page(core: &FileCore, offset: u64, bytes: &[u8]) -> Result<bool, FileError> {
    let size = core.size();
    if core.id.order > 0
        || !(PAGE_SIZE..2 * PAGE_SIZE).contains(&bytes.len())
        || offset < size
        || core.inside_block(offset | size) > 0
        || !core.mappers.is_empty()
    {
        return Ok(false);
    }
    let block = offset >> core.block_shift();
    let fill = |frame: &mut [u8]| frame.copy_from_slice(&bytes[..PAGE_SIZE]);
    write_new(core, block, fill, |frame| {
        Ok(insert_appended(core, block, frame))
    })
}

/// Puts a complete page in its place, if that is one step under the mutex of the index. If not,
/// frees the page. A log is mostly written by such steps, which take 6 % less time than the general
/// `insert_complete`.
#[inline(always)]
fn insert_appended(core: &FileCore, block: u64, frame: FrameId) -> bool {
    // From here on reclaim may find the page, but sees that it is not (yet) in the index.
    core.pool.lru_add(frame);
    let blocks = block..block + 1;
    let mut writer = core.blocks.index.write();
    // Under the mutex, these conditions stay true until the page is in.
    let made = !writer.guarded().is_locked_alone()
        && !core.is_closed()
        && core.inside_block(core.size()) == 0
        && core.mappers.is_empty()
        && writer.insert_one(core.frames(), block, frame);
    if made {
        let end = blocks.end << core.block_shift();
        note_new(core, writer.guarded(), blocks.clone(), end);
    }
    drop(writer);
    match made {
        // While the mutex was held, there was no mapping. The faults of a later one see the page.
        true => {
            core.cut_known_hole(&blocks);
            core.ready.filled(blocks);
        }
        false => take_back(core, frame),
    }
    made
}

/// Frees a complete block that is not in the index.
#[cold]
pub(crate) fn take_back(core: &FileCore, frame: FrameId) {
    core.pool.lru_remove(frame);
    // A lookup that read an old index word may briefly hold the block.
    if core.pool.uncache(frame) == Dropped::Last {
        core.pool.free(frame);
    }
}

/// Writes the first whole pages of `bytes`, up to the first page that is already cached: as many as
/// fit in a run and under the dirty limit, and as there are frames for. `bytes` is the rest of a
/// write of `write_len` bytes. Returns how many bytes it wrote: 0 if the first page has to be
/// written alone.
pub(crate) fn write_new_run(
    core: &FileCore,
    offset: u64,
    bytes: &[u8],
    write_len: usize,
    _steady: &InvalidateGuard<'_>,
) -> Result<usize, FileError> {
    let whole = bytes.len() as u64 >> core.block_shift();
    // A mapping may show holes in these pages, whose translations would have to be revoked before
    // the bytes change.
    if whole < 2 || core.id.order > 0 || core.inside_block(offset) > 0 || !core.mappers.is_empty() {
        return Ok(0);
    }
    let first = offset >> core.block_shift();
    let room = dirty_room(core, whole.min(RUN));
    let absent = absent_from(core, first, room);
    if absent < 2 {
        return Ok(0);
    }
    clear_tail_before(core, (first + absent) << core.block_shift())?;
    let mut frames = core.pool.alloc_some(core.id.group.id(), absent as usize);
    if frames.is_empty() {
        return Ok(0);
    }
    let (pages, _) = bytes.as_chunks::<PAGE_SIZE>();
    let owned = frames.iter_mut().map(|frame| &mut **frame);
    let filled = write_len >= PAST_CACHES && OwnedFrame::stream_in(owned, pages);
    let mut ids = Vec::with_capacity(frames.len());
    let mut frames = frames.into_iter();
    while let Some(mut frame) = frames.next() {
        if !filled {
            // The next frame is fetched while this one is filled.
            if let Some(next) = frames.as_slice().first() {
                next.prefetch_whole();
            }
            frame.bytes_mut().copy_from_slice(&pages[ids.len()]);
        }
        ids.push(publish_complete(core, frame, first + ids.len() as u64));
    }
    let end = (first + ids.len() as u64) << core.block_shift();
    // An error is not returned: the next page is then written alone, and waits, reclaims or fails
    // alone.
    let (made, _) = insert_complete(core, first, &ids, end, AllocMode::Wait, || true);
    Ok(made << core.block_shift())
}

/// Returns the number of blocks from `first` to the first one that is cached now, but at most
/// `most`.
fn absent_from(core: &FileCore, first: u64, most: u64) -> u64 {
    let _section = core.pool.domain.reader();
    let end = first + most;
    let next = core.blocks.index.next_block(core.frames(), first, end);
    next.map_or(end, |(block, _)| block) - first
}

/// Publishes a block that already has its bytes. Until it is in the index, no lookup finds it.
#[inline(always)]
pub(crate) fn publish_complete(core: &FileCore, owned: PoolFrame<'_>, block: u64) -> FrameId {
    let flags = FlagSet::UPTODATE | FlagSet::DIRTY | FlagSet::REFERENCED;
    core.publish(owned, block, flags, HoldState::cached(1))
}

/// Notes new blocks of a writer: the file is at least `end` bytes long, the blocks are dirty, and
/// they are no longer holes. Called under the mutex of the index, just after the blocks have
/// entered the index.
#[inline(always)]
pub(crate) fn note_new(core: &FileCore, dirty: &mut DirtyIndex, blocks: Range<u64>, end: u64) {
    core.grow_locked(end);
    dirty.insert_run(blocks, dirty_entry(core));
    publish(core, dirty);
    // Release pairs with the loads of the epoch in page faults: a fault that reads the new epoch
    // finds the blocks in the index. The load here is Relaxed because the epoch changes only under
    // this mutex.
    let epoch = core.blocks.hole_epoch.load(Ordering::Relaxed);
    core.blocks.hole_epoch.store(epoch + 1, Ordering::Release);
}

/// Inserts complete blocks in the index, from `first` on. Makes the file reach at least to their
/// end, or to `end` if that is smaller. Each round inserts as many blocks as there are nodes for,
/// under the mutex of the index: `may` decides whether they may be inserted, they enter the index,
/// and the file grows. To writeback, a round is one step. Returns the number of blocks inserted.
///
/// The rest are freed, because another thread has made one of them, the file is closed, `may` has
/// refused, or no node could be allocated. In the last case the error is also returned. If a store
/// panics while memory is reclaimed for a node, the panic resumes at the end. With
/// [`AllocMode::NoWait`], the caller's `may` must refuse if there is a mapping.
pub(crate) fn insert_complete(
    core: &FileCore,
    first: u64,
    frames: &[FrameId],
    end: u64,
    mode: AllocMode,
    may: impl Fn() -> bool,
) -> (usize, Result<(), FileError>) {
    // From here on reclaim may find the blocks, but sees that they are not (yet) in the index.
    core.pool.lru_add_run(frames);
    let (mut done, mut panics) = (0, Panics::default());
    let mut spares = SpareNodes::new(&core.pool, core.id.group.id());
    let mut shadows = Vec::new();
    let result = loop {
        let mut writer = core.blocks.index.write();
        // Under the mutex, these conditions stay true until the blocks are in.
        if core.is_closed() || !may() {
            break Ok(());
        }
        let (next, left) = (first + done as u64, &frames[done..]);
        let inserted = writer.insert(core.frames(), next, left, spares.nodes(), &mut shadows);
        if inserted.blocks > 0 {
            done += inserted.blocks;
            let blocks = next..first + done as u64;
            let end = end.min(blocks.end << core.block_shift());
            note_new(core, writer.guarded(), blocks, end);
        }
        drop(writer);
        let Some(count) = inserted.need_nodes else {
            break Ok(());
        };
        // Memory is reclaimed for the nodes, and a store that is called for that may panic.
        let mut ensured = None;
        panics.catch(|| ensured = Some(spares.ensure(count, mode)));
        match ensured {
            Some(Ok(())) => {}
            Some(Err(full)) => break Err(full.into()),
            None => break Ok(()),
        }
    };
    for frame in &frames[done..] {
        take_back(core, *frame);
    }
    if done > 0 {
        let blocks = first..first + done as u64;
        match mode {
            // `may` has seen no mapping under the mutex of the index, and the faults of a later
            // mapping see the blocks.
            AllocMode::NoWait => core.cut_known_hole(&blocks),
            // A mapping made meanwhile may show the hole. If the file is still not mapped, this
            // call does no more than the one above.
            _ => core.end_hole_moved(blocks.clone()),
        }
        core.ready.filled(blocks);
    }
    for shadow in shadows {
        // The block is written, not read, so it stays inactive. Its frame is not touched, since
        // it may be freed already.
        let _where_a_read_would_be = core.count_refault(shadow);
    }
    panics.go_on();
    (done, result)
}
