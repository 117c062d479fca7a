//! A view of several consecutive blocks: a view of each of them, and one slice of all their bytes.
//!
//! Such a view stores no list of its blocks: its bytes say which blocks it covers. So a part of the
//! view may cover fewer blocks. Dropping a view walks over the metadata of its blocks. The view of
//! each block is like any other: the block is in a file, or has left it with its views counted. As
//! long as one of these views is left, the owner lives ([`ViewOwner`]). So the walk may use the
//! owner until it has dropped the last view, and touches nothing after that.

use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::ptr::NonNull;

use super::hold::{Hold, PutView};
use super::pinned::{Pinned, SEVERAL, ViewOwner};
use super::tag::{HeldOf, Tag};
use crate::sync::Arc;
use crate::sys::copy;
use crate::units::{FrameId, PAGE_SIZE};

/// Views of consecutive blocks, collected one by one. Dropping the row drops them.
pub(crate) struct Row<'o, K: ViewOwner> {
    owner: &'o K,
    order: u8,
    first: FrameId,
    blocks: u32,
}

impl<'o, K: ViewOwner> Row<'o, K> {
    /// Creates a row without blocks, for blocks of this order.
    pub(crate) fn new(owner: &'o Arc<K>, order: u8) -> Row<'o, K> {
        Row {
            owner,
            order,
            first: FrameId::ZERO,
            blocks: 0,
        }
    }

    /// Returns the row of the blocks that `bytes` reaches into. There is a view of each of these
    /// blocks. Returns `None` in a child of fork(2), which has no metadata.
    fn of(owner: &'o K, bytes: NonNull<[u8]>) -> Option<Row<'o, K>> {
        let frames = owner.frames();
        if frames.is_wiped() {
            return None;
        }
        let start = bytes.cast::<u8>().addr().get();
        let first = frames.head_of(frames.frame_of(start));
        let order = frames.meta(first).order();
        let inside = start - frames.host(first).addr();
        Some(Row {
            owner,
            order,
            first,
            blocks: (inside + bytes.len()).div_ceil(PAGE_SIZE << order) as u32,
        })
    }

    /// Returns the first frame of the last block. The row must not be empty.
    pub(crate) fn last(&self) -> FrameId {
        assert!(self.blocks > 0, "an empty row");
        FrameId(self.first.0 + ((self.blocks - 1) << self.order))
    }

    /// Adds the block of a view. If the block has another order or does not follow the last one,
    /// drops the view and returns false.
    ///
    /// # Panics
    /// If the view has no bytes, or another owner.
    pub(crate) fn add(&mut self, view: Pinned<K>) -> bool {
        // If a view has bytes, its block is up to date.
        assert!(!view.is_empty() && std::ptr::eq(view.owner.cast(), self.owner));
        let Some(meta) = view.meta() else {
            return false;
        };
        let frame = self.owner.frames().id_of(meta);
        let next = FrameId(self.first.0 + (self.blocks << self.order));
        let is_whole = meta.order() == self.order;
        if !is_whole || self.blocks > 0 && frame != next {
            return false;
        }
        if self.blocks == 0 {
            self.first = frame;
        }
        self.blocks += 1;
        mem::forget(view);
        true
    }

    /// Turns the row into one view of its bytes `inside`, which reach into its first block and into
    /// its last.
    ///
    /// # Panics
    /// If the bytes do not reach into both.
    pub(crate) fn into_view(self, inside: Range<usize>) -> Pinned<K> {
        const { assert!(align_of::<K>() > SEVERAL, "the bit is free") }
        let block = PAGE_SIZE << self.order;
        assert!(inside.start < block && inside.end.div_ceil(block) == self.blocks as usize);
        let row = ManuallyDrop::new(self);
        let frames = row.owner.frames();
        let start = frames.start(row.first);
        // SAFETY: the pointer is inside the blocks, which are consecutive in the arena.
        let start = unsafe { start.add(inside.start) };
        let owner = std::ptr::from_ref(row.owner).cast::<()>();
        Pinned {
            bytes: NonNull::slice_from_raw_parts(start, inside.len()),
            block: (row.blocks == 1).then(|| NonNull::from_ref(frames.meta(row.first))),
            owner: match row.blocks {
                1 => owner,
                _ => owner.map_addr(|owner| owner | SEVERAL),
            },
            _of: PhantomData,
        }
    }
}

impl<K: ViewOwner> Drop for Row<'_, K> {
    fn drop(&mut self) {
        for at in 0..self.blocks {
            put_view(self.owner, FrameId(self.first.0 + (at << self.order)));
        }
    }
}

fn put_view<K: ViewOwner>(owner: &K, block: FrameId) {
    let meta = owner.frames().meta(block);
    if meta.hold.put_view() == PutView::Detached {
        owner.detached_view_gone(meta);
    }
}

impl<K: ViewOwner> Pinned<K> {
    /// Returns the owner of a view of several blocks, or `None` if this view is of another kind.
    fn row_owner(&self) -> Option<&K> {
        let is_row = self.block.is_none() && self.owner.addr() & SEVERAL != 0;
        let owner = self.owner.map_addr(|owner| owner & !SEVERAL);
        let owner = owner.cast::<K>();
        // SAFETY: the pointer is the one that `Row::into_view` or `find_pair` stored; `self` keeps
        // the owner alive.
        is_row.then(|| unsafe { &*owner })
    }

