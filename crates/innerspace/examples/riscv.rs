//! A RISC-V processor in a space: code that can be executed and not written, memory that is charged
//! when it is touched, a device, and a wild store that is an error value.

#[path = "support/riscv.rs"]
mod riscv;
#[path = "support/sieve.rs"]
mod sieve;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use innerspace::{
    MIB, Map, Memory, VirtAddr,
    space::{AddressWidth, Device, DeviceError, FaultKind, Protection, SpaceOptions},
};
use riscv::{Machine, SpaceMemory, Stop};

const CODE: u32 = 0x0001_0000;
const CONSOLE: u32 = 0x1000_0000;
const DATA: u32 = 0x8000_0000;
/// The guest's memory has this many addresses; the guest touches a million bytes of them.
const DATA_BYTES: u64 = 1 << 30;
const NUMBERS: u32 = 1_000_000;

/// A device that keeps the last word stored to it.
struct Console(Arc<AtomicU32>);

impl Device for Console {
    fn load(&self, _offset: u64, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        Err(DeviceError::new("the console has nothing to say"))
    }

    fn store(&self, _offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let word = bytes.try_into().map_err(|_| DeviceError::new("4 bytes"))?;
        self.0.store(u32::from_le_bytes(word), Ordering::Relaxed);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::with_limit(8 * MIB)?;
    let space = memory.create_space_with(&SpaceOptions::new().width(AddressWidth::Bits32))?;
    let code = VirtAddr(CODE.into());
    space.map(Map::anonymous(4096).at(code))?;
    space.map(Map::anonymous(DATA_BYTES).at(VirtAddr(DATA.into())))?;
    let printed = Arc::new(AtomicU32::new(0));
    let console = Map::device(Console(printed.clone()), 4096);
    space.map(console.at(VirtAddr(CONSOLE.into())))?;

    let mut accessor = space.accessor()?;
    for (index, word) in (0..).zip(sieve::SIEVE) {
        accessor.store(code + index * 4, word)?;
    }
    space.protect(code, 4096, Protection::READ | Protection::EXECUTE)?;

    let mut machine = Machine::new(SpaceMemory::new(accessor), CODE);
    machine.hart.registers[10..13].copy_from_slice(&[DATA, NUMBERS, CONSOLE]);
    let start = std::time::Instant::now();
    assert_eq!(machine.run(u64::MAX), Stop::Call);
    let took = start.elapsed();
    println!(
        "{} primes below {NUMBERS}, in {} instructions ({:.0} million a second)",
        printed.load(Ordering::Relaxed),
        machine.steps,
        machine.steps as f64 / took.as_micros() as f64,
    );
    assert_eq!(printed.load(Ordering::Relaxed), 78_498);
    println!("{}", memory.stats().parts);

    // The same program, which is to work in its own code: its first store is refused.
    machine.hart.pc = CODE;
    machine.hart.registers[10..12].copy_from_slice(&[CODE, 4096]);
    assert!(matches!(machine.run(u64::MAX), Stop::Exception(_)));
    let fault = machine.memory.fault.expect("a store failed");
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    println!("{}", space.explain(fault));
    Ok(())
}
