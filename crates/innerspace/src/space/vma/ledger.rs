//! The account of a space's heap memory: the space itself, the nodes of its trees, and its uses of
//! files.
//!
//! A node is counted in the ledger of the space that made it, even while only a fork still has it.

use crate::group::{Group, HeapBytes, LimitError, MayReclaim};
use crate::reclaim::Pool;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// Counts bytes, and charges a group for them.
#[derive(Default)]
pub(crate) struct Ledger {
    bytes: AtomicUsize,
    /// The charge; `None` in tests of a tree alone.
    paid: Mutex<Option<HeapBytes>>,
}

impl Ledger {
    /// Creates the ledger of a space. The space itself takes `bytes`, for which `group` is charged
    /// now.
    ///
    /// # Errors
    /// The group has no room.
    pub(crate) fn new(group: &Group, bytes: usize) -> Result<Arc<Ledger>, LimitError> {
        let paid = group.charge_heap(bytes, MayReclaim::Yes)?;
        Ok(Arc::new(Ledger {
            bytes: AtomicUsize::new(bytes),
            paid: Mutex::new(Some(paid)),
        }))
    }

    /// Returns the bytes counted now. Nodes that wait for a grace period count too.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Charges the group for the bytes counted now, or gives back excess charges. The caller is
    /// outside every section; the call may reclaim if `may` allows that.
    ///
    /// # Errors
    /// The group has no room.
    pub(crate) fn settle(&self, pool: &Pool, may: MayReclaim) -> Result<(), LimitError> {
        let mut paid = self.paid.lock();
        let Some(paid) = paid.as_mut() else {
            return Ok(());
        };
        let bytes = self.bytes() as u64;
        if bytes == paid.bytes() {
            return Ok(());
        }
        if paid.set(bytes, MayReclaim::No).is_ok() {
            return Ok(());
        }
        // Some nodes may still exist only because they wait for a grace period.
        pool.flush_retired();
        paid.set(self.bytes() as u64, may)
    }

    /// Gives back excess charges, unless another thread is settling. Waits for nothing.
    pub(crate) fn give_back(&self) {
        let Some(mut paid) = self.paid.try_lock() else {
            return;
        };
        let bytes = self.bytes() as u64;
        if let Some(paid) = paid.as_mut().filter(|paid| bytes < paid.bytes()) {
            let _given = paid.set(bytes, MayReclaim::No);
        }
    }
}

/// Bytes counted in a ledger until this value is dropped.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    bytes: usize,
}

impl Entry {
    /// Counts `bytes` bytes in `ledger`, until the entry is dropped.
    pub(crate) fn new(ledger: &Arc<Ledger>, bytes: usize) -> Entry {
        ledger.bytes.fetch_add(bytes, Ordering::Relaxed);
        Entry {
            ledger: ledger.clone(),
            bytes,
        }
    }

    /// Returns the number of bytes that this entry counts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
