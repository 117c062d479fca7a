//! All mapped ranges of a space. They are sorted, do not overlap, and are merged where possible.
//!
//! A set is a value, like its tree (`tree`): a writer changes a clone and publishes it; readers
//! keep what they found. A change splits ranges at its ends, and merges neighbours that are alike.
//! A second tree has the ranges of files by their pages (`rmap`).

use std::ops::Range;

use super::area::Vma;
use super::ledger::Ledger;
use super::rmap::FileRanges;
use super::tree::RangeTree;
use crate::VirtAddr;
use crate::space::core::error::SpaceError;
use crate::sync::Arc;

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/set.rs"]
mod validate;

/// All mapped ranges of a space, as this module describes them.
#[derive(Clone)]
pub(crate) struct VmaSet {
    tree: RangeTree<Vma>,
    /// The mappings of files, by page.
    files: FileRanges,
    /// The number of locked ranges, whose pages stay in memory.
    locked: usize,
}

impl Changed {
    /// Returns this change and a later one as one change.
    pub(crate) fn and(mut self, mut next: Changed) -> Changed {
        self.removed.append(&mut next.removed);
        self.added.append(&mut next.added);
        self
    }
}

impl std::fmt::Debug for VmaSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The ranges that a change removed from a set and added to it.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// The ranges that no longer exist or have changed, as they were before.
    pub(crate) removed: Vec<Vma>,
    /// The ranges that are new or have changed, as they are now.
    pub(crate) added: Vec<Vma>,
}

impl VmaSet {
    /// Creates an empty set whose nodes are counted in `ledger`.
    pub(crate) fn new(ledger: Arc<Ledger>) -> VmaSet {
        VmaSet {
            files: FileRanges::new(ledger.clone()),
            tree: RangeTree::new(ledger),
            locked: 0,
        }
    }

    /// Returns a clone of the set for another payer: new nodes of the clone are counted in
    /// `ledger`.
    pub(crate) fn with_ledger(&self, ledger: Arc<Ledger>) -> VmaSet {
        VmaSet {
            files: self.files.with_ledger(ledger.clone()),
            tree: self.tree.with_ledger(ledger),
            locked: self.locked,
        }
    }

    /// Returns an empty set with the same ledger.
    pub(crate) fn emptied(&self) -> VmaSet {
        VmaSet::new(self.tree.ledger().clone())
    }

