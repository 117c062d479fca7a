//! Numbers that all groups share are bounded for each group, and handles lead only downwards.

use std::sync::mpsc::channel;
use std::thread;

use innerspace::store::MemoryStore;
use innerspace::{
    Group, KIB, MIB, Map, PAGE_SIZE, Threads,
    file::FileAccess,
    group::{GroupError, MAX_GROUPS_BELOW},
};

use crate::BOUND;
use crate::world::World;

/// Provides each method that would lead upwards, as long as the library has none.
trait Upwards {
    fn parent(&self) -> Option<()> {
        None
    }
}

impl Upwards for Group {}

// spec: N8
#[test]
fn a_handle_of_a_tenant_leads_to_no_group_above_it() {
    let world = World::new(4 * MIB, Threads::None);
    let space = world.memory.create_space_in(&world.a).unwrap();
    let options = world.memory.file_options().group(&world.a);
    let file = options.open_store(MemoryStore::new()).unwrap();
    let inner = world.a.create_child_unlimited("inner").unwrap();
    for group in [&world.a, &inner, space.group(), file.group()] {
        let up: Option<()> = group.parent();
        assert_eq!(up, None);
        assert!(group.path().starts_with("root/a"));
    }
}

// spec: N9
#[test]
fn one_tenant_does_not_take_the_group_numbers_of_all() {
    let world = World::new(32 * MIB, Threads::None);
    let mut own = Vec::new();
    let refused = loop {
        // Some groups are below one another, too.
        let above = own.last().filter(|_| own.len() % 7 > 0);
        let above: &Group = above.unwrap_or(&world.a);
        match above.create_child_unlimited(&own.len().to_string()) {
            Ok(group) => own.push(group),
            Err(error) => break error,
        }
    };
    assert_eq!(own.len(), MAX_GROUPS_BELOW);
    assert!(
        matches!(&refused, GroupError::TooManyBelow { group } if group == "root/a"),
        "{refused}"
    );
    world.b.create_child("inner", 512 * KIB).unwrap();
    world.memory.create_group("another", MIB).unwrap();
    // Deleted groups count as long as a page is charged to them, and no longer.
    drop(own);
    assert_eq!(world.a.usage(), 0);
    world.a.create_child_unlimited("again").unwrap();
}

// spec: N2
#[test]
fn groups_below_a_small_group_are_refused_in_the_end() {
    let world = World::new(4 * MIB, Threads::None);
    let small = world.a.create_child("small", 64 * KIB).unwrap();
    let mut own = Vec::new();
    let refused = loop {
        match small.create_child_unlimited(&own.len().to_string()) {
            Ok(group) => own.push(group),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, GroupError::Limit(_)), "{refused}");
    assert!((80..200).contains(&own.len()), "{}", own.len());
}

// spec: N6
#[test]
fn a_cut_of_a_file_that_is_mapped_over_most_addresses_ends() {
    let world = World::new(4 * MIB, Threads::None);
    let store = MemoryStore::with_len(1 << 50);
    let options = world.memory.file_options().access(FileAccess::ReadWrite);
    let file = options.group(&world.a).open_store(store).unwrap();
    let space = world.memory.create_space_in(&world.a).unwrap();
    let map = Map::file(&file).range(..1 << 46).shared();
    let at = space.map(map).unwrap();
    let mut accessor = space.accessor().unwrap();
    for far in [0, 1 << 30, 1 << 45] {
        assert_eq!(accessor.load(at + far), Ok(0_u8));
    }
    let (over, ends) = channel();
    let own = file.clone();
    thread::spawn(move || over.send((own.discard(), own.set_len(PAGE_SIZE as u64))));
    let (discarded, cut) = ends.recv_timeout(BOUND).expect("a cut ends");
    discarded.unwrap();
    cut.unwrap();
    assert!(accessor.load::<u8>(at + (1 << 45)).is_err());
    assert_eq!(accessor.load(at), Ok(0_u8));
}
