//! Anonymous pages that do not change: the bytes of a snapshot as slices, and copying them back.
//!
//! Unsafe code: this file makes slices of anonymous pages, copies them and stores into them. No
//! thread writes a page of a snapshot: every leaf that has the page is shared or borrows it, its
//! owner's write validity is taken away before the first slice is made, and a page with views is
//! not written in place ([`Nodes::is_sole_owner`]). A page is overwritten only while its space's
//! gate is closed, and only if its leaf alone owns it and it has no views.

use std::ops::{Deref, Range};
use std::ptr::NonNull;

use super::nodes::Nodes;
use super::pte::{self, Holds, Pte};
use crate::frame::HoldState;
use crate::reclaim::Pool;
use crate::space::core::address::slot_index;
use crate::sync::Arc;
use crate::sys::copy;
use crate::{FrameId, PAGE_SIZE};

/// The number of bytes that a comparison copies at a time.
pub(crate) const COMPARED: usize = 512;

/// Bytes of one page of a snapshot, kept while this value lives.
pub(crate) struct StillPage {
    pool: Arc<Pool>,
    frame: FrameId,
    bytes: NonNull<[u8]>,
}

// SAFETY: no thread writes the bytes while a view of the page is held (see the module), so any
// thread may read them.
unsafe impl Send for StillPage {}
// SAFETY: as above; a shared reference gives out nothing but `&[u8]`.
unsafe impl Sync for StillPage {}

impl Deref for StillPage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pool keeps the arena mapped, the view keeps the frame from being freed, and
        // no thread writes a page with views (see the module).
        unsafe { self.bytes.as_ref() }
    }
}

impl Drop for StillPage {
    fn drop(&mut self) {
        self.pool.put_view_still(self.frame);
    }
}

impl Nodes<'_> {
    /// Returns whether the leaf that owns this page is its only user. Pins are ignored: a store
    /// must reach the pinned page itself, not a copy.
    pub(crate) fn is_sole_owner(self, page: Pte) -> bool {
        self.state(self.frame_of(page)).is_one_ref()
    }

    /// Returns the bytes `range` of the anonymous page at `at` in a snapshot's table; `None` if
    /// there is no such page, or if the page has too many views to count. The caller is in a
    /// section, inside the gate.
    pub(crate) fn still_page(
        self,
        pool: &Arc<Pool>,
        at: u64,
        range: Range<usize>,
    ) -> Option<StillPage> {
        assert!(range.start <= range.end && range.end <= PAGE_SIZE);
        let leaf = self.find(at)?;
        let index = slot_index(at, 0);
        let page = pte::load(&self.words(leaf.frame)[index]);
        if !matches!(page.holds(), Holds::Own | Holds::Borrowed) {
            return None;
        }
        // If a live space is the last to have the owning leaf, it would find the leaf exclusive,
        // with write validity from before the snapshot. That validity is taken now, so the space's
        // next store faults, and finds the view.
        self.end_writes_in_place(leaf.frame, index);
        let frame = self.frame_of(page);
        if !self.pool.frames.meta(frame).hold.try_view_still() {
            return None;
        }
        // SAFETY: the address is inside the frame, which is inside the arena, so it is not null.
        let start = unsafe { NonNull::new_unchecked(pool.frames.host(frame).add(range.start)) };
        Some(StillPage {
            pool: pool.clone(),
            frame,
            bytes: NonNull::slice_from_raw_parts(start, range.len()),
        })
    }

    /// Copies the anonymous page at `at` in a snapshot's table to `into`. The table has an
    /// anonymous page there. The caller keeps the snapshot, so the page does not change even
    /// without a view. The caller is in a section, inside the gate.
    pub(crate) fn copy_still_page(self, at: u64, into: &mut [u8; PAGE_SIZE]) {
        let leaf = self.find(at).expect("a snapshot's table loses no leaf");
        let page = pte::load(&self.words(leaf.frame)[slot_index(at, 0)]);
        let from = self.pool.frames.host(self.frame_of(page));
        // SAFETY: a whole frame of the arena, which the snapshot keeps; `into` is an exclusive
        // slice, and no part of the arena.
        unsafe { copy::copy_in(into, from) }
    }

    /// Returns the frame of a leaf's own page, if the page has no other user: no other leaf, no
    /// view, no pin.
    #[inline]
    pub(crate) fn frame_alone(self, page: Pte) -> Option<FrameId> {
        if page.holds() != Holds::Own {
            return None;
        }
        let frame = self.frame_of(page);
        (self.state(frame) == HoldState::refs_only(1)).then_some(frame)
    }

    /// Overwrites a page with the bytes of the frame `image`. The gate of the page's space is
    /// closed.
    ///
    /// # Panics
    /// Panics if anything other than its leaf keeps the page.
    #[inline]
    pub(crate) fn overwrite(self, page: Pte, image: FrameId) {
        let frame = self.frame_alone(page);
        let frame = frame.expect("I11: overwriting a page that others see");
        let frames = &self.pool.frames;
        let to = frames.host(frame);
        assert_ne!(image, frame, "a page restored from itself");
        match image {
            // SAFETY: a whole frame of the arena; no slice of it exists, since it has no views, and
            // no access is under way, since the gate is closed.
            FrameId::ZERO => unsafe { copy::zero_page(to) },
            // SAFETY: as above; two different frames do not overlap.
            from => unsafe { copy::copy_page(to, frames.host(from)) },
        }
    }

    /// Returns whether the bytes of a page are the same as those of the frame `image`.
    pub(crate) fn is_as(self, page: Pte, image: FrameId) -> bool {
        let frames = &self.pool.frames;
        let piece_of = |frame, at| {
            let mut bytes = [0; COMPARED];
            // SAFETY: the bytes read are inside a frame of the arena; `bytes` is no part of the
            // arena.
            unsafe { copy::copy_in(&mut bytes, frames.host(frame).add(at)) };
            bytes
        };
        let mut pieces = (0..PAGE_SIZE).step_by(COMPARED);
        pieces.all(|at| piece_of(self.frame_of(page), at) == piece_of(image, at))
    }
}
