//! Operations on mappings, case by case, through the public API.

mod limits;
mod remap;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
    group::GroupError,
    space::{AddressWidth, Advice, FaultKind, Protection, Remap, SpaceError, SpaceOptions},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    let options = Memory::builder(8 * MIB).threads(Threads::None);
    options.build().unwrap()
}

/// Creates a file whose page n is full of n + 1.
fn numbered(memory: &Memory, pages: u64) -> (PagedFile, Arc<MemoryStore>) {
    let bytes: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
    let store = Arc::new(MemoryStore::from_bytes(&bytes));
    let options = memory.file_options().access(FileAccess::ReadWrite);
    (options.open_store(store.clone()).unwrap(), store)
}

fn kind<T>(result: Result<T, innerspace::space::Fault>) -> Option<FaultKind> {
    result.err().map(|fault| fault.kind())
}

/// Returns start and length in pages, and protection, of each mapping.
fn shape(space: &Space) -> Vec<(u64, u64, String)> {
    space.validate();
    let mappings = space.stats().mappings;
    let row = |m: &innerspace::space::MappingInfo| {
        (
            m.start.page(),
            (m.end - m.start) / PAGE,
            m.protection.to_string(),
        )
    };
    mappings.iter().map(row).collect()
}

fn at(page: u64) -> VirtAddr {
    VirtAddr(page * PAGE)
}

/// Stores its number in each page of a range.
fn number(a: &mut Accessor, from: u64, pages: u64) {
    for page in from..from + pages {
        a.store(at(page), page + 1000).unwrap();
    }
}

// spec: V16
#[test]
fn each_protection_refuses_its_accesses_and_changes_nothing() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    space.map(Map::anonymous(PAGE).at(at(100))).unwrap();
    a.store(at(100), 5u64).unwrap();
    let forbidden = Some(FaultKind::Forbidden);
    let x = Protection::EXECUTE;
    for (protection, load, store, fetch) in [
        (Protection::NONE, forbidden, forbidden, forbidden),
        (Protection::READ, None, forbidden, forbidden),
        (Protection::READ_WRITE, None, None, forbidden),
        (x, forbidden, forbidden, None),
        (Protection::READ | x, None, forbidden, None),
        (Protection::READ_WRITE | x, None, None, None),
    ] {
        for round in 0..2 {
            space.protect(at(100), PAGE, protection).unwrap();
            assert_eq!(
                kind(a.load::<u64>(at(100))),
                load,
                "load, {protection}, {round}"
            );
            assert_eq!(
                kind(a.fetch::<u64>(at(100))),
                fetch,
                "fetch, {protection}, {round}"
            );
            assert_eq!(
                kind(a.compare_exchange(at(100), 5u64, 5, SeqCst, SeqCst)),
                store,
                "{protection}, {round}"
            );
            assert_eq!(
                kind(a.store(at(100), 5u64)),
                store,
                "store, {protection}, {round}"
            );
            space.validate();
        }
    }
    space.protect(at(100), PAGE, Protection::READ).unwrap();
    assert_eq!(a.load::<u64>(at(100)), Ok(5));
    let unmapped = Some(FaultKind::NotMapped);
    assert_eq!(kind(a.load::<u64>(at(101))), unmapped);
    assert_eq!(kind(a.fetch::<u64>(at(101))), unmapped);
}

// spec: V17
#[test]
fn a_store_to_a_private_file_mapping_is_seen_there_alone() {
    let memory = memory();
    let (file, store) = numbered(&memory, 4);
    let space = memory.create_space().unwrap();
    let other = memory.create_space().unwrap();
    let private = space.map(Map::file(&file).private().writable()).unwrap();
    let again = space.map(Map::file(&file).private().writable()).unwrap();
    let elsewhere = other.map(Map::file(&file).shared()).unwrap();
    let (mut a, mut b) = (space.accessor().unwrap(), other.accessor().unwrap());
    assert_eq!(a.load::<u8>(private + PAGE), Ok(2));
    a.store(private + PAGE, 77u8).unwrap();
    assert_eq!(a.load::<u8>(private + PAGE), Ok(77));
    assert_eq!(
        a.load::<u8>(private + PAGE + 1),
        Ok(2),
        "the rest of the page is copied"
    );
    assert_eq!(a.load::<u8>(again + PAGE), Ok(2));
    assert_eq!(b.load::<u8>(elsewhere + PAGE), Ok(2));
    file.sync_all().unwrap();
    assert_eq!(file.view(PAGE..PAGE + 1).unwrap()[0], 2);
    assert_eq!(store.to_vec()[PAGE_SIZE], 2);
    // A copied page stays when the file changes; the others change with the file.
    file.write_at(&[9; 2 * PAGE_SIZE], PAGE).unwrap();
    assert_eq!(
        (
            a.load::<u8>(private + PAGE),
            a.load::<u8>(private + 2 * PAGE)
        ),
        (Ok(77), Ok(9))
    );
}

