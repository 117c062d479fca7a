//! Differences between a space and a snapshot, or between two snapshots, found from mappings and
//! tables without reading pages.

use std::ops::Range;

use crate::space::core::address::merged;
use crate::space::core::error::SpaceError;
use crate::space::core::space::SpaceInner;
use crate::space::vma::area::Vma;
use crate::space::vma::set::VmaSet;
use crate::sync::Arc;
use crate::{PAGE_SIZE, VirtAddr};

/// Returns the ranges of pages that may differ between two spaces or snapshots, by address. Fails
/// if they belong to different memories.
pub(super) fn differences(
    what: &'static str,
    a: &SpaceInner,
    b: &SpaceInner,
) -> Result<Vec<Range<VirtAddr>>, SpaceError> {
    if !Arc::ptr_eq(&a.pool, &b.pool) {
        return Err(SpaceError::OtherMemory { what });
    }
    let found = a.inside(|ours| {
        b.inside(|theirs| {
            let mut found = mapped_otherwise(ours, theirs);
            let each = &mut |at| match found.last_mut() {
                Some(last) if last.end == at => last.end = at + PAGE_SIZE as u64,
                _ => found.push(at..at + PAGE_SIZE as u64),
            };
            a.nodes().for_each_difference(b.root, each);
            found
        })
    });
    Ok(merged(found))
}

/// Returns the ranges that only one set maps, and those for which the two sets differ in what is
/// mapped or in its sharing.
fn mapped_otherwise(a: &VmaSet, b: &VmaSet) -> Vec<Range<u64>> {
    if a.is_clone_of(b) {
        return Vec::new();
    }
    let mut edges: Vec<u64> = [a, b]
        .into_iter()
        .flat_map(|set| set.iter().flat_map(|vma| [vma.start, vma.end]))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let differs = |range: &Range<u64>| {
        let [a, b] = [a, b].map(|set| set.find_containing(range.start));
        !shows_the_same(a, b, range.start)
    };
    let ranges = edges.windows(2).map(|edge| edge[0]..edge[1]);
    ranges.filter(differs).collect()
}

fn shows_the_same(a: Option<&Vma>, b: Option<&Vma>, at: u64) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.shows_same(b, at) && a.sharing == b.sharing,
        _ => false,
    }
}
