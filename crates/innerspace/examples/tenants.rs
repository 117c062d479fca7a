//! Two tenants in one memory: a scan by one evicts nothing of the other.

use innerspace::store::MemoryStore;
use innerspace::{Group, KIB, MIB, Memory, PAGE_SIZE, PagedFile};

fn open(memory: &Memory, group: &Group, name: &str, len: u64) -> PagedFile {
    let store = MemoryStore::with_len(len);
    // Data, so that there is something to cache: holes are served by one page of zeros.
    for page in 0..len / PAGE_SIZE as u64 {
        store
            .change_externally(&[page as u8; PAGE_SIZE], page * PAGE_SIZE as u64)
            .unwrap();
    }
    memory
        .file_options()
        .group(group)
        .name(name)
        .open_store(store)
        .unwrap()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Memory::with_limit(4 * MIB)?;
    let interactive = memory.create_group("interactive", MIB)?;
    let batch = memory.create_group("batch", 512 * KIB)?;

    // A working set that fits in the first tenant's share.
    let hot = open(&memory, &interactive, "hot.db", 512 * KIB);
    hot.scan(.., |_| ())?;
    let before = hot.stats();
    assert_eq!(before.cached.bytes(), 512 * KIB);

    // The other reads sixteen times its share.
    let cold = open(&memory, &batch, "cold.log", 8 * MIB);
    let mut bytes = 0;
    cold.scan(.., |piece| bytes += piece.len())?;
    assert_eq!(bytes as u64, 8 * MIB);
    assert!(batch.stats().peak.bytes() <= 512 * KIB);

    println!("{}", interactive.stats());
    println!("{}", batch.stats());
    println!("{}: evicted {}", cold.name(), cold.stats().evicted);
    println!("{}: evicted {}", hot.name(), hot.stats().evicted);
    assert!(cold.stats().evicted > 0);
    assert_eq!(hot.stats().evicted, 0);

    // Every byte of the first tenant still comes from memory.
    hot.scan(.., |_| ())?;
    assert_eq!(hot.stats().store_reads, before.store_reads);

    // A limit can be changed at any time; what exceeds it is evicted at once.
    interactive.set_max(256 * KIB)?;
    assert!(interactive.usage() <= 256 * KIB);
    println!("after set_max: {}", interactive.stats());
    Ok(())
}
