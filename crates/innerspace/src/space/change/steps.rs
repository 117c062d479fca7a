//! A structural change, step by step.
//!
//! 1. The new set of mappings is made, and its nodes are charged.
//! 2. The gate is closed on the range: a flush is posted, and a grace period passes.
//! 3. The paths are made the space's own, under `paths`, in a section. If this takes more nodes
//!    than are set aside, the gate opens, frames are allocated, and step 2 is repeated. If nodes
//!    are replaced, accessors are told to forget them.
//! 4. The words are changed.
//! 5. The new set is published, and the sequence incremented.
//! 6. A grace period passes, unless both ends of the range are boundaries of leaves.
//! 7. The gate opens.
//! 8. Detached frames and nodes are released.
//!
//! The steps that can fail or wait for memory thus come before any word is changed.
//!
//! If nothing was mapped in the range, steps 2, 6 and 7 are left out: all words there are empty,
//! and step 4 can only detach empty leaves, whose release then waits for a grace period. A change
//! that needs no edit of the words leaves out steps 2 to 4, 6 and 7.
//!
//! If step 6 is left out, no step waits for a revoker whose section began after step 2. Such a
//! revoker may use the old set, and meet words of the new one. So the set tells a revoker where to
//! search, but not what it may take: of the words of cached files, the revoker empties only those
//! that lead to the block that it has locked (`has_page_in`).
//! `docs/protocols/structural-changes.md` has the reasons for the order, and says what a fault next
//! to the range finds.
//!
//! A wait for memory with the writer lock held counts as a callback of the space (`exec::reentry`):
//! reclaim calls stores, and a store that changed the same space would wait for the thread that
//! called it.

use std::ops::Range;
use std::panic::resume_unwind;

use super::revoke::mapper;
use crate::exec::reentry::Inside;
use crate::group::MayReclaim;
use crate::reclaim::{AllocMode, Pool, Retired, StoreScope};
use crate::space::core::address::LEAF_BYTES;
use crate::space::core::error::SpaceError;
use crate::space::core::space::SpaceInner;
use crate::space::core::structure::{FileUse, Structure};
use crate::space::table::edit::Edit;
use crate::space::table::nodes::{Detached, Nodes, PATH_NODES, Spares};
use crate::space::table::pte::{self, Holds, VALID_W};
use crate::space::table::{self};
use crate::space::vma::area::{Backing, Vma};
use crate::space::vma::device::DeviceRef;
use crate::space::vma::set::{Changed, VmaSet};
use crate::sync::domain::Post;
use crate::sync::gate::{EVERYWHERE, Writer};
use crate::sync::panics::caught;
use crate::sync::raw::AtomicU64;
use crate::sync::{Arc, failpoint};

/// How a change of the mappings pays for its nodes.
pub(crate) enum Payment {
    /// The group pays before anything is changed, unless the change adds no range: then it pays as
    /// for `After`.
    Own,
    /// If the group has room, it pays before anything is changed. Otherwise some nodes are not paid
    /// for until the change has given back what it removes or replaces; then the group is charged
    /// if it has room. So a change that adds nothing, or undoes another, does not fail because the
    /// group cannot pay for nodes of mappings. Frames come from what is set aside in the scope, if
    /// there is one.
    After { _scope: Option<StoreScope> },
}

/// Nodes and pages that a change under way has detached. They are released, after a grace period,
/// even if the change ends with an error, or with the panic of a store that was called to make room
/// for it.
pub(crate) struct Underway<'s> {
    space: &'s SpaceInner,
    pub(super) detached: Detached,
}

