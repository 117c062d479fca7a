//! The pages a space has made its own since its last restore, for a restore in place.
//!
//! Off until the first restore. From then on each fault that gives the space a page of its own
//! records it, inside its section; a restore, with the gate closed, finds all of them. The record
//! is good as long as nothing else has changed the structure: it has the number of the space's
//! structural changes.

use super::ghosts::Ghosts;
use crate::reclaim::AllocMode;
use crate::space::core::payer::Payer;
use crate::space::table::still::Image;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{FrameId, PAGE_SIZE, PageCount};

/// The most pages recorded: 16 MiB. Above that, restores drop the changed pages, until the space is
/// restored again.
pub(super) const MOST: usize = 4096;
/// How many are recorded in a page of memory, for which the group is charged.
const A_PAGE: usize = PAGE_SIZE / size_of::<Changed>();

const GHOST_PAGES: PageCount = PageCount((Ghosts::SIZE / PAGE_SIZE) as u64);

/// A number that no snapshot has.
const NOBODY: u64 = 0;

/// A page of the space's own that the snapshot does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    pub(super) at: u64,
    /// The leaf that has it: the space's alone, and in its place, for as long as the record is
    /// good.
    pub(super) leaf: FrameId,
    /// The snapshot's page there, once it was looked up; it does not change.
    pub(super) image: Option<Image>,
    /// The number of restores in a row that each came after a store to it.
    pub(super) streak: u8,
    /// The number of restores in a row that came without one.
    pub(super) idle: u8,
}

impl Changed {
    /// Whether it was recorded since the last restore.
    pub(super) fn is_new(&self) -> bool {
        self.streak == 0 && self.idle == 0
    }
}

/// The recorded pages, and since when.
#[derive(Debug)]
pub(super) struct Record {
    /// The snapshot that the space was restored to; `NOBODY` once a page could not be recorded.
    pub(super) snapshot: u64,
    /// The space's structural changes then, the restore's own included.
    pub(super) revision: u64,
    pub(super) pages: Vec<Changed>,
    /// Pages of memory the group is charged for.
    charged: usize,
    /// Pages given back lately, once there are any and memory for them.
    pub(super) ghosts: Option<Ghosts>,
    /// Restores in place since the record began.
    pub(super) restores: u32,
    /// Whether write validity was taken from pages since the last restore: then its absence does
    /// not mean that nothing was stored.
    pub(super) doubtful: bool,
}

/// The record of a space.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether there is a record. Changed with the gate closed, so a fault inside reads the current
    /// value.
    recording: AtomicBool,
    record: Mutex<Option<Record>>,
}

impl Changes {
    /// A fault has given the space a page of its own, in this leaf. In its section, inside the
    /// gate.
    #[inline(always)]
    pub(crate) fn record(&self, payer: Payer<'_>, at: u64, leaf: impl FnOnce() -> FrameId) {
        // Relaxed: the gate orders it.
        if self.recording.load(Ordering::Relaxed) {
            self.push(payer, at, leaf());
        }
    }

    /// A watch takes write validity from pages. The gate's writer is held.
    pub(crate) fn doubt(&self) {
        if let Some(known) = &mut *self.record.lock() {
            known.doubtful = true;
        }
    }

    #[cold]
    fn push(&self, payer: Payer<'_>, at: u64, leaf: FrameId) {
        let mut record = self.record.lock();
        let Some(known) = &mut *record else { return };
        if known.snapshot == NOBODY {
            return;
        }
        if known.pages.len() == known.charged * A_PAGE {
            if known.pages.len() >= MOST || payer.charge(PageCount(1), AllocMode::NoWait).is_err() {
                known.snapshot = NOBODY;
                return;
            }
            known.charged += 1;
            known.pages.reserve_exact(A_PAGE);
        }
        known.pages.push(Changed {
            at,
            leaf,
            image: None,
            streak: 0,
            idle: 0,
        });
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

    /// Takes the record out for good. The gate is closed, or the space gone.
    pub(crate) fn end(&self, payer: Payer<'_>) {
        if let Some(record) = self.take() {
            record.uncharge(payer);
        }
    }
}

impl Record {
    /// An empty record.
    pub(super) fn new(snapshot: u64, revision: u64) -> Record {
        Record {
            snapshot,
            revision,
            pages: Vec::new(),
            charged: 0,
            ghosts: None,
            restores: 0,
            doubtful: false,
        }
    }

    /// Remembers that a page was given back at this restore, unless the group has no memory for
    /// that.
    pub(super) fn add_ghost(&mut self, payer: Payer<'_>, at: u64) {
        if self.ghosts.is_none() {
            if payer.charge(GHOST_PAGES, AllocMode::NoWait).is_err() {
                return;
            }
            self.ghosts = Some(Ghosts::new());
        }
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.add(at / PAGE_SIZE as u64, self.restores);
        }
    }

    pub(super) fn uncharge(self, payer: Payer<'_>) {
        let ghosts = self.ghosts.map_or(0, |_| GHOST_PAGES.0);
        payer.uncharge(PageCount(self.charged as u64 + ghosts));
    }
}
