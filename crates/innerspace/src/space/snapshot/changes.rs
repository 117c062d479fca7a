//! The pages that a space has made its own since its last restore; a restore in place needs them.
//!
//! Nothing is recorded until the first restore. From then on each fault that gives the space a page
//! of its own records the page, inside the fault's section. A restore, with the gate closed, thus
//! finds all of them. The record contains the number of the space's structural changes, and is
//! valid as long as this number stays the same.

use crate::group::{Group, HeapBytes};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{FrameId, PAGE_SIZE};

/// The most pages that are recorded: 16 MiB. If more pages change, the next restore drops them
/// instead of restoring in place, and a new record begins.
pub(super) const MOST: usize = 4096;
/// The number of restores for which a record keeps the pages that were given back.
pub(super) const GIVEN_BACK: usize = 4;
/// The number of recorded pages for which a page of memory is charged: each takes a place in
/// [`Record::pages`], and one in each list of [`Record::given_back`] whose restore gave it back.
const A_PAGE: usize = PAGE_SIZE / (size_of::<Changed>() + GIVEN_BACK * size_of::<u64>());

/// A number that no snapshot has.
const NOBODY: u64 = 0;

/// A page that the space owns, and that the snapshot does not share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    pub(super) at: u64,
    /// The leaf that has the page. It stays in its place, and exclusive to the space, while the
    /// record is valid.
    pub(super) leaf: FrameId,
    /// The frame of the snapshot's page at the same address, or the zero frame. `None` until it is
    /// looked up, and if the snapshot has a page of a file there. Once looked up, it stays the
    /// same.
    pub(super) image: Option<FrameId>,
    /// The number of restores in a row, up to the latest, that each came after a store to the page.
    pub(super) streak: u8,
    /// The number of restores in a row, up to the latest, that each found no store to the page.
    pub(super) idle: u8,
}

impl Changed {
    /// Returns whether the page was recorded since the last restore.
    pub(super) fn is_new(&self) -> bool {
        self.streak == 0 && self.idle == 0
    }
}

/// The recorded pages, and the state of the space on which they are based.
#[derive(Debug)]
pub(super) struct Record {
    /// The snapshot to which the space was restored; `NOBODY` once a page could not be recorded.
    pub(super) snapshot: u64,
    /// The number of the space's structural changes at the last restore, the restore's own
    /// included.
    pub(super) revision: u64,
    pub(super) pages: Vec<Changed>,
    /// For each of the last restores in place, the latest first: the addresses of the pages that it
    /// gave back, in ascending order.
    pub(super) given_back: [Vec<u64>; GIVEN_BACK],
    /// The charge for `pages` and `given_back`.
    heap: Option<HeapBytes>,
    /// The number of restores in place since the record began.
    pub(super) restores: u32,
    /// Whether a watch took write validity from pages since the last restore. Then even a page
    /// without write validity may have been stored to.
    pub(super) doubtful: bool,
}

/// The record of a space, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Whether there is a record. Changed with the gate closed, so a fault inside the gate reads
    /// the current value.
    recording: AtomicBool,
    record: Mutex<Option<Record>>,
}

impl Changes {
    /// Records a page that a fault has given the space. `leaf` returns the leaf that has the page.
    /// The fault is in its section, inside the gate.
    #[inline(always)]
    pub(crate) fn record(&self, group: &Group, at: u64, leaf: impl FnOnce() -> FrameId) {
        // Relaxed: the flag changes only with the gate closed, and this fault is inside the gate.
        if self.recording.load(Ordering::Relaxed) {
            self.push(group, at, leaf());
        }
    }

    /// Notes that a watch takes write validity from pages. The caller holds the gate's writer lock.
    pub(crate) fn doubt(&self) {
        if let Some(known) = &mut *self.record.lock() {
            known.doubtful = true;
        }
    }

    #[cold]
    fn push(&self, group: &Group, at: u64, leaf: FrameId) {
        let mut record = self.record.lock();
        let Some(known) = &mut *record else { return };
        if known.snapshot == NOBODY {
            return;
        }
        let recorded = known.pages.len();
        if recorded == known.pages.capacity() {
            let bytes = (recorded.div_ceil(A_PAGE) + 1) * PAGE_SIZE;
            if recorded >= MOST || group.set_heap(&mut known.heap, bytes).is_err() {
                known.snapshot = NOBODY;
                return;
            }
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

    /// Returns whether there is a record of the changes since a restore to this snapshot, with no
    /// page left out.
    pub(super) fn is_since(&self, snapshot: u64) -> bool {
        let record = self.record.lock();
        record
            .as_ref()
            .is_some_and(|known| known.snapshot == snapshot)
    }

    /// Removes and returns the record, and stops recording. The gate is closed.
    pub(super) fn take(&self) -> Option<Record> {
        self.recording.store(false, Ordering::Relaxed);
        self.record.lock().take()
    }

    /// Stores a record, and starts recording. The gate is closed.
    pub(super) fn set(&self, record: Record) {
        *self.record.lock() = Some(record);
        self.recording.store(true, Ordering::Relaxed);
    }
}

impl Record {
    /// Creates an empty record.
    pub(super) fn new(snapshot: u64, revision: u64) -> Record {
        Record {
            snapshot,
            revision,
            pages: Vec::new(),
            given_back: Default::default(),
            heap: None,
            restores: 0,
            doubtful: false,
        }
    }
}
