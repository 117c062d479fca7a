//! One mapped range: its addresses, the accesses that it allows, and the source of its pages.

use super::protection::{Protection, Sharing};
use std::fmt;
use std::ops::Range;

use super::device::DeviceRef;
use super::tree::Ranged;
use crate::cache::{FileInner, MapperId, Mappers, Reading};
use crate::dax::{DaxRef, WeakDaxRef};
use crate::sync::{Arc, Weak};
use crate::{FrameId, PAGE_SHIFT};

/// A file whose pages are mapped.
#[derive(Clone)]
pub(crate) enum MappedFile {
    /// A file that is mapped through the page cache.
    Cached(Arc<FileInner>),
    /// A direct-access file, whose own bytes are mapped.
    Direct(DaxRef),
}

/// The same file, by a reference that does not keep it open.
#[derive(Debug)]
pub(crate) enum WeakFile {
    Cached(Weak<FileInner>),
    Direct(WeakDaxRef),
}

impl MappedFile {
    /// Returns a number that tells files apart as long as they are open.
    pub(crate) fn key(&self) -> usize {
        match self {
            MappedFile::Cached(file) => file.address(),
            MappedFile::Direct(file) => Arc::as_ptr(file.core()) as usize,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        match self {
            MappedFile::Cached(file) => file.name(),
            MappedFile::Direct(file) => file.name(),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakFile {
        match self {
            MappedFile::Cached(file) => WeakFile::Cached(Arc::downgrade(file)),
            MappedFile::Direct(file) => WeakFile::Direct(file.downgrade()),
        }
    }

    /// Registers a mapper, which the file calls before it takes pages away.
    pub(crate) fn add_mapper(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        match self {
            MappedFile::Cached(file) => file.add_mapper(mapper),
            MappedFile::Direct(file) => file.add_mapper(mapper),
        }
    }

    /// Returns whether the space with this number maps the file.
    pub(crate) fn is_mapped_by(&self, space: u64) -> bool {
        match self {
            MappedFile::Cached(file) => file.core().mappers.has_owner(space),
            MappedFile::Direct(file) => file.core().is_mapped_by(space),
        }
    }

    /// Revokes write validity of pages of the file, in every space.
    pub(crate) fn revoke_write(&self, pages: Range<u64>) {
        match self {
            MappedFile::Cached(file) => file.core().revoke_write(pages),
            MappedFile::Direct(file) => file.core().revoke_write(pages),
        }
    }

    pub(crate) fn remove_mapper(&self, id: MapperId) {
        match self {
            MappedFile::Cached(file) => file.remove_mapper(id),
            MappedFile::Direct(file) => file.remove_mapper(id),
        }
    }
}

impl WeakFile {
    pub(crate) fn upgrade(&self) -> Option<MappedFile> {
        match self {
            WeakFile::Cached(file) => file.upgrade().map(MappedFile::Cached),
            WeakFile::Direct(file) => file.upgrade().map(MappedFile::Direct),
        }
    }
}

/// The source of a mapping's pages.
#[derive(Clone)]
pub(crate) enum Backing {
    Anonymous,
    /// A file; the mapping begins at this page of it.
    File {
        file: MappedFile,
        first_page: u64,
    },
    /// A device; the mapping begins at this page of it.
    Device {
        device: DeviceRef,
        first_page: u64,
    },
}

impl Backing {
    /// Returns the number of the first page, unless the memory is anonymous.
    pub(crate) fn first_page_mut(&mut self) -> Option<&mut u64> {
        match self {
            Backing::Anonymous => None,
            Backing::File { first_page, .. } | Backing::Device { first_page, .. } => {
                Some(first_page)
            }
        }
    }

    /// Says why a mapping of this backing may not have a protection above its ceiling.
    pub(crate) fn rules_out(&self, wanted: Protection) -> &'static str {
        match self {
            Backing::Device { device, .. } => device.rules_out(wanted),
            Backing::Anonymous | Backing::File { .. } => "the file was opened read-only",
        }
    }

    /// Returns the first page of `other` if both have the same file or device; 0 if both are
    /// anonymous.
    fn same_thing(&self, other: &Backing) -> Option<u64> {
        match (self, other) {
            (Backing::Anonymous, Backing::Anonymous) => Some(0),
            (
                Backing::File { file, .. },
                Backing::File {
                    file: theirs,
                    first_page,
                },
            ) if file.key() == theirs.key() => Some(*first_page),
            (
                Backing::Device { device, .. },
                Backing::Device {
                    device: theirs,
                    first_page,
                },
            ) if device.is(theirs) => Some(*first_page),
            _ => None,
        }
    }
}

/// One mapped range, page-aligned.
#[derive(Clone)]
pub(crate) struct Vma {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) protection: Protection,
    /// The most that `protect` may allow: what the file was opened for.
    pub(crate) ceiling: Protection,
    pub(crate) sharing: Sharing,
    pub(crate) residence: Residence,
    /// How the pages will be read. Matters for cached files only.
    pub(crate) reading: Reading,
    pub(crate) backing: Backing,
}

/// Whether reclaim may take the pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Residence {
    Pageable,
    /// The pages stay until they are unlocked or unmapped.
    Locked,
}

