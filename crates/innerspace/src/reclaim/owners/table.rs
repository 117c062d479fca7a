//! The registered owners by number.

use std::collections::BTreeSet;

use super::owner::{Owner, OwnerId};
use crate::sync::{Arc, Mutex, Rank, Weak};

/// The registered owners, by number.
pub(crate) struct Owners {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// `owners[n]` is owner `n + 1`.
    owners: Vec<Option<Weak<dyn Owner>>>,
    free: Vec<u32>,
    /// The owners that may have blocks to write: all that have some, and some that no longer do.
    flushable: BTreeSet<u32>,
}

impl Table {
    fn get(&self, number: u32) -> Option<Arc<dyn Owner>> {
        let index = (number as usize).checked_sub(1)?;
        self.owners.get(index)?.as_ref()?.upgrade()
    }
}

impl Default for Owners {
    fn default() -> Owners {
        Owners {
            table: Mutex::ranked(Rank::Retire, Table::default()),
        }
    }
}

impl Owners {
    /// Registers `owner` and returns its number. Frames with this number in their metadata are
    /// evicted through it.
    pub(crate) fn register(&self, owner: Weak<dyn Owner>) -> OwnerId {
        let mut table = self.table.lock();
        match table.free.pop() {
            Some(number) => {
                table.owners[number as usize - 1] = Some(owner);
                OwnerId(number)
            }
            None => {
                table.owners.push(Some(owner));
                OwnerId(u32::try_from(table.owners.len()).expect("fewer than 2^32 files"))
            }
        }
    }

    /// Frees an owner's number. The caller ensures that no frame has it any more.
    pub(crate) fn unregister(&self, id: OwnerId) {
        let mut table = self.table.lock();
        let gone = table.owners[id.0 as usize - 1].take();
        assert!(gone.is_some(), "owner {} is unregistered twice", id.0);
        table.flushable.remove(&id.0);
        table.free.push(id.0);
    }

    pub(crate) fn get(&self, id: OwnerId) -> Option<Arc<dyn Owner>> {
        self.table.lock().get(id.0)
    }

    /// Lists an owner among those that the background calls to write, or unlists it. Takes only the
    /// table's lock.
    pub(crate) fn set_flushable(&self, id: OwnerId, flushable: bool) {
        let mut table = self.table.lock();
        match flushable {
            true => table.flushable.insert(id.0),
            false => table.flushable.remove(&id.0),
        };
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn is_flushable(&self, id: OwnerId) -> bool {
        self.table.lock().flushable.contains(&id.0)
    }

    /// Returns the next owner after `id`, wrapping around, of those that may have blocks to write.
    /// Returns `None` if there is none.
    pub(crate) fn next_flushable(&self, id: OwnerId) -> Option<(OwnerId, Arc<dyn Owner>)> {
        let table = self.table.lock();
        let later = table.flushable.range(id.0 + 1..);
        let mut numbers = later.chain(table.flushable.range(..=id.0));
        numbers.find_map(|number| Some((OwnerId(*number), table.get(*number)?)))
    }

    /// Returns the number of owners that may have blocks to write.
    pub(crate) fn flushable(&self) -> usize {
        self.table.lock().flushable.len()
    }
}