// spec: V18
#[test]
fn a_store_to_a_shared_file_mapping_is_seen_at_once_and_stored_at_sync() {
    let memory = memory();
    let (file, store) = numbered(&memory, 4);
    let (space, other) = (
        memory.create_space().unwrap(),
        memory.create_space().unwrap(),
    );
    let here = space.map(Map::file(&file).shared().writable()).unwrap();
    let there = other.map(Map::file(&file).shared()).unwrap();
    let (mut a, mut b) = (space.accessor().unwrap(), other.accessor().unwrap());
    assert_eq!(b.load::<u8>(there + 2 * PAGE), Ok(3));
    a.store(here + 2 * PAGE, 99u8).unwrap();
    assert_eq!(b.load::<u8>(there + 2 * PAGE), Ok(99));
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2 * PAGE).unwrap();
    assert_eq!(byte, [99]);
    assert_eq!(store.to_vec()[2 * PAGE_SIZE], 3, "not written yet");
    space.sync(here + 2 * PAGE, PAGE).unwrap();
    assert_eq!(store.to_vec()[2 * PAGE_SIZE], 99);
    let refused = space.sync(here + 3 * PAGE, 2 * PAGE);
    assert!(matches!(refused, Err(SpaceError::NotMapped { .. })));
}

/// Each space would choose an address of its own width.
#[test]
fn the_error_of_a_mapping_names_an_address_that_its_space_has() {
    let memory = memory();
    let refused = |width, map: Map| {
        let options = SpaceOptions::new().width(width);
        let space = memory.create_space_with(&options).unwrap();
        space.map(map).unwrap_err().to_string()
    };
    for (width, at, end) in [
        (AddressWidth::Bits32, "0x40000000", "0x100000000"),
        (AddressWidth::Bits48, "0x7f0000000000", "0x1000000000000"),
    ] {
        assert_eq!(
            refused(width, Map::anonymous(0)),
            format!("map of 0 bytes at {at}: the range, or the file, is empty")
        );
        let too_long = refused(width, Map::anonymous(width.end() + PAGE));
        assert!(
            too_long.ends_with(&format!(" at {at}: the space ends at {end}")),
            "{too_long}"
        );
        let shared = refused(width, Map::anonymous(PAGE).shared());
        assert!(
            shared.contains(&format!(" at {at}: anonymous memory")),
            "{shared}"
        );
    }
}

