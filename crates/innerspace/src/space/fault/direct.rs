//! Faults on direct-access files: they map the device's own bytes, and the zero frame over holes.
//!
//! The entry that covers the page stays locked from the lookup until the words are installed.
//! Meanwhile no other thread removes the entry's block, syncs it or changes it. More than the page
//! is mapped, where words are empty or lack only write validity: all pages of a block of 2 MiB;
//! after a hole, the holes that follow; after a page that is stored to, the blocks of the pages
//! that the access stores to next. If later pages are mapped too, their entries stay locked just as
//! long. A hole of 2 MiB is mapped by one word above the leaf (`table::zero_leaf`).

use super::driver::{FaultState, FilePage, Step, done_if};
use super::zero;
use crate::cache::{FaultKind as FileAccessKind, Wait};
use crate::dax::{DaxCore, DaxPages, DaxRef, LARGE_PAGES, Reach};
use crate::exec::reentry::Inside;
use crate::space::core::address::{LEAF_BYTES, slot_index};
use crate::space::core::fault::{AccessKind, Fault};
use crate::space::table::pte::{self, Holds, Pte};
use crate::space::vma::area::{MappedFile, Vma};
use crate::space::vma::protection::Protection;
use crate::stats::Event;
use crate::{FrameId, PAGE_SHIFT, PAGE_SIZE};

// A leaf covers as many pages as a large entry of a direct-access file.
const _: () = assert!(LEAF_BYTES == LARGE_PAGES * PAGE_SIZE as u64);

