//! Going back to a snapshot, in two forms.
//!
//! - **Drop**: where the space's table differs from the snapshot's, the space gets the snapshot's
//!   subtrees back, and releases its own. This is always right. The next store to each leaf must
//!   copy the leaf again, and the page.
//! - **In place**: the bytes of each page that the space has made its own are copied back, and the
//!   page and the table stay. The next stores to them need no fault. This is right if nothing but
//!   stores has happened since the last restore to the same snapshot, and if every page that the
//!   space has made its own since then is recorded (`changes`).
//!
//! A restore in place is chosen whenever it is right: if a page is stored to again, copying it back
//! costs less than dropping it, which means freeing it, a fault and another copy. A page that was
//! stored to for the first time in a while is given back instead: its frame, warm in the caches,
//! serves the next page. Write validity tells which pages were stored to:
//!
//! - *A page copied since the last restore* is given back, so the snapshot's page is shared again,
//!   and the next store copies the page. But if one of the last [`GIVEN_BACK`] restores gave the
//!   same page back, it is copied back and loses its write validity, and the next store is a short
//!   fault.
//! - *A page stored to again* is copied back and loses its write validity: the next store is a
//!   short fault.
//! - *A page stored to before [`STEADY`] restores in a row* is copied back at every restore, stored
//!   to or not, and the next store needs no fault.
//! - *A page not stored to* stays as it is: the next store is a short fault. After [`IDLE`] such
//!   restores in a row it is given back, and the next store copies the page.
//!
//! If a watch has taken write validity since the last restore (`take_dirty`, `watch_code`), the
//! bytes of pages without it are compared instead.
//!
//! At every [`AUDIT`]th restore, the bytes of the steady pages are compared first; a page that
//! still has the bytes of the snapshot counts as not stored to.
//!
//! After a restore in place, the leaves that accessors remember are still right. The restore closes
//! the gate and posts [`GATE_MAIL`]: an accessor reads this mail before its next hit, and then
//! checks the gate.

use super::changes::{Changed, GIVEN_BACK, Record};
use super::devices::DeviceStates;
use crate::space::core::address::slot_index;
use crate::space::core::error::SpaceError;
use crate::space::core::space::{Role, SpaceInner};
use crate::space::core::structure::Structure;
use crate::space::pin::check_no_pins;
use crate::space::table::nodes::Nodes;
use crate::space::table::pte::{self, Holds, Pte, VALID_W};
use crate::space::tlb::translator::GATE_MAIL;
use crate::space::vma::set::VmaSet;
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::gate::{EVERYWHERE, Writer};
use crate::sync::raw::AtomicU64;
use crate::{FrameId, VirtAddr};

/// The number of restores in place from one comparison of steady pages to the next.
const AUDIT: u32 = 16;
/// A page is given back after this many consecutive restores that each found no store to it: no
/// more stores are expected.
const IDLE: u8 = GIVEN_BACK as u8;
/// After this many consecutive restores that each came after a store to a page, a store is expected
/// before every restore.
const STEADY: u8 = 3;

/// Implements [`Space::restore`](crate::Space::restore). `image` is the snapshot's space, and
/// `devices` has the states of its devices.
pub(super) fn restore(
    space: &Arc<SpaceInner>,
    image: &SpaceInner,
    devices: Option<&DeviceStates>,
) -> Result<(), SpaceError> {
    space.check_live("restore", VirtAddr(0), space.end())?;
    let (of, is) = (image.role, image.id);
    let own = of == Role::Frozen { of: space.id };
    if !own && space.role != (Role::Live { born_of: Some(is) }) {
        return Err(SpaceError::OtherSpace);
    }
    let mut writer = space.gate.write();
    writer.forget_unpinned();
    check_no_pins(space, "restore")?;
    if space.changes.is_since(is) && restore_in_place(space, image, &mut writer) {
        drop(writer);
        space.pool.flush_retired_if_due();
    } else {
        restore_by_dropping(space, image, writer)?;
    }
    if let Some(devices) = devices {
        devices.bring_back(space);
    }
    Ok(())
}

fn restore_by_dropping(
    space: &Arc<SpaceInner>,
    image: &SpaceInner,
    writer: Writer<'_, Structure>,
) -> Result<(), SpaceError> {
    let nodes = space.nodes();
    // The image never changes its mappings, and never loses a part of its table.
    let vmas = image.inside(|vmas| vmas.clone());
    let revision = writer.revision + 1;
    space.replace_all(writer, &vmas, |detached| {
        drop(space.changes.take());
        let table = nodes.restore_table(image.root, detached);
        table.map_err(|_| SpaceError::TooManyForks)?;
        space.changes.set(Record::new(image.id, revision));
        Ok(())
    })?;
    space.pool.counters.count(Event::RestoreDrop);
    Ok(())
}

