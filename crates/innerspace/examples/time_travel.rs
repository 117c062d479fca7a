//! A time-travel debugger's memory: a RISC-V machine, a snapshot of it every 1,000 instructions,
//! and a jump back to any of them.
//!
//! `cargo run --release --example time_travel` keeps 1,000 snapshots of a machine with 32 MiB;
//! `... time_travel -- 100000 2560` keeps 100,000 of one with 2.5 GiB. A snapshot takes as much
//! memory as the machine has changed since the last one: here a page, and the four tables that lead
//! to it. So 100,000 of them and the machine together take 1.76 times the machine's memory.

#[path = "support/cipher.rs"]
mod cipher;
#[path = "support/riscv.rs"]
mod riscv;

use std::time::{Duration, Instant};

use innerspace::{
    GIB, MIB, Map, Memory, PAGE_SIZE, Space, VirtAddr,
    space::{AddressWidth, Protection, Snapshot, SpaceOptions},
};
use riscv::{Machine, SpaceMemory, Stop};

const CODE: u32 = 0x0001_0000;
const DATA: u32 = 0x2000_0000;
const KEY: u32 = 0x1234_5678;
/// Instructions from one snapshot to the next.
const STEPS: u64 = 1_000;
/// How many jumps are timed.
const JUMPS: u64 = 1_000;
/// The byte that fills the machine's memory.
const PLAIN: u8 = 0x5a;

/// A moment in the machine's run.
struct Moment {
    memory: Snapshot,
    registers: [u32; 32],
    pc: u32,
}

impl Moment {
    fn of(
        machine: &Machine<SpaceMemory>,
        space: &Space,
    ) -> Result<Moment, innerspace::space::SpaceError> {
        Ok(Moment {
            memory: space.freeze()?,
            registers: machine.hart.registers,
            pc: machine.hart.pc,
        })
    }

    fn go_back(
        &self,
        machine: &mut Machine<SpaceMemory>,
        space: &Space,
    ) -> Result<(), innerspace::space::SpaceError> {
        space.restore(&self.memory)?;
        machine.hart.registers = self.registers;
        machine.hart.pc = self.pc;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let count = arguments.next().transpose()?.unwrap_or(1_000).max(2);
    let machine_bytes = arguments.next().transpose()?.unwrap_or(32) * MIB;
    if machine_bytes == 0 || machine_bytes > 3 * GIB {
        return Err("a machine has 1 to 3,072 MiB".into());
    }

    let memory = Memory::with_limit(2 * machine_bytes + 16 * MIB)?;
    let space = memory.create_space_with(&SpaceOptions::new().width(AddressWidth::Bits32))?;
    let code = VirtAddr(CODE.into());
    let data = VirtAddr(DATA.into());
    space.map(Map::anonymous(4096).at(code))?;
    space.map(Map::anonymous(machine_bytes).at(data))?;
    let mut accessor = space.accessor()?;
    for (index, word) in (0..).zip(cipher::CIPHER) {
        accessor.store(code + index * 4, word)?;
    }
    space.protect(code, 4096, Protection::READ | Protection::EXECUTE)?;
    accessor.fill(data, PLAIN, machine_bytes as usize)?;
    let mut reader = space.accessor()?;
    let alone = memory.stats().usage;

    let mut machine = Machine::new(SpaceMemory::new(accessor), CODE);
    let end = DATA + machine_bytes as u32;
    machine.hart.registers[10..13].copy_from_slice(&[DATA, end, KEY]);
    let mut moments = Vec::with_capacity(count as usize);
    let (start, mut freezing) = (Instant::now(), Duration::ZERO);
    for _ in 0..count {
        let began = Instant::now();
        moments.push(Moment::of(&machine, &space)?);
        freezing += began.elapsed();
        assert_eq!(machine.run(STEPS), Stop::Enough);
    }
    let took = start.elapsed();
    let all = memory.stats().usage;
    println!(
        "{} instructions and {count} snapshots in {took:.1?}, {:.1?} a snapshot",
        machine.steps,
        freezing / count as u32,
    );
    println!(
        "{:.1} MiB for the machine, {:.1} MiB with all its snapshots: {:.2} times as much, {:.1} pages a snapshot",
        alone as f64 / MIB as f64,
        all as f64 / MIB as f64,
        all as f64 / alone as f64,
        (all - alone) as f64 / count as f64 / PAGE_SIZE as f64,
    );
    assert!(all < 2 * alone, "more than two machines");

    let mut enciphered = vec![PLAIN; (machine.hart.registers[10] - DATA) as usize];
    cipher::encipher(KEY, &mut enciphered);
    // Jumps to any moment and continues from there: 1,000 instructions later the machine is where
    // it was the first time.
    let mut jumps: Vec<Duration> = Vec::new();
    let mut random = 1_u64;
    for _ in 0..JUMPS {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        let there = (random >> 33) % (count - 1);
        let [moment, next] = [there, there + 1].map(|moment| &moments[moment as usize]);
        let began = Instant::now();
        moment.go_back(&mut machine, &space)?;
        jumps.push(began.elapsed());
        // The bytes behind the machine's pointer are enciphered, those before it are not.
        let at = machine.hart.registers[10];
        let done = u64::from(at - DATA) as usize;
        let mut around = [0; 64];
        let from = done.saturating_sub(32);
        reader.read(data + from as u64, &mut around)?;
        assert!(around[done - from..].iter().all(|byte| *byte == PLAIN));
        assert_eq!(around[..done - from], enciphered[from..done]);
        assert_eq!(machine.run(STEPS), Stop::Enough);
        assert_eq!(machine.hart.registers, next.registers);
    }
    jumps.sort_unstable();
    let at = |share: usize| jumps[jumps.len() * share / 100];
    println!(
        "a jump to any of them: {:.1?} (median), {:.1?} (99 %)",
        at(50),
        at(99)
    );
    Ok(())
}
