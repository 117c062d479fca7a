//! The virtual machine `ckb-vm` with a space as its memory: the space protects code from writes, a
//! fork of it is a second machine, and memory is charged when it is touched.

#[path = "support/ckb_vm.rs"]
mod memory;
#[path = "support/sieve.rs"]
mod sieve;

use ckb_vm::elf::{LoadingAction, ProgramMetadata};
use ckb_vm::machine::VERSION2;
use ckb_vm::memory::{FLAG_EXECUTABLE, FLAG_FREEZED};
use ckb_vm::registers::{A0, A1, A2, A7};
use ckb_vm::{
    CoreMachine, DefaultCoreMachine, DefaultMachine, DefaultMachineBuilder, Error, ISA_IMC, Memory,
    RISCV_MAX_MEMORY, SupportMachine,
};
use innerspace::{MIB, PAGE_SIZE};
use memory::SpaceMemory;

const CODE: u32 = 0x1_0000;
const RESULT: u32 = 0x2_0000;
const DATA: u32 = 0x10_0000;
const NUMBERS: u32 = 1_000_000;
/// The number of the call with which the machine ends.
const EXIT: u32 = 93;

type Vm = DefaultMachine<DefaultCoreMachine<u32, SpaceMemory<u32>>>;

/// A machine at the beginning of the sieve, which is to use `numbers` bytes at `data`.
fn machine(memory: SpaceMemory<u32>, data: u32, numbers: u32) -> Vm {
    // This makes a memory, which ours replaces.
    let core = DefaultCoreMachine::new_with_memory(ISA_IMC, VERSION2, u64::MAX, 2 * PAGE_SIZE);
    let mut vm = DefaultMachineBuilder::new(core).build();
    *vm.memory_mut() = memory;
    for (register, value) in [(A0, data), (A1, numbers), (A2, RESULT), (A7, EXIT)] {
        vm.set_register(register, value);
    }
    vm.update_pc(CODE);
    vm.commit_pc();
    vm
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let all = innerspace::Memory::with_limit(6 * MIB)?;
    let first = SpaceMemory::map(all.create_space()?, RISCV_MAX_MEMORY)?;
    let mut vm = machine(first, DATA, NUMBERS);
    let code: Vec<u8> = sieve::SIEVE
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let action = LoadingAction {
        addr: CODE.into(),
        size: PAGE_SIZE as u64,
        flags: FLAG_EXECUTABLE | FLAG_FREEZED,
        source: 0..code.len() as u64,
        offset_from_addr: 0,
    };
    let program = ProgramMetadata {
        actions: vec![action],
        entry: CODE.into(),
    };
    vm.load_binary(&code.into(), &program, true)?;
    let second = vm.memory().fork()?;
    let third = vm.memory().fork()?;

    vm.run()?;
    println!(
        "{} primes below {NUMBERS}",
        vm.memory_mut().load32(&RESULT)?
    );
    assert_eq!(vm.memory_mut().load32(&RESULT)?, 78_498);
    println!("{}", all.stats().parts);

    // A fork from before the run has the program and none of the first machine's data.
    let mut other = machine(second, DATA, 1000);
    other.run()?;
    assert_eq!(other.memory_mut().load32(&RESULT)?, 168);

    // The third machine is to work in its own code: the space refuses the first store.
    let refused = machine(third, CODE, PAGE_SIZE as u32).run();
    assert_eq!(refused, Err(Error::MemWriteOnExecutablePage));
    println!("a store over the code: {}", refused.unwrap_err());
    Ok(())
}
