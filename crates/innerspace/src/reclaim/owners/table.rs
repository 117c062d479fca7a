//! The registered owners by number. After a failed write, an owner is not called to write for a
//! while.

use std::collections::BTreeSet;

use super::owner::{CleanCount, Owner, OwnerId};
use crate::sync::{Arc, Mutex, Rank, Weak};

/// The registered owners, by number.
pub(crate) struct Owners {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// `entries[n]` is owner `n + 1`.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// The owners that may have blocks to write, and some that had.
    flushable: BTreeSet<u32>,
    /// The number of calls of [`Owners::try_all_again`].
    round: u64,
}

impl Table {
    fn get(&self, number: u32) -> Option<Arc<dyn Owner>> {
        let index = (number as usize).checked_sub(1)?;
        self.entries.get(index)?.as_ref()?.owner.upgrade()
    }
}

struct Entry {
    owner: Weak<dyn Owner>,
    /// How many calls of `clean` in a row wrote nothing and failed.
    failures: u32,
    /// How many calls of `clean` to skip before the next one: twice as many after each failure.
    skip: u32,
    /// The round in which they are skipped. In others none are.
    round: u64,
}

/// log2 of the most calls that are skipped.
const MOST_FAILURES: u32 = 10;

impl Default for Owners {
    fn default() -> Owners {
        Owners {
            table: Mutex::ranked(Rank::Retire, Table::default()),
        }
    }
}

impl Owners {
    /// Makes frames with the returned number in their metadata evictable through `owner`.
    pub(crate) fn register(&self, owner: Weak<dyn Owner>) -> OwnerId {
        let mut table = self.table.lock();
        let entry = Entry {
            owner,
            failures: 0,
            skip: 0,
            round: 0,
        };
        match table.free.pop() {
            Some(number) => {
                table.entries[number as usize - 1] = Some(entry);
                OwnerId(number)
            }
            None => {
                table.entries.push(Some(entry));
                OwnerId(u32::try_from(table.entries.len()).expect("fewer than 2^32 files"))
            }
        }
    }

    /// Frees an owner's number. No frame has it any more.
    pub(crate) fn unregister(&self, id: OwnerId) {
        let mut table = self.table.lock();
        let gone = table.entries[id.0 as usize - 1].take();
        assert!(gone.is_some(), "owner {} is unregistered twice", id.0);
        table.flushable.remove(&id.0);
        table.free.push(id.0);
    }

    pub(crate) fn get(&self, id: OwnerId) -> Option<Arc<dyn Owner>> {
        self.table.lock().get(id.0)
    }

    /// Whether reclaim may have this owner write now. It may not for a while after the owner's
    /// store failed.
    pub(crate) fn may_clean(&self, id: OwnerId) -> bool {
        let table = &mut *self.table.lock();
        match table.entries.get_mut(id.0 as usize - 1) {
            Some(Some(entry)) if entry.skip > 0 && entry.round == table.round => {
                entry.skip -= 1;
                false
            }
            _ => true,
        }
    }

    /// Notes the result of a call of `clean` or `flush`.
    pub(crate) fn note_clean(&self, id: OwnerId, count: &CleanCount) {
        let table = &mut *self.table.lock();
        let Some(Some(entry)) = table.entries.get_mut(id.0 as usize - 1) else {
            return;
        };
        if count.written.0 > 0 {
            (entry.failures, entry.skip) = (0, 0);
        } else if count.errors > 0 {
            entry.failures = (entry.failures + 1).min(MOST_FAILURES);
            (entry.skip, entry.round) = (1 << entry.failures, table.round);
        }
    }

    /// Allows every owner to be called again, because time has passed.
    pub(crate) fn try_all_again(&self) {
        self.table.lock().round += 1;
    }

    /// Lists an owner among those that the background asks to write, or unlists it. Takes an
    /// innermost lock only.
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

    /// Returns the next listed owner after `id`, wrapping around, or `None` if there is none.
    pub(crate) fn next_flushable(&self, id: OwnerId) -> Option<(OwnerId, Arc<dyn Owner>)> {
        let table = self.table.lock();
        let later = table.flushable.range(id.0 + 1..);
        let mut numbers = later.chain(table.flushable.range(..=id.0));
        numbers.find_map(|number| Some((OwnerId(*number), table.get(*number)?)))
    }

    /// Returns the number of listed owners.
    pub(crate) fn flushable(&self) -> usize {
        self.table.lock().flushable.len()
    }
}
