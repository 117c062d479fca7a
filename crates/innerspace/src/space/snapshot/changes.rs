//! The pages a space has made its own since its last restore, for a restore in place.
//!
//! Off until the first restore. From then on each fault that gives the space a page of its own records it, inside its
//! section; a restore, with the gate closed, finds all of them. The record is good as long as nothing else has changed the
//! structure: it has the number of the space's structural changes.

use crate::PageCount;
use crate::group::{Charge, GroupId};
use crate::reclaim::Pool;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The most pages recorded: 16 MiB. Above, restores drop what was changed, until the space is restored again.
pub(super) const MOST: usize = 4096;
/// What the record is charged for.
const PAGES: PageCount = PageCount::ceil((MOST * size_of::<Changed>()) as u64);

/// A page of the space's own that the snapshot does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    pub(super) at: u64,
    /// Restores in a row before which it was stored to.
    pub(super) streak: u8,
    /// Restores in a row before which it was not.
    pub(super) idle: u8,
}

/// What is recorded, and since when.
#[derive(Debug)]
pub(super) struct Record {
    /// The snapshot that the space was restored to.
    pub(super) snapshot: u64,
    /// The space's structural changes then, the restore's own included.
    pub(super) revision: u64,
    pub(super) pages: Vec<Changed>,
    /// Restores in place since the record began.
    pub(super) restores: u32,
}

/// The record of a space.
#[derive(Debug, Default)]
pub(in crate::space) struct Changes {
    /// Whether there is a record. Changed with the gate closed, so a fault that is inside reads the value that holds.
    recording: AtomicBool,
    record: Mutex<Option<Record>>,
}

impl Changes {
    /// A fault has given the space a page of its own. In its section, inside the gate.
    #[inline]
    pub(in crate::space) fn record(&self, at: u64) {
        // Relaxed: the gate orders it.
        if self.recording.load(Ordering::Relaxed) {
            self.push(at);
        }
    }

    #[cold]
    fn push(&self, at: u64) {
        let mut record = self.record.lock();
        if let Some(known) = &mut *record {
            if known.pages.len() < MOST {
                known.pages.push(Changed {
                    at,
                    streak: 0,
                    idle: 0,
                });
            } else {
                // Full: what is known is no longer all.
                known.snapshot = 0;
            }
        }
    }

    /// Whether there is a record since a restore to this snapshot.
    pub(super) fn is_since(&self, snapshot: u64) -> bool {
        let record = self.record.lock();
        record
            .as_ref()
            .is_some_and(|known| known.snapshot == snapshot)
    }

    /// Takes the record out. The gate is closed.
    pub(super) fn take(&self) -> Option<Record> {
        self.recording.store(false, Ordering::Relaxed);
        self.record.lock().take()
    }

    /// Puts a record in its place. The gate is closed.
    pub(super) fn set(&self, record: Record) {
        *self.record.lock() = Some(record);
        self.recording.store(true, Ordering::Relaxed);
    }

    /// The charge for a record, if the group has room; without it, restores drop what was changed.
    pub(super) fn charge(pool: &Pool, group: GroupId) -> Option<Charge<'_>> {
        pool.charge(group, PAGES, crate::reclaim::AllocMode::NoWait)
            .ok()
    }

    /// Gives back what [`Changes::charge`] took.
    pub(super) fn uncharge(pool: &Pool, group: GroupId) {
        pool.groups.uncharge(group, PAGES);
    }

    /// When the space is gone.
    pub(in crate::space) fn release(&mut self, pool: &Pool, group: GroupId) {
        if self.record.get_mut().take().is_some() {
            Changes::uncharge(pool, group);
        }
    }
}