impl<'s> Underway<'s> {
    pub(crate) fn new(space: &'s SpaceInner) -> Underway<'s> {
        let detached = Detached::default();
        Underway { space, detached }
    }

    /// Returns the detached nodes and pages, which the caller releases.
    pub(crate) fn done(mut self) -> Detached {
        std::mem::take(&mut self.detached)
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.space.retire(std::mem::take(&mut self.detached));
    }
}

impl SpaceInner {
    /// Changes the mappings of `range` by calling `change`, and applies `edit`, if there is one, to
    /// the words of its pages. Then releases the writer lock, and what the change has detached.
    /// `payment` says how the nodes of the mappings are paid for.
    ///
    /// # Errors
    /// [`SpaceError::Limit`]; nothing is changed then.
    pub(crate) fn change(
        self: &Arc<SpaceInner>,
        payment: Payment,
        writer: Writer<'_, Structure>,
        range: &Range<u64>,
        edit: Option<Edit>,
        change: impl FnOnce(&mut VmaSet) -> Changed,
    ) -> Result<(), SpaceError> {
        if edit.is_some() {
            self.code.changed(range);
        }
        let tables = |writer: &mut Writer<'_, Structure>, vmas: &VmaSet, changed: &Changed| {
            if let Some(edit) = edit {
                let detached = self.edit(writer, range, edit, vmas, changed)?;
                if edit == Edit::Detach {
                    self.dirty.forget(&self.group, range);
                }
                return Ok(detached);
            }
            if !vmas.shows_as(&writer.vmas, range) {
                self.code.changed(range);
            }
            self.publish(vmas, changed);
            Ok(Detached::default())
        };
        self.change_by(writer, payment, change, tables)
    }

    /// Changes the mappings by calling `change`, and then calls `tables`. `tables` changes the
    /// words, publishes the new set and returns what it has detached; or it fails, with nothing
    /// changed. If all succeeds, this function then releases the writer lock, what was detached,
    /// and the files that are no longer mapped, and settles the ledger if the change is paid for
    /// afterwards.
    pub(crate) fn change_by(
        self: &Arc<SpaceInner>,
        mut writer: Writer<'_, Structure>,
        payment: Payment,
        change: impl FnOnce(&mut VmaSet) -> Changed,
        tables: impl FnOnce(
            &mut Writer<'_, Structure>,
            &VmaSet,
            &Changed,
        ) -> Result<Detached, SpaceError>,
    ) -> Result<(), SpaceError> {
        writer.revision += 1;
        let mut vmas = writer.vmas.clone();
        let changed = change(&mut vmas);
        let payment = match payment {
            Payment::Own if changed.added.is_empty() => Payment::After { _scope: None },
            payment => payment,
        };
        for file in changed.added.iter().filter_map(Vma::file) {
            writer.add_file(file, |file| mapper(self, file));
        }
        // A store that is called to make room may panic.
        let done = caught(|| {
            let inside = Inside::callback(self.id);
            match payment {
                Payment::Own => vmas.ledger().settle(&self.pool, MayReclaim::Yes)?,
                Payment::After { .. } => drop(vmas.ledger().settle(&self.pool, MayReclaim::No)),
            }
            drop(inside);
            tables(&mut writer, &vmas, &changed)
        });
        if !matches!(done, Ok(Ok(_))) {
            let unused = writer.remove_files(&changed.added);
            // The new set is dropped. Its files stay open: the caller, or another set, has them
            // too.
            unused.into_iter().map(FileUse::unregister).for_each(drop);
        }
        let detached = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        writer.vmas = vmas;
        let unused = writer.remove_files(&changed.removed);
        let owes = matches!(payment, Payment::After { .. });
        drop((changed, writer, payment));
        self.nodes().release(detached);
        if !unused.is_empty() {
            let files = unused.into_iter();
            // The old set may have been the last to keep one of these files open.
            self.cache
                .released(files.filter_map(FileUse::unregister).collect());
        }
        if owes {
            let ledger = self.inside(|vmas| vmas.ledger().clone());
            let _later = ledger.settle(&self.pool, MayReclaim::No);
        }
        self.pool.flush_retired_if_due();
        Ok(())
    }

