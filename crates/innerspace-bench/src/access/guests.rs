//! A RISC-V interpreter whose memory is a space, compared with the same interpreter on an array.
//! The program is the sieve of the library's example: each instruction is a fetch, and every fourth
//! is a load or a store.

use std::error::Error;

use innerspace::{
    MIB, Map, VirtAddr,
    space::{AddressWidth, Protection, SpaceOptions},
};
use rrs_lib::{MemAccessSize, Memory};

use self::riscv::{GuestMemory, Machine, SpaceMemory, Stop};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, thread_time};

#[path = "../../../innerspace/examples/support/riscv.rs"]
mod riscv;
#[path = "../../../innerspace/examples/support/sieve.rs"]
mod sieve;

const CODE: u32 = 0x1000;
const PRINTED: u32 = 0x2000;
const DATA: u32 = 0x1_0000;
/// The number of numbers that the sieve examines, in one byte each.
const NUMBERS: u32 = 1 << 20;
const END: u64 = DATA as u64 + NUMBERS as u64;

/// All of the guest's memory in one piece, without permissions.
struct Flat(Vec<u8>);

impl Flat {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self, at: u32) -> Option<&mut [u8; N]> {
        let at = at as usize;
        self.0.get_mut(at..at + N)?.try_into().ok()
    }
}

impl Memory for Flat {
    #[inline]
    fn read_mem(&mut self, at: u32, size: MemAccessSize) -> Option<u32> {
        match size {
            MemAccessSize::Byte => self.bytes(at).map(|[byte]| u32::from(*byte)),
            MemAccessSize::HalfWord => self
                .bytes(at)
                .map(|bytes| u16::from_le_bytes(*bytes).into()),
            MemAccessSize::Word => self.bytes(at).map(|bytes| u32::from_le_bytes(*bytes)),
        }
    }

    #[inline]
    fn write_mem(&mut self, at: u32, size: MemAccessSize, value: u32) -> bool {
        let stored = match size {
            MemAccessSize::Byte => self.bytes(at).map(|bytes| *bytes = [value as u8]),
            MemAccessSize::HalfWord => {
                let value = (value as u16).to_le_bytes();
                self.bytes(at).map(|bytes| *bytes = value)
            }
            MemAccessSize::Word => self.bytes(at).map(|bytes| *bytes = value.to_le_bytes()),
        };
        stored.is_some()
    }
}

impl GuestMemory for Flat {
    #[inline]
    fn fetch(&mut self, at: u32) -> Option<u32> {
        self.read_mem(at, MemAccessSize::Word)
    }
}

/// Runs `instructions` instructions of the sieve, which starts again whenever it is done.
#[inline(never)]
fn run<M: GuestMemory>(machine: &mut Machine<M>, instructions: u64) -> Outcome {
    thread_time(instructions, || {
        let end = machine.steps + instructions;
        while machine.steps < end {
            match machine.run(end - machine.steps) {
                Stop::Enough => {}
                // From the second run on, the composites are already marked. The instructions are
                // the same.
                Stop::Call => start(machine),
                stop @ Stop::Exception(_) => return Err(format!("{stop:?}").into()),
            }
        }
        Ok(machine.hart.registers[10])
    })
}

fn start<M>(machine: &mut Machine<M>) {
    machine.hart.pc = CODE;
    machine.hart.registers[10..13].copy_from_slice(&[DATA, NUMBERS, PRINTED]);
}

fn in_space() -> Result<Machine<SpaceMemory>, Box<dyn Error>> {
    let options = SpaceOptions::new().width(AddressWidth::Bits32);
    let space = memory(8 * MIB)?.create_space_with(&options)?;
    let code = VirtAddr(CODE.into());
    space.map(Map::anonymous(END - u64::from(CODE)).at(code))?;
    let mut accessor = space.accessor().unwrap();
    for (index, word) in (0..).zip(sieve::SIEVE) {
        accessor.store(code + index * 4, word)?;
    }
    space.protect(code, 4096, Protection::READ | Protection::EXECUTE)?;
    Ok(Machine::new(SpaceMemory::new(accessor), CODE))
}

fn in_array() -> Machine<Flat> {
    let mut bytes = vec![0; END as usize];
    let code = &mut bytes[CODE as usize..];
    for (place, word) in code.chunks_exact_mut(4).zip(sieve::SIEVE) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Machine::new(Flat(bytes), CODE)
}

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let instructions = plan.operations(20_000_000);
    let mut guest = in_space()?;
    let mut flat = in_array();
    start(&mut guest);
    start(&mut flat);
    let contenders = vec![
        Contender::new("flat array", move || run(&mut flat, instructions)),
        Contender::new("innerspace", move || run(&mut guest, instructions)),
    ];
    rows.add(Row {
        name: "RISC-V interpreter (rrs-lib), an instruction".into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "flat array",
        budget: Budget::Ratio(1.3),
    })
}