    /// Returns a view of `len` bytes that begins `in_page` bytes into the page with the first tag
    /// and ends in the page with the second tag: the usual small view across a block's end. Returns
    /// `None` unless the first page is where it was last found, the second page comes right after
    /// it, and both are hot.
    ///
    /// # Panics
    /// If the bytes do not begin in the first page, or reach beyond the second.
    #[inline]
    pub(crate) fn find_pair(
        owner: &K,
        tags: [Tag; 2],
        in_page: usize,
        len: usize,
    ) -> Option<Pinned<K>> {
        assert!(in_page < PAGE_SIZE && in_page + len <= 2 * PAGE_SIZE);
        let frames = owner.frames();
        let first = frames.lookaside.guess(tags[0]);
        let pair = frames.metas().get(first.index()..first.index() + 2)?;
        let start = frames.start(first).as_ptr().wrapping_add(in_page);
        // The cache lines are fetched at the same time. Otherwise the atomic change of the first
        // hold word would keep the loads after it waiting.
        frames.prefetch_meta(FrameId(first.0 + 1));
        copy::prefetch::<1>(start);
        copy::prefetch::<1>(start.wrapping_add(len - 1));
        for (taken, (meta, tag)) in pair.iter().zip(tags).enumerate() {
            let held = meta.try_hold_of(tag, Hold::try_view_hot);
            if held != HeldOf::Sought {
                let count = taken + usize::from(held == HeldOf::Other);
                let ids = (first.0..).map(FrameId);
                ids.take(count).for_each(|id| put_view(owner, id));
                return None;
            }
        }
        let owner = std::ptr::from_ref(owner).cast::<()>();
        Some(Pinned {
            // SAFETY: the bytes are inside the two frames, which are consecutive in the arena; they
            // are up to date, see `Meta::warm`.
            bytes: NonNull::slice_from_raw_parts(unsafe { frames.start(first).add(in_page) }, len),
            block: None,
            owner: owner.map_addr(|owner| owner | SEVERAL),
            _of: PhantomData,
        })
    }

    /// Returns whether this is a view of several blocks.
    pub(super) fn is_row(&self) -> bool {
        self.row_owner().is_some()
    }

    /// Returns a view of `bytes`, which are a part of this view's bytes and must not be empty.
    /// Returns `None` if this is not a view of several blocks, if the count of a block's views is
    /// full, or in a child of fork(2).
    pub(super) fn part_of_row(&self, bytes: NonNull<[u8]>) -> Option<Pinned<K>> {
        let owner = self.row_owner()?;
        let frames = owner.frames();
        let whole = ManuallyDrop::new(Row::of(owner, bytes)?);
        let mut row = Row {
            blocks: 0,
            ..*whole
        };
        for at in 0..whole.blocks {
            let meta = frames.meta(FrameId(row.first.0 + (at << row.order)));
            match meta.hold.try_clone_view()? {
                PutView::Kept => {}
                PutView::Detached => owner.detached_view_made(meta),
            }
            row.blocks += 1;
        }
        let inside = bytes.cast::<u8>().addr().get() - frames.host(row.first).addr();
        Some(row.into_view(inside..inside + bytes.len()))
    }

    /// Drops a view of several blocks.
    pub(super) fn drop_row(&mut self) {
        drop(
            self.row_owner()
                .and_then(|owner| Row::of(owner, self.bytes)),
        );
    }
}
