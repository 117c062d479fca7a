//! Mapped ranges: an immutable, sorted set that faults read while the gate is open and structural changes replace.
//!
//! A set is built anew for each change: adjacent ranges with the same protection and backing merge, a change in the
//! middle splits. Looking one up is a binary search. (A tree with lock-free readers is to take the set's place.)

use std::fmt;
use std::ops::Range;

use crate::cache::FileInner;
use crate::sync::Arc;
use crate::{PAGE_SHIFT, VirtAddr};

/// What may be done with the pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(u8);

impl Protection {
    /// Nothing may be done.
    pub const NONE: Protection = Protection(0);
    /// Loads.
    pub const READ: Protection = Protection(1);
    /// Stores, and loads with them, as on most hardware.
    pub const WRITE: Protection = Protection(3);
    /// Instruction fetches; carried and reported, and told apart from reading.
    pub const EXECUTE: Protection = Protection(4);
    /// Loads and stores.
    pub const READ_WRITE: Protection = Protection(3);

    /// Whether everything `other` allows is allowed.
    pub fn allows(self, other: Protection) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Protection {
    type Output = Protection;

    fn bitor(self, other: Protection) -> Protection {
        Protection(self.0 | other.0)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |which: Protection, letter| if self.allows(which) { letter } else { '-' };
        let (r, w) = (
            letter(Protection::READ, 'r'),
            letter(Protection::WRITE, 'w'),
        );
        match self.allows(Protection::EXECUTE) {
            true => write!(f, "{r}{w}x"),
            false => write!(f, "{r}{w}"),
        }
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Who sees what is stored to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// This space alone: a store copies the page.
    Private,
    /// Everybody who maps or reads the file.
    Shared,
}

/// Where the pages of a mapping come from.
#[derive(Clone)]
pub(super) enum Backing {
    Anonymous,
    /// A file, from the page with this number on.
    File {
        file: Arc<FileInner>,
        first_page: u64,
    },
}

/// One mapped range, page-aligned.
#[derive(Clone)]
pub(super) struct Vma {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) protection: Protection,
    /// The most `protect` may allow: what the file was opened for.
    pub(super) ceiling: Protection,
    pub(super) sharing: Sharing,
    pub(super) backing: Backing,
}

impl Vma {
    pub(super) fn contains(&self, at: u64) -> bool {
        self.start <= at && at < self.end
    }

    /// The page of the file that `at` shows; meaningless for anonymous memory.
    pub(super) fn file_page(&self, at: u64) -> u64 {
        match &self.backing {
            Backing::Anonymous => 0,
            Backing::File { first_page, .. } => first_page + ((at - self.start) >> PAGE_SHIFT),
        }
    }

    pub(super) fn file(&self) -> Option<&Arc<FileInner>> {
        match &self.backing {
            Backing::Anonymous => None,
            Backing::File { file, .. } => Some(file),
        }
    }

    /// The addresses at which this range shows pages of `pages`, if it is a range of that file.
    pub(super) fn addresses_of(&self, file: &FileInner, pages: &Range<u64>) -> Option<Range<u64>> {
        let Backing::File {
            file: own,
            first_page,
        } = &self.backing
        else {
            return None;
        };
        if !std::ptr::eq(&**own, file) {
            return None;
        }
        let own_pages = *first_page..first_page + ((self.end - self.start) >> PAGE_SHIFT);
        let from = pages.start.max(own_pages.start);
        let to = pages.end.min(own_pages.end);
        let address = |page: u64| self.start + ((page - own_pages.start) << PAGE_SHIFT);
        (from < to).then(|| address(from)..address(to))
    }

    /// The part of the range inside `start..end`, with its backing moved along.
    fn slice(&self, start: u64, end: u64) -> Vma {
        let mut part = self.clone();
        if let Backing::File { first_page, .. } = &mut part.backing {
            *first_page = self.file_page(start);
        }
        part.start = start;
        part.end = end;
        part
    }

