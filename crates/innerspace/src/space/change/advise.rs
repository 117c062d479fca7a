//! Hints about a range: whether a program will want it, whether it is to stay in memory, and
//! whether it is to be written.
//!
//! - [`Space::advise`] (madvise) drops pages, reads ahead, makes pages old, evicts, or says in
//!   which order files will be read.
//! - [`Space::populate`] (MAP_POPULATE) brings in every page, as a load, or a store to a private
//!   mapping, would.
//! - [`Space::lock`], [`Space::unlock`] (mlock, munlock) populate a range, and keep reclaim away.
//! - [`Space::sync`] (msync with MS_SYNC) writes the bytes that were stored to shared files.

use std::ops::Range;

use super::steps::Payment;
use crate::cache::{PagedFile, Reading};
use crate::dax::DaxFile;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::Single;
use crate::space::core::address::page_start;
use crate::space::core::error::{AccessKind, SpaceError, checked_range};
use crate::space::core::space::Space;
use crate::space::core::structure::Structure;
use crate::space::table::edit::Edit;
use crate::space::table::nodes::Detached;
use crate::space::table::pte::{self, Holds, VALID};
use crate::space::vma::area::{Backing, MappedFile, Residence, Vma};
use crate::space::vma::protection::{Protection, Sharing};
use crate::space::vma::set::{Changed, VmaSet};
use crate::sync::gate::Writer;
use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// How a program will use a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Advice {
    /// The pages are dropped now: anonymous memory is zeros again, and a private file mapping has
    /// its file's bytes again. Bytes stored to a shared mapping stay in the file.
    DontNeed,
    /// The range will be used soon: files read ahead.
    WillNeed,
    /// The range will not be used soon: reclaim takes its pages early.
    Cold,
    /// The order of reads is not known; read-ahead goes by the faults. This is the default.
    Normal,
    /// Cached files will be read here in random order: a fault reads nothing ahead, and maps only
    /// its own page.
    Random,
    /// Cached files will be read here from start to end: from the first fault on, a full window is
    /// read ahead.
    Sequential,
    /// The range will not be used for long: pages of files are written and evicted. Anonymous pages
    /// stay, because there is no swap.
    PageOut,
}

/// The pages of a file that a part of a range maps.
type FilePart = (MappedFile, Range<u64>);

impl Space {
    /// Says how the program will use `len` bytes (rounded up to whole pages) at `at`.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Locked`] for
    /// [`Advice::DontNeed`] and [`Advice::PageOut`] of locked pages; [`SpaceError::File`] if
    /// reading ahead or writing fails; [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`], [`SpaceError::Limit`].
    pub fn advise(&self, at: VirtAddr, len: u64, advice: Advice) -> Result<(), SpaceError> {
        const WHAT: &str = "advise";
        let space = &self.0;
        space.check_live(WHAT, at, len)?;
        let range = checked_range(WHAT, at, len, space.end())?;
        let writer = space.gate.write();
        if !writer.vmas.covers(&range) {
            return Err(SpaceError::NotMapped {
                what: WHAT,
                at,
                len,
            });
        }
        let takes = matches!(advice, Advice::DontNeed | Advice::PageOut);
        if takes && writer.vmas.overlapping(&range).any(Vma::is_locked) {
            return Err(SpaceError::Locked {
                what: WHAT,
                at,
                len,
            });
        }
        match advice {
            Advice::DontNeed => {
                let mut writer = match space.zap(writer, &range) {
                    Ok(()) => return Ok(()),
                    Err(writer) => writer,
                };
                let nothing = |_: &mut VmaSet| Changed::default();
                let changed = space.change(&mut writer, &range, Some(Edit::Detach), nothing);
                drop(writer);
                space.finish(changed?);
                Ok(())
            }
            Advice::Cold => {
                drop(writer);
                self.make_old(&range);
                Ok(())
            }
            Advice::WillNeed => {
                let parts = file_parts(&writer.vmas, &range, |_| true);
                drop(writer);
                for_each_file(parts, |file, bytes| file.prefetch(bytes), |_, _| Ok(()))
            }
            Advice::Normal => self.set_reading(writer, &range, Reading::Normal),
            Advice::Random => self.set_reading(writer, &range, Reading::Random),
            Advice::Sequential => self.set_reading(writer, &range, Reading::Sequential),
            Advice::PageOut => {
                let parts = file_parts(&writer.vmas, &range, |_| true);
                drop(writer);
                let evict = |file: &PagedFile, bytes: Range<u64>| {
                    file.sync_range(bytes.clone())?;
                    file.evict(bytes).map(drop)
                };
                for_each_file(parts, evict, |file, bytes| file.sync_range(bytes))
            }
        }
    }

