//! A table of counters, 1 GiB in a sparse file, mapped directly: none of its pages is cached, and
//! holes cost nothing.

use std::path::Path;

use innerspace::{DaxFile, GIB, KIB, Map, Memory, VirtAddr};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Adds to the counters with these numbers, in the file's own bytes, and makes that durable.
fn add(memory: &Memory, table: &DaxFile, numbers: &[u64]) -> Result<()> {
    let space = memory.create_space()?;
    let at: VirtAddr = space.map(Map::dax(table).shared().writable())?;
    let mut accessor = space.accessor()?;
    let counters = table.len() / 8;
    let total = (0..counters).step_by(512).try_fold(0, |sum, counter| {
        Ok::<u64, innerspace::space::Fault>(sum + accessor.load::<u64>(at + counter * 8)?)
    })?;
    let stats = space.stats();
    println!(
        "a counter of each page read, sum {total}: resident {} pages",
        stats.pages.resident.0
    );
    assert_eq!(stats.pages.resident.0, 0);
    for number in numbers {
        let place = at + number * 8;
        let count: u64 = accessor.load(place)?;
        accessor.store(place, count + 1)?;
    }
    table.sync_all()?; // the cache lines flushed, or the host's pages written: what the medium needs
    println!("{}", table.stats());
    Ok(())
}

fn main() -> Result<()> {
    // On tmpfs the kernel has no second copy of the bytes; on a DAX file system there is none
    // anywhere.
    let memory_folder = Path::new("/dev/shm");
    let folder = match memory_folder.is_dir() {
        true => tempfile::tempdir_in(memory_folder)?,
        false => tempfile::tempdir()?,
    };
    let path = folder.path().join("counters");
    let memory = Memory::with_limit(512 * KIB)?;
    let table = match memory.dax_options().create(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            println!("not here: {error}");
            return Ok(());
        }
        table => table?,
    };
    table.set_len(GIB)?;
    println!("durable by {:?}", table.device().durability());
    add(&memory, &table, &[0, 1, 100_000_000, 1])?;
    drop(table);

    let table = memory.open_dax_rw(&path)?;
    let mut count = [0; 8];
    table.read_exact_at(&mut count, 8)?;
    assert_eq!(u64::from_le_bytes(count), 2);
    Ok(())
}
