//! Views of blocks that have left their files: a truncate, or a writer that needed the place, took
//! the block, and the views keep its frame.
//!
//! A view counts on its file for the arena. When a block leaves with views, whoever takes it out
//! counts them, under the owner's mutex, and from then on the owner keeps itself ([`SelfRef`])
//! and the frame (by the reference that the index had). Who drops a view, or makes a second one,
//! sees in the hold word that the block is outside, and has it counted here. With the last one the
//! owner lets both go. So whoever still has to tell of a drop is counted, and finds owner and
//! metadata.
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
        // Before the block is out: who finds it outside waits here until they are counted.
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

    /// One view more of a block that was outside its file when it was made: `PutView::Detached` said
    /// so.
    pub(crate) fn detached_view_made<K>(&self, keep: &SelfRef<K>) {
        let _kept = keep.lock();
        let views = self.extra.load(Ordering::Relaxed);
        debug_assert!(views > 0, "a view of a block outside that is not counted");
        self.extra.store(views + 1, Ordering::Relaxed);
    }

    /// One view less of a block that was outside its file when it was dropped. What is left of the
    /// frame, and of the owner, which the caller keeps meanwhile.
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
