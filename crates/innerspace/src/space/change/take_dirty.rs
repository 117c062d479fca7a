//! Listing the pages that were stored to since the last call; `dirty` has the protocol.

use std::ops::Range;

use crate::exec::reentry::Inside;
use crate::reclaim::AllocMode;
use crate::space::core::address::merged;
use crate::space::core::space::SpaceInner;
use crate::sync::failpoint;
use crate::{PageCount, VirtAddr};

/// Implements [`Space::take_dirty`](crate::Space::take_dirty).
pub(super) fn take(space: &SpaceInner, range: &Range<u64>) -> Vec<Range<VirtAddr>> {
    let writer = space.gate.write();
    // The log needs memory for one more range. If there is none, reclaim frees some here, while the
    // log is not locked, because faults lock it too.
    if space.dirty.make_room(&space.group).is_err() {
        let _inside = Inside::callback(space.id);
        let (group, page) = (space.group_id(), PageCount(1));
        // If the charge fails, the next call names more pages than were stored to.
        drop(space.pool.charge(group, page, AllocMode::Wait));
    }
    let closed = writer.close(&space.pool.domain, range, || ());
    let taken = space.dirty.take(&space.group, range);
    failpoint!(Taken);
    space.end_writes(taken.iter().cloned());
    // A store may be under way that relies on write validity that was taken away here, or elsewhere
    // before.
    if !taken.is_empty() {
        space.grace();
    }
    drop(closed);
    let mapped = taken.iter().flat_map(|part| {
        let mapped = writer.vmas.overlapping(part).filter(|vma| vma.has_pages());
        mapped.map(|vma| vma.part_in(part))
    });
    merged(mapped.collect())
}
