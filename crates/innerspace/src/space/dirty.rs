//! Which pages were stored to since somebody asked last: for a framebuffer, or to copy a space
//! while it runs.
//!
//! A page is *watched* from the first [`Space::take_dirty`] that named it. The log has a bit for
//! each watched page that a fault has made writable since it was last taken; so a watched page is
//! writable only if its bit is set. To take: close the gate on the range, so that no fault is
//! between its bit and its word; take the bits; take the write validity of their pages, so that the
//! next store faults, and sets the bit again; wait for a grace period, for stores that had found
//! the word as it was; open the gate.
//!
//! What changes pages other than by stores (mapping, unmapping, dropping, moving, restoring) ends
//! the watch of its range. The next take names all that is mapped there, as for a page that nobody
//! has asked about before. So does a range where there was no memory for the log. A restore in
//! place copies back what was stored to since: the bits of that are set already, or, if they were
//! taken, set again.
//!
//! The mutex of the log is taken inside sections and under the gate's writer, and nothing is taken
//! under it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::exec::reentry::InCallback;
use crate::group::{GroupId, LimitError};
use crate::reclaim::{AllocMode, Pool};
use crate::space::change::mapping::checked_range;
use crate::space::snapshot::diff::merged;
use crate::space::table::pte::{self, VALID_W};
use crate::space::table::{self, LEAF_BYTES, Nodes, SLOTS, slot_index};
use crate::space::tlb::translator::leaf_number;
use crate::space::vma::area::{Backing, Vma};
use crate::space::{Space, SpaceError, SpaceInner, page_start};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::raw::AtomicU64;
use crate::sync::{Mutex, failpoint};
use crate::{PAGE_SHIFT, PAGE_SIZE, PageCount, VirtAddr};

/// Ranges and leaves noted in a page of memory, for which the group is charged.
const A_PAGE: usize = 32;
const BITS: usize = SLOTS / 64;

/// The log of a space.
#[derive(Debug, Default)]
pub(super) struct DirtyLog {
    /// Whether anything was ever watched. Set with the gate closed, so a fault that is inside reads
    /// the value that holds.
    watching: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The watched ranges, start to end, apart from each other.
    watched: BTreeMap<u64, u64>,
    /// A bit for each watched page that was made writable, by the number of its leaf.
    stored: BTreeMap<u64, [u64; BITS]>,
    /// Pages of memory the group is charged for.
    charged: usize,
}

/// What a take found.
#[derive(Debug, Default)]
struct Taken {
    /// Parts that were not watched.
    unknown: Vec<Range<u64>>,
    /// Pages of the others that were made writable.
    stored: Vec<u64>,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.stored.is_empty()
    }
}

impl DirtyLog {
    /// A fault is about to make the page at `at` writable. In its section, inside the gate.
    #[inline(always)]
    pub(super) fn stored(&self, space: &SpaceInner, at: u64) {
        // Relaxed: the gate orders it.
        if self.watching.load(Ordering::Relaxed) {
            self.note(space, at);
        }
    }

    #[cold]
    fn note(&self, space: &SpaceInner, at: u64) {
        self.log.lock().note(space, page_start(at));
    }

    /// The pages of the range are others now, or may be. The gate's writer is held.
    pub(super) fn forget(&self, space: &SpaceInner, range: &Range<u64>) {
        // Relaxed: the writer's mutex orders it.
        if self.watching.load(Ordering::Relaxed) {
            self.log.lock().forget(space, range);
        }
    }

    /// Takes the range's bits, and watches all of it from now on if there is memory to note it in.
    /// The gate is closed on it.
    fn take(&self, space: &SpaceInner, range: &Range<u64>) -> Taken {
        self.watching.store(true, Ordering::Relaxed);
        self.log.lock().take(space, range)
    }

    /// Checks the log; nobody may be using the space.
    pub(super) fn validate(&self) {
        self.log.lock().validate();
    }

    /// Gives back what is charged. The space is gone.
    pub(super) fn end(&self, pool: &Pool, group: GroupId) {
        let mut log = self.log.lock();
        let charged = PageCount(std::mem::take(&mut log.charged) as u64);
        if charged.0 > 0 {
            pool.groups.uncharge(group, charged);
        }
    }
}

impl Log {
    fn note(&mut self, space: &SpaceInner, page: u64) {
        if !self.watches(page) {
            return;
        }
        let leaf = leaf_number(page);
        if !self.stored.contains_key(&leaf) && self.make_room(space, AllocMode::NoWait).is_err() {
            let start = leaf * table::span(1);
            return self.forget(space, &(start..start + table::span(1)));
        }
        let slot = slot_index(page, 0);
        self.stored.entry(leaf).or_default()[slot / 64] |= 1 << (slot % 64);
    }

