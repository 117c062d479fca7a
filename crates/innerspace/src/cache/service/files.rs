//! The files of a memory that are not closed: by number, by identity, and by the groups that pay
//! for their unwritten blocks.
//!
//! A call that concerns one file, or one group, accesses no other file: files are reached only by
//! way of [`Entry`], where tests count the accesses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::group::GroupId;
use crate::store::Identity;
use crate::sync::{Arc, Weak, failpoint};

/// A file that is not closed. Its identity can be read while locks are held. A reference to the
/// file must not be taken then, since it might become the last one.
pub(super) struct Entry<F> {
    identity: Option<Identity>,
    core: Weak<F>,
    /// The mark that the file's store is in use: see `FileStore::in_use`.
    in_use: Weak<()>,
}

impl<F> Entry<F> {
    /// Whether the file still exists, or a call still uses its store. A file whose closing panicked
    /// may not have removed its entry.
    fn is_there(&self) -> bool {
        failpoint!(FileSeen);
        self.core.strong_count() > 0 || self.in_use.strong_count() > 0
    }

    /// Returns the file, unless its last reference was dropped.
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
    /// The files that have blocks which are not written or not synced. A file is listed once under
    /// each group that pays for it. Files that no longer have such blocks may still be listed.
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
    /// Returns a number for a new file.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Adds a file under its number. `in_use` is the mark that the file's store is in use.
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
        // At most two lingering files are removed for each file added. So there are never many of
        // them, and no call has to look at all of them.
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

    /// Returns the files that are open or being closed.
    pub(super) fn open(&self) -> Vec<Arc<F>> {
        self.entries.values().filter_map(Entry::core).collect()
    }

    /// Adds a file to the list of files with unwritten blocks, for each of `groups`, or removes it
    /// from there. The caller has locked the file's dirty index.
    pub(super) fn set_unwritten(&mut self, number: u64, groups: &[GroupId], listed: bool) {
        for group in groups {
            let key = (*group, number);
            match listed {
                true => self.unwritten.insert(key),
                false => self.unwritten.remove(&key),
            };
        }
    }

    /// Returns the files charged to `group` or to a group below it that have unwritten blocks. The
    /// result may include files that no longer have any.
    pub(super) fn unwritten(&self, group: GroupId) -> Vec<Arc<F>> {
        let numbers = self.unwritten.range((group, 0)..=(group, u64::MAX));
        let entries = numbers.filter_map(|(_, number)| self.entries.get(number));
        entries.filter_map(Entry::core).collect()
    }
}
