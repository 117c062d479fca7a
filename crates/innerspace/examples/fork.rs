//! A thousand copies of an address space: each takes microseconds to make, and is charged for what
//! it writes.

use std::time::Instant;

use innerspace::{MIB, Map, Memory, PAGE_SIZE};

const PAGES: u64 = 4096;
const PAGE: u64 = PAGE_SIZE as u64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::with_limit(64 * MIB)?;
    let parent = memory.create_space()?;
    let at = parent.map(Map::anonymous(PAGES * PAGE))?;
    let mut a = parent.accessor()?;
    for page in 0..PAGES {
        a.store(at + page * PAGE, page)?;
    }
    let alone = memory.stats().usage;

    let mut children = Vec::new();
    let mut forking = std::time::Duration::ZERO;
    for number in 0..1000_u64 {
        let start = Instant::now();
        let child = parent.fork()?;
        forking += start.elapsed();
        let mut c = child.accessor()?;
        c.store(at + number * PAGE + 8, number + 1)?;
        children.push(child);
    }
    let each = (memory.stats().usage - alone) / 1000;
    println!(
        "{} MiB resident, {} forks",
        PAGES * PAGE / MIB,
        children.len()
    );
    println!(
        "{:?} a fork, {} KiB a child that wrote one page",
        forking / 1000,
        each / 1024
    );
    assert!(each < 32 * PAGE);

    // Each child sees its own store, and the parent's bytes everywhere else; nobody sees another's
    // stores.
    for (number, child) in children.iter().enumerate() {
        let number = number as u64;
        let mut c = child.accessor()?;
        assert_eq!(c.load::<u64>(at + number * PAGE + 8)?, number + 1);
        assert_eq!(c.load::<u64>(at + (number + 1) * PAGE + 8)?, 0);
        assert_eq!(c.load::<u64>(at + (PAGES - 1) * PAGE)?, PAGES - 1);
        assert_eq!(a.load::<u64>(at + number * PAGE + 8)?, 0);
    }
    drop(children);
    println!(
        "children dropped: {} KiB in use",
        memory.stats().usage / 1024
    );
    Ok(())
}
