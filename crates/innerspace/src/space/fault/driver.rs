//! One page fault, as steps.
//!
//! A step runs inside a section with the gate open and never sleeps: it installs the page, or says
//! what is missing. The missing thing is then acquired with no section open and no lock held, and
//! the step runs again. A fault that must not wait ([`Wait::No`]) acquires only what is available
//! without waiting, as the last column says, and fails otherwise. If the page belongs to a device,
//! the fault ends, and the access calls the device (`access::device`). Nodes that a step has linked
//! stay, whether or not the fault succeeds.
//!
//! ```text
//! step -> Done                                                        without waiting
//!      -> Gate         wait until the structural writer is done       never
//!      -> Nodes        allocate a frame for a table node              of what is free
//!      -> Page         allocate the anonymous page                    of what is free
//!      -> File(..)     look up or fill the block; it comes back       if cached and unlocked,
//!                      locked                                         or a known hole
//!      -> Direct(..)   lock the entry of a direct-access file         if it is there and
//!                      (`direct`)                                     unlocked
//!      -> Again        another thread changed the word first
//!      -> Device(..)   the access calls the device
//!      -> Denied(..)   the access is an error
//! ```
//!
//! Nodes and pages are allocated before the block is looked up, because no allocation that may wait
//! is made while a block is locked. A step itself takes a free frame if that needs no waiting, and
//! asks for one only if none is free.
//!
//! After its last step, the fault leaves the leaf in the accessor's translator, so that the access
//! hits. In anonymous memory, usually only the first fault in a leaf comes here. Of the loads of
//! cached pages of files, usually only the first in each window of fault-around comes here. For the
//! others see `anonymous` (stores) and `zero` (loads).

use std::ops::Range;

use super::anonymous::OwnSlot;
pub(crate) use super::anonymous::{Stored, store_by_short_way};
pub(crate) use super::zero::load_by_short_way;
use crate::cache::{
    FaultAround, FaultKind as FileAccessKind, FaultPage, FileInner, Hole, LockedBlock, Reading,
    Wait,
};
use crate::cache::{fault_block, hole_still};
use crate::dax::{DaxPages, DaxRef, Reach};
use crate::exec::reentry::Inside;
use crate::reclaim::PoolFrame;
use crate::space::access::what::What;
use crate::space::core::address::page_start;
use crate::space::core::fault::{AccessKind, Cause, Fault, FaultKind};
use crate::space::core::space::SpaceInner;
use crate::space::table::nodes::{Detached, NeedNodes, Nodes, Spares};
use crate::space::table::pte::{self, Holds, Pte, VALID_R, VALID_W, VALID_X};
use crate::space::table::shadow::Borrower;
use crate::space::table::{self};
use crate::space::tlb::translator::Translator;
use crate::space::vma::area::{Backing, MappedFile, Vma};
use crate::space::vma::cache::VmaCache;
use crate::space::vma::device::DeviceCall;
use crate::space::vma::protection::{Protection, Sharing};
use crate::stats::Event;
use crate::sync::domain::{Participant, Post};
use crate::sync::raw::AtomicU64;
use crate::sync::{Arc, failpoint};
use crate::{FrameId, PAGE_SIZE, VirtAddr};

/// The outcome of a step.
pub(super) enum Step {
    Done,
    Again,
    Gate,
    Nodes,
    Page,
    File(FileWant),
    Direct(DaxRef, u64, FileAccessKind, Reach),
    Device(DeviceCall),
    Denied(FaultKind),
}

/// A page of a file that a step needs.
pub(super) struct FileWant {
    file: Arc<FileInner>,
    page: u64,
    kind: FileAccessKind,
    /// The pages around `page` that may be mapped with it.
    around: Range<u64>,
    reading: Reading,
}

/// The acquired block, hole or entries for a page of a file.
pub(super) enum FilePage {
    /// The page's block, locked and held, with the page's number and the kind of access it is for.
    Block(LockedBlock, u64, FileAccessKind),
    /// The store of this file has holes at these pages.
    Hole(Arc<FileInner>, Hole),
    /// Pages of a direct-access file, with their entries locked.
    Direct(DaxPages),
    None,
}

