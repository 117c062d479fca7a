//! Views of blocks that have left their files: a truncate, or a writer that needed the place, took
//! the block, and the views keep its frame.
//!
//! A view counts on its file for the arena. When a block leaves with views, the thread that takes
//! it out counts them under the owner's mutex. From then on the owner keeps itself ([`SelfRef`])
//! and the frame (by the reference that the index had), until the last view is dropped. Why a
//! thread that drops a view finds the owner is in `docs/protocols/hold-word.md`.
//!
//! The count is in the metadata (`extra`), and changes under the mutex alone.

use super::hold::{Dropped, Viewed};
use super::meta::Meta;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::self_ref::SelfRef;

impl Meta {
    /// Takes the frame out of its file. The caller holds the block's lock; `me` is the views'
    /// owner, and has `keep`.
    pub(crate) fn uncache<K>(&self, keep: &SelfRef<K>, me: &Arc<K>) -> Dropped {
        if let Ok(now) = self.hold.leave_file(Viewed::Refused) {
            return now.after_drop();
        }
        // Locked before the block is out: a thread that finds it detached waits here until the
        // views are counted.
        let mut kept = keep.lock();
        match self.hold.leave_file(Viewed::Allowed) {
            Ok(now) => {
                if now.views() > 0 {
                    self.extra.store(u64::from(now.views()), Ordering::Relaxed);
                    kept.begin(me);
                }
                now.after_drop()
            }
            Err(now) => unreachable!("views may stay: {now:?}"),
        }
    }

    /// Counts one more view of a block that was detached when the view was made
    /// (`PutView::Detached`).
    pub(crate) fn detached_view_made<K>(&self, keep: &SelfRef<K>) {
        let _kept = keep.lock();
        let views = self.extra.load(Ordering::Relaxed);
        debug_assert!(views > 0, "a view of a detached block that is not counted");
        self.extra.store(views + 1, Ordering::Relaxed);
    }

    /// Counts one view less of a block that was detached when the view was dropped. Returns the
    /// frame's remaining state, and the owner's own reference if this was the last; the caller
    /// keeps the owner meanwhile.
    #[must_use = "both may be the last"]
    pub(crate) fn detached_view_gone<K>(&self, keep: &SelfRef<K>) -> (Dropped, Option<Arc<K>>) {
        let mut kept = keep.lock();
        let left = self.extra.load(Ordering::Relaxed) - 1;
        self.extra.store(left, Ordering::Relaxed);
        if left > 0 {
            return (Dropped::Held, None);
        }
        (self.hold.put(), kept.end())
    }
}
