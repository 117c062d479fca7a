//! What others do in the middle of a structural change.

use super::direct::{LARGE, device, hole, hole_with, shared};
use super::*;
use crate::dax::HoleWrites;
use crate::space::midway;

/// Unmaps all of 2 MiB of a hole but the first page and the last, while somebody faults in the first; whether an access to
/// what was unmapped goes through afterwards.
fn reached_after_unmap(holes: HoleWrites, access: AccessKind) -> bool {
    let pool = pool(512);
    let device = device(8 * LARGE);
    let file = hole_with(&pool, &device, LARGE, holes);
    let space = space(&pool);
    let at = space.map(shared(&file).at(VirtAddr(1 << 30))).unwrap();
    let try_access = move |space: &Space, at| {
        let mut a = space.accessor();
        match access {
            AccessKind::Store => a.store(at, 1u8),
            _ => a.load::<u8>(at).map(drop),
        }
    };
    let other = space.clone();
    midway::then(move || {
        let beside = thread::spawn(move || try_access(&other, at));
        beside.join().unwrap().unwrap();
    });
    space.unmap(at + PAGE, 510 * PAGE).unwrap();
    try_access(&space, at + 7 * PAGE).is_ok()
}

#[test]
fn a_store_beside_an_unmap_maps_no_neighbour_in_its_range() {
    assert!(!reached_after_unmap(HoleWrites::Large, AccessKind::Store));
}

#[test]
fn a_load_of_a_hole_beside_an_unmap_maps_no_neighbour_in_its_range() {
    assert!(!reached_after_unmap(HoleWrites::OnePage, AccessKind::Load));
}

// spec: D4
#[test]
fn a_restore_brings_back_no_zeros_that_a_write_has_replaced() {
    let pool = pool(512);
    let device = device(8 * LARGE);
    let file = hole(&pool, &device, 4 * LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor();
    for hole in 0..4 {
        assert_eq!(a.load::<u8>(at + hole * LARGE), Ok(0));
    }
    let frozen = space.freeze().unwrap();
    a.store(at, 1u8).unwrap();
    midway::then(move || {
        let writing = thread::spawn(move || file.write_all_at(&[9], LARGE).unwrap());
        writing.join().unwrap();
    });
    space.restore(&frozen).unwrap();
    assert_eq!(a.load::<u8>(at + LARGE), Ok(9));
}