impl Vma {
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.start <= at && at < self.end
    }

    /// Returns the addresses of this range that are in `range`.
    pub(crate) fn part_in(&self, range: &Range<u64>) -> Range<u64> {
        self.start.max(range.start)..self.end.min(range.end)
    }

    /// Returns whether the mapping has pages: accesses to a device are calls.
    pub(crate) fn has_pages(&self) -> bool {
        !matches!(self.backing, Backing::Device { .. })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.residence == Residence::Locked
    }

    /// Returns the page of the file or device that is mapped at `at`; 0 for anonymous memory.
    pub(crate) fn file_page(&self, at: u64) -> u64 {
        match &self.backing {
            Backing::Anonymous => 0,
            Backing::File { first_page, .. } | Backing::Device { first_page, .. } => {
                first_page + ((at - self.start) >> PAGE_SHIFT)
            }
        }
    }

    /// Returns the mapped file, if this is a mapping of one.
    pub(crate) fn file(&self) -> Option<&MappedFile> {
        match &self.backing {
            Backing::File { file, .. } => Some(file),
            Backing::Anonymous | Backing::Device { .. } => None,
        }
    }

    /// Returns the file whose bytes are mapped. A guarded file is included, although each access to
    /// it is a call.
    pub(crate) fn file_of_bytes(&self) -> Option<MappedFile> {
        let guarded = match &self.backing {
            Backing::Device { device, .. } => device.file(),
            Backing::File { .. } | Backing::Anonymous => return self.file().cloned(),
        };
        guarded.map(|file| MappedFile::Direct(file.with_own_count()))
    }

    /// Returns whether this frame has the page of a cached file that is mapped at `at`. The page's
    /// block is locked, and the frame was found in a page table, in a section.
    pub(crate) fn shows_frame(&self, at: u64, frame: FrameId) -> bool {
        match self.file() {
            Some(MappedFile::Cached(file)) => file.core().has_page_in(self.file_page(at), frame),
            Some(MappedFile::Direct(_)) | None => false,
        }
    }

    /// Returns the addresses at which this range maps pages of `pages`, if it maps the file with
    /// that key.
    pub(crate) fn addresses_of(&self, file: usize, pages: &Range<u64>) -> Option<Range<u64>> {
        let Backing::File {
            file: own,
            first_page,
        } = &self.backing
        else {
            return None;
        };
        if own.key() != file {
            return None;
        }
        let own_pages = *first_page..first_page + ((self.end - self.start) >> PAGE_SHIFT);
        let from = pages.start.max(own_pages.start);
        let to = pages.end.min(own_pages.end);
        let address = |page: u64| self.start + ((page - own_pages.start) << PAGE_SHIFT);
        (from < to).then(|| address(from)..address(to))
    }

    /// Returns the mapping that this one is, or would be if it were longer, at these addresses: its
    /// backing begins further on accordingly.
    pub(crate) fn slice(&self, addresses: Range<u64>) -> Vma {
        let mut part = self.clone();
        if let Some(first_page) = part.backing.first_page_mut() {
            *first_page = self.file_page(addresses.start);
        }
        (part.start, part.end) = (addresses.start, addresses.end);
        part
    }

    /// Returns whether the two mappings are equal.
    pub(crate) fn is_same(&self, other: &Vma) -> bool {
        let same_backing = self.shows_same(other, self.start);
        (self.start, self.end) == (other.start, other.end) && self.is_like(other) && same_backing
    }

    /// Returns whether both map the same page of the same file or device at `at`, an address of
    /// this range.
    pub(crate) fn shows_same(&self, other: &Vma, at: u64) -> bool {
        let same_thing = self.backing.same_thing(&other.backing).is_some();
        same_thing && other.contains(at) && self.file_page(at) == other.file_page(at)
    }

    fn is_like(&self, other: &Vma) -> bool {
        self.protection == other.protection
            && self.ceiling == other.ceiling
            && self.sharing == other.sharing
            && self.residence == other.residence
            && self.reading == other.reading
    }

    /// Returns whether the two can be one range: adjacent, alike, and backed contiguously.
    pub(crate) fn merges_with(&self, next: &Vma) -> bool {
        let first = self.backing.same_thing(&next.backing);
        let same_backing = first.is_some_and(|first| first == self.file_page(self.end));
        self.end == next.start && self.is_like(next) && same_backing
    }
}

impl fmt::Debug for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
            Backing::Device { device, .. } => write!(f, "{device:?}")?,
        }
        write!(f, " {} {sharing}", self.protection)?;
        match self.residence {
            Residence::Pageable => {}
            Residence::Locked => write!(f, " locked")?,
        }
        match self.reading {
            Reading::Normal => Ok(()),
            Reading::Random => write!(f, " read at random"),
            Reading::Sequential => write!(f, " read in order"),
        }
    }
}

impl Ranged for Vma {
    type Key = u64;

    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }
}
