//! Tests of snapshots that are saved to files and loaded.

use super::*;
use crate::space::SnapshotFileError;

fn saved(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.save(&mut bytes).unwrap();
    bytes
}

/// Takes a snapshot of two mappings, with pages in runs and alone, a page that may not be read, and
/// a page of zeros.
fn to_save(pool: &Arc<Pool>) -> (Snapshot, VirtAddr) {
    let space = space(pool);
    let at = space.map(Map::anonymous(2 * LEAF)).unwrap();
    let read_only = at + 4 * LEAF;
    space.map(Map::anonymous(4 * PAGE).at(read_only)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in (0..100).chain([511, 512, 700]) {
        a.fill(at + page * PAGE, (page as u8).wrapping_add(1), PAGE_SIZE)
            .unwrap();
    }
    a.store(at + 200 * PAGE, 0u64).unwrap();
    a.store(read_only + 8, 5u64).unwrap();
    space
        .protect(read_only, 4 * PAGE, Protection::READ)
        .unwrap();
    space
        .protect(at + 50 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    (space.freeze().unwrap(), at)
}

// spec: F9
#[test]
fn a_loaded_snapshot_has_the_same_mappings_and_bytes() {
    let (one, other) = (pool(1024), pool(1024));
    let (snapshot, at) = to_save(&one);
    let bytes = saved(&snapshot);
    let loaded = Snapshot::load(
        &crate::cache::Cache::new(&other),
        &other.root_group(),
        &mut &bytes[..],
        |_| None,
    )
    .unwrap();
    let shape = |snapshot: &Snapshot| {
        let mappings = snapshot.stats().mappings.into_iter();
        let shape: Vec<_> = mappings.map(|m| (m.start, m.end, m.protection)).collect();
        shape
    };
    assert_eq!(shape(&loaded), shape(&snapshot));
    assert_eq!(saved(&loaded), bytes, "saved again, it is the same file");
    let fork = loaded.fork().unwrap();
    let mut a = fork.accessor().unwrap();
    assert_eq!(a.load::<u8>(at + 700 * PAGE + 4095), Ok(189));
    assert_eq!(a.load::<u64>(at + 200 * PAGE), Ok(0));
    assert_eq!(a.load::<u64>(at + 4 * LEAF + 8), Ok(5));
    assert_eq!(
        a.store(at + 4 * LEAF, 1u8).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    assert_eq!(
        a.load::<u8>(at + 50 * PAGE).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    a.store(at, 9u64).unwrap();
    fork.restore(&loaded).unwrap();
    assert_eq!(a.load::<u8>(at), Ok(1));
    fork.validate();
    loaded.validate();
}

// spec: F9
#[test]
fn a_damaged_or_short_file_or_one_of_another_version_is_an_error_and_leaves_nothing() {
    let (one, other) = (pool(1024), pool(1024));
    let bytes = saved(&to_save(&one).0);
    let load = |bytes: &[u8]| {
        Snapshot::load(
            &crate::cache::Cache::new(&other),
            &other.root_group(),
            &mut &bytes[..],
            |_| None,
        )
    };
    let refuses_damage_at = |bytes: &[u8], place: usize| {
        let mut damaged = bytes.to_vec();
        damaged[place] ^= 0x10;
        let error = load(&damaged).map(drop).unwrap_err();
        let expected = matches!(
            error,
            SnapshotFileError::Damaged { .. } | SnapshotFileError::NotASnapshot
        );
        assert!(expected, "byte {place}: {error}");
        assert!(load(&bytes[..place]).is_err(), "cut at {place}");
    };
    let step = bytes.len() / 300;
    for place in (0..bytes.len()).step_by(step) {
        refuses_damage_at(&bytes, place);
    }
    for version in [2, 4] {
        let mut other = bytes.clone();
        other[8] = version;
        let check = crc32fast::hash(&other[..12]);
        other[12..16].copy_from_slice(&check.to_le_bytes());
        assert_eq!(
            load(&other).map(drop).unwrap_err().to_string(),
            format!("the snapshot has version {version}; this library reads version 3")
        );
    }
    assert_eq!(
        load(b"hello").map(drop).unwrap_err().to_string(),
        "the bytes are not a snapshot"
    );
    assert_eq!(
        load(&bytes[..bytes.len() - 1])
            .map(drop)
            .unwrap_err()
            .to_string(),
        format!(
            "the snapshot is damaged: the end is missing at byte {}",
            crate::Grouped(bytes.len() as u64 - 16)
        )
    );
    // Damage to every byte of a small file is tried.
    let space = space(&one);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    space.accessor().unwrap().store(at + PAGE, 5u64).unwrap();
    let small = saved(&space.freeze().unwrap());
    for place in 0..small.len() {
        refuses_damage_at(&small, place);
    }
    assert_nothing_left(&other);
}
