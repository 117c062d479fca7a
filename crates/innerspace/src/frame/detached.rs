//! Views of blocks that have left their files. A truncate, or a writer that needed the block's
//! place, removed the block from the index, and the views keep its frame.
//!
//! While a block is in its file, its views rely on the file to keep the arena alive. When a block
//! with views leaves, the thread that removes it counts those views under their owner's mutex. From
//! then on the owner keeps itself alive ([`SelfRef`]), and keeps the frame by the index's former
//! reference, until the last of the views is dropped. `docs/protocols/hold-word.md` says why a
//! thread that drops such a view finds the owner.
//!
//! The count is in the metadata (`extra`), and changes only under the mutex.

use super::hold::{Dropped, Viewed};
use super::meta::Meta;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::self_ref::SelfRef;

impl Meta {
    /// Removes the frame from its file, and returns whether it is still held. The caller holds the
    /// block's lock. `me` is the owner of the views, and contains `keep`.
    pub(crate) fn uncache<K>(&self, keep: &SelfRef<K>, me: &Arc<K>) -> Dropped {
        if let Ok(now) = self.hold.leave_file(Viewed::Refused) {
            return now.after_drop();
        }
        // The mutex is taken before the block leaves: a thread that finds the block detached then
        // waits for the mutex until the views are counted.
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

    /// Counts one more view of a block that was already detached when the view was made
    /// (`PutView::Detached`).
    pub(crate) fn detached_view_made<K>(&self, keep: &SelfRef<K>) {
        let _kept = keep.lock();
        let views = self.extra.load(Ordering::Relaxed);
        debug_assert!(views > 0, "a view of a detached block that is not counted");
        self.extra.store(views + 1, Ordering::Relaxed);
    }

    /// Subtracts a dropped view from the count of its block, which was detached before the drop.
    /// Returns whether the frame is still held and, after the last view, the reference by which the
    /// owner kept itself alive. The caller keeps the owner alive during the call.
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
