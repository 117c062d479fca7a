//! The files of a memory that are not closed: by number, by identity, and by the groups that pay
//! for blocks that are not written.
//!
//! A call that concerns one file, or one group, looks at no other: [`Entry`] has the only ways to a
//! file, and tests count the looks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::group::GroupId;
use crate::store::Identity;
use crate::sync::{Arc, Weak, failpoint};

/// A file that is not closed. Its identity can be read with locks held, where no reference to the
/// file may be taken: it might become the last one.
pub(super) struct Entry<F> {
    identity: Option<Identity>,
    core: Weak<F>,
    /// The mark of use of its store: see `FileCore::in_use`.
    in_use: Weak<()>,
}

impl<F> Entry<F> {
    /// Whether the file is still there. A file that panicked while it was closed may not have
    /// removed itself.
    fn is_there(&self) -> bool {
        failpoint!(FileSeen);
        self.core.strong_count() > 0 || self.in_use.strong_count() > 0
    }

    /// Returns the file, unless it is being closed.
    pub(super) fn core(&self) -> Option<Arc<F>> {
        failpoint!(FileSeen);
        self.core.upgrade()
    }
}

/// The files that are not closed, by number, and so in the order in which they were opened.
pub(super) struct Files<F> {
    last: u64,
    entries: BTreeMap<u64, Entry<F>>,
    /// The files among them that have an identity.
    by_identity: BTreeSet<(Identity, u64)>,
    /// The files that have blocks which are not written or not synced, and some that had, by each
    /// group that pays for them.
    unwritten: BTreeSet<(GroupId, u64)>,
    /// Closed files whose store had a call under way when they were closed.
    lingering: VecDeque<u64>,
}

impl<F> Default for Files<F> {
    fn default() -> Files<F> {
        Files {
            last: 0,
            entries: BTreeMap::new(),
            by_identity: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            lingering: VecDeque::new(),
        }
    }
}

impl<F> Files<F> {
    /// Returns the number of the next file.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds a file under its number. `in_use` is the mark of use of its store.
    pub(super) fn add(
        &mut self,
        number: u64,
        identity: Option<Identity>,
        file: &Arc<F>,
        in_use: Weak<()>,
    ) {
        let entry = Entry {
            identity,
            core: Arc::downgrade(file),
            in_use,
        };
        if let Some(identity) = identity {
            self.by_identity.insert((identity, number));
        }
        self.entries.insert(number, entry);
        // Two are removed for each one added: so there are never many, and no call looks at all of
        // them.
        for _ in 0..2 {
            let Some(number) = self.lingering.pop_front() else {
                return;
            };
            self.remove(number);
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        let Some(entry) = self.entries.get(&number) else {
            return;
        };
        if entry.in_use.strong_count() > 0 {
            return self.lingering.push_back(number);
        }
        if let Some(identity) = entry.identity {
            self.by_identity.remove(&(identity, number));
        }
        self.entries.remove(&number);
    }

    /// Returns the files with this identity that are open or being closed.
    pub(super) fn open_as(&self, identity: Identity) -> impl Iterator<Item = &Entry<F>> {
        let numbers = self.by_identity.range((identity, 0)..=(identity, u64::MAX));
        let entries = numbers.filter_map(|(_, number)| self.entries.get(number));
        entries.filter(|entry| entry.is_there())
    }

    /// Returns the open files.
    pub(super) fn open(&self) -> Vec<Arc<F>> {
        self.entries.values().filter_map(Entry::core).collect()
    }

    /// Lists a file one of whose blocks becomes dirty, or unlists it. Its dirty index is locked.
    pub(super) fn set_unwritten(&mut self, number: u64, groups: &[GroupId], listed: bool) {
        for group in groups {
            let key = (*group, number);
            match listed {
                true => self.unwritten.insert(key),
                false => self.unwritten.remove(&key),
            };
        }
    }

    /// Returns the files on that list for which `group`, or one below it, pays.
    pub(super) fn unwritten(&self, group: GroupId) -> Vec<Arc<F>> {
        let numbers = self.unwritten.range((group, 0)..=(group, u64::MAX));
        let entries = numbers.filter_map(|(_, number)| self.entries.get(number));
        entries.filter_map(Entry::core).collect()
    }
}
