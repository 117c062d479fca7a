//! Growing, shrinking and moving a mapping with its pages.
//!
//! A move closes the gate on everything from the lower to the higher of the two ranges: no fault is
//! in either while words move from one to the other. Pages of the space's own move with their
//! words. Borrowed pages become owned. File pages and the zero frame are left behind and fault in
//! again.

use std::ops::Range;

use super::map::LAST_OFFSET;
use super::mapping::{check_lowest, free_place};
use super::steps::{Leftover, Payment, Underway};
use crate::space::core::error::{SpaceError, checked_range};
use crate::space::core::space::{Space, SpaceInner};
use crate::space::core::structure::Structure;
use crate::space::table::edit::Edit;
use crate::space::table::nodes::{Detached, Spares};
use crate::space::table::{self};
use crate::space::vma::area::{Backing, Vma};
use crate::space::vma::set::{Changed, VmaSet};
use crate::sync::Arc;
use crate::sync::domain::Post;
use crate::sync::gate::Writer;
use crate::{PAGE_SHIFT, VirtAddr};

/// The address that a remapped mapping may get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Remap {
    /// The mapping keeps its address.
    InPlace,
    /// The mapping keeps its address if it can grow there, and moves to a free range otherwise.
    MayMove,
    /// The mapping moves to this address, in place of whatever is mapped there.
    Replacing(VirtAddr),
}

const WHAT: &str = "remap";
/// The number of leaves for which nodes are allocated in one round.
const LEAVES_A_ROUND: u64 = 64;