    /// Checks that what is noted is charged for, and is of watched pages.
    fn validate(&self) {
        let entries = self.watched.len() + self.stored.len();
        assert!(
            entries <= self.charged * A_PAGE,
            "I3: {entries} entries of the log, and {} pages charged",
            self.charged
        );
        for (leaf, bits) in &self.stored {
            let pages =
                (0..SLOTS as u64).filter(|slot| bits[*slot as usize / 64] >> (slot % 64) & 1 > 0);
            let mut pages = pages.map(|slot| leaf * table::span(1) + (slot << PAGE_SHIFT));
            assert!(
                pages.all(|page| self.watches(page)),
                "a page of leaf {leaf} is noted and not watched"
            );
        }
    }

    fn watches(&self, page: u64) -> bool {
        let below = self.watched.range(..=page).next_back();
        below.is_some_and(|(_, end)| page < *end)
    }

    /// Charges for one entry more than there are.
    fn make_room(&mut self, space: &SpaceInner, mode: AllocMode) -> Result<(), LimitError> {
        let wanted = (self.watched.len() + self.stored.len() + 1).div_ceil(A_PAGE);
        if wanted > self.charged {
            let more = PageCount((wanted - self.charged) as u64);
            let charge = space.pool.charge(space.group_id(), more, mode)?;
            let _group = charge.commit();
            self.charged = wanted;
        }
        Ok(())
    }

    /// Gives back what is charged for more entries than there are.
    fn shrink(&mut self, space: &SpaceInner) {
        let wanted = (self.watched.len() + self.stored.len()).div_ceil(A_PAGE);
        if wanted < self.charged {
            let less = PageCount((self.charged - wanted) as u64);
            space.pool.groups.uncharge(space.group_id(), less);
            self.charged = wanted;
        }
    }

    /// The watched ranges that meet `range`.
    fn meeting(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let below = self.watched.range(..range.end).rev();
        let meeting = below.take_while(|(_, end)| **end > range.start);
        let mut found: Vec<Range<u64>> = meeting.map(|(start, end)| *start..*end).collect();
        found.reverse();
        found
    }

    fn forget(&mut self, space: &SpaceInner, range: &Range<u64>) {
        for known in self.meeting(range) {
            self.watched.remove(&known.start);
            if known.start < range.start {
                self.watched.insert(known.start, range.start);
            }
            // The second part of two is one entry more than there was.
            let cut_in_two = known.start < range.start && range.end < known.end;
            let has_room = !cut_in_two || self.make_room(space, AllocMode::NoWait).is_ok();
            if range.end < known.end && has_room {
                self.watched.insert(range.end, known.end);
            }
            let kept_from = if has_room { range.end } else { known.end };
            let gone = known.start.max(range.start)..known.end.min(kept_from);
            self.take_bits(&gone, |_| ());
        }
    }

    fn take(&mut self, space: &SpaceInner, range: &Range<u64>) -> Taken {
        let has_room = self.make_room(space, AllocMode::NoWait).is_ok();
        let mut taken = Taken::default();
        let (mut from, mut whole) = (range.start, range.clone());
        for known in self.meeting(range) {
            self.watched.remove(&known.start);
            if from < known.start {
                taken.unknown.push(from..known.start);
            }
            let part = known.start.max(range.start)..known.end.min(range.end);
            self.take_bits(&part, |page| taken.stored.push(page));
            from = part.end;
            whole = whole.start.min(known.start)..whole.end.max(known.end);
        }
        if from < range.end {
            taken.unknown.push(from..range.end);
        }
        self.watched.insert(whole.start, whole.end);
        if !has_room {
            self.forget(space, range);
        }
        taken
    }

    /// Takes the bits of the range's pages out, in order of address.
    fn take_bits(&mut self, range: &Range<u64>, mut each: impl FnMut(u64)) {
        let leaves = leaf_number(range.start)..=leaf_number(range.end - 1);
        let mut empty = Vec::new();
        for (leaf, bits) in self.stored.range_mut(leaves) {
            let start = leaf * table::span(1);
            for (group, word) in bits.iter_mut().enumerate() {
                let mut left = *word;
                while left != 0 {
                    let slot = group as u64 * 64 + u64::from(left.trailing_zeros());
                    let page = start + (slot << PAGE_SHIFT);
                    let bit = left & left.wrapping_neg();
                    left ^= bit;
                    if range.contains(&page) {
                        *word ^= bit;
                        each(page);
                    }
                }
            }
            if *bits == [0; BITS] {
                empty.push(*leaf);
            }
        }
        for leaf in empty {
            self.stored.remove(&leaf);
        }
    }
}

