//! Numbers that all groups share are bounded for each group, and handles lead only downwards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::store::{Identity, Store};
use innerspace::{Group, GroupError, KIB, MAX_GROUPS_BELOW, MIB, Threads};

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
    let space = world.memory.space_in(&world.a).unwrap();
    let options = world.memory.options().group(&world.a);
    let file = options.open(Counted::new(0, &Arc::default())).unwrap();
    let inner = world.a.child_unlimited("inner").unwrap();
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
        match above.child_unlimited(&own.len().to_string()) {
            Ok(group) => own.push(group),
            Err(error) => break error,
        }
    };
    assert_eq!(own.len(), MAX_GROUPS_BELOW);
    assert!(
        matches!(&refused, GroupError::TooManyBelow { group } if group == "root/a"),
        "{refused}"
    );
    world.b.child("inner", 512 * KIB).unwrap();
    world.memory.group("another", MIB).unwrap();
    // Deleted groups count as long as a page is charged to them, and no longer.
    drop(own);
    assert_eq!(world.a.usage(), 0);
    world.a.child_unlimited("again").unwrap();
}

// spec: N2
#[test]
fn groups_below_a_small_group_are_refused_in_the_end() {
    let world = World::new(4 * MIB, Threads::None);
    let small = world.a.child("small", 64 * KIB).unwrap();
    let mut own = Vec::new();
    let refused = loop {
        match small.child_unlimited(&own.len().to_string()) {
            Ok(group) => own.push(group),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, GroupError::Limit(_)), "{refused}");
    assert!((80..200).contains(&own.len()), "{}", own.len());
}

/// A store with an identity of its own, which counts how many times it is called for that.
struct Counted {
    number: u64,
    asked: Arc<AtomicU64>,
}

impl Counted {
    fn new(number: u64, asked: &Arc<AtomicU64>) -> Counted {
        let asked = asked.clone();
        Counted { number, asked }
    }
}

impl Store for Counted {
    fn len(&self) -> io::Result<u64> {
        Ok(4 * KIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn identity(&self) -> Option<Identity> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(Identity::new("counted", [self.number, 0]))
    }
}

// spec: N9
#[test]
fn opening_a_file_asks_no_other_that_is_open() {
    let world = World::new(32 * MIB, Threads::None);
    let asked = Arc::default();
    let open = |number, group: &Group| {
        let options = world.memory.options().group(group);
        options.open(Counted::new(number, &asked)).unwrap()
    };
    let first = open(0, &world.b);
    let steps = asked.swap(0, Ordering::Relaxed);
    let others: Vec<_> = (1..2_000).map(|number| open(number, &world.a)).collect();
    asked.store(0, Ordering::Relaxed);
    drop((first, open(2_000, &world.b)));
    let again = open(0, &world.b);
    assert_eq!(asked.load(Ordering::Relaxed), 2 * steps);
    drop((others, again));
    assert!(world.memory.stats().files.is_empty());
}