    /// Publishes `vmas`, and increments the sequence if an existing mapping has changed. The old
    /// set is freed after a grace period.
    pub(crate) fn publish(&self, vmas: &VmaSet, changed: &Changed) {
        let replaced = self.vmas.publish(&self.pool.domain, vmas.clone());
        if !changed.removed.is_empty() {
            self.sequence.bump();
        }
        let devices: Vec<DeviceRef> = (changed.removed.iter())
            .filter_map(|vma| match &vma.backing {
                Backing::Device(device) => Some(device.clone()),
                Backing::Anonymous | Backing::File(_) => None,
            })
            .collect();
        let (cache, group) = (self.cache.clone(), self.group_id());
        let ledger = vmas.ledger().clone();
        self.pool.retire(Retired::Call(Box::new(move |_| {
            drop(replaced);
            ledger.give_back();
            // This may run on any thread that needs memory, which must not run a device's
            // destructor.
            if !devices.is_empty() {
                cache.defer(group, None, move || drop(devices));
            }
        })));
    }

    /// Reads every slot of the range, and returns whether all are empty. [`pte::take_alone`] relies
    /// on empty slots if it is called with the gate open.
    pub(crate) fn is_empty(&self, range: &Range<u64>) -> bool {
        let nodes = self.nodes();
        let mut empty = true;
        self.inside(|_| {
            nodes.for_each_slot(range, |_, word| {
                empty &= pte::load(word).holds() == Holds::Nothing;
            });
        });
        empty
    }

    /// Takes write validity from the pages in these ranges, so that the next store to each faults.
    /// If any page had it, notes that the next restore must compare the bytes of pages without
    /// write validity, and makes accessors forget the leaves of these pages that they may have
    /// coalesced. The caller has the gate closed on the ranges, and waits for a grace period next.
    pub(crate) fn end_writes(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let nodes = self.nodes();
        let mut leaves: Vec<u64> = Vec::new();
        self.inside(|_| {
            let mut each = |at, word: &AtomicU64| {
                let ended = pte::load(word).has(VALID_W) && pte::take_write_validity(word);
                let leaf = at - at % LEAF_BYTES;
                if ended && leaves.last() != Some(&leaf) {
                    leaves.push(leaf);
                }
            };
            for range in ranges {
                nodes.for_each_slot(&range, &mut each);
            }
        });
        if !leaves.is_empty() {
            self.changes.doubt();
        }
        for leaf in leaves {
            self.post_coalesced(leaf);
        }
    }