// spec: V21
#[test]
fn a_narrow_space_wraps_and_refuses_by_its_width() {
    let memory = memory();
    let narrow = SpaceOptions::new().width(AddressWidth::Bits32);
    let space = memory.create_space_with(&narrow).unwrap();
    let mut a = space.accessor().unwrap();
    let last = VirtAddr((1 << 32) - PAGE);
    space.map(Map::anonymous(PAGE).at(last)).unwrap();
    space
        .map(Map::anonymous(2 * PAGE).at(VirtAddr(0)).with_null())
        .unwrap();
    let end = VirtAddr((1 << 32) - 4);
    a.store(end, 0x1122_3344_5566_7788u64).unwrap();
    assert_eq!(a.load::<u64>(end), Ok(0x1122_3344_5566_7788));
    assert_eq!(
        a.load::<u32>(VirtAddr(0)),
        Ok(0x1122_3344),
        "it goes on at 0"
    );
    let mut bytes = [0; 8];
    a.read(end, &mut bytes).unwrap();
    assert_eq!(bytes, 0x1122_3344_5566_7788u64.to_le_bytes());
    let numbers: Vec<u8> = (0..6144).map(|number| (number % 251) as u8).collect();
    for (from, to) in [(-2048, -1792), (-1792, -2048), (-2048, -2048)] {
        let [from, to] = [from, to].map(|at: i64| VirtAddr(((1 << 32) + at) as u64));
        a.write(from, &numbers).unwrap();
        a.copy_within(from, numbers.len(), to).unwrap();
        assert_eq!(a.compare(to, &numbers), Ok(std::cmp::Ordering::Equal));
    }
    a.store(end, 0x1122_3344_5566_7788u64).unwrap();
    assert_eq!(
        kind(a.load::<u8>(VirtAddr(1 << 32))),
        Some(FaultKind::NotMapped)
    );
    for refused in [
        space.map(Map::anonymous(PAGE).at(VirtAddr(1 << 32))),
        space.map(Map::anonymous(2 * PAGE).at(last)),
        space.map(Map::anonymous((4 << 30) + PAGE)),
    ] {
        assert!(
            matches!(refused, Err(SpaceError::OutOfRange { .. })),
            "{refused:?}"
        );
    }
    let chosen = space.map(Map::anonymous(MIB)).unwrap();
    assert!(chosen.0 + MIB < 1 << 32);
    let fork = space.fork().unwrap();
    assert_eq!(
        fork.accessor().unwrap().load::<u64>(end),
        Ok(0x1122_3344_5566_7788)
    );
    // A wide space does not wrap.
    let wide = memory.create_space().unwrap();
    let last = VirtAddr((1 << 48) - PAGE);
    wide.map(Map::anonymous(PAGE).at(last)).unwrap();
    let mut a = wide.accessor().unwrap();
    let fault = a.store(last + (PAGE - 4), 1u64).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    assert_eq!(a.load::<u32>(last + (PAGE - 4)), Ok(0));
    assert!(matches!(
        wide.map(Map::anonymous(2 * PAGE).at(last)),
        Err(SpaceError::OutOfRange { .. })
    ));
}

#[test]
fn page_0_is_mapped_on_request_alone() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let refused = space.map(Map::anonymous(2 * PAGE).at(VirtAddr(0)));
    assert!(matches!(refused, Err(SpaceError::NullPage { .. })));
    assert_eq!(space.map(Map::anonymous(PAGE).at(at(1))).unwrap(), at(1));
    space
        .map(Map::anonymous(PAGE).at(VirtAddr(0)).with_null())
        .unwrap();
    assert_eq!(shape(&space), [(0, 2, "rw".into())]);
}

// spec: V24
#[test]
fn what_spans_two_mappings_is_done_wholly_or_counted() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    space.map(Map::anonymous(2 * PAGE).at(at(100))).unwrap();
    space
        .map(
            Map::anonymous(PAGE)
                .at(at(102))
                .protection(Protection::READ),
        )
        .unwrap();
    // One value over two pages of one mapping, and one over two mappings.
    let inside = at(101) + (PAGE - 3);
    a.store(VirtAddr(101 * PAGE - 3), 0x0102_0304_0506_0708u64)
        .unwrap();
    assert_eq!(
        a.load::<u64>(VirtAddr(101 * PAGE - 3)),
        Ok(0x0102_0304_0506_0708)
    );
    assert_eq!(a.load::<u64>(inside), Ok(0));
    let fault = a.store(inside, u64::MAX).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::Forbidden, at(102))
    );
    assert_eq!(
        a.load::<u32>(VirtAddr(102 * PAGE - 4)),
        Ok(0),
        "not in part"
    );
    // A value at the end of the last mapping.
    let fault = a.load::<u64>(VirtAddr(103 * PAGE - 4)).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at(103))
    );
    // In a bulk access, everything before the failing address is done.
    let fault = a.write(at(101), &[7; 3 * PAGE_SIZE]).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::Forbidden, at(102))
    );
    assert_eq!(a.load::<u8>(VirtAddr(102 * PAGE - 1)), Ok(7));
    let mut buffer = [1; 2 * PAGE_SIZE];
    let fault = a.read(at(102), &mut buffer).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at(103))
    );
    assert_eq!((buffer[PAGE_SIZE - 1], buffer[PAGE_SIZE]), (0, 1));
}

