//! Accessors: their cost, the group that pays, and the time to drop many of them.

use innerspace::{MIB, Map, PAGE_SIZE, Threads};

use crate::world::{World, alone, heap};

// spec: N2, N3, N11
#[test]
fn accessors_are_charged_at_their_size_and_refused_where_that_does_not_fit() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let space = world.memory.create_space_in(&world.a).unwrap();
    let mut accessors = Vec::with_capacity(10_000);
    let (before, usage) = (heap(), world.a.usage());
    let refused = loop {
        match space.accessor() {
            Ok(accessor) => accessors.push(accessor),
            Err(error) => break error,
        }
    };
    let (taken, charged) = (heap() - before, world.a.usage() - usage);
    // The part of an accessor that its caller keeps is not charged.
    let taken = taken + (accessors.len() * size_of::<innerspace::Accessor>()) as u64;
    assert!(
        charged.abs_diff(taken) * 10 <= taken,
        "{charged} bytes charged for {taken}"
    );
    assert!(world.a.usage() <= 16 * MIB);
    assert_eq!(refused.details().group, "root/a");
    assert!(accessors.len() > 1000, "{}", accessors.len());
    // B, inside its `min`, does not notice it.
    let other = world.memory.create_space_in(&world.b).unwrap();
    let at = other.map(Map::anonymous(MIB)).unwrap();
    let mut b = other.accessor().unwrap();
    for page in 0..MIB / PAGE_SIZE as u64 {
        b.store(at + page * PAGE_SIZE as u64, page).unwrap();
    }
    drop(accessors);
    assert!(world.a.usage() <= usage + 4096 * 64, "given back");
    space.accessor().unwrap();
    world.memory.validate();
}