impl FaultState<'_> {
    /// Locks the entry that covers `page`, and the entries after it that are to be mapped too, and
    /// keeps them in `self.file`. If the fault may not wait, locks only the first, and fails if
    /// that is not possible at once. The caller has no section open.
    pub(crate) fn lock_entry(
        &mut self,
        file: &DaxRef,
        page: u64,
        kind: FileAccessKind,
        reach: Reach,
    ) -> Result<(), Fault> {
        self.file = FilePage::None;
        let _inside = Inside::callback(self.space.id);
        let pages = match self.wait {
            Wait::Yes => file.fault(page, kind, reach, self.what.more.into()),
            Wait::No => file.try_fault(page, kind),
        };
        let pages = pages.map_err(|error| self.error_of(error.into()))?;
        self.file = FilePage::Direct(pages);
        Ok(())
    }

    /// Performs the step without a leaf if it needs none: for a load from an aligned hole of 2 MiB
    /// of a direct-access file, if there is no leaf yet, the mapping covers the whole leaf and does
    /// not allow execution, and the gate is open on all of it. If the entry is not locked yet, asks
    /// for it, to learn whether it is such a hole. Returns `None` if the step needs a leaf.
    pub(crate) fn step_without_leaf(&mut self, vma: &Vma) -> Option<Step> {
        let MappedFile::Direct(file) = vma.file()? else {
            return None;
        };
        let nodes = self.nodes();
        // A fetch would have to replace the leaf of zeros, and a snapshot's table must not lose a
        // node.
        let executable = vma.protection.allows(Protection::EXECUTE);
        if self.what.access != AccessKind::Load || executable || nodes.find(self.at.0).is_some() {
            return None;
        }
        let Reach::Leaf = reach(vma, self.at.0) else {
            return None;
        };
        if self.around.end - self.around.start < LEAF_BYTES {
            return None; // mappings of a part of the leaf are being changed
        }
        let page = vma.file_page(self.at.0);
        match acquired(&self.file, file, page) {
            None => Some(Step::Direct(
                file.clone(),
                page,
                FileAccessKind::Read,
                Reach::Leaf,
            )),
            Some(pages) if pages.is_large() && pages.host(page).is_none() => {
                if !nodes.link_zero_leaf(self.at.0, &mut self.spares) {
                    return None; // the pages are mapped one by one, in a leaf of their own
                }
                self.space.pool.counters.count(Event::ZeroMap);
                let leaf = nodes.find(self.at.0);
                self.leaf = leaf.map(|leaf| leaf.frame);
                Some(Step::Done)
            }
            Some(_) => None,
        }
    }

    /// Maps a page of the file, or copies it for a store to a private mapping. Asks for the page's
    /// entry if it is not locked yet, or if the access stores to the file and the entry is not
    /// dirty.
    pub(crate) fn install_direct(
        &mut self,
        vma: &Vma,
        file: &DaxRef,
        leaf: FrameId,
        old: Pte,
    ) -> Step {
        let (page, kind, copy) = (vma.file_page(self.at.0), self.kind(vma), self.copies(vma));
        let reach = match copy {
            true => Reach::Pages { end: page + 1 },
            false => reach(vma, self.at.0),
        };
        let slot = &self.nodes().words(leaf)[slot_index(self.at.0, 0)];
        match acquired(&self.file, file, page) {
            Some(pages) if kind == FileAccessKind::Read || pages.is_dirty() => {
                if !copy {
                    return self.map_direct(vma, leaf, old);
                }
                let mut own = self.page.take().expect("had before the entry");
                self.space.pool.counters.count(Event::Cow);
                pages.copy_to(page, own.bytes_mut());
                done_if(self.own_slot(slot, old).publish(own))
            }
            _ => Step::Direct(file.clone(), page, kind, reach),
        }
    }

    /// Installs the words of the locked pages that are in this leaf, beginning with that of the
    /// faulting page.
    fn map_direct(&mut self, vma: &Vma, leaf: FrameId, old: Pte) -> Step {
        let (page, kind) = (vma.file_page(self.at.0), self.kind(vma));
        let FilePage::Direct(pages) = &self.file else {
            unreachable!("checked by the caller")
        };
        let valid = self.validity_of_file(vma);
        let word = |page| match pages.host(page) {
            Some(host) => Pte::direct(host, valid),
            None => zero::word(self.space, valid),
        };
        let words = self.nodes().words(leaf);
        let slot = slot_index(self.at.0, 0);
        let new = match old.holds() {
            // The page stays, and gets the new validity in addition to its old one.
            Holds::Direct if old.host() == word(page).host() => old.with(valid),
            _ => word(page),
        };
        if !pte::replace(&words[slot], old, new) {
            return Step::Again;
        }
        self.nodes().retire_page(old);
        if pages.host(page).is_none() {
            self.space.pool.counters.count(Event::ZeroMap);
        }
        // The other locked pages are mapped too, if the mapping has them in this leaf and the gate
        // is open there.
        let around = vma.part_in(&self.around);
        let around = vma.file_page(around.start)..vma.file_page(around.end);
        let acquired = pages.pages();
        for other in acquired.start.max(around.start)..acquired.end.min(around.end) {
            let place = (slot as u64 + other).wrapping_sub(page) as usize;
            if other != page {
                if kind == FileAccessKind::Write {
                    let at = (self.at.0 >> PAGE_SHIFT) + other - page;
                    self.space.file_written(vma, at << PAGE_SHIFT);
                }
                let (old, new) = (pte::load(&words[place]), word(other));
                let new = match old.holds() {
                    Holds::Nothing => new,
                    // The same page is mapped already, but a sync has taken its write validity
                    // away.
                    Holds::Direct if kind == FileAccessKind::Write && old.host() == new.host() => {
                        old.with(valid)
                    }
                    _ => continue,
                };
                let _changed_meanwhile = pte::replace(&words[place], old, new);
            }
        }
        done_if(true)
    }
}

/// Returns the acquired pages, if they contain this page of the file.
fn acquired<'a>(acquired: &'a FilePage, file: &DaxCore, page: u64) -> Option<&'a DaxPages> {
    match acquired {
        FilePage::Direct(pages) if pages.is_of(file) && pages.pages().contains(&page) => {
            Some(pages)
        }
        _ => None,
    }
}

/// Returns how much one fault at `at` can map: all of the leaf, if the mapping covers it and its 2
/// MiB are aligned in the file; otherwise the pages up to the end of the mapping or of the leaf.
fn reach(vma: &Vma, at: u64) -> Reach {
    let leaf = at & !(LEAF_BYTES - 1);
    let whole = vma.start <= leaf && leaf + LEAF_BYTES <= vma.end;
    if whole && vma.file_page(leaf).is_multiple_of(LARGE_PAGES) {
        return Reach::Leaf;
    }
    let end = vma.file_page(vma.end.min(leaf + LEAF_BYTES));
    Reach::Pages { end }
}
