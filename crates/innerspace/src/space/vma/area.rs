//! One mapped range: its addresses, the accesses that it allows, and the source of its pages.

use std::fmt;
use std::ops::Range;

use super::device::DeviceRef;
use super::protection::{Protection, Sharing};
use super::tree::Ranged;
use crate::cache::{FileInner, MapperId, MapperList, Mappers, Reading, has_page_in};
use crate::dax::DaxRef;
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

impl MappedFile {
    /// Returns a number that no other open file has.
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

    /// Registers a mapper, which the file calls to revoke its pages.
    pub(crate) fn add_mapper(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        match self {
            MappedFile::Cached(file) => file.add_mapper(mapper),
            MappedFile::Direct(file) => file.mappers.add(mapper),
        }
    }

    /// Returns the list of the mappers that are registered with the file.
    pub(crate) fn mappers(&self) -> &MapperList {
        match self {
            MappedFile::Cached(file) => &file.core().mappers,
            MappedFile::Direct(file) => &file.mappers,
        }
    }
}

/// The source of a mapping's pages.
#[derive(Clone)]
pub(crate) enum Backing {
    Anonymous,
    File(MappedFile),
    Device(DeviceRef),
}

impl Backing {
    /// Returns the reason why a mapping of this backing cannot have a protection above its ceiling.
    pub(crate) fn rules_out(&self, wanted: Protection) -> &'static str {
        match self {
            Backing::Device(device) => device.rules_out(wanted),
            Backing::Anonymous | Backing::File(_) => "the file was opened read-only",
        }
    }

    /// Returns whether both are the same file or device, or both are anonymous.
    fn is_same(&self, other: &Backing) -> bool {
        match (self, other) {
            (Backing::Anonymous, Backing::Anonymous) => true,
            (Backing::File(ours), Backing::File(theirs)) => ours.key() == theirs.key(),
            (Backing::Device(ours), Backing::Device(theirs)) => ours.is(theirs),
            _ => false,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backing::Anonymous => f.write_str("anonymous"),
            Backing::File(file) => f.write_str(file.name()),
            Backing::Device(device) => fmt::Debug::fmt(device, f),
        }
    }
}

/// One mapped range, page-aligned.
#[derive(Clone)]
pub(crate) struct Vma {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) protection: Protection,
    /// The greatest protection that `protect` may set. It excludes stores, for example, for a
    /// shared mapping of a file that was opened read-only.
    pub(crate) ceiling: Protection,
    pub(crate) sharing: Sharing,
    pub(crate) residence: Residence,
    /// How the pages will be read. Matters for cached files only.
    pub(crate) reading: Reading,
    pub(crate) backing: Backing,
    /// The page of the file or device with which the mapping begins; 0 for anonymous memory.
    pub(crate) first_page: u64,
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

    /// Returns whether the mapping has pages. A device has none: accesses to it are calls.
    pub(crate) fn has_pages(&self) -> bool {
        !matches!(self.backing, Backing::Device(_))
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.residence == Residence::Locked
    }

    /// Returns the page of the file or device that is mapped at `at`; 0 for anonymous memory.
    pub(crate) fn file_page(&self, at: u64) -> u64 {
        match &self.backing {
            Backing::Anonymous => 0,
            _ => self.first_page + ((at - self.start) >> PAGE_SHIFT),
        }
    }

    /// Returns the mapped file, if this is a mapping of one.
    pub(crate) fn file(&self) -> Option<&MappedFile> {
        match &self.backing {
            Backing::File(file) => Some(file),
            Backing::Anonymous | Backing::Device(_) => None,
        }
    }

    /// Returns the file whose bytes are mapped. A guarded file is included, although each access to
    /// it is a call.
    pub(crate) fn file_of_bytes(&self) -> Option<MappedFile> {
        let guarded = match &self.backing {
            Backing::Device(device) => device.file(),
            Backing::File(_) | Backing::Anonymous => return self.file().cloned(),
        };
        guarded.map(|file| MappedFile::Direct(file.with_own_count()))
    }

    /// Returns whether this frame has the page of a cached file that is mapped at `at`. The caller
    /// holds the lock of the page's block, and has found the frame in a page table in the current
    /// section.
    pub(crate) fn shows_frame(&self, at: u64, frame: FrameId) -> bool {
        match self.file() {
            Some(MappedFile::Cached(file)) => has_page_in(file.core(), self.file_page(at), frame),
            Some(MappedFile::Direct(_)) | None => false,
        }
    }

    /// Returns the addresses at which this range maps pages of `pages`, if it maps the file with
    /// the key `file`.
    pub(crate) fn addresses_of(&self, file: usize, pages: &Range<u64>) -> Option<Range<u64>> {
        if self.file()?.key() != file {
            return None;
        }
        let own_pages = self.first_page..self.file_page(self.end);
        let from = pages.start.max(own_pages.start);
        let to = pages.end.min(own_pages.end);
        let address = |page: u64| self.start + ((page - own_pages.start) << PAGE_SHIFT);
        (from < to).then(|| address(from)..address(to))
    }

    /// Returns this mapping, cut or extended to these addresses. Its first page is adjusted to the
    /// new start.
    pub(crate) fn slice(&self, addresses: Range<u64>) -> Vma {
        let mut part = self.clone();
        part.first_page = self.file_page(addresses.start);
        (part.start, part.end) = (addresses.start, addresses.end);
        part
    }

    /// Returns whether the two mappings are equal.
    pub(crate) fn is_same(&self, other: &Vma) -> bool {
        let same_backing = self.shows_same(other, self.start);
        (self.start, self.end) == (other.start, other.end) && self.is_like(other) && same_backing
    }

    /// Returns whether both map the same page of the same file or device at `at`, an address of
    /// this range, or are both anonymous there.
    pub(crate) fn shows_same(&self, other: &Vma, at: u64) -> bool {
        let same_pages = || self.file_page(at) == other.file_page(at);
        self.backing.is_same(&other.backing) && other.contains(at) && same_pages()
    }

    fn is_like(&self, other: &Vma) -> bool {
        self.protection == other.protection
            && self.ceiling == other.ceiling
            && self.sharing == other.sharing
            && self.residence == other.residence
            && self.reading == other.reading
    }

    /// Returns whether this range and `next` can be one range: adjacent, alike, and backed
    /// contiguously.
    pub(crate) fn merges_with(&self, next: &Vma) -> bool {
        let goes_on = || next.first_page == self.file_page(self.end);
        self.end == next.start
            && self.is_like(next)
            && self.backing.is_same(&next.backing)
            && goes_on()
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
        write!(f, "{:#x}..{:#x} {}", self.start, self.end, self.backing)?;
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

    fn gap(end: u64, start: u64) -> u64 {
        start - end
    }
}