impl Space {
    /// The pages of `len` bytes (rounded up to whole pages) at `at` that were stored to since they
    /// were last taken, as ranges by address: what a display has to draw again, or what is to be
    /// sent once more when a running space is copied elsewhere. Parts that are not mapped, devices,
    /// and files with [`OnShrink::Error`](crate::OnShrink::Error) are left out.
    ///
    /// A store that is over before the call is named by it, or was by one before. One that comes in
    /// between is named by this call or by the next; so bytes that are read after the call are
    /// either what they were when it returned, or the page is named again. Named as well are: what
    /// was mapped, dropped, moved or restored since, and everything at the first call; pages that
    /// were made ready for stores and not stored to ([`Space::populate`], and neighbours in a block
    /// of a direct access file); and more of a range where memory to note pages in was refused.
    /// What other spaces, other mappings of a shared file and writes to the file itself store does
    /// not count.
    ///
    /// Waits for no accessor longer than its current access. The time is that of the pages named.
    /// The first store to each page after a call costs a short fault.
    ///
    /// ```
    /// use innerspace::{MIB, Map, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let space = Memory::with_limit(4 * MIB)?.space()?;
    /// let screen = space.map(Map::anonymous(MIB))?;
    /// let mut a = space.accessor();
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
        const WHAT: &str = "take_dirty";
        let space = &*self.0;
        space.check_live(WHAT, at, len)?;
        let range = checked_range(WHAT, at, len, space.end())?;
        let writer = space.gate.write();
        space.make_room_in_log();
        let domain = &space.pool.domain;
        let closed = writer.close(domain, &range, || ());
        let taken = space.dirty.take(space, &range);
        failpoint!(Taken);
        if space.end_writes_of(&taken) {
            space.changes.doubt();
        }
        // Whoever else may have taken the write validity, a store may be under way by what it was.
        if !taken.is_empty() {
            domain.synchronize();
        }
        drop(closed);
        let has_pages = |vma: &&Vma| !matches!(vma.backing, Backing::Device { .. });
        let mut named: Vec<Range<u64>> = Vec::new();
        for unknown in &taken.unknown {
            let mapped = writer.vmas.overlapping(unknown).filter(has_pages);
            named.extend(mapped.map(|vma| vma.start.max(unknown.start)..vma.end.min(unknown.end)));
        }
        let pages = taken.stored.iter();
        named.extend(pages.map(|page| *page..*page + PAGE_SIZE as u64));
        Ok(merged(named))
    }
}

impl SpaceInner {
    /// Has reclaim make room for one more range in the log. With the log unlocked, for faults take
    /// it; the gate's writer is held.
    fn make_room_in_log(&self) {
        let mut log = self.dirty.log.lock();
        log.shrink(self);
        let refused = log.make_room(self, AllocMode::NoWait).is_err();
        drop(log);
        if refused {
            let _inside = InCallback::begin(self.id);
            let room = self
                .pool
                .charge(self.group_id(), PageCount(1), AllocMode::Wait);
            // If there is none, the log says less.
            drop(room);
        }
    }

    /// Takes write validity away from what was taken; whether there was any. The gate is closed on
    /// it.
    fn end_writes_of(&self, taken: &Taken) -> bool {
        let nodes = Nodes { pool: &self.pool };
        let mut leaves: Vec<u64> = Vec::new();
        self.inside(|tables| {
            let mut each = |at, word: &AtomicU64| {
                let ended =
                    pte::load(word).has(VALID_W) && pte::take_valid(word, VALID_W).has(VALID_W);
                let leaf = at - at % LEAF_BYTES;
                if ended && leaves.last() != Some(&leaf) {
                    leaves.push(leaf);
                }
            };
            for part in &taken.unknown {
                nodes.for_each_slot(tables.root, part.start, part.end, &mut each);
            }
            for page in &taken.stored {
                nodes.for_each_slot(tables.root, *page, page + 1, &mut each);
            }
        });
        // mutant: A1-coalesced (test: a_store_to_a_coalesced_leaf_is_named_again_after_take_dirty; shuttle: a_store_by_who_coalesces_is_seen_by_a_look_at_what_is_dirty_or_named_by_the_next) they stay coalesced
        if cfg!(not(mutant = "A1-coalesced")) {
            leaves.iter().for_each(|leaf| self.post_coalesced(*leaf));
        }
        !leaves.is_empty()
    }
}