impl Space {
    /// Changes the length of the mapping at `at` from `old_len` to `new_len` bytes, both rounded up
    /// to whole pages, and returns its address. The bytes move with the mapping; added pages have
    /// the content that a mapping of that length would have there.
    ///
    /// A call that shrinks unmaps the end, and may cover several mappings. A call that keeps length
    /// and address changes nothing. In all other cases the old range has to be in one mapping.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`]; [`SpaceError::NoRoom`] if the mapping cannot grow where it is and
    /// may not move; [`SpaceError::Overlaps`] if the new range overlaps the old;
    /// [`SpaceError::DeviceEnds`] if a mapping of a device would become longer;
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`],
    /// [`SpaceError::Limit`]. Nothing is changed then.
    pub fn remap(
        &self,
        at: VirtAddr,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Result<VirtAddr, SpaceError> {
        let space = &self.0;
        space.check_live(WHAT, at, old_len)?;
        let old = checked_range(WHAT, at, old_len, space.end())?;
        let target = match to {
            Remap::Replacing(there) => there,
            // Only the length matters; it is checked as for a mapping at address 0.
            Remap::InPlace | Remap::MayMove => VirtAddr(0),
        };
        let new = checked_range(WHAT, target, new_len, space.end())?;
        let len = new.end - new.start;
        let moves = matches!(to, Remap::Replacing(_));
        if moves && new.start < old.end && old.start < new.end {
            let mapping = format!("the old range {:#x}..{:#x}", old.start, old.end);
            return Err(SpaceError::Overlaps {
                at: target,
                len,
                mapping,
            });
        }
        let mut writer = space.gate.write();
        let not_mapped = SpaceError::NotMapped {
            what: WHAT,
            at,
            len: old_len,
        };
        let Some(vma) = writer.vmas.find_containing(at.0).cloned() else {
            return Err(not_mapped);
        };
        let kept = old.start..old.end.min(old.start + len);
        let grows = len > old.end - old.start && old.end <= vma.end;
        if grows {
            check_growth(&vma, at, len, space.end())?;
        }
        let done = match to {
            Remap::Replacing(_) => {
                if kept.end > vma.end {
                    return Err(not_mapped);
                }
                check_lowest(WHAT, target)?;
                space.move_pages(&mut writer, &vma, &old, &new)?
            }
            _ if kept.end < old.end => {
                let tail = kept.end..old.end;
                let cut = space.change(&mut writer, &tail, Some(Edit::Detach), |vmas| {
                    vmas.remove(&tail)
                });
                (at, cut?)
            }
            _ if len == old.end - old.start => return Ok(at),
            _ if old.end > vma.end => return Err(not_mapped),
            _ => {
                let more = old.end..old.start + len;
                let is_free =
                    more.end <= space.end() && writer.vmas.overlapping(&more).next().is_none();
                if old.end == vma.end && is_free {
                    let added = continued(&vma, &more);
                    let grown = space.change(&mut writer, &more, Some(Edit::Detach), |vmas| {
                        vmas.put(added)
                    });
                    (at, grown?)
                } else if to == Remap::MayMove {
                    let start = free_place(&writer.vmas, space.end(), len)?;
                    space.move_pages(&mut writer, &vma, &old, &(start..start + len))?
                } else {
                    return Err(SpaceError::NoRoom { len });
                }
            }
        };
        drop(writer);
        space.finish(done.1);
        Ok(done.0)
    }
}

/// Refuses a length for which the mapping has no pages from `at` on.
fn check_growth(vma: &Vma, at: VirtAddr, len: u64, end: u64) -> Result<(), SpaceError> {
    match vma.backing {
        Backing::Device { .. } => {
            let mapping = vma.to_string();
            Err(SpaceError::DeviceEnds { at, len, mapping })
        }
        // If a part were remapped to the length of the whole again and again, its offsets would at
        // last be greater than any file's.
        Backing::File { .. } if (vma.file_page(at.0) << PAGE_SHIFT) + len > LAST_OFFSET => {
            let what = WHAT;
            Err(SpaceError::OutOfRange {
                what,
                at,
                len,
                end: VirtAddr(end),
            })
        }
        Backing::File { .. } | Backing::Anonymous => Ok(()),
    }
}

/// Returns a mapping of `range` that continues `vma`, which ends at the start of `range` or above.
fn continued(vma: &Vma, range: &Range<u64>) -> Vma {
    let mut added = vma.clone();
    if let Some(first_page) = added.backing.first_page_mut() {
        *first_page = vma.file_page(range.start);
    }
    (added.start, added.end) = (range.start, range.end);
    added
}

impl SpaceInner {
    /// Moves as much of `old` as fits to `new`, replaces what is mapped at `new`, and unmaps all of
    /// `old`.
    fn move_pages(
        self: &Arc<SpaceInner>,
        writer: &mut Writer<'_, Structure>,
        vma: &Vma,
        old: &Range<u64>,
        new: &Range<u64>,
    ) -> Result<(VirtAddr, Leftover), SpaceError> {
        let mut moved = continued(vma, &(old.start..old.start + 1));
        (moved.start, moved.end) = (new.start, new.end);
        let change = |vmas: &mut VmaSet| {
            let gone = vmas.remove(new).and(vmas.remove(old));
            gone.and(vmas.put(moved))
        };
        writer.pins.move_range(old, new.start);
        for range in [old, new] {
            self.code.changed(range);
        }
        let leftover = self.change_by(writer, Payment::Own, change, |writer, vmas, changed| {
            self.move_words(writer, old, new, vmas, changed)
        })?;
        for range in [old, new] {
            self.dirty.forget(self.payer(), range);
        }
        Ok((VirtAddr(new.start), leftover))
    }

    fn move_words(
        &self,
        writer: &Writer<'_, Structure>,
        old: &Range<u64>,
        new: &Range<u64>,
        vmas: &VmaSet,
        changed: &Changed,
    ) -> Result<Detached, SpaceError> {
        let hull = old.start.min(new.start)..old.end.max(new.end);
        let domain = &self.pool.domain;
        let mut detached = Underway::new(self);
        let mut spares = Spares::only(Vec::new());
        let leaves = (old.end - old.start) / table::span(1) + 2;
        loop {
            let closed = writer.close(domain, &hull, || self.post(Post::All));
            let owned = self.own_range(old, Edit::Part, &mut spares, &mut detached)
                && self.own_range(new, Edit::Part, &mut spares, &mut detached);
            if owned && self.carry_over(old, new, &mut spares, &mut detached) {
                let nodes = self.nodes();
                for range in [old, new] {
                    self.part_in_vain(nodes.leaves(self.root, range), &mut detached);
                }
                self.publish(vmas, changed);
                // Accessors may again remember leaves at the ends of the ranges.
                self.grace();
                drop(closed);
                return Ok(detached.done());
            }
            drop(closed);
            let wanted = table::PATH_NODES + leaves.min(LEAVES_A_ROUND) as usize;
            self.ensure_nodes(&mut spares, wanted)?;
        }
    }

    /// Moves the words, with the gate closed on both ranges. Returns `false`, with no word changed,
    /// if more nodes are needed.
    fn carry_over(
        &self,
        old: &Range<u64>,
        new: &Range<u64>,
        spares: &mut Spares<'_>,
        detached: &mut Detached,
    ) -> bool {
        let nodes = self.nodes();
        let kept = old.start..old.end.min(old.start + (new.end - new.start));
        let _section = self.pool.domain.reader();
        let _paths = self.paths.lock();
        let path = |at| {
            nodes.own_path(self.root, at, spares, detached, |_| {
                self.post(Post::All);
                self.leaves_copied(&(at..at + 1));
            })
        };
        if nodes.move_paths(self.root, &kept, new.start, path).is_err() {
            return false;
        }
        nodes.empty(self.root, new, detached);
        nodes.move_range(self.root, &kept, new.start, detached);
        nodes.empty(self.root, old, detached);
        true
    }
}