/// One fault under way.
pub(super) struct FaultState<'space> {
    pub(super) space: &'space SpaceInner,
    // The access that faulted.
    pub(super) at: VirtAddr,
    pub(super) what: What,
    pub(super) wait: Wait,
    // Frames for new nodes.
    pub(super) spares: Spares<'space>,
    pub(super) page: Option<PoolFrame<'space>>,
    pub(super) file: FilePage,
    /// The range on which the gate is open in this step: the whole leaf of the address, or only the
    /// page.
    pub(super) around: Range<u64>,
    /// The leaf that the last step worked in.
    pub(super) leaf: Option<FrameId>,
    /// Blocks around the faulting page's, whose pages are mapped too; locked until the section is
    /// left.
    pub(super) fault_around: FaultAround,
    /// The invalidation that this accessor must apply, because the last step replaced a node.
    pub(super) forget: Option<Post>,
    // Replaced nodes, and shadows that are no longer borrowed from, to be released when no accessor
    // can be using them.
    pub(super) replaced: Detached,
}

/// Makes the page of `at` valid for the access, or returns why that is impossible. May also return
/// `Ok` after it has only waited for the gate: the caller looks the page up again in any case. If a
/// device is mapped there, puts its call in `vmas`, and returns a fault of the kind
/// [`FaultKind::Device`]. No section is open before or after the call.
#[cold]
pub(crate) fn handle(
    space: &SpaceInner,
    translator: &mut Translator,
    vmas: &mut VmaCache,
    at: VirtAddr,
    what: What,
    wait: Wait,
) -> Result<(), Fault> {
    space.pool.counters.count(Event::PgFault);
    let end = {
        let mut fault = FaultState {
            space,
            at,
            what,
            wait,
            spares: Spares {
                aside: Vec::new(),
                at_once: Some((&space.pool, space.group_id())),
            },
            page: None,
            file: FilePage::None,
            leaf: None,
            around: 0..0,
            fault_around: FaultAround::NONE,
            forget: None,
            replaced: Detached::default(),
        };
        fault.run(translator, vmas)
    };
    if wait == Wait::Yes {
        space.pool.flush_retired_if_due();
    }
    end
}

/// Releases what the fault holds, on drop, because a store that the fault calls may panic.
impl Drop for FaultState<'_> {
    fn drop(&mut self) {
        self.file = FilePage::None; // unlocks the block or the entries
        if !self.replaced.is_empty() {
            self.space
                .release_replaced(std::mem::take(&mut self.replaced));
        }
    }
}

impl<'space> FaultState<'space> {
    pub(super) fn run(
        &mut self,
        translator: &mut Translator,
        vmas: &mut VmaCache,
    ) -> Result<(), Fault> {
        loop {
            match self.step_inside(translator, vmas) {
                Step::Done => return Ok(()),
                Step::Again => {}
                Step::Gate if self.wait == Wait::No => {
                    // The mail has been read, but this fault does not wait for the gate. So the
                    // next access must check the gate, too.
                    translator.sections.participant().request_safepoint();
                    return Err(self.error(FaultKind::WouldBlock, None));
                }
                Step::Gate => {
                    self.file = FilePage::None;
                    self.space.pool.counters.count(Event::GateWait);
                    self.space.gate.wait_open(self.at.0);
                    // The caller looks the page up again, and usually finds it without a fault.
                    if self.page.is_none() && self.spares.aside.is_empty() {
                        return Ok(());
                    }
                }
                Step::Nodes => {
                    self.file = FilePage::None;
                    // Frames are allocated one at a time: nodes that the step has linked or copied
                    // stay, so each round needs one node fewer.
                    let frame = self.allocate()?;
                    self.spares.aside.push(frame);
                }
                Step::Page => {
                    self.file = FilePage::None; // nothing is allocated while a block is locked
                    self.page = Some(self.allocate()?);
                }
                Step::File(want) => self.lock_block(want)?,
                Step::Direct(file, page, kind, reach) => {
                    self.lock_entry(&file, page, kind, reach)?
                }
                Step::Device(call) => {
                    failpoint!(DeviceFound);
                    vmas.device = Some(call);
                    return Err(self.error(FaultKind::Device, None));
                }
                Step::Denied(kind) => return Err(self.error(kind, None)),
            }
        }
    }