    fn set_reading(
        &self,
        mut writer: Writer<'_, Structure>,
        range: &Range<u64>,
        reading: Reading,
    ) -> Result<(), SpaceError> {
        let changed = self.0.change(&mut writer, range, None, |vmas| {
            vmas.update(range, |part| part.reading = reading)
        });
        drop(writer);
        self.0.finish(changed?);
        Ok(())
    }

    /// Makes pages of files count as unused until their next access, as aging does. Anonymous pages
    /// cannot be evicted, and keep their validity: a restore depends on it.
    fn make_old(&self, range: &Range<u64>) {
        let nodes = self.0.nodes();
        self.0.inside(|tables| {
            let mut each = |_, word: &_| {
                let page = pte::load(word);
                if page.holds() == Holds::File {
                    let _aged = pte::take_valid_of_file(word, page, VALID);
                }
            };
            nodes.for_each_slot(tables.root, range.start, range.end, &mut each);
        });
    }

    /// Writes the bytes that were stored to shared mappings of files in `len` bytes (rounded up to
    /// whole pages) at `at`, and makes them durable.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::File`];
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`].
    pub fn sync(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        const WHAT: &str = "sync";
        let range = checked_range(WHAT, at, len, self.0.end())?;
        let parts = self.0.inside(|tables| {
            let shared = |vma: &Vma| vma.sharing == Sharing::Shared;
            let covered = tables.vmas.covers(&range);
            covered.then(|| file_parts(tables.vmas, &range, shared))
        });
        let parts = parts.ok_or(SpaceError::NotMapped {
            what: WHAT,
            at,
            len,
        })?;
        for_each_file(
            parts,
            |file, bytes| file.sync_range(bytes),
            |file, bytes| file.sync_range(bytes),
        )
    }

    /// Brings in and maps every page of `len` bytes (rounded up to whole pages) at `at`: for stores
    /// if the mapping is private and writable, for loads otherwise. Parts that may not be read are
    /// skipped.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Access`] for the
    /// first page that cannot be brought in, with those before it in place; [`SpaceError::Limit`]
    /// if the group has no room for an accessor, which this uses even if all pages are present;
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`].
    pub fn populate(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        self.ensure_pages("populate", at, len)
    }

    pub(crate) fn ensure_pages(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
    ) -> Result<(), SpaceError> {
        let range = checked_range(what, at, len, self.0.end())?;
        let parts = self.0.inside(|tables| {
            let covered = tables.vmas.covers(&range);
            covered.then(|| {
                tables
                    .vmas
                    .overlapping(&range)
                    .cloned()
                    .collect::<Vec<Vma>>()
            })
        });
        let parts = parts.ok_or(SpaceError::NotMapped { what, at, len })?;
        let mut accessor = self.accessor()?;
        let has_pages = |vma: &Vma| !matches!(vma.backing, Backing::Device { .. });
        for vma in parts.into_iter().filter(has_pages) {
            let stores = vma.sharing == Sharing::Private
                && vma.protection.allows(Protection::WRITE)
                && !self.0.is_frozen();
            let access = match stores {
                true => AccessKind::Store,
                false if vma.protection.allows(Protection::READ) => AccessKind::Load,
                false => continue,
            };
            let pages = vma.start.max(range.start)..vma.end.min(range.end);
            for page in pages.step_by(PAGE_SIZE) {
                let present = accessor
                    .core
                    .ensure_page_in::<Single>(VirtAddr(page), access);
                present.map_err(|fault| SpaceError::Access {
                    what,
                    explanation: self.explain(fault),
                })?;
            }
        }
        Ok(())
    }

    /// Brings in all pages of `len` bytes (rounded up to whole pages) at `at`, as
    /// [`Space::populate`] does, and keeps them in memory until they are unlocked or unmapped. They
    /// count against the limit meanwhile.
    ///
    /// The lock is this space's: a fork starts without locks, and the locks in a snapshot keep no
    /// page in memory. A restore brings back the locks of the snapshot's time, even in a space that
    /// was forked from the snapshot. It brings in no pages: each stays in memory from its next use
    /// on.
    ///
    /// # Errors
    /// The errors of [`Space::populate`], of which [`SpaceError::Limit`] may come even if all pages
    /// are present; if the group may not hold that much, [`SpaceError::Access`] with a limit fault.
    /// Nothing is locked then that was not locked before.
    pub fn lock(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let _undoable = self.0.undoable();
        let before = self.set_residence("lock", at, len, Residence::Locked)?;
        let present = self.ensure_pages("lock", at, len);
        if present.is_err() {
            for part in before
                .iter()
                .filter(|part| part.residence == Residence::Pageable)
            {
                self.unlock_what_is_left(&(part.start..part.end));
            }
        }
        present
    }

    /// Lets reclaim evict the pages of `len` bytes (rounded up to whole pages) at `at` again.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Empty`],
    /// [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`], [`SpaceError::Limit`]. Nothing is
    /// changed.
    pub fn unlock(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        self.set_residence("unlock", at, len, Residence::Pageable)
            .map(drop)
    }

    /// Unlocks those parts of the range that were not unmapped meanwhile.
    fn unlock_what_is_left(&self, range: &Range<u64>) {
        let space = &self.0;
        let mut writer = space.gate.write();
        let unlock =
            |vmas: &mut VmaSet| vmas.update(range, |part| part.residence = Residence::Pageable);
        let publish = |_: &Writer<'_, Structure>, vmas: &VmaSet, changed: &Changed| {
            space.publish(vmas, changed);
            Ok(Detached::default())
        };
        // The group is probably full.
        let changed = space.change_by(&mut writer, Payment::After, unlock, publish);
        drop(writer);
        space.finish(changed.expect("it needs no memory"));
    }

    /// Locks or unlocks a range, and returns its parts as they were before.
    fn set_residence(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
        residence: Residence,
    ) -> Result<Vec<Vma>, SpaceError> {
        let space = &self.0;
        space.check_live(what, at, len)?;
        let range = checked_range(what, at, len, space.end())?;
        let mut writer = space.gate.write();
        if !writer.vmas.covers(&range) {
            return Err(SpaceError::NotMapped { what, at, len });
        }
        let cut = |vma: &Vma| vma.slice(vma.start.max(range.start), vma.end.min(range.end));
        let before = writer.vmas.overlapping(&range).map(cut).collect();
        let changed = space.change(&mut writer, &range, None, |vmas| {
            vmas.update(&range, |part| part.residence = residence)
        });
        drop(writer);
        space.finish(changed?);
        Ok(before)
    }
}

