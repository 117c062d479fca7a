//! Looking at mapped pages before memory is full.
//!
//! A page that a fault brought in has its accessed bit set, and so has one that was used a thousand
//! times since. If reclaim looked at them only when it needs a page, it would know nothing of
//! either, and take the older. So once a group is half full, each batch of new pages has twice as
//! many looked at from the tail of its inactive list: what was used goes to the head, referenced;
//! what was used again by the next look becomes active; what was not stays at the tail, to be
//! evicted first.

use super::batch::BATCH_LEN;
use super::lru::{Evictable, ListKind};
use super::pool::Pool;
use super::shrink::{Hands, is_awaited};
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Pages looked at for each batch of new ones: all of them once while the second half of the group
/// fills up.
const LOOKS: usize = 2 * BATCH_LEN;

/// A group whose inactive list has grown by a batch; 0 for none, else one more than its number. One
/// is enough: it is a hint.
#[derive(Default)]
pub(super) struct AgingDue(AtomicU32);

impl AgingDue {
    pub(super) fn set(&self, group: u16) {
        self.0.store(u32::from(group) + 1, Ordering::Relaxed);
    }

    #[inline]
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn take(&self) -> Option<GroupId> {
        let number = self.0.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(GroupId(number as u16))
    }
}

impl Pool {
    /// Looks at some mapped pages if new ones have come in. Outside every section; blocks may be
    /// locked, for nothing is waited for.
    #[inline]
    pub(super) fn age_if_due(&self) {
        if self.lru.aging_due.is_set() {
            self.age_due();
        }
    }

    #[cold]
    fn age_due(&self) {
        if self.in_store_scope() {
            return;
        }
        let Some(group) = self.lru.aging_due.take() else {
            return;
        };
        let half_full = |id| {
            let max = self.groups.max(id).map_or(u64::MAX, |max| max.0);
            self.groups.charged(id).0 > max / 2
        };
        if self.groups.path(group).any(half_full) && self.tail_is_mapped(group) {
            self.age_tail(group);
        }
    }

    fn tail_is_mapped(&self, group: GroupId) -> bool {
        let lists = self.lru.group(group).lock();
        let tail = lists.lists.list(ListKind::Inactive).back();
        tail.is_some_and(|id| self.frames.meta(id).hold.load().mapped() > 0)
    }

    /// One look at the tail of the inactive list.
    fn age_tail(&self, group: GroupId) {
        // Of a small group all may be in these hands: who finds nothing on its lists waits for us,
        // and is not refused.
        let _working = self.progress.begin();
        // Owners may ask for nothing meanwhile that comes back here.
        let _scope = self.store_scope();
        let mut hands = Hands::default();
        let inactive = ListKind::Inactive;
        self.lru
            .isolate(&self.frames, group, inactive, LOOKS, &mut hands.taken);
        self.age_taken(&mut hands, |_| true);
        for at in 0..hands.taken.len() {
            let id = hands.taken[at];
            if hands.used[at] {
                self.used_through_mapping(id);
                hands.keep.push(id);
            } else if is_awaited(self.frames.meta(id)) {
                hands.keep.push(id);
            } else {
                hands.evict.push(id);
            }
        }
        self.lru.put_back(&self.frames, &hands.keep, Evictable::Yes);
        // The oldest was taken first.
        hands.evict.reverse();
        self.lru.put_back_last(&self.frames, &hands.evict);
    }

    /// An isolated frame was used since it was looked at last: once is a mark, again makes it
    /// active.
    pub(super) fn used_through_mapping(&self, id: crate::units::FrameId) {
        let flags = &self.frames.meta(id).flags;
        if flags
            .test_and_set(FlagSet::REFERENCED)
            .contains(FlagSet::REFERENCED)
        {
            self.used_again(id);
        }
    }
}