    pub(super) fn error(&self, kind: FaultKind, cause: Option<Cause>) -> Fault {
        let fault = self.what.fault(kind, self.at);
        if let Some(cause) = cause {
            self.space.remember(fault, cause);
        }
        fault
    }

    pub(super) fn error_of(&self, cause: Cause) -> Fault {
        match self.wait == Wait::No && cause.would_block() {
            true => self.error(FaultKind::WouldBlock, None),
            false => self.error(cause.kind(), Some(cause)),
        }
    }

    pub(super) fn allocate(&self) -> Result<PoolFrame<'space>, Fault> {
        let mode = self.wait.alloc_mode();
        let allocated = self.space.pool.alloc(self.space.group_id(), 0, mode);
        allocated.map_err(|error| self.error_of(Cause::Limit(error)))
    }

    pub(super) fn lock_block(&mut self, want: FileWant) -> Result<(), Fault> {
        self.file = FilePage::None;
        let _inside = Inside::callback(self.space.id);
        let FileWant {
            page, kind, around, ..
        } = &want;
        let found = fault_block(&want.file, *page, *kind, around, want.reading, self.wait);
        let failed = |error| self.error_of(Cause::File(std::sync::Arc::new(error)));
        self.file = match found.map_err(failed)? {
            FaultPage::Block(block) => FilePage::Block(block, want.page, want.kind),
            FaultPage::Hole(hole) => FilePage::Hole(want.file, hole),
        };
        failpoint!(BlockAcquired);
        Ok(())
    }

    /// Runs one step, inside a section with the gate open at the address. Returns [`Step::Gate`] if
    /// the gate is closed there.
    pub(super) fn step_inside(&mut self, translator: &mut Translator, vmas: &mut VmaCache) -> Step {
        // The mapping may be the last to keep a file open, so it is dropped with no section open.
        // The drop then closes a direct-access file, even in a `try_` form. Closing cannot be
        // deferred: a thread that opens the file again waits until it is closed, and may be the one
        // that would have to run the deferred work.
        let mut named = None;
        translator.enter_and_drain();
        let section = &translator.sections;
        let at = self.at.0;
        let leaf = at & !(table::span(1) - 1);
        let leaf = leaf..leaf.saturating_add(table::span(1));
        let gate = &self.space.gate;
        let is_whole = gate.is_open(section, &leaf);
        // One byte is checked, as in `Gate::wait_open`: for a longer range at the last address, the
        // two checks could disagree.
        let step = if is_whole || gate.is_open(section, &(at..at.saturating_add(1))) {
            self.around = match is_whole {
                true => leaf,
                false => page_start(at)..page_start(at).saturating_add(PAGE_SIZE as u64),
            };
            // The set is read after the number of `sequence`. So a slot that is filled from an old
            // set has an old number, and is not used again.
            let tree = || self.space.vmas.read(section).find_containing(at);
            match vmas.find(&self.space.sequence, at, &mut named, tree) {
                Some(vma) => self.step(vma, section.participant()),
                None => Step::Denied(FaultKind::NotMapped),
            }
        } else {
            Step::Gate
        };
        if let Some(post) = self.forget.take() {
            translator.leaves.forget(post);
        }
        if let (Step::Done, Some(leaf)) = (&step, self.leaf) {
            let words = self.nodes().words(leaf);
            translator.found(self.at.0, words, self.what.access.writes());
        }
        translator.sections.leave();
        self.fault_around.release(&self.space.pool);
        step
    }

    pub(super) fn step(&mut self, vma: &Vma, own: &Participant) -> Step {
        let wanted = match self.what.access {
            AccessKind::Load => Protection::READ,
            AccessKind::Store => Protection::WRITE,
            AccessKind::Exchange => Protection::READ_WRITE,
            AccessKind::Fetch => Protection::EXECUTE,
        };
        if !vma.protection.allows(wanted) {
            return Step::Denied(FaultKind::Forbidden);
        }
        if self.what.access.writes() && self.space.is_frozen() {
            return Step::Denied(FaultKind::Frozen);
        }
        if let Backing::Device(device) = &vma.backing {
            if self.space.is_frozen() {
                return Step::Denied(FaultKind::Frozen);
            }
            let offset = vma.file_page(self.at.0) * PAGE_SIZE as u64 + self.at.page_offset() as u64;
            return Step::Device(DeviceCall {
                _under_way: self.space.calls.begin(),
                device: device.clone(),
                offset,
            });
        }
        if let Some(step) = self.step_without_leaf(vma) {
            return step;
        }
        let leaf = match self.find_leaf(own) {
            Ok(leaf) => leaf,
            Err(NeedNodes) => return Step::Nodes,
        };
        self.leaf = Some(leaf);
        let nodes = self.nodes();
        let slot = &nodes.words(leaf)[table::slot_index(self.at.0, 0)];
        let mut old = pte::load(slot);
        if self.what.access.writes() && self.own_slot(slot, old).can_collapse() {
            let paths = self.space.paths.lock();
            // The page may belong to the next shadow, or to one further on.
            while pte::load(slot).is_borrowed() && nodes.collapse_shadow(leaf, Borrower::Exclusive)
            {
            }
            drop(paths);
            // If the leaf borrows nothing from the shadow that it has now, it forgets that shadow.
            self.replaced
                .shadows
                .extend(self.own_slot(slot, old).part_from_shadow());
            old = pte::load(slot);
        }
        match (old.holds(), self.what.access.writes()) {
            // The page is present, but not valid for this access: it has lost this validity, or
            // never had it.
            (Holds::Own | Holds::Borrowed | Holds::Zero | Holds::File | Holds::Direct, false) => {
                done_if(pte::replace(slot, old, old.with(self.validity())))
            }
            (Holds::Nothing | Holds::Zero | Holds::File | Holds::Direct, _)
                if vma.file().is_some() =>
            {
                self.install_file(vma, leaf, old)
            }
            (Holds::Nothing, false) => {
                done_if(super::zero::map(self.space, slot, old, self.validity()))
            }
            (Holds::Nothing | Holds::Zero | Holds::Own | Holds::Borrowed, true) => {
                self.store(slot, old)
            }
            (Holds::File | Holds::Direct, true) => {
                unreachable!("a file page in anonymous memory")
            }
        }
    }

    /// Returns the validity that an access sets if it does not write.
    pub(super) fn validity(&self) -> u64 {
        match self.what.access {
            AccessKind::Fetch => VALID_X,
            _ => VALID_R,
        }
    }

    /// Returns whether the access stores to a copy of the file's page.
    pub(super) fn copies(&self, vma: &Vma) -> bool {
        self.what.access.writes() && vma.sharing == Sharing::Private
    }

    /// Returns how the access uses the file's page.
    pub(super) fn kind(&self, vma: &Vma) -> FileAccessKind {
        match self.what.access.writes() && vma.sharing == Sharing::Shared {
            true => FileAccessKind::Write,
            false => FileAccessKind::Read,
        }
    }

    /// Returns the validity that an access to a page of the mapped file sets. If the access writes
    /// to the file's page, notes that the page becomes writable.
    pub(super) fn validity_of_file(&self, vma: &Vma) -> u64 {
        match self.kind(vma) {
            FileAccessKind::Read => self.validity(),
            FileAccessKind::Write => {
                self.space.file_written(vma, self.at.0);
                VALID_R | VALID_W
            }
        }
    }

    pub(super) fn nodes(&self) -> Nodes<'space> {
        self.space.nodes()
    }

    /// Returns the leaf of the address: for a store, one that is exclusive to the space; for a load
    /// or a fetch, one that may be shared. `own` is the accessor's participant. If a node is
    /// replaced, the other accessors get mail. This accessor forgets the node in the same section,
    /// before it remembers the leaf.
    pub(super) fn find_leaf(&mut self, own: &Participant) -> Result<FrameId, NeedNodes> {
        let nodes = self.nodes();
        let at = self.at.0;
        if !self.what.access.writes() {
            let leaf = nodes.fill_path(at, 0, &mut self.spares)?;
            assert!(
                self.what.access == AccessKind::Load || !nodes.is_zero_leaf(leaf),
                "I11: the leaf of zeros where execution is allowed"
            );
            return Ok(leaf);
        }
        // A path that is exclusive to the space stays so while the gate is open: only a fork, which
        // closes the gate, would share it.
        if let Some(leaf) = nodes.find_exclusive(at) {
            return Ok(leaf);
        }
        failpoint!(Turn);
        let _paths = self.space.paths.lock();
        let moved = |forget| {
            self.space.post_to_others(forget, own);
            self.space.leaves_copied(&(at..at + 1));
            self.forget = Some(forget);
        };
        nodes.own_path(at, &mut self.spares, &mut self.replaced, moved)
    }

    /// Describes `slot`, with its content `old`, as one that is to get a page owned by the space.
    /// The slot is that of the faulting address, in a leaf that is exclusive to the space.
    pub(super) fn own_slot(&self, slot: &'space AtomicU64, old: Pte) -> OwnSlot<'space> {
        OwnSlot {
            space: self.space,
            at: self.at.0,
            slot,
            old,
        }
    }

    /// Installs a page owned by the space in the slot, for a store. The leaf is exclusive to the
    /// space.
    fn store(&mut self, slot: &'space AtomicU64, old: Pte) -> Step {
        match self.own_slot(slot, old).store(self.page.take()) {
            Stored::Done(parted) => {
                self.replaced.shadows.extend(parted);
                Step::Done
            }
            Stored::Changed => Step::Again,
            Stored::NoPage => Step::Page,
        }
    }

    /// Installs a page of a file: the file's own frame, the zero frame over a hole, or a private
    /// copy for a store to a private mapping. Asks for a frame for the copy, and for the block or
    /// hole, if they have not been acquired yet.
    pub(super) fn install_file(&mut self, vma: &Vma, leaf: FrameId, old: Pte) -> Step {
        let copy = self.copies(vma);
        if copy && self.page.is_none() {
            return Step::Page;
        }
        let file = match vma.file().expect("checked by the caller") {
            MappedFile::Cached(file) => file,
            MappedFile::Direct(file) => return self.install_direct(vma, file, leaf, old),
        };
        let slot = &self.nodes().words(leaf)[table::slot_index(self.at.0, 0)];
        let (page, kind) = (vma.file_page(self.at.0), self.kind(vma));
        match &self.file {
            FilePage::Block(block, held, held_kind)
                if *held == page
                    && *held_kind == kind
                    && block.is_of(file)
                    && block.carries_barrier() =>
            {
                let host = block.host_of_page(page);
                match copy {
                    true => {
                        let mut page = self.page.take().expect("had before the block");
                        let slot = self.own_slot(slot, old);
                        slot.copy(&mut page, host);
                        done_if(slot.publish(page))
                    }
                    false => self.map_block(vma, leaf, old),
                }
            }
            FilePage::Hole(of, hole)
                if Arc::ptr_eq(of, file)
                    && hole.pages().contains(&page)
                    && kind == FileAccessKind::Read
                    && hole_still(file, hole) =>
            {
                match copy {
                    true => self.store(slot, old),
                    false => self.map_holes(vma, leaf, old, page, hole.pages().clone()),
                }
            }
            _ => Step::File(FileWant {
                file: file.clone(),
                page,
                kind,
                around: self.pages_around(vma, page),
                reading: vma.reading,
            }),
        }
    }

    /// Maps the file's own frame, under its block's lock. If the slot did not have this frame
    /// before, and the access only reads the file, also maps the cached pages around it.
    fn map_block(&mut self, vma: &Vma, leaf: FrameId, old: Pte) -> Step {
        let slot = &self.nodes().words(leaf)[table::slot_index(self.at.0, 0)];
        let FilePage::Block(block, page, _) = &self.file else {
            unreachable!("checked by the caller")
        };
        let valid = self.validity_of_file(vma);
        let new = Pte::file(block.host_of_page(*page), valid);
        if old.holds() == Holds::File && old.host() == new.host() {
            return done_if(pte::replace(slot, old, old.with(valid)));
        }
        let hold = &self.space.pool.frames.meta(block.frame).hold;
        if !hold.try_map() {
            return Step::Denied(FaultKind::TooManyOwners);
        }
        if pte::replace(slot, old, new) {
            self.nodes().retire_page(old);
            if self.kind(vma) == FileAccessKind::Read {
                self.map_around(vma, leaf);
            }
            return Step::Done;
        }
        let _held = hold.unmap(); // not the last hold: the holder of the block lock has a ref
        Step::Again
    }
}

pub(super) fn done_if(replaced: bool) -> Step {
    if replaced { Step::Done } else { Step::Again }
}
