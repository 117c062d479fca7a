//! Spaces over files, through the public API: which pages a mapping shows, shares, copies and
//! refuses.

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    MIB, Map, Memory, PAGE_SIZE, PagedFile, Threads, VirtAddr,
    file::FileAccess,
    space::{FaultKind, Protection, SpaceOptions},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    memory_of(4 * MIB)
}

fn memory_of(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8 | 1).collect()
}

fn file(memory: &Memory, bytes: &[u8], block: u64) -> (PagedFile, std::sync::Arc<MemoryStore>) {
    let store = std::sync::Arc::new(MemoryStore::from_bytes(bytes));
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .block_size(block);
    (options.open_store(store.clone()).unwrap(), store)
}

#[test]
fn a_shared_mapping_shows_the_file_and_writes_to_it() {
    for block in [PAGE, 16 * PAGE, 512 * PAGE] {
        let memory = memory_of(16 * MIB);
        let bytes = pattern(40 * PAGE_SIZE + 100);
        let (file, store) = file(&memory, &bytes, block);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        let mut seen = vec![0; bytes.len()];
        a.read(at, &mut seen).unwrap();
        assert!(seen == bytes);
        a.store(at + 5 * PAGE + 1, 0xdead_beef_u32).unwrap();
        let mut four = [0; 4];
        file.read_exact_at(&mut four, 5 * PAGE + 1).unwrap();
        assert_eq!(
            u32::from_le_bytes(four),
            0xdead_beef,
            "file reads see the store at once"
        );
        file.write_at(b"written", 6 * PAGE).unwrap();
        let mut seven = [0; 7];
        a.read(at + 6 * PAGE, &mut seven).unwrap();
        assert_eq!(&seven, b"written", "the mapping sees file writes at once");
        file.sync_all().unwrap();
        assert_eq!(store.to_vec()[5 * PAGE_SIZE + 1..][..4], four);
        // After the sync the translation is clean: a store through it makes the page dirty again.
        a.store(at + 5 * PAGE + 1, 1u32).unwrap();
        file.sync_all().unwrap();
        assert_eq!(store.to_vec()[5 * PAGE_SIZE + 1..][..4], 1u32.to_le_bytes());
        space.validate();
        memory.validate();
    }
}

#[test]
fn a_private_mapping_copies_and_the_file_never_changes() {
    let memory = memory();
    let bytes = pattern(8 * PAGE_SIZE);
    let (file, store) = file(&memory, &bytes, PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at + 1), Ok(bytes[1]));
    a.store(at, u64::MAX).unwrap();
    a.store(at + 3 * PAGE, 1u64).unwrap();
    let fork = space.fork().unwrap();
    let mut f = fork.accessor().unwrap();
    a.store(at, 2u64).unwrap();
    assert_eq!(f.load::<u64>(at), Ok(u64::MAX));
    f.store(at + 3 * PAGE, 3u64).unwrap();
    assert_eq!(
        (a.load::<u64>(at + 3 * PAGE), f.load::<u64>(at + 3 * PAGE)),
        (Ok(1), Ok(3))
    );
    assert_eq!(f.load::<u8>(at + 5 * PAGE), Ok(bytes[5 * PAGE_SIZE]));
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes && store.to_vec() == bytes);
    space.validate();
    fork.validate();
}

#[test]
fn a_mapping_larger_than_the_memory_is_read_through() {
    let memory = Memory::builder(MIB).threads(Threads::None).build().unwrap();
    let bytes = pattern(16 << 20);
    let (file, _) = file(&memory, &bytes, PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut buffer = vec![0; 64 << 10];
    for round in 0..2 {
        for (i, chunk) in bytes.chunks(buffer.len()).enumerate() {
            a.read(at + (i * buffer.len()) as u64, &mut buffer[..chunk.len()])
                .unwrap();
            assert!(buffer[..chunk.len()] == *chunk, "round {round} chunk {i}");
        }
    }
    assert!(memory.stats().peak <= MIB, "{}", memory.stats());
    space.validate();
    memory.validate();
}

// spec: A8
#[test]
fn an_access_across_two_pages_ends_with_a_group_of_the_minimum_size() {
    let memory = memory();
    let bytes = pattern(64 * PAGE_SIZE);
    let (file, _) = file(&memory, &bytes, PAGE);
    let group = memory.create_group("small", 10 * PAGE).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + (PAGE - 4), 0x0102_0304_0506_0708_u64).unwrap();
    assert_eq!(a.load::<u64>(at + (PAGE - 4)), Ok(0x0102_0304_0506_0708));
    a.copy_within(at + PAGE + 10, 3000, at + 10).unwrap();
}

