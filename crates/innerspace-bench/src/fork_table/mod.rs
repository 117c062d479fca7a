//! The cost of a fork, and of the copies that it postpones.
//!
//! - `forks`: fork, fork and drop, a full copy instead
//! - `copies`: copy-on-write faults: the mean over all pages, the first in each leaf, with forks
//!   that are made and dropped
//! - `branches`: the memory of many forks of one snapshot
//! - `fuzz`: the loop of a snapshot fuzzer: stores, restore
//!
//! The kernel's side is fork(2) of this process, which has a mapping of the same size, resident in
//! pages of 4 KiB. Its children inherit no other large mapping: the library keeps its arenas from
//! them, and advice does so for the destination of the full copy. Both sides fork in the same
//! process, which has no other thread.

mod branches;
mod copies;
mod forks;
mod fuzz;

use std::cell::RefCell;
use std::error::Error;

use innerspace::{Accessor, MIB, Map, Memory, Space, VirtAddr};

use self::fuzz::Where;
use crate::harness::{self, Plan, Rows};
use crate::host::{PAGE, Region};
use crate::report::Table;
use crate::translation::HostPages;

/// The numbers of resident pages in the large space and in the small one.
const PAGES: u64 = 100_000;
const FEW_PAGES: u64 = 100;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    // One after the other, since the kernel's fork copies the tables of every region that exists.
    {
        let resident = Resident::new(plan.pages(FEW_PAGES))?;
        rows.add(forks::fork(plan, &resident)?)?;
        rows.add(forks::fork_and_drop(plan, &resident))?;
    }
    let resident = Resident::new(plan.pages(PAGES))?;
    rows.add(forks::fork(plan, &resident)?)?;
    rows.add(forks::fork_and_drop(plan, &resident))?;
    rows.add(copies::first_in_each_leaf(&resident)?)?;
    rows.add(copies::first_in_each_leaf_again(plan, &resident)?)?;
    rows.add(copies::every_page(&resident)?)?;
    rows.add(copies::come_and_go(plan, &resident)?)?;
    for stores in [Where::OneLeaf, Where::ManyLeaves, Where::Elsewhere] {
        rows.add(fuzz::turn(plan, &resident, stores)?)?;
    }
    rows.add(branches::memory(plan, &resident)?)?;
    Ok(Table {
        name: "fork".into(),
        rows: rows.measured,
    })
}

/// The same number of resident pages in a space and in the kernel's own mapping.
struct Resident {
    pages: u64,
    memory: Memory,
    space: Space,
    region: RefCell<Region>,
}

/// Creates a space with `bytes` resident bytes.
fn new_space(memory: &Memory, bytes: u64) -> Result<(Space, VirtAddr, Accessor), Box<dyn Error>> {
    let space = memory.create_space()?;
    let at = space.map(Map::anonymous(bytes))?;
    let mut accessor = space.accessor().unwrap();
    for page in 0..bytes / PAGE as u64 {
        accessor.store(at + page * PAGE as u64, page)?;
    }
    Ok((space, at, accessor))
}

impl Resident {
    fn new(pages: u64) -> Result<Resident, Box<dyn Error>> {
        let bytes = pages * PAGE as u64;
        // There is room for a second space, and for a copy of every page of it.
        let limit = 3 * bytes + bytes / 8 + 16 * MIB;
        let memory = harness::memory(limit)?;
        let (space, ..) = new_space(&memory, bytes)?;
        let mut region = Region::anonymous(bytes as usize, HostPages::Base)?;
        region.write_every(PAGE, 1);
        Ok(Resident {
            pages,
            memory,
            space,
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
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 12);
        assert!(table.rows.iter().all(|row| row.ratio().is_some()));
    }
}
