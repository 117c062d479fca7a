//! How many objects a call of one tenant looks at, with many of another tenant alive.

use std::sync::Arc;

use crate::cache::{FileAccess, FileError, PagedFile, WriteOrder};
use crate::group::Group;
use crate::memory::{Memory, Threads};
use crate::space::Map;
use crate::store::faulty::{Failure, Fault, OperationKind, Rule};
use crate::store::{FaultyStore, MemoryStore};
use crate::sync::failpoint;
use crate::units::MIB;

const PAGE: u64 = 4096;

struct Tenants {
    memory: Memory,
    a: Group,
    b: Group,
}

impl Tenants {
    fn new() -> Tenants {
        let memory = Memory::builder(64 * MIB).threads(Threads::None);
        let memory = memory.build().unwrap();
        let (a, b) = (
            memory.create_group("a", 32 * MIB),
            memory.create_group("b", 8 * MIB),
        );
        let (a, b) = (a.unwrap(), b.unwrap());
        Tenants { memory, a, b }
    }

    fn open(&self, group: &Group) -> PagedFile {
        let options = self.memory.file_options().access(FileAccess::ReadWrite);
        let store = Arc::new(MemoryStore::with_len(16 * PAGE));
        options.group(group).open_store(store).unwrap()
    }

    /// Files of A, each with a block that is not written.
    fn unwritten(&self, count: usize) -> Vec<PagedFile> {
        let open = || {
            let file = self.open(&self.a);
            file.write_at(&[1], 0).unwrap();
            file
        };
        (0..count).map(|_| open()).collect()
    }
}

// spec: N9
#[test]
fn opening_a_file_and_closing_it_looks_at_no_other() {
    let steps = |others: usize| {
        let tenants = Tenants::new();
        let others = tenants.unwritten(others);
        let store = Arc::new(MemoryStore::with_len(PAGE));
        let open = || {
            let options = tenants.memory.file_options().group(&tenants.b);
            options.open_store(store.clone()).unwrap()
        };
        let steps = failpoint::count("FileSeen", || {
            let first = open();
            drop((open(), first));
            drop(open());
        });
        drop(others);
        tenants.memory.validate();
        steps
    };
    let alone = steps(0);
    assert!(alone > 0, "it looks at itself");
    assert_eq!(steps(1000), alone);
}

// spec: N9
#[test]
fn a_writer_at_its_limit_looks_at_no_file_of_others_and_at_no_clean_one() {
    let steps = |others: usize| {
        let tenants = Tenants::new();
        let own: Vec<_> = (0..others).map(|_| tenants.open(&tenants.b)).collect();
        let others = tenants.unwritten(others);
        let store = Arc::new(FaultyStore::new(MemoryStore::new()));
        store.add(
            Rule::new(Fault::Fail(Failure::Io))
                .on(&[OperationKind::Write])
                .forever(),
        );
        let options = tenants.memory.file_options().access(FileAccess::ReadWrite);
        let file = options.group(&tenants.b).open_store(store.clone()).unwrap();
        let mut at = 0;
        let refused = loop {
            match file.write_at(&[1], at) {
                Ok(_) => at += PAGE,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, FileError::Unwritten { .. }), "{refused}");
        let steps = failpoint::count("FileSeen", || {
            file.write_at(&[1], at).unwrap_err();
        });
        store.heal();
        drop((file, own, others));
        steps
    };
    let alone = steps(0);
    assert!(alone > 0, "it looks at itself");
    assert_eq!(steps(300), alone);
}

// spec: N9
#[test]
fn the_work_of_a_tick_is_for_files_with_unwritten_blocks_alone() {
    let tenants = Tenants::new();
    let clean: Vec<_> = (0..500).map(|_| tenants.open(&tenants.a)).collect();
    let synced = tenants.unwritten(100);
    for file in &synced {
        file.sync_all().unwrap();
    }
    let work = || {
        failpoint::count("FileSeen", || {
            tenants.memory.0.cache.want_flush();
            tenants.memory.0.cache.want_writes();
            tenants.memory.tick();
        })
    };
    work();
    assert_eq!(work(), 0, "the first has taken what is synced off the list");
    tenants.memory.validate();
    drop((clean, synced));
}

// spec: N9
#[test]
fn a_change_of_a_space_looks_at_few_accessors_of_others() {
    let tenants = Tenants::new();
    let other = tenants.memory.create_space_in(&tenants.a).unwrap();
    let at = other.map(Map::anonymous(MIB)).unwrap();
    let used = |_| {
        let mut accessor = other.accessor().unwrap();
        accessor.store(at, 1_u64).unwrap();
        accessor
    };
    let accessors: Vec<_> = (0..2000).map(used).collect();
    let space = tenants.memory.create_space_in(&tenants.b).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space.accessor().unwrap().store(at, 1_u64).unwrap();
    let steps = failpoint::count("MemberSeen", || {
        drop(space.fork().unwrap());
        space.unmap(at, PAGE).unwrap();
    });
    assert!(steps < 2000, "{steps}");
    drop(accessors);
}

// spec: N11
#[test]
fn dropping_accessors_is_no_search_for_each_among_all() {
    let tenants = Tenants::new();
    let space = tenants.memory.create_space_in(&tenants.a).unwrap();
    let accessors: Vec<_> = (0..1000).map(|_| space.accessor().unwrap()).collect();
    let steps = failpoint::count("MemberSeen", || drop(accessors));
    assert!((1000..200_000).contains(&steps), "{steps}");
}

// spec: N11
#[test]
fn dropping_files_is_no_search_for_each_among_all() {
    let tenants = Tenants::new();
    let files = tenants.unwritten(1000);
    let steps = failpoint::count("FileSeen", || {
        drop(files);
        tenants.memory.tick();
    });
    assert!(steps < 10_000, "{steps}");
    assert!(tenants.memory.stats().files.is_empty());
}

// spec: N9
#[test]
fn a_tick_asks_no_file_that_has_nothing_to_write() {
    let steps = |others: usize| {
        let tenants = Tenants::new();
        let others = tenants.unwritten(others);
        others.iter().for_each(|file| file.sync_all().unwrap());
        let options = tenants.memory.file_options().access(FileAccess::ReadWrite);
        let options = options.write_order(WriteOrder::OnSync).group(&tenants.b);
        let held = options.open_store(MemoryStore::with_len(PAGE)).unwrap();
        held.write_at(&[1], 0).unwrap();
        // Files that were written are asked once more each.
        (0..40).for_each(|_| tenants.memory.tick());
        let steps = failpoint::count("OwnerAsked", || {
            (0..10).for_each(|_| tenants.memory.tick());
        });
        tenants.memory.validate();
        // A file is asked again once it has something to write again.
        if let Some(file) = others.first() {
            file.write_at(&[2], 0).unwrap();
            (0..40).for_each(|_| tenants.memory.tick());
            assert_eq!(file.stats().dirty.bytes(), 0);
        }
        drop(held);
        steps
    };
    let alone = steps(0);
    assert!(alone > 0, "the file with a dirty block is asked");
    assert_eq!(steps(1000), alone);
}
