//! Growing, shrinking and moving a mapping with its pages.
//!
//! A move closes the gate on everything from the lower to the higher of the two ranges, so that no
//! fault is inside either range while words move from one to the other. Pages that the space owns
//! move with their words. Borrowed pages become owned. File pages and the zero frame are left
//! behind and fault in again.

use std::ops::Range;

use super::map::{LAST_OFFSET, check_lowest, free_place};
use super::steps::{Payment, Underway};
use crate::space::core::error::SpaceError;
use crate::space::core::space::SpaceInner;
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

/// Where a remapped mapping may go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
/// The greatest number of leaves for which nodes are allocated in one round.
const LEAVES_A_ROUND: u64 = 64;

/// Implements [`Space::remap`](crate::Space::remap).
pub(super) fn remap(
    space: &Arc<SpaceInner>,
    at: VirtAddr,
    old_len: u64,
    new_len: u64,
    to: Remap,
) -> Result<VirtAddr, SpaceError> {
    let old = space.live_range(WHAT, at, old_len)?;
    let target = match to {
        Remap::Replacing(there) => there,
        // Only the length matters; it is checked as for a mapping at address 0.
        Remap::InPlace | Remap::MayMove => VirtAddr(0),
    };
    let new = space.range(WHAT, target, new_len)?;
    let len = new.end - new.start;
    let moves = matches!(to, Remap::Replacing(_));
    if moves && new.start < old.end && old.start < new.end {
        let mapping = format!("the old range {:#x}..{:#x}", old.start, old.end);
        let at = target;
        return Err(SpaceError::Overlaps { at, len, mapping });
    }
    let writer = space.gate.write();
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
    if moves {
        if kept.end > vma.end {
            return Err(not_mapped);
        }
        check_lowest(WHAT, target)?;
        return move_pages(space, writer, &vma, &old, &new);
    }
    if kept.end < old.end {
        let tail = kept.end..old.end;
        let cut = |vmas: &mut VmaSet| vmas.remove(&tail);
        space.change(Payment::Own, writer, &tail, Some(Edit::Detach), cut)?;
        return Ok(at);
    }
    if len == old.end - old.start {
        return Ok(at);
    }
    if old.end > vma.end {
        return Err(not_mapped);
    }
    let more = old.end..old.start + len;
    let is_free = more.end <= space.end() && writer.vmas.overlapping(&more).next().is_none();
    if old.end == vma.end && is_free {
        let added = vma.slice(more.clone());
        space.change(Payment::Own, writer, &more, Some(Edit::Detach), |vmas| {
            vmas.put(added)
        })?;
        return Ok(at);
    }
    match to {
        Remap::MayMove => {
            let start = free_place(&writer.vmas, space.end(), len)?;
            move_pages(space, writer, &vma, &old, &(start..start + len))
        }
        _ => Err(SpaceError::NoRoom { len }),
    }
}

/// Returns an error if a mapping of a device would grow, or a mapping of a file would reach beyond
/// the largest offset.
fn check_growth(vma: &Vma, at: VirtAddr, len: u64, end: u64) -> Result<(), SpaceError> {
    match vma.backing {
        Backing::Device(_) => {
            let mapping = vma.to_string();
            Err(SpaceError::DeviceEnds { at, len, mapping })
        }
        // Without this check, a program could remap the last part of a mapping to the length of the
        // whole, again and again. At some point the offsets would be greater than any file's.
        Backing::File(_) if (vma.file_page(at.0) << PAGE_SHIFT) + len > LAST_OFFSET => {
            let what = WHAT;
            Err(SpaceError::OutOfRange {
                what,
                at,
                len,
                end: VirtAddr(end),
            })
        }
        Backing::File(_) | Backing::Anonymous => Ok(()),
    }
}

/// Moves as much of `old` as fits to `new`, replaces what is mapped at `new`, and unmaps all of
/// `old`. Returns the new address.
fn move_pages(
    space: &Arc<SpaceInner>,
    writer: Writer<'_, Structure>,
    vma: &Vma,
    old: &Range<u64>,
    new: &Range<u64>,
) -> Result<VirtAddr, SpaceError> {
    let mut moved = vma.slice(old.clone());
    (moved.start, moved.end) = (new.start, new.end);
    let change = |vmas: &mut VmaSet| {
        let gone = vmas.remove(new).and(vmas.remove(old));
        gone.and(vmas.put(moved))
    };
    for range in [old, new] {
        space.code.changed(range);
    }
    let tables = |writer: &mut Writer<'_, Structure>, vmas: &VmaSet, changed: &Changed| {
        move_words(space, writer, old, new, vmas, changed)
    };
    space.change_by(writer, Payment::Own, change, tables)?;
    Ok(VirtAddr(new.start))
}

fn move_words(
    space: &SpaceInner,
    writer: &Writer<'_, Structure>,
    old: &Range<u64>,
    new: &Range<u64>,
    vmas: &VmaSet,
    changed: &Changed,
) -> Result<Detached, SpaceError> {
    let hull = old.start.min(new.start)..old.end.max(new.end);
    let domain = &space.pool.domain;
    let mut underway = Underway::new(space);
    let mut spares = Spares::default();
    let leaves = (old.end - old.start) / table::span(1) + 2;
    loop {
        let closed = writer.close(domain, &hull, || space.post(Post::All));
        let owned = space.own_range(old, Edit::Part, &mut spares, &mut underway.detached)
            && space.own_range(new, Edit::Part, &mut spares, &mut underway.detached);
        if owned && carry_over(space, old, new, &mut spares, &mut underway.detached) {
            let nodes = space.nodes();
            for range in [old, new] {
                space.part_in_vain(nodes.leaves(range), &mut underway.detached);
                space.dirty.forget(&space.group, range);
            }
            space.publish(vmas, changed);
            // Since the gate was closed, accessors may have remembered leaves at the ends of the
            // ranges again.
            space.grace();
            drop(closed);
            return Ok(underway.done());
        }
        drop(closed);
        let wanted = table::PATH_NODES + leaves.min(LEAVES_A_ROUND) as usize;
        space.ensure_nodes(&mut spares, wanted)?;
    }
}

/// Empties `new`, moves there the anonymous pages of `old` that fit, and empties `old`. The gate is
/// closed on both ranges. Returns `false`, with no word changed, if more nodes are needed.
fn carry_over(
    space: &SpaceInner,
    old: &Range<u64>,
    new: &Range<u64>,
    spares: &mut Spares<'_>,
    detached: &mut Detached,
) -> bool {
    let nodes = space.nodes();
    let kept = old.start..old.end.min(old.start + (new.end - new.start));
    let _section = space.pool.domain.reader();
    let _paths = space.paths.lock();
    let path = |at| {
        nodes.own_path(at, spares, detached, |_| {
            space.post(Post::All);
            space.leaves_copied(&(at..at + 1));
        })
    };
    if nodes.move_paths(&kept, new.start, path).is_err() {
        return false;
    }
    nodes.empty(new, detached);
    nodes.move_range(&kept, new.start, detached);
    nodes.empty(old, detached);
    true
}
