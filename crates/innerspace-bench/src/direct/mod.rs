//! Table T4: a hole read through a mapping, page by page; and the cost of direct access compared
//! with the page cache and with memory.
//!
//! | file | rows |
//! |---|---|
//! | `holes` | a hole of 1 GiB: time for each page, and the bytes resident afterwards |
//! | `content` | loads, stores and syncs of a file without holes |
//! | `flush` | flushing lines of memory, for a baseline of `content` |
//! | `threads` | two threads that fault in different ranges of 2 MiB |
//!
//! The old way caches a page of zeros for each page of the hole, as for a store that reports no
//! holes. "Kernel" is a mapping of a sparse file in memory, for which tmpfs does the same.

mod content;
mod flush;
mod holes;
mod threads;

use std::error::Error;

use innerspace::{DaxFile, Memory, dax::DaxDevice};

use crate::harness::{Plan, Rows};
use crate::report::Table;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    holes::measure(plan, &mut rows)?;
    content::measure(plan, &mut rows)?;
    threads::measure(plan, &mut rows)?;
    Ok(Table {
        name: "direct access (T4)".into(),
        rows: rows.measured,
    })
}

/// Creates a file of `bytes` that is a single hole, on a device of `device` bytes.
fn hole(memory: &Memory, bytes: u64, device: u64) -> Result<DaxFile, Box<dyn Error>> {
    let device = DaxDevice::huge_pages(device)?;
    let file = memory.create_dax_on(&device, "hole")?;
    file.set_len(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 19);
        for row in &table.rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
    }
}