impl Accessor {
    /// Makes files read ahead those parts of them that `len` bytes at `at` map, at any alignment.
    /// Only a hint: pages that are not mapped, or for which there is no memory, are skipped.
    ///
    /// # Errors
    /// [`SpaceError::File`] if reading fails.
    pub fn prefetch(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let first = page_start(at.0);
        let end =
            at.0.saturating_add(len)
                .checked_next_multiple_of(PAGE_SIZE as u64);
        let range = first..end.unwrap_or(u64::MAX);
        let space = &self.core.space;
        let parts = space.inside(|tables| file_parts(tables.vmas, &range, |_| true));
        for_each_file(parts, |file, bytes| file.prefetch(bytes), |_, _| Ok(()))
    }
}

/// Returns the parts of files that the range maps, in mappings for which `wanted` is true.
fn file_parts(vmas: &VmaSet, range: &Range<u64>, wanted: impl Fn(&Vma) -> bool) -> Vec<FilePart> {
    let wanted = vmas.overlapping(range).filter(|vma| wanted(vma));
    let parts = wanted.filter_map(|vma| {
        let (start, end) = (vma.start.max(range.start), vma.end.min(range.end));
        let first = vma.file_page(start);
        let pages = first..first + ((end - start) >> PAGE_SHIFT);
        Some((vma.file_of_bytes()?, pages))
    });
    parts.collect()
}

/// Calls `cached` or `direct` with each file and those of its bytes that exist.
fn for_each_file(
    parts: Vec<FilePart>,
    cached: impl Fn(&PagedFile, Range<u64>) -> Result<(), crate::cache::FileError>,
    direct: impl Fn(&DaxFile, Range<u64>) -> Result<(), crate::dax::DaxError>,
) -> Result<(), SpaceError> {
    for (file, pages) in parts {
        let up_to = |len: u64| pages.start << PAGE_SHIFT..(pages.end << PAGE_SHIFT).min(len);
        match file {
            MappedFile::Cached(file) => {
                let file = PagedFile::new(&file);
                let bytes = up_to(file.len());
                if !bytes.is_empty() {
                    cached(&file, bytes)?;
                }
            }
            MappedFile::Direct(core) => {
                let file = DaxFile::new(core.core().clone());
                let bytes = up_to(file.len());
                if !bytes.is_empty() {
                    direct(&file, bytes)?;
                }
            }
        }
    }
    Ok(())
}
