//! Doubly linked lists of frames, threaded through the metadata: the buddy allocator's free lists,
//! the LRU's lists.
//!
//! The links are atomics for the compiler's sake only; the list's owner serialises all access, so
//! every one is relaxed.

use super::meta::Meta;
use crate::FrameId;
use crate::sync::atomic::Ordering;

/// A doubly linked list of frames, threaded through their metadata. Its owner holds the lock.
///
/// A frame is in at most one list. The list does not know its lock: every method wants `&mut self`,
/// and the two users (the buddy allocator, the LRU) keep their lists inside the mutex that guards
/// them.
#[derive(Debug, Default)]
pub(crate) struct FrameList {
    head: u32,
    tail: u32,
    len: u32,
}

impl FrameList {
    /// An empty list.
    pub(crate) const fn new() -> FrameList {
        FrameList {
            head: 0,
            tail: 0,
            len: 0,
        }
    }

    /// The number of frames (blocks) in the list.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The first frame.
    pub(crate) fn front(&self) -> Option<FrameId> {
        (self.head != 0).then_some(FrameId(self.head))
    }

    /// The last frame.
    pub(crate) fn back(&self) -> Option<FrameId> {
        (self.tail != 0).then_some(FrameId(self.tail))
    }

    /// The frame after `id`.
    pub(crate) fn after(&self, metas: &[Meta], id: FrameId) -> Option<FrameId> {
        let next = metas[id.index()].links.next.load(Ordering::Relaxed);
        (next != 0).then_some(FrameId(next))
    }

    /// The frame before `id`.
    pub(crate) fn before(&self, metas: &[Meta], id: FrameId) -> Option<FrameId> {
        let prev = metas[id.index()].links.prev.load(Ordering::Relaxed);
        (prev != 0).then_some(FrameId(prev))
    }

    /// Adds a frame at the front.
    pub(crate) fn push_front(&mut self, metas: &[Meta], id: FrameId) {
        self.insert(metas, id.0, 0, self.head);
    }

    /// Adds a frame at the back.
    pub(crate) fn push_back(&mut self, metas: &[Meta], id: FrameId) {
        self.insert(metas, id.0, self.tail, 0);
    }

    /// Takes the first frame out.
    pub(crate) fn pop_front(&mut self, metas: &[Meta]) -> Option<FrameId> {
        let id = self.front()?;
        self.remove(metas, id);
        Some(id)
    }

    /// Takes a frame out that is in this list.
    pub(crate) fn remove(&mut self, metas: &[Meta], id: FrameId) {
        let links = &metas[id.index()].links;
        // Not two swaps, which are locked instructions: no other thread changes these.
        let prev = links.prev.load(Ordering::Relaxed);
        let next = links.next.load(Ordering::Relaxed);
        links.prev.store(0, Ordering::Relaxed);
        links.next.store(0, Ordering::Relaxed);
        self.set_next(metas, prev, next);
        self.set_prev(metas, next, prev);
        self.len -= 1;
    }

    fn insert(&mut self, metas: &[Meta], id: u32, prev: u32, next: u32) {
        let links = &metas[id as usize].links;
        links.prev.store(prev, Ordering::Relaxed);
        links.next.store(next, Ordering::Relaxed);
        self.set_next(metas, prev, id);
        self.set_prev(metas, next, id);
        self.len += 1;
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
