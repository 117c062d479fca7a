//! A guest's memory in a space. A device writes through rust-vmm, the processor through an
//! accessor, and a fork of the guest keeps its own bytes.

use innerspace::{MIB, Map, Memory};
use innerspace_adapters::vm_memory::guest_memory;
use vm_memory::{Bytes, GuestAddress};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::with_limit(16 * MIB)?;
    let space = memory.create_space()?;
    let at = space.map(Map::anonymous(4 * MIB))?;
    let guest = guest_memory(&space, at, 4 * MIB)?;

    // A virtio device copies a packet into the guest.
    let packet = [7; 9000];
    guest.write_slice(&packet, GuestAddress(at.0 + 4000))?;
    let mut seen = vec![0; packet.len()];
    let mut processor = space.accessor()?;
    processor.read(at + 4000, &mut seen)?;
    assert_eq!(seen, packet);

    let child = space.fork()?;
    guest.write_slice(&[8; 9000], GuestAddress(at.0 + 4000))?;
    child.accessor()?.read(at + 4000, &mut seen)?;
    println!("the guest has {}, its fork {}", 8, seen[0]);
    assert_eq!(seen, packet);
    Ok(())
}