// spec: A5
#[test]
fn truncate_and_punch_take_translations_away() {
    let memory = memory();
    let bytes = pattern(8 * PAGE_SIZE);
    let (file, _) = file(&memory, &bytes, PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..8 {
        a.store(at + page * PAGE, page + 100).unwrap();
    }
    file.punch(2 * PAGE..3 * PAGE).unwrap();
    assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(0));
    file.set_len(4 * PAGE + 10).unwrap();
    assert_eq!(a.load::<u64>(at + 4 * PAGE), Ok(104));
    assert_eq!(
        a.load::<u8>(at + 4 * PAGE + 10),
        Ok(0),
        "past the end inside the last page: zeros"
    );
    let fault = a.load::<u64>(at + 5 * PAGE).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::PastEnd);
    file.set_len(8 * PAGE).unwrap();
    assert_eq!(
        a.load::<u64>(at + 5 * PAGE),
        Ok(0),
        "what was cut off does not come back"
    );
    // A hole that a call on the file writes to is no longer a hole to the mapping either.
    assert_eq!(a.load::<u64>(at + 7 * PAGE), Ok(0));
    file.write_at(&7u64.to_le_bytes(), 7 * PAGE).unwrap();
    assert_eq!(a.load::<u64>(at + 7 * PAGE), Ok(7));
    space.validate();
    memory.validate();
}

#[test]
fn a_file_opened_read_only_cannot_be_mapped_for_shared_writing() {
    let memory = memory();
    let file = memory
        .file_options()
        .name("data.bin")
        .open_store(MemoryStore::with_len(PAGE))
        .unwrap();
    let space = memory.create_space().unwrap();
    let error = space
        .map(Map::file(&file).shared().writable())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "data.bin: rw is forbidden, the file was opened read-only"
    );
    let at = space.map(Map::file(&file).shared()).unwrap();
    let error = space
        .protect(at, PAGE, Protection::READ_WRITE)
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("rw is forbidden, the file was opened read-only"),
        "{error}"
    );
    space.map(Map::file(&file).private().writable()).unwrap();
}

#[test]
fn views_keep_their_bytes_while_a_mapping_writes() {
    let memory = memory();
    let bytes = pattern(4 * PAGE_SIZE);
    let (file, _) = file(&memory, &bytes, PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let view = file.view(0..PAGE).unwrap();
    a.store(at, 2u64).unwrap();
    assert_eq!(view[..8], 1u64.to_le_bytes());
    assert_eq!(file.view(0..8).unwrap()[..], 2u64.to_le_bytes());
    drop((file, a, space));
    assert_eq!(view[..8], 1u64.to_le_bytes());
}

#[test]
fn a_dropped_space_leaves_dirty_pages_to_the_file() {
    let memory = memory();
    let (file, store) = file(&memory, &pattern(4 * PAGE_SIZE), PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    space.accessor().unwrap().store(at + PAGE, 9u64).unwrap();
    drop(space);
    drop(file);
    memory.tick();
    assert_eq!(store.to_vec()[PAGE_SIZE..][..8], 9u64.to_le_bytes());
    assert_eq!(store.len().unwrap(), 4 * PAGE);
    assert!(memory.take_errors().is_empty());
}

#[test]
fn a_file_cut_short_while_mapped_is_an_error_with_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let memory = memory_of(256 << 10);
    let file = memory.file_options().name("data.bin").open(&path);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file.unwrap())).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load(at), Ok(0x0707_u16));
    let other = std::fs::File::options().write(true).open(&path).unwrap();
    other.set_len(64 << 10).unwrap();
    let fault = a.load::<u64>(at + (512 << 10)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::PastEnd, "{fault}");
    assert_eq!(
        a.explain(fault).to_string(),
        "load of 8 bytes at 0x7f0000080000: data.bin: wanted 4096 bytes at 524,288 \
         but the file now ends at 65,536 (it was 1,048,576 when opened)"
    );
    assert_eq!(a.load(at), Ok(0x0707_u16), "what is left can be read");
}

