//! The accessed state of a frame, and how a use changes it.
//!
//! | before | after a use |
//! |---|---|
//! | inactive | inactive, referenced |
//! | inactive, referenced | active |
//! | active | active, referenced |
//! | active, referenced | the same |
//! | unevictable | unevictable, referenced |
//!
//! "Active" is the flag ACTIVE. Once a frame is listed, the flag changes only under the lock of the
//! lists of the frame's group, so that list and flag agree. S3-FIFO differs in the second row: it
//! only remembers the use until the frame is at the tail.
//!
//! A frame in this thread's batch is marked there, and goes to the active list when the batch is
//! drained. A frame in another thread's batch stays inactive and referenced; its next use after the
//! drain makes it active.

use super::batch::thread_batch;
use super::lru::Lru;
use super::state::{ListKind, LruState, pages_of};
use crate::frame::{End, FlagSet, Frames, Uses};
use crate::group::GroupId;
use crate::stats::{Counters, Event};
use crate::sync::atomic::Ordering;
use crate::units::FrameId;

impl Lru {
    /// Handles another use of a frame that is inactive and referenced.
    #[cold]
    pub(crate) fn used_again(&self, frames: &Frames, counters: &Counters, id: FrameId) {
        if self.policy.activates_now() {
            return self.activate(frames, counters, id, thread_batch());
        }
        let uses = &frames.meta(id).uses;
        if !uses.has(Uses::AGAIN) {
            uses.set(Uses::AGAIN);
        }
    }

    /// Makes a frame active if it is on the inactive list, isolated, or in the batch `batch`. Does
    /// nothing if another thread has just moved the frame.
    #[cold]
    pub(crate) fn activate(&self, frames: &Frames, counters: &Counters, id: FrameId, batch: u8) {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        let seen = meta.lru.load();
        let state = LruState::of(seen);
        match state {
            LruState::None | LruState::List(ListKind::Unevictable | ListKind::Active) => return,
            LruState::Batch(number) if number != batch => return,
            _ => {}
        }
        let Some(mut locked) = self.lock_at(meta, seen) else {
            return;
        };
        meta.flags.set(FlagSet::ACTIVE);
        meta.take_mark(FlagSet::REFERENCED);
        // A frame that leaves a batch or isolation goes to the list that its flags name.
        if state == LruState::List(ListKind::Inactive) {
            locked.take(metas, id, ListKind::Inactive);
            locked.insert(metas, id, ListKind::Active, End::Front);
        }
        drop(locked);
        let pages = pages_of(meta);
        counters.add(Event::PgActivate, pages);
        let clock = &self.group(GroupId(meta.group())).clock;
        clock.fetch_add(pages, Ordering::Relaxed);
    }
}
