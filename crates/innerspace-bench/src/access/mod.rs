//! The cost of an access: loads, views, copies, faults, misses, and two threads.
//!
//! | file | rows |
//! |---|---|
//! | `loads` | 8 bytes at a time: random, dependent, sequential |
//! | `views` | a view of 4 KiB, 8 bytes of it, and its drop |
//! | `long_views` | views over several blocks: a whole file, and small ones |
//! | `copies` | 4 KiB read by copy, scanned, and written for the first time |
//! | `faults` | first touches of anonymous and file pages, and unmapping |
//! | `misses` | random reads of a file twice as large as the memory |
//! | `guests` | an interpreter's instructions |
//! | `threads` | the hit paths on one thread and on two |
//!
//! The rows of hits share one [`Resident`]: the same words in every contender's form. The library
//! advises the host to back its arena with huge pages, so the raw pointer that it is compared with
//! has huge pages, too; `raw, 4 KiB pages` shows how much they matter. Contenders that read shared
//! pages copy the reference count of an `Arc`, as their users must.

mod copies;
mod faults;
mod guests;
mod loads;
mod long_views;
mod misses;
pub(crate) mod threads;
mod views;

pub(crate) use threads::{Clock, together};

use std::cell::{OnceCell, RefCell};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{Accessor, MIB, Map, Memory, PagedFile, Space, VirtAddr, file::FileAccess};
use quick_cache::sync::Cache;

use crate::harness::{Plan, Rows, Seeds, memory, xorshift};
use crate::host::{PAGE, Region, memory_file};
use crate::report::Table;
use crate::translation::HostPages;

/// The number of resident pages in the rows of hits.
const PAGES: u64 = 100_000;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    faults::measure(plan, &mut rows)?;
    misses::measure(plan, &mut rows)?;
    guests::measure(plan, &mut rows)?;
    copies::measure_writes(plan, &mut rows)?;
    long_views::measure(plan, &mut rows)?;
    let resident = Resident::when_wanted(plan.pages(PAGES));
    loads::measure(plan, &resident, &mut rows)?;
    views::measure(plan, &resident, &mut rows)?;
    copies::measure_reads(plan, &resident, &mut rows)?;
    threads::measure(plan, &resident, &mut rows)?;
    Ok(Table {
        name: "access".into(),
        rows: rows.measured,
    })
}

/// The same pages in the form of each contender, all of them resident.
struct Resident {
    bytes: u64,
    seeds: RefCell<Seeds>,
    raw: Region,
    raw_small: Region,
    kernel_file: File,
    cache: Cache<u64, Arc<[u8]>>,
    space: Space,
    at: VirtAddr,
    accessor: RefCell<Accessor>,
    /// Accesses a space whose pages were first stored to in reverse order, so that no two frames
    /// are consecutive.
    scattered: RefCell<Accessor>,
    scattered_at: VirtAddr,
    file: PagedFile,
    _memories: [Memory; 3],
}

/// The pages, created by the first row that needs them: that takes longer than most of the rows.
struct WhenWanted {
    pages: u64,
    resident: OnceCell<Resident>,
}

impl WhenWanted {
    fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }

    fn get(&self) -> Result<&Resident, Box<dyn Error>> {
        if let Some(resident) = self.resident.get() {
            return Ok(resident);
        }
        let resident = Resident::new(self.pages)?;
        Ok(self.resident.get_or_init(|| resident))
    }
}

impl Resident {
    fn when_wanted(pages: u64) -> WhenWanted {
        WhenWanted {
            pages,
            resident: OnceCell::new(),
        }
    }

    fn new(pages: u64) -> Result<Resident, Box<dyn Error>> {
        let bytes = pages * PAGE as u64;
        let mut raw = Region::anonymous(bytes as usize, HostPages::Huge)?;
        let mut raw_small = Region::anonymous(bytes as usize, HostPages::Base)?;
        let mut seed = 0x2545_f491_4f6c_dd1d;
        for word in raw.bytes_mut().chunks_exact_mut(8) {
            word.copy_from_slice(&xorshift(&mut seed).to_le_bytes());
        }
        raw_small.bytes_mut().copy_from_slice(raw.bytes());
        let kernel_file = memory_file()?;
        // There is room to spare, since the shards of the cache do not fill evenly.
        let cache = Cache::new(pages as usize * 2);
        // Each has a memory of its own, so that either arena is about as large as the raw region.
        let room = bytes + bytes / 16 + 16 * MIB;
        let memories = [memory(room)?, memory(room)?, memory(room)?];
        let [memory, file_memory, scattered_memory] = &memories;
        let space = memory.create_space()?;
        let at = space.map(Map::anonymous(bytes))?;
        let mut accessor = space.accessor().unwrap();
        let file = file_memory
            .file_options()
            .access(FileAccess::ReadWrite)
            .open_store(MemoryStore::new())?;
        for (page, content) in (0..).zip(raw.bytes().chunks_exact(PAGE)) {
            let offset = page * PAGE as u64;
            kernel_file.write_all_at(content, offset)?;
            cache.insert(page, Arc::from(content));
            accessor.write(at + offset, content)?;
            file.write_at(content, offset)?;
        }
        let elsewhere = scattered_memory.create_space()?;
        let scattered_at = elsewhere.map(Map::anonymous(bytes))?;
        let mut scattered = elsewhere.accessor().unwrap();
        for (page, content) in raw.bytes().chunks_exact(PAGE).enumerate().rev() {
            scattered.write(scattered_at + (page * PAGE) as u64, content)?;
        }
        file.sync_data()?;
        let cached = file.stats().cached.bytes();
        if cached != bytes || cache.len() as u64 != pages {
            return Err(format!("{cached} of {bytes} bytes stayed in the cache").into());
        }
        Ok(Resident {
            bytes,
            seeds: RefCell::default(),
            raw,
            raw_small,
            kernel_file,
            cache,
            space,
            at,
            accessor: RefCell::new(accessor),
            scattered: RefCell::new(scattered),
            scattered_at,
            file,
            _memories: memories,
        })
    }

    fn seed(&self) -> u64 {
        self.seeds.borrow_mut().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_and_every_contender_reads_the_same() {
        let table = table(Plan::smoke(), "").unwrap();
        for row in &table.rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
        let resident = Resident::new(600).unwrap();
        let mut sums = loads::sums(&resident, 1000, 77).unwrap();
        assert_eq!(sums.len(), 8);
        sums.dedup();
        assert_eq!(sums.len(), 1, "{sums:?}");
    }
}
