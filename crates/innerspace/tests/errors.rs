//! Every error becomes an `io::Error` of the nearest kind. Errors that a full group may cause say
//! whether it did.

use std::error::Error;
use std::io::{self, ErrorKind};

use innerspace::{
    KIB, MIB, Map, Memory, Threads,
    space::{FaultKind, SnapshotFileError, SpaceError},
};

fn memory() -> Memory {
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    options.build().unwrap()
}

/// Returns the kind of the `io::Error` that `error` becomes, and checks that it has `error` inside
/// and prints the same text.
fn kind_of<E: Into<io::Error> + Error + 'static>(error: E) -> ErrorKind {
    let text = error.to_string();
    let error: io::Error = error.into();
    assert_eq!(error.to_string(), text);
    assert!(error.get_ref().is_some_and(|inner| inner.is::<E>()));
    error.kind()
}

#[test]
fn a_memory_that_cannot_be() {
    let small = Memory::with_limit(KIB).unwrap_err();
    assert_eq!(kind_of(small), ErrorKind::InvalidInput);
    let large = Memory::with_limit(1 << 60).unwrap_err();
    assert_eq!(kind_of(large), ErrorKind::OutOfMemory);
}

#[test]
fn a_group_that_cannot_be_or_is_full() {
    let memory = memory();
    let group = memory.create_group("g", MIB).unwrap();
    let bad = memory.create_group("a/b", MIB).unwrap_err();
    assert!(!bad.is_limit());
    assert_eq!(kind_of(bad), ErrorKind::InvalidInput);
    let twice = memory.create_group("g", MIB).unwrap_err();
    assert_eq!(kind_of(twice), ErrorKind::AlreadyExists);

    let space = memory.create_space_in(&group).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space
        .accessor()
        .unwrap()
        .write(at, &[1; 512 * 1024])
        .unwrap();
    let full = group.set_max(256 * KIB).unwrap_err();
    assert!(full.is_limit());
    assert_eq!(kind_of(full), ErrorKind::OutOfMemory);
}

#[test]
fn a_change_of_a_space_for_which_there_is_no_memory() {
    let memory = memory();
    let group = memory.create_group("g", 256 * KIB).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let full = space.map(Map::anonymous(MIB).populated()).unwrap_err();
    assert!(full.is_limit() && matches!(full, SpaceError::Access { .. }));
    assert_eq!(kind_of(full), ErrorKind::OutOfMemory);

    let at = space.map(Map::anonymous(MIB)).unwrap();
    let mut accessor = space.accessor().unwrap();
    let fault = accessor.write(at, &[1; MIB as usize]).unwrap_err();
    let explanation = accessor.explain(fault);
    assert!(fault.is_limit() && explanation.fault().is_limit());
    assert_eq!(kind_of(explanation), ErrorKind::OutOfMemory);
    let fault = accessor.load::<u8>(at + 2 * MIB).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    let explanation = accessor.explain(fault);
    assert_eq!(kind_of(explanation), ErrorKind::InvalidInput);

    let empty = space.map(Map::anonymous(0)).unwrap_err();
    assert!(!empty.is_limit());
}

#[test]
fn a_file_for_which_there_is_no_memory() {
    let memory = memory();
    let group = memory.create_group("g", 256 * KIB).unwrap();
    let store = innerspace::store::MemoryStore::from_bytes(&[1; MIB as usize]);
    let file = memory
        .file_options()
        .group(&group)
        .open_store(store)
        .unwrap();
    let views: Result<Vec<_>, _> = (0..MIB / 4096)
        .map(|page| file.view(page * 4096..(page + 1) * 4096))
        .collect();
    let full = views.unwrap_err();
    assert!(full.is_limit());
    assert_eq!(kind_of(full), ErrorKind::OutOfMemory);
    let past = file.view(MIB..MIB + 1).unwrap_err();
    assert!(!past.is_limit());
}

#[test]
fn a_snapshot_that_cannot_be_loaded() {
    let memory = memory();
    let none = |from: &[u8]| memory.load_snapshot(&mut &*from, |_| None).unwrap_err();
    assert_eq!(
        kind_of(none(b"nothing of the kind")),
        ErrorKind::InvalidData
    );

    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space
        .accessor()
        .unwrap()
        .write(at, &[1; MIB as usize])
        .unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    let cut = none(&saved[..saved.len() / 2]);
    assert!(!cut.is_limit());
    assert_eq!(kind_of(cut), ErrorKind::InvalidData);

    let group = memory.create_group("g", 256 * KIB).unwrap();
    let full = memory.load_snapshot_in(&group, &mut &saved[..], |_| None);
    let full = full.unwrap_err();
    assert!(full.is_limit() && matches!(full, SnapshotFileError::Pages(_)));
    assert_eq!(kind_of(full), ErrorKind::OutOfMemory);
}
