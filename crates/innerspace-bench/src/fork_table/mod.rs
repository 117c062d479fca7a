//! What a fork costs, and the copies that it puts off.
//!
//! | file | rows |
//! |---|---|
//! | `forks` | fork, fork and drop, a full copy in its place |
//! | `copies` | copy-on-write faults: the mean over all pages, the first in each leaf |
//!
//! The kernel's side is fork(2) of this process, whose own mapping of the same size is resident in pages of 4 KiB. Nothing
//! else that is large goes to its children: arenas stay behind by themselves, and the destination of the full
//! copy by advice. Both sides fork in the same process, which has no other thread.

mod copies;
mod forks;

use std::cell::RefCell;
use std::error::Error;

use innerspace::{Accessor, MIB, Map, MemoryOptions, Space, Threads, VirtAddr};

use crate::harness::{Plan, Row};
use crate::host::{PAGE, Region};
use crate::report::Table;
use crate::translation::HostPages;

/// Resident pages of the large space, and of the small one.
const PAGES: u64 = 100_000;
const FEW_PAGES: u64 = 100;

/// Measures every row.
pub(crate) fn table(plan: Plan) -> Result<Table, Box<dyn Error>> {
    let mut rows = Vec::new();
    let mut measure = |row: Row<'_>| -> Result<(), Box<dyn Error>> {
        rows.push(row.measure(plan)?);
        Ok(())
    };
    // One at a time: the kernel's fork copies the tables of every region there is.
    {
        let resident = Resident::new(plan.pages(FEW_PAGES))?;
        measure(forks::fork(plan, &resident)?)?;
        measure(forks::fork_and_drop(plan, &resident))?;
    }
    let resident = Resident::new(plan.pages(PAGES))?;
    measure(forks::fork(plan, &resident)?)?;
    measure(forks::fork_and_drop(plan, &resident))?;
    measure(copies::first_in_each_leaf(&resident))?;
    measure(copies::every_page(&resident))?;
    Ok(Table {
        name: "fork".into(),
        rows,
    })
}

/// The same number of resident pages in a space and in the kernel's own mapping.
struct Resident {
    pages: u64,
    space: Space,
    at: VirtAddr,
    accessor: RefCell<Accessor>,
    region: RefCell<Region>,
}

impl Resident {
    fn new(pages: u64) -> Result<Resident, Box<dyn Error>> {
        let bytes = pages * PAGE as u64;
        // Room for a copy of every page and for both sides' tables.
        let limit = 2 * bytes + bytes / 8 + 16 * MIB;
        let memory = MemoryOptions::new(limit).threads(Threads::None).build()?;
        let space = memory.space()?;
        let at = space.map(Map::anonymous(bytes))?;
        let mut accessor = space.accessor();
        let mut region = Region::anonymous(bytes as usize, HostPages::Base)?;
        region.write_every(PAGE, 1);
        for page in 0..pages {
            accessor.store(at + page * PAGE as u64, page)?;
        }
        Ok(Resident {
            pages,
            space,
            at,
            accessor: RefCell::new(accessor),
            region: RefCell::new(region),
        })
    }

    fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke()).unwrap();
        assert_eq!(table.rows.len(), 6);
        assert!(table.rows.iter().all(|row| row.ratio().is_some()));
    }
}