    fn merges_with(&self, next: &Vma) -> bool {
        let same_backing = match (&self.backing, &next.backing) {
            (Backing::Anonymous, Backing::Anonymous) => true,
            (
                Backing::File { file: a, .. },
                Backing::File {
                    file: b,
                    first_page,
                },
            ) => Arc::ptr_eq(a, b) && self.file_page(self.end) == *first_page,
            _ => false,
        };
        self.end == next.start
            && self.protection == next.protection
            && self.ceiling == next.ceiling
            && self.sharing == next.sharing
            && same_backing
    }
}

impl fmt::Display for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharing = match self.sharing {
            Sharing::Private => "private",
            Sharing::Shared => "shared",
        };
        write!(f, "{:#x}..{:#x} ", self.start, self.end)?;
        match &self.backing {
            Backing::Anonymous => write!(f, "anonymous")?,
            Backing::File { file, .. } => write!(f, "{}", file.name())?,
        }
        write!(f, " {} {sharing}", self.protection)
    }
}

/// All mapped ranges of a space, sorted, not overlapping, merged where they can be.
#[derive(Clone, Default)]
pub(super) struct VmaSet {
    vmas: Vec<Vma>,
}

impl VmaSet {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Vma> {
        self.vmas.iter()
    }

    /// The first range that ends above `at`; it may start above it.
    pub(super) fn find(&self, at: u64) -> Option<&Vma> {
        self.vmas
            .get(self.vmas.partition_point(|vma| vma.end <= at))
    }

    /// The range that contains `at`.
    pub(super) fn find_containing(&self, at: u64) -> Option<&Vma> {
        self.find(at).filter(|vma| vma.contains(at))
    }

    /// The range nearest to `at`, above or below.
    pub(super) fn nearest(&self, at: u64) -> Option<&Vma> {
        let above = self.vmas.partition_point(|vma| vma.end <= at);
        let below = above.checked_sub(1).and_then(|i| self.vmas.get(i));
        match (below, self.vmas.get(above)) {
            (Some(below), Some(above)) => {
                let nearer_above = above.start.saturating_sub(at) <= at - below.end;
                Some(if nearer_above { above } else { below })
            }
            (below, above) => above.or(below),
        }
    }

    /// The ranges that overlap `range`.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> &[Vma] {
        let from = self.vmas.partition_point(|vma| vma.end <= range.start);
        let to = self.vmas.partition_point(|vma| vma.start < range.end);
        &self.vmas[from..to.max(from)]
    }

    /// Whether every page of `range` is mapped.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        for vma in self.overlapping(range) {
            if vma.start > at {
                return false;
            }
            at = vma.end;
        }
        at >= range.end
    }

    /// The lowest free range of `len` bytes at or above `from` and below `limit`, aligned to `align`.
    pub(super) fn gap(&self, from: u64, limit: u64, len: u64, align: u64) -> Option<u64> {
        let mut at = from.checked_next_multiple_of(align)?;
        for vma in &self.vmas[self.vmas.partition_point(|vma| vma.end <= from)..] {
            if at.checked_add(len)? <= vma.start {
                break;
            }
            at = at.max(vma.end).checked_next_multiple_of(align)?;
        }
        (at.checked_add(len)? <= limit).then_some(at)
    }

    /// The set with `range` unmapped.
    pub(super) fn without(&self, range: &Range<u64>) -> VmaSet {
        self.rebuilt(range, |_| None, None)
    }

    /// The set with `vma` in place of whatever it overlaps.
    pub(super) fn with(&self, vma: Vma) -> VmaSet {
        self.rebuilt(&(vma.start..vma.end), |_| None, Some(vma))
    }

    /// The set with `protection` on all of `range`.
    pub(super) fn protected(&self, range: &Range<u64>, protection: Protection) -> VmaSet {
        let change = |mut part: Vma| {
            part.protection = protection;
            Some(part)
        };
        self.rebuilt(range, change, None)
    }

    /// Splits at the ends of `range`, passes each part inside through `change`, adds `new`, sorts and merges.
    fn rebuilt(
        &self,
        range: &Range<u64>,
        change: impl Fn(Vma) -> Option<Vma>,
        new: Option<Vma>,
    ) -> VmaSet {
        let mut parts: Vec<Vma> = Vec::with_capacity(self.vmas.len() + 2);
        for vma in &self.vmas {
            if vma.end <= range.start || range.end <= vma.start {
                parts.push(vma.clone());
                continue;
            }
            if vma.start < range.start {
                parts.push(vma.slice(vma.start, range.start));
            }
            let inside = vma.slice(vma.start.max(range.start), vma.end.min(range.end));
            parts.extend(change(inside));
            if range.end < vma.end {
                parts.push(vma.slice(range.end, vma.end));
            }
        }
        if let Some(new) = new {
            let place = parts.partition_point(|vma| vma.start < new.start);
            parts.insert(place, new);
        }
        let mut merged: Vec<Vma> = Vec::with_capacity(parts.len());
        for part in parts {
            match merged.last_mut() {
                Some(last) if last.merges_with(&part) => last.end = part.end,
                _ => merged.push(part),
            }
        }
        VmaSet { vmas: merged }
    }

    /// Checks order, alignment and merging.
    pub(super) fn validate(&self) {
        for vma in &self.vmas {
            assert!(vma.start < vma.end, "an empty range: {vma}");
            assert!(
                (vma.start | vma.end) % crate::PAGE_SIZE as u64 == 0,
                "unaligned: {vma}"
            );
        }
        for pair in self.vmas.windows(2) {
            assert!(
                pair[0].end <= pair[1].start,
                "{} overlaps {}",
                pair[0],
                pair[1]
            );
            assert!(
                !pair[0].merges_with(&pair[1]),
                "{} should merge with {}",
                pair[0],
                pair[1]
            );
        }
    }
}

