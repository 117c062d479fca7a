//! The calls about the pages of a range: whether a program will want them, whether they are to stay
//! in memory, whether they are to be written, and which of them were stored to.
//!
//! - [`Space::advise`] (madvise) reads ahead, makes pages old, evicts, or says in which order files
//!   will be read. It changes no byte.
//! - [`Space::discard`] (MADV_DONTNEED) drops pages, with what was stored to them.
//! - [`Space::populate`] (MAP_POPULATE) brings in every page, as a load, or a store to a private
//!   mapping, would.
//! - [`Space::lock`] (mlock) populates a range, and keeps reclaim away from it until
//!   [`Space::unlock`] (munlock).
//! - [`Space::sync`] (msync with MS_SYNC) writes the bytes that were stored to shared mappings of
//!   files.
//! - [`Space::pin`] keeps pages at their address in the process; `pin` has the rest.
//! - [`Space::take_dirty`] names the pages that were stored to; `take_dirty` has the rest.

use std::ops::Range;

use super::steps::Payment;
use super::take_dirty;
use super::zap::zap;
use crate::cache::{PagedFile, Reading};
use crate::dax::DaxFile;
use crate::reclaim::AllocMode;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::Single;
use crate::space::core::address::page_start;
use crate::space::core::error::SpaceError;
use crate::space::core::fault::AccessKind;
use crate::space::core::space::{Space, SpaceInner};
use crate::space::pin::{self, AtFork, Pinned};
use crate::space::table::edit::Edit;
use crate::space::table::pte::{self, Holds, VALID};
use crate::space::vma::area::{MappedFile, Residence, Vma};
use crate::space::vma::protection::{Protection, Sharing};
use crate::space::vma::set::{Changed, VmaSet};
use crate::sync::{Arc, failpoint};
use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// How a program will use a range. No advice changes a byte: [`Space::discard`] is the call that
/// drops what was stored (MADV_DONTNEED).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Advice {
    /// The range will be used soon: cached files are read ahead.
    WillNeed,
    /// The range will not be used soon: reclaim takes the pages of cached files in it early.
    Cold,
    /// The order of reads is not known; the read-ahead of cached files follows the faults. This is
    /// the default.
    #[default]
    Normal,
    /// Cached files will be read here in random order: a fault reads nothing ahead, and maps only
    /// its own page.
    Random,
    /// Cached files will be read here from start to end: from the first fault on, a full window is
    /// read ahead.
    Sequential,
    /// The range will not be used for a long time: files are written, and pages of cached files are
    /// evicted. Anonymous pages stay, because there is no swap.
    PageOut,
}

/// A file, and the pages of it that a part of a range maps.
type FilePart = (MappedFile, Range<u64>);

impl Space {
    /// Tells the space how the program will use `len` bytes (rounded up to whole pages) at `at`.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Locked`] for
    /// [`Advice::PageOut`] on locked pages; [`SpaceError::File`] or [`SpaceError::Dax`] if reading
    /// ahead or writing fails; [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`], [`SpaceError::Limit`].
    pub fn advise(&self, at: VirtAddr, len: u64, advice: Advice) -> Result<(), SpaceError> {
        let (space, what) = (&self.0, "advise");
        let range = space.live_range(what, at, len)?;
        let writer = space.gate.write();
        writer.vmas.check_covers(&range, what, len)?;
        if advice == Advice::PageOut && writer.vmas.overlapping(&range).any(Vma::is_locked) {
            return Err(SpaceError::Locked { what, at, len });
        }
        let reading = match advice {
            Advice::Normal => Reading::Normal,
            Advice::Random => Reading::Random,
            Advice::Sequential => Reading::Sequential,
            Advice::Cold => {
                drop(writer);
                make_old(space, &range);
                return Ok(());
            }
            Advice::WillNeed | Advice::PageOut => {
                let parts = file_parts(&writer.vmas, &range, |_| true);
                drop(writer);
                return match advice {
                    Advice::PageOut => for_each_file(parts, page_out),
                    _ => for_each_file(parts, prefetch),
                };
            }
        };
        let set = |vmas: &mut VmaSet| vmas.update(&range, |part| part.reading = reading);
        space.change(Payment::Own, writer, &range, None, set)
    }