    /// Allocates spare frames until there are `wanted`. The caller holds the gate's writer lock.
    pub(crate) fn ensure_nodes<'s>(
        &'s self,
        spares: &mut Spares<'s>,
        wanted: usize,
    ) -> Result<(), SpaceError> {
        let _inside = Inside::callback(self.id);
        while spares.aside.len() < wanted {
            let node = self.pool.alloc(self.group_id(), 0, AllocMode::Wait)?;
            spares.aside.push(node);
        }
        Ok(())
    }

    /// Releases nodes and pages after a grace period, because accessors may be using them.
    pub(crate) fn retire(&self, detached: Detached) {
        if !detached.is_empty() {
            let (owner, root) = (self.id, self.root);
            let release = move |pool: &Pool| Nodes { pool, owner, root }.release(detached);
            let release = Retired::Call(Box::new(release));
            self.pool.retire_of(owner, release);
        }
    }

    /// Does steps 2 to 7, or only those that are needed if nothing is mapped in the range. The
    /// words of such a range are empty, but its paths are made the space's own: words that faults
    /// install there later would be wrong for sharers of the table, which map nothing there.
    fn edit(
        &self,
        writer: &Writer<'_, Structure>,
        range: &Range<u64>,
        edit: Edit,
        vmas: &VmaSet,
        changed: &Changed,
    ) -> Result<Detached, SpaceError> {
        let (domain, nodes) = (&self.pool.domain, self.nodes());
        let mapped = writer.vmas.overlapping(range).next().is_some();
        let mut underway = Underway::new(self);
        let mut spares = Spares::default();
        let closed = loop {
            let closed = mapped.then(|| writer.close(domain, range, || self.post(Post::All)));
            if self.own_range(range, edit, &mut spares, &mut underway.detached) {
                break closed;
            }
            drop(closed);
            self.ensure_nodes(&mut spares, PATH_NODES)?;
        };
        let before = underway.detached.nodes();
        debug_assert!(
            mapped || self.is_empty(range),
            "words where nothing is mapped"
        );
        nodes.apply(range, edit, &mut underway.detached);
        if !mapped {
            if underway.detached.nodes() > before {
                // Empty leaves were detached. An accessor may remember one, from an access that
                // found no mapping.
                self.post(Post::All);
            }
            self.publish(vmas, changed);
            return Ok(Detached::default()); // dropping `underway` retires what was detached
        }
        // Only `Edit::Detach` empties words, and it detaches leaves as a whole, except at the two
        // ends of the range.
        self.part_in_vain([range.start, range.end - 1], &mut underway.detached);
        failpoint!(GateClosed);
        self.publish(vmas, changed);
        if !(range.start | range.end).is_multiple_of(table::span(1)) {
            self.grace();
        }
        drop(closed);
        Ok(underway.done())
    }

    /// Looks at each leaf of these addresses. If the leaf no longer borrows anything, parts it from
    /// its shadow, and adds the shadow to `detached`. The caller has closed the gate, and releases
    /// the shadows after a grace period.
    pub(crate) fn part_in_vain(
        &self,
        places: impl IntoIterator<Item = u64>,
        detached: &mut Detached,
    ) {
        let nodes = self.nodes();
        let _section = self.pool.domain.reader();
        let _paths = self.paths.lock();
        for at in places {
            let leaf = nodes.find_exclusive(at);
            if let Some(leaf) = leaf.filter(|leaf| nodes.borrows_in_vain(*leaf)) {
                detached.shadows.extend(nodes.part(leaf));
            }
        }
    }

    /// Makes the paths of the range the space's own, if the edit needs that. Returns `false` if
    /// more nodes are needed.
    pub(crate) fn own_range(
        &self,
        range: &Range<u64>,
        edit: Edit,
        spares: &mut Spares<'_>,
        detached: &mut Detached,
    ) -> bool {
        let nodes = self.nodes();
        let _section = self.pool.domain.reader();
        let _paths = self.paths.lock();
        // Since the gate was closed, accessors may have remembered a leaf at an end of the range
        // again, or nodes below an upper node that is copied here.
        let moved = |post| {
            self.post(post);
            self.leaves_copied(range);
        };
        let owned = nodes.own_range(range, edit, spares, detached, moved);
        owned.is_ok()
    }

    /// Replaces the mappings by `vmas`, and the table by calling `take_table`, with the gate closed
    /// everywhere. If either fails, nothing is changed.
    pub(crate) fn replace_all(
        self: &Arc<SpaceInner>,
        writer: Writer<'_, Structure>,
        vmas: &VmaSet,
        take_table: impl FnOnce(&mut Detached) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        let replace = |own: &mut VmaSet| {
            let vmas = vmas.with_ledger(own.ledger().clone());
            let old = std::mem::replace(own, vmas);
            Changed {
                removed: old.iter().cloned().collect(),
                added: own.iter().cloned().collect(),
            }
        };
        self.change_by(writer, Payment::Own, replace, |writer, vmas, changed| {
            // The new leaves come from a snapshot. A revocation under way may already have called
            // this space's mapper, and might not call the snapshot's until the leaves have moved
            // here. Then neither mapper finds them. But a revocation also calls every mapper that
            // is registered while it runs. So all mappers of this space are registered anew.
            let renewed = writer.renew_files(|file| mapper(self, file));
            self.code.changed(&EVERYWHERE);
            self.dirty.forget(&self.group, &EVERYWHERE);
            let mut underway = Underway::new(self);
            let closed = writer.close(&self.pool.domain, &EVERYWHERE, || self.post(Post::All));
            let taken = take_table(&mut underway.detached);
            if taken.is_ok() {
                self.publish(vmas, changed);
            }
            drop(closed);
            // These are the old registrations. The new ones keep the files open.
            renewed.into_iter().map(FileUse::unregister).for_each(drop);
            taken.map(|()| underway.done())
        })
    }
}
