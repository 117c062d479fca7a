//! Doubly linked lists of frames, threaded through the metadata: the free lists of the buddy
//! allocator and the LRU lists.
//!
//! The links are atomics only to satisfy the compiler. The list's owner serialises all access, so
//! every access is relaxed.

use super::meta::Meta;
use crate::FrameId;
use crate::sync::atomic::Ordering;

/// A doubly linked list of frames, threaded through their metadata.
///
/// A frame is in at most one list. A list has no lock: every change takes `&mut self`. The two
/// users of lists, the buddy allocator and the LRU, keep their lists inside the mutex that guards
/// them.
#[derive(Debug, Default)]
pub(crate) struct FrameList {
    head: u32,
    tail: u32,
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Front,
    Back,
}

impl FrameList {
    /// Returns the first frame.
    pub(crate) fn front(&self) -> Option<FrameId> {
        (self.head != 0).then_some(FrameId(self.head))
    }

    /// Returns the last frame.
    pub(crate) fn back(&self) -> Option<FrameId> {
        (self.tail != 0).then_some(FrameId(self.tail))
    }

    /// Returns the frame before `id`.
    pub(crate) fn before(&self, metas: &[Meta], id: FrameId) -> Option<FrameId> {
        let prev = metas[id.index()].links.prev.load(Ordering::Relaxed);
        (prev != 0).then_some(FrameId(prev))
    }

    /// Adds a frame at one end.
    #[inline]
    pub(crate) fn push(&mut self, metas: &[Meta], id: FrameId, end: End) {
        let (prev, next) = match end {
            End::Front => (0, self.head),
            End::Back => (self.tail, 0),
        };
        let links = &metas[id.index()].links;
        links.prev.store(prev, Ordering::Relaxed);
        links.next.store(next, Ordering::Relaxed);
        self.set_next(metas, prev, id.0);
        self.set_prev(metas, next, id.0);
    }

    /// Removes the first frame, and returns it.
    pub(crate) fn pop_front(&mut self, metas: &[Meta]) -> Option<FrameId> {
        let id = self.front()?;
        self.remove(metas, id);
        Some(id)
    }

    /// Removes a frame, which must be in this list.
    pub(crate) fn remove(&mut self, metas: &[Meta], id: FrameId) {
        let links = &metas[id.index()].links;
        // Loads and stores, not swaps, which are locked instructions: no other thread changes these
        // links.
        let prev = links.prev.load(Ordering::Relaxed);
        let next = links.next.load(Ordering::Relaxed);
        links.prev.store(0, Ordering::Relaxed);
        links.next.store(0, Ordering::Relaxed);
        self.set_next(metas, prev, next);
        self.set_prev(metas, next, prev);
    }

    fn set_next(&mut self, metas: &[Meta], id: u32, next: u32) {
        match id {
            0 => self.head = next,
            id => metas[id as usize].links.next.store(next, Ordering::Relaxed),
        }
    }

    fn set_prev(&mut self, metas: &[Meta], id: u32, prev: u32) {
        match id {
            0 => self.tail = prev,
            id => metas[id as usize].links.prev.store(prev, Ordering::Relaxed),
        }
    }
}
