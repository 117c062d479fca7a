//! Taking the pages that were stored to; `dirty` has the protocol.

use std::ops::Range;

use crate::exec::reentry::InCallback;
use crate::reclaim::AllocMode;
use crate::space::core::address::{LEAF_BYTES, merged};
use crate::space::core::error::{SpaceError, checked_range};
use crate::space::core::space::{Space, SpaceInner};
use crate::space::table::pte::{self, VALID_W};
use crate::space::vma::area::{Backing, Vma};
use crate::sync::failpoint;
use crate::sync::raw::AtomicU64;
use crate::{PAGE_SIZE, PageCount, VirtAddr};

use crate::space::dirty::Taken;

impl Space {
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
    /// The result also contains ranges that were mapped, dropped, moved or restored since, and at
    /// the first call everything; pages that were made ready for stores and not stored to
    /// ([`Space::populate`], and neighbours in a block of a direct-access file); and more of a
    /// range than was stored to, if memory to note its pages was refused. Stores by other spaces or
    /// other mappings of a shared file do not count, nor do writes to the file itself.
    ///
    /// The call waits for an accessor no longer than for its current access, and takes time in
    /// proportion to the pages in the result. The first store to each page after a call costs a
    /// short fault.
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
        const WHAT: &str = "take_dirty";
        let space = &*self.0;
        space.check_live(WHAT, at, len)?;
        let range = checked_range(WHAT, at, len, space.end())?;
        let writer = space.gate.write();
        space.make_room_in_log();
        let domain = &space.pool.domain;
        let closed = writer.close(domain, &range, || ());
        let taken = space.dirty.take(space.payer(), &range);
        failpoint!(Taken);
        if space.end_writes_of(&taken) {
            space.changes.doubt();
        }
        // A store may be under way by write validity that was taken away here, or elsewhere before.
        if !taken.is_empty() {
            space.grace();
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
    /// Lets reclaim make room for one more range in the log. The log is not locked meanwhile,
    /// because faults lock it. The caller holds the gate's writer lock.
    fn make_room_in_log(&self) {
        if self.dirty.make_room(self.payer()).is_err() {
            let _inside = InCallback::begin(self.id);
            let room = self
                .pool
                .charge(self.group_id(), PageCount(1), AllocMode::Wait);
            // If there is no memory, the log notes whole ranges instead of pages.
            drop(room);
        }
    }

    /// Takes the write validity of the pages that were taken, and returns whether any had it.
    /// The gate is closed on them.
    fn end_writes_of(&self, taken: &Taken) -> bool {
        let nodes = self.nodes();
        let mut leaves: Vec<u64> = Vec::new();
        self.inside(|tables| {
            let mut each = |at, word: &AtomicU64| {
                let ended = pte::load(word).has(VALID_W) && pte::take_write_validity(word);
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
        leaves.iter().for_each(|leaf| self.post_coalesced(*leaf));
        !leaves.is_empty()
    }
}