    /// Returns the ledger in which new nodes of this set are counted.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        self.tree.ledger()
    }

    /// Returns whether both sets are unchanged clones of one set, or both are empty.
    pub(crate) fn is_clone_of(&self, other: &VmaSet) -> bool {
        self.tree.is_clone_of(&other.tree)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.tree.iter()
    }

    /// Returns whether there are locked ranges.
    pub(crate) fn has_locked(&self) -> bool {
        self.locked > 0
    }

    /// Returns the ranges that map one of `pages` of the file with the key `file`, each with the
    /// addresses at which it maps them.
    pub(crate) fn showing(
        &self,
        file: usize,
        pages: &Range<u64>,
    ) -> impl Iterator<Item = (&Vma, Range<u64>)> + use<'_> {
        let pages = pages.clone();
        let found = self.files.showing(file, &pages);
        found.map(move |at| {
            let vma = self.find_containing(at);
            let vma = vma.expect("a range of a file is a range");
            let addresses = vma.addresses_of(file, &pages);
            (vma, addresses.expect("it shows some of them"))
        })
    }

    /// Returns the first page of the file, at or above `from`, that a range maps.
    pub(crate) fn first_page(&self, file: usize, from: u64) -> Option<u64> {
        self.files.first_page(file, from)
    }

    /// Returns the first range that ends above `at`. The range may also start above `at`.
    pub(crate) fn find(&self, at: u64) -> Option<&Vma> {
        self.tree.find(at)
    }

    /// Returns the range that contains `at`.
    pub(crate) fn find_containing(&self, at: u64) -> Option<&Vma> {
        self.find(at).filter(|vma| vma.contains(at))
    }

    /// Returns the range that contains `at`, or else the nearest one, above or below.
    pub(crate) fn nearest(&self, at: u64) -> Option<&Vma> {
        match (self.tree.before(at), self.find(at)) {
            (Some(below), Some(above)) => {
                let nearer_above = above.start.saturating_sub(at) <= at - below.end;
                Some(if nearer_above { above } else { below })
            }
            (below, above) => above.or(below),
        }
    }

    /// Returns the ranges that overlap `range`, each as a whole.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Vma> {
        let end = range.end;
        let from_there = self.tree.iter_from(range.start);
        from_there.take_while(move |vma| vma.start < end)
    }

    /// Returns the mappings in `range`, from its start on, up to the first gap.
    pub(crate) fn run(&self, range: &Range<u64>) -> impl Iterator<Item = &Vma> {
        let mut end = range.start;
        self.overlapping(range).take_while(move |vma| {
            let follows = vma.start <= end;
            end = vma.end;
            follows
        })
    }

    /// Checks that every page of `range` is mapped. The error contains `what`, the operation, and
    /// `len`, the length that the caller gave.
    pub(crate) fn check_covers(
        &self,
        range: &Range<u64>,
        what: &'static str,
        len: u64,
    ) -> Result<(), SpaceError> {
        let at = VirtAddr(range.start);
        match self.run(range).last() {
            Some(last) if last.end >= range.end => Ok(()),
            _ => Err(SpaceError::NotMapped { what, at, len }),
        }
    }

    /// Returns whether each page of `range` that is mapped in both sets has the same content and
    /// protection in both.
    pub(crate) fn shows_as(&self, other: &VmaSet, range: &Range<u64>) -> bool {
        self.overlapping(range).all(|vma| {
            let part = vma.part_in(range);
            other.overlapping(&part).all(|before| {
                vma.protection == before.protection
                    && vma.shows_same(before, part.start.max(before.start))
            })
        })
    }

    /// Returns the start of the lowest free range of `len` bytes at or above `from` and below
    /// `limit`, aligned to `align`.
    pub(crate) fn gap(&self, from: u64, limit: u64, len: u64, align: u64) -> Option<u64> {
        self.tree.gap(from, limit, len, align)
    }

    /// Unmaps `range`.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> Changed {
        self.change(range, |_| None, None)
    }

    /// Maps `vma` in place of whatever it overlaps.
    pub(crate) fn put(&mut self, vma: Vma) -> Changed {
        self.change(&(vma.start..vma.end), |_| None, Some(vma))
    }

    /// Applies `change` to the parts of ranges inside `range`.
    pub(crate) fn update(&mut self, range: &Range<u64>, change: impl Fn(&mut Vma)) -> Changed {
        let keep = |mut part: Vma| {
            change(&mut part);
            Some(part)
        };
        self.change(range, keep, None)
    }

    /// Splits ranges at the ends of `range`, applies `change` to each part inside (`None` removes
    /// the part), adds `put`, and merges.
    fn change(
        &mut self,
        range: &Range<u64>,
        change: impl Fn(Vma) -> Option<Vma>,
        put: Option<Vma>,
    ) -> Changed {
        // Ranges that only touch `range` are included, because they may merge with what is in it
        // now.
        let near = range.start.saturating_sub(1)..range.end + 1;
        let mut old: Vec<Vma> = self.overlapping(&near).cloned().collect();
        let mut parts: Vec<Vma> = Vec::with_capacity(old.len() + 3);
        for vma in &old {
            if vma.start < range.start {
                parts.push(vma.slice(vma.start..vma.end.min(range.start)));
            }
            let inside = vma.part_in(range);
            if !inside.is_empty() {
                parts.extend(change(vma.slice(inside)));
            }
            if range.end < vma.end {
                parts.push(vma.slice(vma.start.max(range.end)..vma.end));
            }
        }
        if let Some(put) = put {
            let place = parts.partition_point(|vma| vma.start < put.start);
            parts.insert(place, put);
        }
        let mut new: Vec<Vma> = Vec::with_capacity(parts.len());
        for part in parts {
            match new.last_mut() {
                Some(last) if last.merges_with(&part) => last.end = part.end,
                _ => new.push(part),
            }
        }
        // Both lists are sorted. A range that is in both stays in the trees.
        let is_in = |list: &[Vma], vma: &Vma| {
            let place = list.binary_search_by_key(&vma.start, |other| other.start);
            place.is_ok_and(|place| vma.is_same(&list[place]))
        };
        let stay: Vec<Vma> = old.extract_if(.., |vma| is_in(&new, vma)).collect();
        new.retain(|vma| !is_in(&stay, vma));
        let locked = |vmas: &[Vma]| vmas.iter().filter(|vma| vma.is_locked()).count();
        self.locked = self.locked + locked(&new) - locked(&old);
        for vma in &old {
            self.tree.remove(vma.start);
            self.files.remove(vma);
        }
        for vma in &new {
            self.tree.insert(vma.clone());
            self.files.insert(vma);
        }
        Changed {
            removed: old,
            added: new,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::cache::Reading;
    use crate::space::vma::area::{Backing, Residence};
    use crate::space::vma::protection::{Protection, Sharing};

    const R: Protection = Protection::READ;
    const RW: Protection = Protection::READ_WRITE;

    fn anonymous(start: u64, end: u64, protection: Protection) -> Vma {
        Vma {
            start: start << 12,
            end: end << 12,
            protection,
            ceiling: RW | Protection::EXECUTE,
            sharing: Sharing::Private,
            residence: Residence::Pageable,
            reading: Reading::Normal,
            backing: Backing::Anonymous,
            first_page: 0,
        }
    }

    fn set(vmas: &[Vma]) -> VmaSet {
        let mut set = VmaSet::new(Arc::default());
        vmas.iter().for_each(|vma| drop(set.put(vma.clone())));
        set
    }

    fn pages(start: u64, end: u64) -> Range<u64> {
        start << 12..end << 12
    }

    /// Describes each range by its pages and protection.
    fn shape(set: &VmaSet) -> String {
        set.validate();
        let row = |vma: &Vma| format!("{}-{} {}", vma.start >> 12, vma.end >> 12, vma.protection);
        set.iter().map(row).collect::<Vec<_>>().join(", ")
    }

    fn protect(set: &mut VmaSet, start: u64, end: u64, protection: Protection) -> Changed {
        set.update(&pages(start, end), |part| part.protection = protection)
    }

    // spec: V14
    #[test]
    fn a_range_that_extends_another_merges_with_it() {
        let mut set = set(&[anonymous(10, 20, RW)]);
        set.put(anonymous(5, 10, RW));
        assert_eq!(shape(&set), "5-20 rw", "to the left");
        set.put(anonymous(20, 25, RW));
        assert_eq!(shape(&set), "5-25 rw", "to the right");
        set.put(anonymous(30, 35, RW));
        set.put(anonymous(25, 30, RW));
        assert_eq!(shape(&set), "5-35 rw", "both");
        set.put(anonymous(35, 40, R));
        assert_eq!(
            shape(&set),
            "5-35 rw, 35-40 r-",
            "another protection does not"
        );
    }

    // spec: V14
    #[test]
    fn a_hole_in_the_middle_splits_and_filling_it_merges() {
        let mut set = set(&[anonymous(10, 20, RW)]);
        let changed = set.remove(&pages(14, 16));
        assert_eq!(shape(&set), "10-14 rw, 16-20 rw");
        assert_eq!((changed.removed.len(), changed.added.len()), (1, 2));
        set.put(anonymous(14, 16, RW));
        assert_eq!(shape(&set), "10-20 rw");
        set.remove(&pages(10, 12));
        set.remove(&pages(18, 20));
        assert_eq!(shape(&set), "12-18 rw", "an end comes off");
        assert!(set.remove(&pages(30, 40)).removed.is_empty());
    }

    // spec: V14
    #[test]
    fn protecting_splits_in_the_middle_and_merges_across_three() {
        let mut set = set(&[anonymous(10, 20, RW)]);
        protect(&mut set, 14, 16, R);
        assert_eq!(shape(&set), "10-14 rw, 14-16 r-, 16-20 rw");
        protect(&mut set, 12, 18, R);
        assert_eq!(shape(&set), "10-12 rw, 12-18 r-, 18-20 rw");
        let changed = protect(&mut set, 10, 20, RW);
        assert_eq!(shape(&set), "10-20 rw");
        assert_eq!((changed.removed.len(), changed.added.len()), (3, 1));
        let unchanged = protect(&mut set, 12, 13, RW);
        assert!(unchanged.removed.is_empty() && unchanged.added.is_empty());
    }

    #[test]
    fn what_a_change_leaves_as_it_was_between_its_ends_is_not_part_of_it() {
        let rows = [(10, R), (12, RW), (15, RW), (18, RW), (20, R)];
        let mut set = set(&rows.map(|(start, protection)| anonymous(start, start + 2, protection)));
        let changed = protect(&mut set, 10, 22, RW);
        assert_eq!(shape(&set), "10-14 rw, 15-17 rw, 18-22 rw");
        assert_eq!((changed.removed.len(), changed.added.len()), (4, 2));
    }

    // spec: V14
    #[test]
    fn whatever_differs_does_not_merge() {
        let base = anonymous(10, 20, RW);
        let next = anonymous(20, 30, RW);
        assert!(base.merges_with(&next));
        let change = |change: fn(&mut Vma)| {
            let mut other = next.clone();
            change(&mut other);
            base.merges_with(&other)
        };
        assert!(!change(|vma| vma.ceiling = R));
        assert!(!change(|vma| vma.sharing = Sharing::Shared));
        assert!(!change(|vma| vma.residence = Residence::Locked));
        assert!(!change(|vma| vma.reading = Reading::Random));
        assert!(!change(|vma| vma.start += 0x1000));
    }

    #[test]
    fn ranges_are_found_by_what_lies_around() {
        let set = set(&[anonymous(10, 14, RW), anonymous(16, 30, RW)]);
        assert_eq!(set.find(15 << 12).unwrap().start, 16 << 12);
        assert!(set.find_containing(15 << 12).is_none());
        assert!(set.find_containing((14 << 12) - 1).is_some());
        assert!(set.find(30 << 12).is_none());
        assert!(set.check_covers(&pages(10, 30), "map", 1).is_err());
        assert!(set.check_covers(&pages(16, 30), "map", 1).is_ok());
        assert_eq!(set.nearest(15 << 12).unwrap().start, 16 << 12);
        assert_eq!(set.nearest(14 << 12).unwrap().start, 10 << 12);
        assert_eq!(set.nearest(99 << 12).unwrap().start, 16 << 12);
    }
}
