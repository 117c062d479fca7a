//! Reports of a space's contents, in the manner of smaps.

use std::fmt;

use crate::VirtAddr;
use crate::cache::{Reading, is_dirty_in};
use crate::space::change::pages::Advice;
use crate::space::core::space::Space;
use crate::space::table::ROOT_LEVEL;
use crate::space::table::nodes::Nodes;
use crate::space::table::pte::Pte;
use crate::space::table::report::PageStats;
use crate::space::vma::area::{Backing, MappedFile, Vma};
use crate::space::vma::cache::VmaLookups;
use crate::space::vma::protection::{Protection, Sharing};
use crate::units::{ByteSize, PAGE_SIZE, PageCount};

/// One mapping and its resident pages.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MappingInfo {
    /// The first address.
    pub start: VirtAddr,
    /// The end: the first address past the last.
    pub end: VirtAddr,
    /// The accesses allowed; serialized as printed: `rw`, `r-`, `rwx`.
    pub protection: Protection,
    /// Whether stores go to the mapped file or device, or to pages of this space alone.
    pub sharing: Sharing,
    /// The kind of memory that is mapped.
    pub kind: MappingKind,
    /// The name of the mapped file, if there is one.
    pub file: Option<String>,
    /// The offset in bytes in the file or device that is mapped at `start`; 0 for anonymous memory.
    pub offset: u64,
    /// Whether the pages are locked in memory, so that reclaim does not take them; see
    /// [`Space::lock`].
    pub locked: bool,
    /// How the mapping's file will be read: [`Advice::Normal`], [`Advice::Random`] or
    /// [`Advice::Sequential`].
    pub reading: Advice,
    /// The numbers of the mapping's pages, by kind and state.
    pub pages: PageStats,
}

/// The kind of memory that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum MappingKind {
    /// Memory that belongs to no file.
    Anonymous,
    /// A file, mapped through the page cache.
    File,
    /// A direct-access file, whose own bytes are mapped.
    Dax,
    /// A direct-access file for which each access is a call, because other processes may truncate
    /// it: see [`OnShrink::Error`](crate::dax::OnShrink::Error).
    Guarded,
    /// A [`Device`](crate::space::Device).
    Device,
}

/// A space in numbers. Collecting them walks the page table, so the cost grows with the mapped
/// pages.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SpaceStats {
    /// The mappings, by address.
    pub mappings: Vec<MappingInfo>,
    /// The sums of the mappings' `pages`.
    pub pages: PageStats,
    /// The nodes of the page table, each of one page. Nodes shared with forks are included.
    pub tables: PageCount,
    /// The number of mapped bytes: like Linux's Size.
    pub len: u64,
    /// How often faults found their mapping in an accessor's own cache, and how often not.
    pub lookups: VmaLookups,
}

fn kind_and_file(backing: &Backing) -> (MappingKind, Option<String>) {
    let (kind, name) = match backing {
        Backing::Anonymous => return (MappingKind::Anonymous, None),
        Backing::File(MappedFile::Cached(file)) => (MappingKind::File, file.name()),
        Backing::File(MappedFile::Direct(file)) => (MappingKind::Dax, file.name()),
        Backing::Device(device) => match device.file() {
            Some(file) => (MappingKind::Guarded, file.name()),
            None => return (MappingKind::Device, None),
        },
    };
    (kind, Some(name.to_string()))
}

fn mapping_info(nodes: Nodes<'_>, vma: &Vma) -> MappingInfo {
    let is_dirty = |at, page: Pte| match vma.file() {
        Some(MappedFile::Cached(file)) => {
            let frame = nodes.frame_of(page);
            is_dirty_in(file.core(), vma.file_page(at), frame)
        }
        Some(MappedFile::Direct(file)) => file.is_dirty(vma.file_page(at)),
        None => false,
    };
    let pages = nodes.count_pages(vma.start, vma.end, is_dirty);
    let (kind, file) = kind_and_file(&vma.backing);
    MappingInfo {
        start: VirtAddr(vma.start),
        end: VirtAddr(vma.end),
        protection: vma.protection,
        sharing: vma.sharing,
        kind,
        file,
        offset: vma.file_page(vma.start) * PAGE_SIZE as u64,
        locked: vma.is_locked(),
        reading: match vma.reading {
            Reading::Normal => Advice::Normal,
            Reading::Random => Advice::Random,
            Reading::Sequential => Advice::Sequential,
        },
        pages,
    }
}

impl Space {
    /// Returns the mappings and counts their resident pages.
    pub fn stats(&self) -> SpaceStats {
        let nodes = self.0.nodes();
        self.0.inside(|vmas| {
            let mappings: Vec<MappingInfo> =
                vmas.iter().map(|vma| mapping_info(nodes, vma)).collect();
            let mut pages = PageStats::default();
            mappings
                .iter()
                .for_each(|mapping| pages.add(&mapping.pages));
            SpaceStats {
                len: mappings
                    .iter()
                    .map(|mapping| mapping.end - mapping.start)
                    .sum(),
                tables: nodes.count_nodes(nodes.root, ROOT_LEVEL),
                lookups: self.0.sequence.lookups(),
                mappings,
                pages,
            }
        })
    }

    /// Returns the mapping that contains `at`, and counts its resident pages.
    pub fn mapping_at(&self, at: VirtAddr) -> Option<MappingInfo> {
        let nodes = self.0.nodes();
        self.0.inside(|vmas| {
            let vma = vmas.find_containing(at.0)?;
            Some(mapping_info(nodes, vma))
        })
    }
}

impl fmt::Display for SpaceStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page_bytes = |pages: PageCount| ByteSize(pages.bytes());
        for mapping in &self.mappings {
            let name = match (&mapping.file, mapping.kind) {
                (Some(file), _) => file,
                (None, MappingKind::Device) => "device",
                (None, _) => "anonymous",
            };
            let locked = if mapping.locked { " locked" } else { "" };
            let sharing = match mapping.sharing {
                Sharing::Shared => "shared",
                Sharing::Private => "private",
            };
            writeln!(
                f,
                "{}..{} {} {sharing} {name}{locked}: {} of {} resident, {} direct, {} dirty, {} zero",
                mapping.start,
                mapping.end,
                mapping.protection,
                page_bytes(mapping.pages.resident),
                ByteSize(mapping.end - mapping.start),
                page_bytes(mapping.pages.direct),
                page_bytes(mapping.pages.dirty),
                page_bytes(mapping.pages.zero),
            )?;
        }
        write!(
            f,
            "total {} mapped, {} resident ({} file, {} own, {} shared), {} direct, {} dirty, {} zero, {} tables",
            ByteSize(self.len),
            page_bytes(self.pages.resident),
            page_bytes(self.pages.file),
            page_bytes(self.pages.own),
            page_bytes(self.pages.shared),
            page_bytes(self.pages.direct),
            page_bytes(self.pages.dirty),
            page_bytes(self.pages.zero),
            page_bytes(self.tables),
        )
    }
}
