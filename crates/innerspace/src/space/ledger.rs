//! Who pays for the nodes of a tree.
//!
//! Nodes are smaller than a page and live on the heap. Each is counted in the ledger of the space that made it, also while a
//! fork still has it; the ledger's group is charged for whole pages of them. The first few are free, so that a space with a
//! handful of mappings costs no page for them.

use crate::group::{Group, LimitError};
use crate::reclaim::{AllocMode, HeapCharge, Pool};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// Nodes that are not charged, those included that wait for a grace period.
const FREE: usize = 8;

/// Counts nodes, and is charged for them.
#[derive(Default)]
pub(super) struct Ledger {
    nodes: AtomicUsize,
    paid: Mutex<Option<HeapCharge>>,
}

impl Ledger {
    /// A ledger whose nodes `group` pays for.
    pub(super) fn new(pool: &Arc<Pool>, group: &Group) -> Arc<Ledger> {
        let paid = HeapCharge::new(pool, group);
        Arc::new(Ledger {
            nodes: AtomicUsize::new(0),
            paid: Mutex::new(Some(paid)),
        })
    }

    /// Nodes alive, in whichever tree.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.load(Ordering::Relaxed)
    }

    /// Charges for the nodes alive, of `bytes` each, or gives back what is charged too much. Outside every section; may
    /// reclaim.
    pub(super) fn settle(&self, bytes: usize) -> Result<(), LimitError> {
        let mut paid = self.paid.lock();
        let Some(paid) = paid.as_mut() else {
            return Ok(());
        };
        let wanted = || (self.nodes().saturating_sub(FREE) * bytes) as u64;
        if paid.is_too_little_for(wanted()) {
            // Some may be waiting for a grace period alone.
            paid.pool().flush_retired();
        }
        paid.settle(wanted(), AllocMode::Wait)
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ledger({} nodes)", self.nodes())
    }
}

/// One node in its ledger.
pub(super) struct Entry(Arc<Ledger>);

impl Entry {
    pub(super) fn new(ledger: &Arc<Ledger>) -> Entry {
        ledger.nodes.fetch_add(1, Ordering::Relaxed);
        Entry(ledger.clone())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.nodes.fetch_sub(1, Ordering::Relaxed);
    }
}
