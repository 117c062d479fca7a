//! A store that panics.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Faulty;
use crate::store::{Identity, Store, SyncWhat};
use crate::sync::Arc;

/// The numbers of calls that are to panic.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Times {
    pub(super) writes: u32,
    pub(super) syncs: u32,
    pub(super) drops: u32,
    /// The number of panicking calls that first do their work.
    pub(super) cuts: u32,
}

#[derive(Debug)]
pub(super) struct Panicking {
    store: Arc<Faulty>,
    writes: AtomicU32,
    syncs: AtomicU32,
    drops: AtomicU32,
    cuts: AtomicU32,
}

impl Panicking {
    pub(super) fn new(store: &Arc<Faulty>, times: Times) -> Arc<Panicking> {
        Arc::new(Panicking {
            store: store.clone(),
            writes: times.writes.into(),
            syncs: times.syncs.into(),
            drops: times.drops.into(),
            cuts: times.cuts.into(),
        })
    }

    fn may_panic(left: &AtomicU32) {
        let one_less = |left: u32| left.checked_sub(1);
        let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        assert!(left.is_err(), "a store of somebody else's");
    }
}

impl Store for Panicking {
    fn len(&self) -> std::io::Result<u64> {
        self.store.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.store.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<usize> {
        Panicking::may_panic(&self.writes);
        self.store.write_at(buf, offset)
    }

    fn writable(&self) -> bool {
        true
    }

    fn sync(&self, what: SyncWhat) -> std::io::Result<()> {
        Panicking::may_panic(&self.syncs);
        self.store.sync(what)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.store.set_len(len)?;
        Panicking::may_panic(&self.cuts);
        Ok(())
    }

    fn identity(&self) -> Option<Identity> {
        self.store.identity()
    }
}

impl Drop for Panicking {
    fn drop(&mut self) {
        Panicking::may_panic(&self.drops);
    }
}
