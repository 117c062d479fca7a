//! The account of a tree's nodes.
//!
//! Nodes are smaller than a page and live on the heap. Each is counted in the ledger of the space
//! that made it, even while only a fork still has it. The ledger's group is charged for them in
//! whole pages. The first few are free, so that a space with a handful of mappings costs no page
//! for them.

use crate::group::{Group, LimitError};
use crate::reclaim::{AllocMode, HeapCharge, Pool};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// Bytes that are not charged, about eight nodes. Nodes that wait for a grace period count too.
const FREE: usize = 8 << 10;

/// Counts nodes, and charges a group for them.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Bytes of the live nodes; their size differs between trees.
    bytes: AtomicUsize,
    /// Changes that may still be undone; see [`Undoable`].
    undoable: AtomicUsize,
    paid: Mutex<Option<HeapCharge>>,
}

impl Ledger {
    /// Creates a ledger whose nodes `group` pays for.
    pub(crate) fn new(pool: &Arc<Pool>, group: &Group) -> Arc<Ledger> {
        let paid = HeapCharge::new(pool, group);
        Arc::new(Ledger {
            bytes: AtomicUsize::new(0),
            undoable: AtomicUsize::new(0),
            paid: Mutex::new(Some(paid)),
        })
    }

    /// Returns the bytes of the live nodes of all trees.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges the group for the live nodes, or gives back excess charges. The caller is outside
    /// every section; the call may reclaim, as `mode` says.
    pub(crate) fn settle(&self, mode: AllocMode) -> Result<(), LimitError> {
        let mut paid = self.paid.lock();
        let Some(paid) = paid.as_mut() else {
            return Ok(());
        };
        let wanted = || self.bytes().saturating_sub(FREE) as u64;
        if paid.is_too_little_for(wanted()) {
            // Some nodes may exist only because they wait for a grace period.
            paid.pool().flush_retired();
        } else if self.undoable.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        paid.settle(wanted(), mode)
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger({} bytes)", self.bytes())
    }
}

/// Made before a change that may have to be undone. While it lives, nothing is given back: what was
/// charged for the nodes of the change, beside those that it replaced, is there for the nodes that
/// undoing it replaces them with.
pub(crate) struct Undoable(Arc<Ledger>);

impl Undoable {
    pub(crate) fn begin(ledger: &Arc<Ledger>) -> Undoable {
        // Relaxed: the ledger is settled by those that change the mappings, one after the other.
        ledger.undoable.fetch_add(1, Ordering::Relaxed);
        Undoable(ledger.clone())
    }
}

impl Drop for Undoable {
    fn drop(&mut self) {
        self.0.undoable.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One counted node of a ledger.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Entry {
    /// Counts a node of this many bytes.
    pub(crate) fn new(ledger: &Arc<Ledger>, bytes: usize) -> Entry {
        ledger.bytes.fetch_add(bytes, Ordering::Relaxed);
        Entry {
            ledger: ledger.clone(),
            bytes,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