    /// Drops the pages of `len` bytes (rounded up to whole pages) at `at`, and frees their memory
    /// (MADV_DONTNEED): anonymous memory is zeros again, and a private file mapping has its file's
    /// bytes again. Bytes stored to a shared mapping stay in the file.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Locked`] if pages
    /// are locked; [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`],
    /// [`SpaceError::Limit`].
    pub fn discard(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let (space, what) = (&self.0, "discard");
        let range = space.live_range(what, at, len)?;
        let writer = space.gate.write();
        writer.vmas.check_covers(&range, what, len)?;
        if writer.vmas.overlapping(&range).any(Vma::is_locked) {
            return Err(SpaceError::Locked { what, at, len });
        }
        zap(space, writer, &range).or_else(|writer| {
            let nothing = |_: &mut VmaSet| Changed::default();
            space.change(Payment::Own, writer, &range, Some(Edit::Detach), nothing)
        })
    }

    /// Writes the bytes that were stored to shared mappings of files in `len` bytes (rounded up to
    /// whole pages) at `at`, and makes them durable.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::File`];
    /// [`SpaceError::Dax`]; [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`].
    pub fn sync(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let (space, what) = (&self.0, "sync");
        let range = space.range(what, at, len)?;
        let parts = space.inside(|vmas| {
            vmas.check_covers(&range, what, len)?;
            let shared = |vma: &Vma| vma.sharing == Sharing::Shared;
            Ok::<_, SpaceError>(file_parts(vmas, &range, shared))
        });
        for_each_file(parts?, sync)
    }

    /// Brings in and maps every page of `len` bytes (rounded up to whole pages) at `at`: for stores
    /// if the mapping is private and writable, for loads otherwise. Parts that may not be read, and
    /// devices, are skipped. A file with [`OnShrink::Error`](crate::dax::OnShrink::Error) counts as
    /// a device.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Access`] for the
    /// first page that cannot be brought in, with those before it in place; [`SpaceError::Limit`]
    /// if the group has no room for an accessor, which this uses even if all pages are present;
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`].
    pub fn populate(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        ensure_pages(self, "populate", at, len)
    }

    /// Brings in all pages of `len` bytes (rounded up to whole pages) at `at`, as
    /// [`Space::populate`] does, and keeps them in memory until they are unlocked or unmapped. They
    /// count against the limit meanwhile.
    ///
    /// The lock belongs to this space: a fork starts without locks, and the locks in a snapshot
    /// keep no page in memory. A restore brings back the locks of the snapshot's time, even in a
    /// space that was forked from the snapshot. The restore itself brings in no pages: a page of a
    /// locked range stays in memory from its next use on.
    ///
    /// # Errors
    /// The errors of [`Space::populate`]. [`SpaceError::Limit`] is possible even if all pages are
    /// present. If the group has no room for all the pages, the error is [`SpaceError::Access`]
    /// with a limit fault. After an error, nothing is locked that was not locked before.
    pub fn lock(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let before = set_residence(&self.0, "lock", at, len, Residence::Locked)?;
        ensure_pages(self, "lock", at, len).inspect_err(|_| {
            let unlocked = |part: &&Vma| part.residence == Residence::Pageable;
            for part in before.iter().filter(unlocked) {
                unlock_what_is_left(&self.0, &(part.start..part.end));
            }
        })
    }

    /// Lets reclaim evict the pages of `len` bytes (rounded up to whole pages) at `at` again.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Empty`],
    /// [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`], [`SpaceError::Limit`]. Nothing is
    /// changed then.
    pub fn unlock(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        set_residence(&self.0, "unlock", at, len, Residence::Pageable).map(drop)
    }

    /// Brings in the pages of `len` bytes (rounded up to whole pages) at `at`, as stores would, and
    /// keeps them at their addresses in the process until the returned value is dropped. They count
    /// against the limit meanwhile.
    ///
    /// Accessors can load and store in the pages as before. They see bytes that are written through
    /// the pin. Watches do not: [`Space::take_dirty`] does not name these pages, and a
    /// [`CodePage`](crate::space::CodePage) does not count these writes.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::NotPinnable`] for
    /// anything but private writable memory, anonymous or of a file; [`SpaceError::Access`] if a
    /// page cannot be brought in, or has 2^20 - 1 pins already; [`SpaceError::Frozen`],
    /// [`SpaceError::Reentered`], [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`], [`SpaceError::Limit`]. Nothing is pinned then.
    pub fn pin(&self, at: VirtAddr, len: u64, at_fork: AtFork) -> Result<Pinned, SpaceError> {
        let ensure_pages = |what| ensure_pages(self, what, at, len);
        pin::pin(&self.0, at, len, at_fork, ensure_pages)
    }

    /// Takes the pages of `len` bytes (rounded up to whole pages) at `at` that were stored to since
    /// they were last taken, and returns them as ranges by address. With these, for example, a
    /// display redraws only changed pages, and a copy of a running space sends only changed pages
    /// again. Parts that are not mapped, devices, and files with
    /// [`OnShrink::Error`](crate::dax::OnShrink::Error) are left out.
    ///
    /// If a store is over before the call, its page is in the result, or was in an earlier one. If
    /// a store happens during the call, its page is in this result or the next. So if bytes that
    /// are read after the call change, their page will be named again.
    ///
    /// The result may contain more than these pages: at the first call, everything; ranges that
    /// were mapped, dropped, moved or restored since; pages that were made ready for stores and not
    /// stored to ([`Space::populate`], and neighbours in a block of a direct-access file); and, if
    /// memory to note pages was refused, more of a range than was stored to. Stores by other spaces
    /// or other mappings of a shared file do not count, nor do writes to the file itself.
    ///
    /// The call waits for an accessor no longer than for its current access, and for a
    /// [`Session`](crate::space::Session) until its next safepoint. It takes time in proportion to
    /// the pages in the result. The first store to each page after a call costs a short fault. The
    /// record of these pages costs a page of memory for every 128 separate runs of them, until they
    /// are taken.
    ///
    /// ```
    /// use innerspace::{MIB, Map, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let screen = space.map(Map::anonymous(MIB))?;
    /// let mut a = space.accessor()?;
    /// assert_eq!(space.take_dirty(screen, MIB)?, [screen..screen + MIB]);
    /// a.store(screen + 5000, 1_u8)?;
    /// assert_eq!(space.take_dirty(screen, MIB)?, [screen + 4096..screen + 8192]);
    /// assert_eq!(space.take_dirty(screen, MIB)?, []);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`],
    /// [`SpaceError::Reentered`]. Nothing is taken.
    pub fn take_dirty(&self, at: VirtAddr, len: u64) -> Result<Vec<Range<VirtAddr>>, SpaceError> {
        let range = self.0.live_range("take_dirty", at, len)?;
        Ok(take_dirty::take(&self.0, &range))
    }
}