/// Makes the recorded pages the same as in the image: copies them back, or gives them back. Returns
/// false if a restore in place is not right: then no page is changed, and the record is dropped.
fn restore_in_place(
    space: &SpaceInner,
    image: &SpaceInner,
    writer: &mut Writer<'_, Structure>,
) -> bool {
    writer.revision += 1;
    let _closed = writer.close(&space.pool.domain, &EVERYWHERE, || space.post(GATE_MAIL));
    // Only now, with the gate closed, does the record have every page that was installed. If its
    // revision is not the latest, something other than a restore in place has changed the
    // structure.
    let is_valid =
        |known: &Record| known.snapshot == image.id && known.revision + 1 == writer.revision;
    let Some(mut known) = space.changes.take().filter(is_valid) else {
        return false;
    };
    let nodes = space.nodes();
    let is_alone = |page: &Changed| nodes.frame_alone(pte::load(word(nodes, page))).is_some();
    if !known.pages.iter().all(is_alone) {
        return false;
    }
    known.restores = known.restores.wrapping_add(1);
    let mut pages = std::mem::take(&mut known.pages);
    let mut walk = Walk {
        space,
        nodes,
        vmas: &writer.vmas,
        theirs: image.nodes(),
        audit: known.restores.is_multiple_of(AUDIT),
        record: &known,
        copied: 0,
        freed: Vec::new(),
    };
    pages.retain_mut(|page| walk.bring_back(page));
    let Walk { copied, freed, .. } = walk;
    known.pages = pages;
    // No thread has used these pages since the gate was closed. They are freed in reverse, so that
    // frames are allocated again in the order of the pages.
    nodes.put_pages(freed.iter().rev().map(|(_, page)| *page));
    known.given_back.rotate_right(1);
    // Collected from a slice, because `into_iter` would keep the larger allocation of `freed`.
    known.given_back[0] = freed.iter().map(|(at, _)| *at).collect();
    known.given_back[0].sort_unstable();
    known.doubtful = false;
    known.revision = writer.revision;
    space.changes.set(known);
    space.pool.counters.count(Event::RestoreInPlace);
    space.pool.counters.add(Event::RestorePages, copied);
    true
}

/// Returns the word of a recorded page.
fn word<'pool>(nodes: Nodes<'pool>, page: &Changed) -> &'pool AtomicU64 {
    &nodes.words(page.leaf)[slot_index(page.at, 0)]
}

/// A walk over the recorded pages that restores them.
struct Walk<'a> {
    space: &'a SpaceInner,
    nodes: Nodes<'a>,
    vmas: &'a VmaSet,
    /// The image's table.
    theirs: Nodes<'a>,
    /// Whether this walk compares the bytes of steady pages.
    audit: bool,
    /// The record, without its pages.
    record: &'a Record,
    /// The number of pages copied back so far.
    copied: u64,
    /// The pages that this walk has given back, with their addresses; they are freed after the
    /// walk.
    freed: Vec<(u64, Pte)>,
}

impl Walk<'_> {
    /// Returns the frame with the image's bytes at `at`; `None` if the image has a page of a file
    /// there.
    #[cold]
    fn look_up(&self, at: u64) -> Option<FrameId> {
        let leaf = self.theirs.find(at);
        let their = leaf.map(|leaf| pte::load(&self.nodes.words(leaf.frame)[slot_index(at, 0)]));
        match their.map(|page| (page, page.holds())) {
            Some((page, Holds::Own | Holds::Borrowed)) => Some(self.nodes.frame_of(page)),
            _ => {
                let vma = self.vmas.find_containing(at);
                vma.is_some_and(|vma| vma.file().is_none())
                    .then_some(FrameId::ZERO)
            }
        }
    }

    /// Makes the page the same as in the image: copies it back, gives it back, or leaves it if it
    /// was not stored to. Returns whether the space still has a page of its own there. The caller
    /// has checked that nothing but its leaf keeps the page.
    #[inline]
    fn bring_back(&mut self, known: &mut Changed) -> bool {
        let word = word(self.nodes, known);
        debug_assert!(
            self.nodes
                .find(known.at)
                .is_some_and(|leaf| leaf.exclusive && leaf.frame == known.leaf)
        );
        if self.record.doubtful {
            // A watch may have noted the page as stored to already, but the page's bytes are about
            // to change again.
            self.space.written(known.at);
        }
        if known.image.is_none() {
            known.image = self.look_up(known.at);
        }
        let Some(image) = known.image else {
            // The image has a page of a file here, so the space's own page is removed.
            self.freed.push((known.at, pte::take(word)));
            return false;
        };
        if known.is_new() && !self.was_given_back(known.at) && self.give_back(known, word, image) {
            return false;
        }
        let page = pte::load(word);
        let stored = match known.streak >= STEADY {
            true if self.audit => !self.nodes.is_as(page, image),
            _ if page.has(VALID_W) => true,
            _ => self.record.doubtful && !self.nodes.is_as(page, image),
        };
        if stored {
            known.streak = known.streak.saturating_add(1);
            known.idle = 0;
            self.nodes.overwrite(page, image);
            self.copied += 1;
            if known.streak < STEADY {
                pte::take_write_validity(word);
            }
            return true;
        }
        known.streak = 0;
        known.idle += 1;
        pte::take_write_validity(word);
        known.idle < IDLE || !self.give_back(known, word, image)
    }

    /// Returns whether one of the last [`GIVEN_BACK`] restores gave back the page at `at`.
    #[cold]
    fn was_given_back(&self, at: u64) -> bool {
        let lists = &self.record.given_back;
        lists.iter().any(|list| list.binary_search(&at).is_ok())
    }

    /// Replaces the page by the image's. Returns false, with nothing changed, if the image's page
    /// has too many owners to count.
    #[cold]
    fn give_back(&mut self, known: &Changed, word: &AtomicU64, image: FrameId) -> bool {
        let given = match image {
            FrameId::ZERO => Some(pte::take(word)),
            _ => {
                let theirs = self.theirs.find(known.at);
                let theirs = theirs.expect("the image has a page there").frame;
                self.nodes
                    .share_page(known.leaf, theirs, slot_index(known.at, 0))
            }
        };
        self.freed.extend(given.map(|page| (known.at, page)));
        given.is_some()
    }
}
