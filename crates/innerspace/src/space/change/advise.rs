//! Hints about a range: that a program will want it or not, that it is to stay, that it is to be
//! written.
//!
//! - [`Space::advise`] (madvise) drops pages, reads ahead, makes pages old, evicts, or says in
//!   which order files will be read.
//! - [`Space::populate`] (MAP_POPULATE) brings every page in now, as a load or a store of a private
//!   mapping would.
//! - [`Space::lock`], [`Space::unlock`] (mlock, munlock): populates, and keeps reclaim away.
//! - [`Space::sync`] (msync with MS_SYNC) writes what was stored to shared files.

use std::ops::Range;

use crate::cache::{PagedFile, Reading};
use crate::dax::DaxFile;
use crate::reclaim::AllocMode;
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

/// What will become of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Advice {
    /// Its pages are dropped now: anonymous memory is zeros again, and a private file mapping has
    /// its file's bytes again. Bytes stored to a shared mapping stay in the file.
    DontNeed,
    /// It will be used soon: files read ahead.
    WillNeed,
    /// It will not be used soon: reclaim takes it early.
    Cold,
    /// The order in which it will be read is not known; faults tell. This is the default.
    Normal,
    /// Cached files will be read here in no order: faults read nothing ahead, and map one page
    /// each.
    Random,
    /// Cached files will be read here in order: faults read a full window ahead from the first one
    /// on.
    Sequential,
    /// It will not be used for long: pages of files are written and evicted. Anonymous pages stay,
    /// for there is no swap.
    PageOut,
}

/// The pages of a file that a part of a range maps.
type FilePart = (MappedFile, Range<u64>);

impl Space {
    /// Says what will become of `len` bytes (rounded up to whole pages) at `at`.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Locked`] for
    /// [`Advice::DontNeed`] and [`Advice::PageOut`] of locked pages; [`SpaceError::File`] when
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

    /// Pages of files count as unused until their next access, as after aging. Anonymous pages
    /// cannot be evicted, and keep their marks: a restore depends on their write validity.
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

    /// Writes what was stored to shared mappings of files in `len` bytes (rounded up to whole
    /// pages) at `at`, and makes it durable.
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
    /// where the mapping is private and writable, for loads otherwise. Parts that may not be read
    /// are passed over.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Access`] for the
    /// first page that cannot be brought in, with those before it in place; [`SpaceError::Empty`],
    /// [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`].
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
    /// [`Space::populate`], and keeps them in memory until they are unlocked or unmapped. They
    /// count against the limit all the while.
    ///
    /// The lock is this space's: a fork starts without locks, and a snapshot keeps no page in
    /// memory by them. A restore brings back the locks of the snapshot's time, also in a space that
    /// was forked from the snapshot, but no pages: they stay from their next use on.
    ///
    /// # Errors
    /// As for [`Space::populate`]; when the group may not hold as much, [`SpaceError::Access`] with
    /// a limit fault. Nothing is locked that was not before.
    pub fn lock(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
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

    /// Unlocks the parts that were not unmapped meanwhile.
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
        let changed = space.change_by(&mut writer, AllocMode::Must, unlock, publish);
        drop(writer);
        space.finish(changed.expect("nodes over the limit are charged for"));
    }

    /// Returns the parts as they were before.
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
    /// Makes files read ahead their parts of `len` bytes at `at`, at any alignment. A hint: pages
    /// that are not mapped, or have no room, are skipped.
    ///
    /// # Errors
    /// [`SpaceError::File`] when reading fails.
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

/// The parts of files in the range, in mappings for which `wanted` is true.
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

/// Calls `cached` or `direct` with each file and the bytes of it that exist.
fn for_each_file(
    parts: Vec<FilePart>,
    cached: impl Fn(&PagedFile, Range<u64>) -> Result<(), crate::FileError>,
    direct: impl Fn(&DaxFile, Range<u64>) -> Result<(), crate::DaxError>,
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