impl Accessor {
    /// Reads ahead the parts of cached files that are mapped in the `len` bytes at `at`. The
    /// address and length need no alignment. This is only a hint: pages that are not mapped, or for
    /// which there is no memory, are skipped.
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
        let parts = space.inside(|vmas| file_parts(vmas, &range, |_| true));
        for_each_file(parts, prefetch)
    }
}

/// Makes pages of cached files count as unused until their next access, as aging does. Anonymous
/// pages cannot be evicted, and keep their validity: a restore depends on it.
fn make_old(space: &SpaceInner, range: &Range<u64>) {
    let nodes = space.nodes();
    space.inside(|_| {
        nodes.for_each_slot(range, |_, word| {
            let page = pte::load(word);
            if page.holds() == Holds::File {
                let _aged = pte::take_valid_of_file(word, page, VALID);
            }
        });
    });
}

/// Implements [`Space::populate`]; also brings in the pages for [`Space::lock`] and [`Space::pin`].
fn ensure_pages(
    space: &Space,
    what: &'static str,
    at: VirtAddr,
    len: u64,
) -> Result<(), SpaceError> {
    let range = space.0.range(what, at, len)?;
    let parts = space.0.inside(|vmas| {
        vmas.check_covers(&range, what, len)?;
        Ok::<Vec<Vma>, SpaceError>(vmas.overlapping(&range).cloned().collect())
    });
    let mut accessor = Accessor::new(space, AllocMode::Wait)?;
    for vma in parts?.into_iter().filter(Vma::has_pages) {
        let stores = vma.sharing == Sharing::Private
            && vma.protection.allows(Protection::WRITE)
            && !space.0.is_frozen();
        let access = match stores {
            true => AccessKind::Store,
            false if vma.protection.allows(Protection::READ) => AccessKind::Load,
            false => continue,
        };
        for page in vma.part_in(&range).step_by(PAGE_SIZE) {
            let present = accessor
                .core
                .ensure_page_in::<Single>(VirtAddr(page), access);
            present.map_err(|fault| space.0.access_error(what, fault))?;
        }
    }
    Ok(())
}

