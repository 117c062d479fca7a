//! The loop of a snapshot fuzzer: run a target on some input, go back to where it started, again.
//! The machine's memory is a space, and going back is a restore: it copies the few pages the target
//! has stored to.

use std::time::Instant;

use innerspace::{Accessor, MIB, Map, Memory, PAGE_SIZE, VirtAddr, space::Fault};

const PAGE: u64 = PAGE_SIZE as u64;
const RUNS: u32 = 20_000;

/// The target: it scatters its input over memory, and crashes if two bytes of it have certain
/// values.
fn target(memory: &mut Accessor, base: VirtAddr, input: [u8; 8]) -> Result<bool, Fault> {
    memory.write(base, &input)?;
    for (number, byte) in input.into_iter().enumerate() {
        let page = base + (number as u64 * 31 + 1) * PAGE;
        let before: u64 = memory.load(page + 8 * u64::from(byte))?;
        memory.store(page + 8 * u64::from(byte), before + 1)?;
        assert_eq!(before, 0, "something was left from the run before");
    }
    Ok(memory.load::<u8>(base)? == b'!' && memory.load::<u8>(base + 3)? % 16 == 7)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::with_limit(32 * MIB)?;
    let space = memory.create_space()?;
    let base = space.map(Map::anonymous(16 * MIB))?;
    let mut a = space.accessor()?;
    a.fill(base + 8 * MIB, 0x55, 4 * MIB as usize)?; // what the target had set up
    let start = space.freeze()?;

    let (mut random, mut found) = (1_u64, 0);
    let began = Instant::now();
    for _ in 0..RUNS {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let input = (random ^ (random >> 29)).to_le_bytes();
        found += u32::from(target(&mut a, base, input)?);
        space.restore(&start)?;
    }
    println!(
        "{RUNS} runs, {:?} each; {found} inputs go wrong",
        began.elapsed() / RUNS
    );
    assert!(space.changed_since(&start)?.len() <= 9);
    let totals = memory.stats().totals;
    println!(
        "{} pages copied back, {} restores in place, {} by dropping",
        totals.restore_pages, totals.restore_in_place, totals.restore_drop
    );
    Ok(())
}