// spec: V24
/// A thread that waits for a section requests that it pass a safepoint. The accessor may then do
/// nothing for long but accesses that need none.
// spec: A15, V24
#[test]
fn a_store_across_two_pages_ends_after_somebody_has_waited_for_a_section() {
    let memory = memory();
    let (space, other) = (
        memory.create_space().unwrap(),
        memory.create_space().unwrap(),
    );
    let at = space.map(Map::anonymous(2 * PAGE)).unwrap();
    let there = other.map(Map::anonymous(PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.fill(at, 1, 2 * PAGE_SIZE).unwrap();
    a.session(|_| other.unmap(there, PAGE)).unwrap();
    let (done, stored) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let border = at + PAGE - 4;
        let end = a.store(border, 7_u64);
        done.send(end.and_then(|()| a.load::<u64>(border)))
    });
    let ten_seconds = std::time::Duration::from_secs(10);
    assert_eq!(stored.recv_timeout(ten_seconds), Ok(Ok(7)));
}

#[test]
fn a_fault_of_a_value_in_two_pages_names_its_size_and_the_page_that_failed() {
    let space = Memory::with_limit(MIB).unwrap().create_space().unwrap();
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = VirtAddr(0x10_0000);
    let map = Map::anonymous(PAGE).protection(all);
    space.map(map.at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    let across = at + (PAGE - 2);
    let faults = [
        ("load", a.load::<u64>(across).unwrap_err()),
        ("fetch", a.fetch::<u64>(across).unwrap_err()),
        ("store", a.store(across, 1_u64).unwrap_err()),
    ];
    for (access, fault) in faults {
        let expected = format!("{access} of 8 bytes at 0x101000: not mapped");
        assert_eq!(fault.to_string(), expected);
    }
    a.store(across, 0x1234_u16).unwrap();
    space
        .map(Map::anonymous(PAGE).protection(all).at(at + PAGE))
        .unwrap();
    assert_eq!(a.fetch::<u32>(across), Ok(0x1234));
    assert_eq!(a.session(|a| a.load::<u32>(across)), Ok(0x1234));
}

// spec: V24
#[test]
fn a_fault_above_every_space_is_not_explained_by_a_mapping() {
    let space = Memory::with_limit(MIB).unwrap().create_space().unwrap();
    let low = VirtAddr(0x10_1000);
    space.map(Map::anonymous(4096).at(low)).unwrap();
    let mut a = space.accessor().unwrap();
    for at in [low + (1 << 48), low + (0xffff << 48)] {
        let fault = a.load::<u64>(at).unwrap_err();
        assert!(fault.address().0 >> 48 != 0 && fault.address().0 >> 16 == at.0 >> 16);
        let text = space.explain(fault).to_string();
        assert!(text.ends_with(": an address has at most 48 bits"), "{text}");
    }
}

#[test]
fn a_space_or_fork_that_a_group_of_another_memory_was_to_pay_for_is_refused() {
    let (memory, other) = (memory(), memory());
    let foreign = other.create_group("tenant", MIB).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 7_u64).unwrap();
    let snapshot = space.freeze().unwrap();
    let before = memory.root_group().usage();
    let options = SpaceOptions::new().group(&foreign);
    for (refused, what) in [
        (memory.create_space_in(&foreign), "space"),
        (memory.create_space_with(&options), "space"),
        (space.fork_in(&foreign), "fork"),
        (snapshot.fork_in(&foreign), "fork"),
    ] {
        let expected =
            format!("{what} in the group root/tenant: the group belongs to another memory");
        assert_eq!(refused.unwrap_err().to_string(), expected);
    }
    assert_eq!(memory.root_group().usage(), before);
    assert_eq!((a.load(at), foreign.usage()), (Ok(7_u64), 0));
    drop((a, snapshot));
    space.validate();
    memory.validate();
    other.validate();
}

#[test]
fn a_refusal_is_an_error_of_input_and_output_where_a_function_returns_one() {
    use std::io::{Error, ErrorKind};
    let memory = memory_of(MIB);
    let space = memory.create_space().unwrap();
    let kind = |map: Map| {
        let mapped = space.map(map);
        mapped.map_err(|error| Error::from(error).kind()).err()
    };
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    assert_eq!(
        kind(Map::anonymous(PAGE).at(at)),
        Some(ErrorKind::AlreadyExists)
    );
    assert_eq!(kind(Map::anonymous(0)), Some(ErrorKind::InvalidInput));
    assert_eq!(kind(Map::anonymous(1 << 60)), Some(ErrorKind::InvalidInput));
    assert_eq!(
        kind(Map::anonymous(2 * MIB).populated()),
        Some(ErrorKind::OutOfMemory)
    );
}