/// Locks or unlocks a range. Returns the mappings as they were before, cut to the range.
fn set_residence(
    space: &Arc<SpaceInner>,
    what: &'static str,
    at: VirtAddr,
    len: u64,
    residence: Residence,
) -> Result<Vec<Vma>, SpaceError> {
    let range = space.live_range(what, at, len)?;
    let writer = space.gate.write();
    writer.vmas.check_covers(&range, what, len)?;
    let cut = |vma: &Vma| vma.slice(vma.part_in(&range));
    let before = writer.vmas.overlapping(&range).map(cut).collect();
    let set = |vmas: &mut VmaSet| vmas.update(&range, |part| part.residence = residence);
    space.change(Payment::Own, writer, &range, None, set)?;
    Ok(before)
}

/// Unlocks those parts of the range that were not unmapped meanwhile.
fn unlock_what_is_left(space: &Arc<SpaceInner>, range: &Range<u64>) {
    failpoint!(Undoing);
    let unlock =
        |vmas: &mut VmaSet| vmas.update(range, |part| part.residence = Residence::Pageable);
    // The group is probably full, so the nodes are paid for afterwards.
    let writer = space.gate.write();
    let payment = Payment::After { _scope: None };
    let changed = space.change(payment, writer, range, None, unlock);
    changed.expect("it needs no memory");
}

/// Returns the parts of files that the range maps, in mappings for which `wanted` is true.
fn file_parts(vmas: &VmaSet, range: &Range<u64>, wanted: impl Fn(&Vma) -> bool) -> Vec<FilePart> {
    let wanted = vmas.overlapping(range).filter(|vma| wanted(vma));
    let parts = wanted.filter_map(|vma| {
        let part = vma.part_in(range);
        let first = vma.file_page(part.start);
        let pages = first..first + ((part.end - part.start) >> PAGE_SHIFT);
        Some((vma.file_of_bytes()?, pages))
    });
    parts.collect()
}

/// Calls `act` with each file and the bytes of its part that are before the file's end, if there
/// are any. Stops at the first error.
fn for_each_file(
    parts: Vec<FilePart>,
    act: impl Fn(&MappedFile, Range<u64>) -> Result<(), SpaceError>,
) -> Result<(), SpaceError> {
    for (file, pages) in parts {
        let len = match &file {
            MappedFile::Cached(file) => file.size(),
            MappedFile::Direct(file) => file.core().size(),
        };
        let bytes = pages.start << PAGE_SHIFT..(pages.end << PAGE_SHIFT).min(len);
        if !bytes.is_empty() {
            act(&file, bytes)?;
        }
    }
    Ok(())
}

/// Makes the file read these bytes ahead, if it is a cached file.
fn prefetch(file: &MappedFile, bytes: Range<u64>) -> Result<(), SpaceError> {
    match file {
        MappedFile::Cached(file) => Ok(PagedFile::new(file).prefetch(bytes)?),
        MappedFile::Direct(_) => Ok(()),
    }
}

/// Writes these bytes of the file, and makes them durable.
fn sync(file: &MappedFile, bytes: Range<u64>) -> Result<(), SpaceError> {
    match file {
        MappedFile::Cached(file) => Ok(PagedFile::new(file).sync_range(bytes)?),
        MappedFile::Direct(file) => Ok(DaxFile::new(file.core().clone()).sync_range(bytes)?),
    }
}

/// Writes these bytes of the file, and evicts their pages if it is a cached file.
fn page_out(file: &MappedFile, bytes: Range<u64>) -> Result<(), SpaceError> {
    sync(file, bytes.clone())?;
    if let MappedFile::Cached(file) = file {
        PagedFile::new(file).evict(bytes)?;
    }
    Ok(())
}