/// Each call is refused with the right error, and changes nothing.
#[test]
fn nonsense_is_refused() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    space.map(Map::anonymous(4 * PAGE).at(at(100))).unwrap();
    let before = shape(&space);
    let empty = |error: Option<SpaceError>| matches!(error, Some(SpaceError::Empty { .. }));
    let unaligned = |error: Option<SpaceError>| matches!(error, Some(SpaceError::Unaligned { .. }));
    let outside = |error: Option<SpaceError>| matches!(error, Some(SpaceError::OutOfRange { .. }));
    let not_mapped =
        |error: Option<SpaceError>| matches!(error, Some(SpaceError::NotMapped { .. }));
    let odd = VirtAddr(100 * PAGE + 1);
    let all = |at: VirtAddr, len: u64| {
        [
            space.discard(at, len).err(),
            space.sync(at, len).err(),
            space.populate(at, len).err(),
            space.lock(at, len).err(),
            space.unlock(at, len).err(),
            space.remap(at, len, PAGE, Remap::MayMove).err(),
            space.protect(at, len, Protection::NONE).err(),
        ]
    };
    assert!(all(at(100), 0).into_iter().all(empty));
    assert!(all(odd, PAGE).into_iter().all(unaligned));
    assert!(all(at(100), u64::MAX).into_iter().all(outside));
    assert!(all(VirtAddr(1 << 48), PAGE).into_iter().all(outside));
    assert!(all(at(99), PAGE).into_iter().all(not_mapped));
    let partly = [
        space.discard(at(102), 4 * PAGE).err(),
        space.lock(at(102), 4 * PAGE).err(),
        space
            .remap(at(102), 4 * PAGE, 8 * PAGE, Remap::MayMove)
            .err(),
    ];
    assert!(partly.into_iter().all(not_mapped));
    assert!(empty(space.remap(at(100), PAGE, 0, Remap::MayMove).err()));
    assert!(unaligned(
        space
            .remap(at(100), PAGE, PAGE, Remap::Replacing(odd))
            .err()
    ));
    assert!(outside(
        space
            .remap(at(100), PAGE, 1 << 48, Remap::Replacing(at(200)))
            .err()
    ));
    assert_eq!(shape(&space), before);
}

#[test]
fn bytes_go_from_space_to_space_up_to_the_first_fault() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 4);
    let (from, to) = (
        memory.create_space().unwrap(),
        memory.create_space().unwrap(),
    );
    let source = from.map(Map::file(&file).at(at(50))).unwrap();
    let target = to.map(Map::anonymous(4 * PAGE)).unwrap();
    let (mut f, mut t) = (from.accessor().unwrap(), to.accessor().unwrap());
    f.prefetch(source + 100, 3 * PAGE).unwrap();
    let before = memory.stats().totals.pgmajfault;
    t.copy_from(target + 5, &mut f, source + 100, 3 * PAGE_SIZE)
        .unwrap();
    assert_eq!(
        memory.stats().totals.pgmajfault,
        before,
        "it was read ahead"
    );
    let mut want = vec![0; 3 * PAGE_SIZE];
    let mut got = want.clone();
    f.read(source + 100, &mut want).unwrap();
    t.read(target + 5, &mut got).unwrap();
    assert!(want == got && want[0] == 1 && want[3 * PAGE_SIZE - 1] == 4);
    let fault = t
        .copy_from(target, &mut f, source + 2 * PAGE, 3 * PAGE_SIZE)
        .unwrap_err();
    assert_eq!(
        (fault.access(), fault.address()),
        (innerspace::space::AccessKind::Load, at(54))
    );
    assert_eq!(
        t.load::<u8>(target + (2 * PAGE - 1)),
        Ok(4),
        "everything before it"
    );
    let fault = t
        .copy_from(target + 3 * PAGE, &mut f, source, 2 * PAGE_SIZE)
        .unwrap_err();
    assert_eq!(fault.access(), innerspace::space::AccessKind::Store);
    assert_eq!(fault.address(), target + 4 * PAGE);
}
