//! Guest memory over pinned pages.

#![cfg(feature = "vm_memory_0_18")]

use innerspace::{MIB, Map, Memory, space::AtFork};
use innerspace_adapters::vm_memory::guest_memory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

#[test]
fn the_guest_has_the_bytes_of_the_space_and_no_others() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    // Pages that are in use elsewhere, so that the guest's are in several pieces.
    let used = space.map(Map::anonymous(MIB)).unwrap();
    for page in (0..256).step_by(3) {
        let pin = space.pin(at + page * 4096, 4096, AtFork::Copy).unwrap();
        drop(pin);
        space
            .accessor()
            .unwrap()
            .store(used + page * 4096, 1_u8)
            .unwrap();
    }
    let guest = guest_memory(&space, at, MIB).unwrap();
    let pinned: u64 = guest.iter().map(GuestMemoryRegion::len).sum();
    assert_eq!((pinned, guest.last_addr().0), (MIB, at.0 + MIB - 1));
    let pattern: Vec<u8> = (0..MIB).map(|i| (i / 7) as u8).collect();
    guest.write_slice(&pattern, GuestAddress(at.0)).unwrap();
    let mut seen = vec![0; MIB as usize];
    let mut processor = space.accessor().unwrap();
    processor.read(at, &mut seen).unwrap();
    assert!(seen == pattern);
    processor.store(at + 12_345, 0x1234_5678_u32).unwrap();
    let value: u32 = guest.read_obj(GuestAddress(at.0 + 12_345)).unwrap();
    assert_eq!(value, 0x1234_5678);
    for (address, len) in [(at.0 - 1, 1), (at.0 + MIB, 1), (u64::MAX, 1)] {
        let outside = guest.write_slice(&vec![1; len], GuestAddress(address));
        assert!(outside.is_err(), "{address:#x}");
    }
    for region in guest.iter() {
        let whole = region.as_volatile_slice().unwrap();
        assert_eq!(whole.len() as u64, region.len());
        let past = region.get_slice(vm_memory::MemoryRegionAddress(1), whole.len());
        assert!(past.is_err());
    }
    assert!(memory.root_group().usage() >= MIB);
    drop(guest);
    space.unmap(at, MIB).unwrap();
}
