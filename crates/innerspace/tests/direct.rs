//! Direct access files through the public calls: what is refused, and how.

use innerspace::{DaxError, FileAccess, MIB, Map, Memory, SpaceError};

#[test]
fn a_host_files_device_has_no_blocks_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let host = memory
        .direct_options()
        .create(folder.path().join("data.bin"))
        .unwrap();
    let error = memory.direct_file(host.device(), "other.bin").unwrap_err();
    assert!(matches!(error, DaxError::Unsupported { .. }), "{error}");
}

#[test]
fn a_file_that_is_made_can_be_written_whatever_was_chosen_before() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.direct_options().access(FileAccess::ReadOnly);
    let file = options.create(folder.path().join("data.bin")).unwrap();
    file.write_all_at(&[7], 0).unwrap();
    assert_eq!(file.len(), 1);
}

#[test]
fn a_file_of_another_memory_is_not_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let (here, there) = (
        Memory::with_limit(MIB).unwrap(),
        Memory::with_limit(MIB).unwrap(),
    );
    let space = here.space().unwrap();
    let cached = there.open(&path).unwrap();
    let direct = there.open_direct(&path).unwrap();
    for map in [Map::file(&cached), Map::direct(&direct)] {
        let error = space.map(map).unwrap_err();
        assert!(
            matches!(error, SpaceError::OtherMemorysFile { .. }),
            "{error}"
        );
        let text = format!("map of {}: it is open in another memory", path.display());
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(space.stats().size, 0);
}

#[test]
fn a_host_file_keeps_its_bytes_and_its_holes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let file = memory.direct_options().create(&path).unwrap();
    file.set_len(16 * MIB).unwrap();
    let space = memory.space().unwrap();
    let at = space.map(Map::direct(&file).shared().writable()).unwrap();
    let mut a = space.accessor();
    a.store(at + 9 * MIB, 9_u64).unwrap();
    assert_eq!(a.load::<u64>(at + MIB).unwrap(), 0);
    file.write_all_at(b"by call", 3 * MIB).unwrap();
    space.sync(at, 16 * MIB).unwrap();
    drop((a, space, file));
    let bytes = std::fs::read(&path).unwrap();
    let mib = MIB as usize;
    assert_eq!(
        (bytes.len(), bytes[9 * mib], &bytes[3 * mib..3 * mib + 7]),
        (16 * mib, 9, &b"by call"[..])
    );
    let file = memory.open_direct(&path).unwrap();
    file.set_len(2 * MIB).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * MIB);
}