impl VirtAddr {
    /// Whether the address is the first of a page.
    pub(super) fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(start: u64, end: u64) -> Vma {
        Vma {
            start: start << 12,
            end: end << 12,
            protection: Protection::READ_WRITE,
            ceiling: Protection::READ_WRITE | Protection::EXECUTE,
            sharing: Sharing::Private,
            backing: Backing::Anonymous,
        }
    }

    fn shape(set: &VmaSet) -> Vec<(u64, u64, String)> {
        set.validate();
        let row = |vma: &Vma| (vma.start >> 12, vma.end >> 12, vma.protection.to_string());
        set.iter().map(row).collect()
    }

    #[test]
    fn ranges_merge_split_and_are_found() {
        let set = VmaSet::default()
            .with(anonymous(10, 20))
            .with(anonymous(20, 30));
        assert_eq!(shape(&set), [(10, 30, "rw".into())]);
        let set = set.without(&(14 << 12..16 << 12));
        assert_eq!(shape(&set), [(10, 14, "rw".into()), (16, 30, "rw".into())]);
        assert_eq!(set.find(15 << 12).unwrap().start, 16 << 12);
        assert!(set.find_containing(15 << 12).is_none());
        assert!(set.find_containing((14 << 12) - 1).is_some());
        assert!(set.find(30 << 12).is_none());
        assert!(!set.covers(&(10 << 12..30 << 12)));
        assert!(set.covers(&(16 << 12..30 << 12)));
        let set = set.protected(&(18 << 12..20 << 12), Protection::READ);
        assert_eq!(set.iter().count(), 4);
        let set = set
            .protected(&(16 << 12..30 << 12), Protection::READ_WRITE)
            .with(anonymous(14, 16));
        assert_eq!(shape(&set), [(10, 30, "rw".into())]);
    }

    #[test]
    fn gaps_are_found_below_the_limit() {
        let set = VmaSet::default()
            .with(anonymous(10, 20))
            .with(anonymous(22, 30));
        assert_eq!(set.gap(10 << 12, 1 << 20, 2 << 12, 1 << 12), Some(20 << 12));
        assert_eq!(set.gap(10 << 12, 1 << 20, 3 << 12, 1 << 12), Some(30 << 12));
        assert_eq!(set.gap(10 << 12, 32 << 12, 3 << 12, 1 << 12), None);
        assert_eq!(set.gap(0, u64::MAX, u64::MAX, 1 << 12), None);
    }
}
