//! Taking the pages that were stored to; `dirty` has the protocol.

use std::ops::Range;

use crate::exec::reentry::Inside;
use crate::reclaim::AllocMode;
use crate::space::core::address::merged;
use crate::space::core::space::SpaceInner;
use crate::space::vma::area::Vma;
use crate::sync::failpoint;
use crate::{PAGE_SIZE, PageCount, VirtAddr};

/// Implements [`Space::take_dirty`](crate::Space::take_dirty).
pub(super) fn take(space: &SpaceInner, range: &Range<u64>) -> Vec<Range<VirtAddr>> {
    let writer = space.gate.write();
    make_room_in_log(space);
    let closed = writer.close(&space.pool.domain, range, || ());
    let taken = space.dirty.take(space.payer(), range);
    failpoint!(Taken);
    let pages = taken
        .stored
        .iter()
        .map(|page| *page..*page + PAGE_SIZE as u64);
    space.end_writes(taken.unknown.iter().cloned().chain(pages.clone()));
    // A store may be under way that relies on write validity taken away here, or elsewhere before.
    if !taken.is_empty() {
        space.grace();
    }
    drop(closed);
    let mut named: Vec<Range<u64>> = pages.collect();
    for unknown in &taken.unknown {
        let mapped = writer
            .vmas
            .overlapping(unknown)
            .filter(|vma| vma.has_pages());
        named.extend(mapped.map(|vma: &Vma| vma.part_in(unknown)));
    }
    merged(named)
}

/// Lets reclaim make room for one more range in the log. The log is not locked meanwhile, because
/// faults lock it. The caller holds the gate's writer lock.
fn make_room_in_log(space: &SpaceInner) {
    if space.dirty.make_room(space.payer()).is_err() {
        let _inside = Inside::callback(space.id);
        let (group, page) = (space.group_id(), PageCount(1));
        // If there is no memory, the log notes whole ranges instead of pages.
        drop(space.pool.charge(group, page, AllocMode::Wait));
    }
}
