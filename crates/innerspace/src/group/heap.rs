//! Charges groups for bytes on the heap: files, handles, futures, spaces, groups.
//!
//! These objects are smaller than a page. So each group has a ledger of bytes, and is charged for
//! the whole pages in their sum. A remainder of less than a page is free. A ledger with bytes keeps
//! the number of a deleted group in use, as a charged page does.
//!
//! The ledger's mutex is an innermost lock. Pages are charged and given back with it unlocked,
//! since reclaim may drop objects that are in the same ledger.

use super::{GroupId, GroupTree, LimitError, LimitReason, Reach};
use crate::sync::Arc;
use crate::units::PageCount;

/// The maximum number of times that a charge makes room and tries again.
const ROUNDS: usize = 16;

/// How a charge may make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MayReclaim {
    /// By evicting any page. The caller holds no file's lock and is in no section.
    Yes,
    /// By evicting clean pages only: no store is called.
    Clean,
    /// Not at all. If there is no room, the charge fails with [`LimitReason::WouldBlock`].
    No,
    /// By the service thread alone, which brings the group under its `high`. If there is no room,
    /// or the group is more than a little above its `high`, the charge fails, like a request that
    /// may not wait.
    Background,
}

/// Bytes on the heap that a group is charged for, until this is dropped.
#[must_use = "the charge ends when this is dropped"]
pub(crate) struct HeapBytes {
    tree: Arc<GroupTree>,
    group: GroupId,
    bytes: u64,
}

impl HeapBytes {
    /// Charges the same group for this many more bytes.
    ///
    /// # Errors
    /// The errors of [`Group::charge_heap`](super::Group::charge_heap).
    pub(crate) fn more(&self, bytes: usize, may: MayReclaim) -> Result<HeapBytes, LimitError> {
        // The bytes that are already in the group's ledger keep its number in use.
        HeapBytes::add(&self.tree, self.group, bytes, may)
    }

    /// Changes the charge to this many bytes.
    ///
    /// # Errors
    /// The errors of [`Group::charge_heap`](super::Group::charge_heap), in which case nothing has
    /// changed. Reducing the charge never fails.
    pub(crate) fn set(&mut self, bytes: u64, may: MayReclaim) -> Result<(), LimitError> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.tree.add_heap(self.group, more, may)?,
            None => self.tree.give_heap_back(self.group, self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the number of bytes charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges a group for this many bytes.
    pub(super) fn add(
        tree: &Arc<GroupTree>,
        group: GroupId,
        bytes: usize,
        may: MayReclaim,
    ) -> Result<HeapBytes, LimitError> {
        let bytes = bytes as u64;
        tree.add_heap(group, bytes, may)?;
        let tree = tree.clone();
        Ok(HeapBytes { tree, group, bytes })
    }
}

impl Drop for HeapBytes {
    fn drop(&mut self) {
        // In a child of fork(2), the ledger may be locked for ever.
        if self.tree.maker.is_current() {
            self.tree.give_heap_back(self.group, self.bytes);
        }
    }
}

impl std::fmt::Debug for HeapBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HeapBytes({})", self.bytes)
    }
}

impl GroupTree {
    /// Adds `bytes` to the ledger of a group, after charging the group for the pages that they
    /// need. The caller keeps the group alive.
    pub(super) fn add_heap(
        &self,
        id: GroupId,
        bytes: u64,
        may: MayReclaim,
    ) -> Result<(), LimitError> {
        if !self.maker.is_current() {
            let pages = PageCount::ceil(bytes);
            return Err(LimitError::other_process(self.maker.id(), pages));
        }
        loop {
            let mut ledger = self.node(id).heap.lock();
            let needed = PageCount::floor(ledger.bytes.saturating_add(bytes)).0;
            let short = needed.saturating_sub(ledger.pages);
            if short == 0 {
                ledger.bytes += bytes;
                // If two threads charged at the same time, they may have charged too many pages.
                let excess = ledger.take_excess();
                drop(ledger);
                self.uncharge_some(id, excess);
                return Ok(());
            }
            drop(ledger);
            self.charge_for_heap(id, PageCount(short), may)?;
            self.node(id).heap.lock().pages += short;
        }
    }

    fn charge_for_heap(
        &self,
        id: GroupId,
        pages: PageCount,
        may: MayReclaim,
    ) -> Result<(), LimitError> {
        let reclaimer = self.reclaimer();
        if let (MayReclaim::Background, Some(reclaimer)) = (may, &reclaimer) {
            let _group = reclaimer.charge_without_waiting(id, pages)?.commit();
            return Ok(());
        }
        let mut charged = self.charge(id, pages, Reach::Max);
        if may == MayReclaim::No
            && let Err(refused) = charged
        {
            let reason = LimitReason::WouldBlock;
            return Err(self.limit_error(refused, pages, reason, None));
        }
        for _ in 0..ROUNDS {
            let (Err(refused), Some(reclaimer)) = (&charged, &reclaimer) else {
                break;
            };
            self.count_max(*refused);
            let payer = (may == MayReclaim::Yes).then_some(id);
            if reclaimer.reclaim(*refused, pages, payer).0 == 0 {
                break;
            }
            charged = self.charge(id, pages, Reach::MaxAgain);
        }
        let refused = match charged {
            Ok(charge) => {
                let _group = charge.commit();
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.count_oom(refused);
        let reason = LimitReason::NothingEvictable;
        Err(self.limit_error(refused, pages, reason, reclaimer.as_deref()))
    }

    /// Removes bytes from the ledger of a group, and uncharges the pages that it no longer needs.
    pub(super) fn give_heap_back(&self, id: GroupId, bytes: u64) {
        let node = self.node(id);
        let mut ledger = node.heap.lock();
        ledger.bytes -= bytes;
        let is_last = ledger.bytes == 0;
        let excess = ledger.take_excess();
        drop(ledger);
        self.uncharge_some(id, excess);
        // A thread that deletes the group marks it, then looks at the ledger. So one of the two
        // threads sees the other's change.
        if is_last && node.is_deleted() {
            self.release(id);
        }
    }

    fn uncharge_some(&self, id: GroupId, pages: PageCount) {
        if pages.0 > 0 {
            self.uncharge(id, pages);
        }
    }

    /// Returns whether the ledger of a group is empty.
    pub(super) fn is_heap_empty(&self, id: GroupId) -> bool {
        self.node(id).heap.lock().bytes == 0
    }
}
