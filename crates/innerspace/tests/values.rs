//! Values of types that `zerocopy` accepts as plain bytes.
#![cfg(feature = "zerocopy_0_8")]

use innerspace::store::MemoryStore;
use innerspace::{
    MIB, Map, Memory, PAGE_SIZE, Space, VirtAddr,
    file::FileAccess,
    space::{Fault, FaultKind, Protection},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const PAGE: u64 = PAGE_SIZE as u64;

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C)]
struct Record {
    key: u64,
    numbers: [u16; 6],
    name: [u8; 12],
}

/// A type of odd size and alignment.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C, packed)]
struct Odd {
    tag: u8,
    value: u32,
    rest: [u8; 300],
}

/// A type for which any bytes are valid, but some are padding: it can be loaded, not stored.
#[derive(FromBytes, PartialEq, Debug)]
#[repr(C)]
struct Padded {
    small: u8,
    large: u32,
}

fn space() -> (Space, VirtAddr) {
    let space = Memory::with_limit(4 * MIB).unwrap().create_space().unwrap();
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    (space, at)
}

fn record(seed: u8) -> Record {
    let bytes: [u8; size_of::<Record>()] =
        std::array::from_fn(|i| seed.wrapping_mul(7).wrapping_add(i as u8));
    Record::read_from_bytes(&bytes).unwrap()
}

// spec: A13
#[test]
fn values_come_back_from_every_alignment_and_across_a_page_end() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    let odd = Odd {
        tag: 1,
        value: 0x0203_0405,
        rest: [9; 300],
    };
    for offset in (0..16).chain(PAGE - 310..PAGE + 2) {
        let at = at + offset;
        let value = record(offset as u8);
        a.store_value(at, &value).unwrap();
        assert_eq!(a.load_value::<Record>(at), Ok(value));
        a.session(|a| {
            a.store_value(at, &odd).unwrap();
            assert_eq!(a.load_value::<Odd>(at), Ok(odd));
        });
        let mut bytes = [0; size_of::<Odd>()];
        a.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, odd.as_bytes());
    }
    a.write(at, &[5, 1, 2, 3, 1, 0, 0, 0]).unwrap();
    assert_eq!(
        a.load_value::<Padded>(at),
        Ok(Padded { small: 5, large: 1 })
    );
    let page = [3_u8; PAGE_SIZE];
    a.store_value(at + 100, &page).unwrap();
    assert_eq!(a.load_value::<[u8; PAGE_SIZE]>(at + 100), Ok(page));
}

// spec: V24
#[test]
fn a_value_is_stored_wholly_or_not_at_all() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    space.protect(at + PAGE, PAGE, Protection::READ).unwrap();
    let across = at + (PAGE - 5);
    let fault = a.store_value(across, &record(1)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    assert_eq!(fault.address(), at + PAGE);
    assert_eq!(
        a.load_value::<Record>(across),
        Ok(Record::new_zeroed_in_tests())
    );
    space.unmap(at + PAGE, PAGE).unwrap();
    let fault = a.load_value::<Record>(across).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at + PAGE)
    );
}

// spec: V24, P29
#[test]
fn what_would_wait_is_refused_and_leaves_the_value_whole() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&[7; 4 * PAGE_SIZE]))
        .unwrap();
    file.view(..PAGE).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    let edge = at + PAGE;
    let across = at + (PAGE - 5);
    let refused = |fault: Fault| assert_eq!((fault.would_block(), fault.address()), (true, edge));
    a.session(|a| {
        refused(a.try_load_value::<Record>(across).unwrap_err());
        refused(a.try_store_value(across, &record(1)).unwrap_err());
        refused(a.try_read_slice(across, &mut [record(1); 2]).unwrap_err());
        assert_eq!(a.try_load_value::<[u8; 5]>(across), Ok([7; 5]));
        refused(a.try_write_slice(across, &[record(1); 2]).unwrap_err());
        assert_eq!(
            a.try_load_value::<[u8; 5]>(across).unwrap(),
            record(1).as_bytes()[..5]
        );
    });
    assert_eq!(a.load_value::<[u8; 8]>(edge), Ok([7; 8]));
    assert_eq!(a.try_store_value(across, &record(2)), Ok(()));
    assert_eq!(a.try_load_value::<Record>(across), Ok(record(2)));
    let mut back = [record(1); 1];
    assert_eq!(a.try_write_slice(across, &[record(3)]), Ok(()));
    assert_eq!(a.try_read_slice(across, &mut back), Ok(()));
    assert_eq!(back, [record(3)]);
}

impl Record {
    fn new_zeroed_in_tests() -> Record {
        Record {
            key: 0,
            numbers: [0; 6],
            name: [0; 12],
        }
    }
}

// spec: V24
#[test]
fn slices_go_in_and_out_up_to_the_byte_that_fails() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    let values: Vec<Record> = (0..200).map(record).collect();
    a.write_slice(at + 3, &values).unwrap();
    let mut back = vec![record(0); values.len()];
    a.session(|a| a.read_slice(at + 3, &mut back)).unwrap();
    assert_eq!(back, values);
    space.unmap(at + 3 * PAGE, PAGE).unwrap();
    let end = at + 3 * PAGE;
    let start = VirtAddr(end.0 - 40);
    let fault = a.write_slice(start, &values[1..3]).unwrap_err();
    assert_eq!((fault.kind(), fault.address()), (FaultKind::NotMapped, end));
    assert_eq!(a.load_value::<Record>(start), Ok(values[1]));
    let mut two = [record(50); 2];
    let fault = a.read_slice(start, &mut two).unwrap_err();
    assert_eq!(fault.address(), end);
    assert_eq!(two[0], values[1]);
}
