//! Station 6: random updates while the store fails, then a working store, a sync, and a comparison
//! of the file by plain reads.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use innerspace::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule};
use innerspace::store::{FileAccess, FileOptions};
use innerspace::{Accessor, ByteSize, Grouped, MIB, Map, Memory, PagedFile, VirtAddr};

use super::{Findings, Result, Tour};
use crate::data::Random;

/// The largest memory to use, so that not all updates fit.
const MOST_MEMORY: u64 = 2 * MIB;

/// The number of updates in each of the three parts: before, during and after the failure.
const UPDATES: u64 = 2_000;

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let limit = tour.limit.min(MOST_MEMORY);
    let len = (4 * limit).next_multiple_of(8); // whole words
    let path = tour.folder.join("updates.bin");
    File::create(&path)?.set_len(len)?;
    let store = FileOptions::new()
        .access(FileAccess::ReadWrite)
        .open(&path)?;
    let store = Arc::new(FaultyStore::new(store));

    let memory = Memory::with_limit(limit)?;
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .name("updates.bin");
    let file = options.open_store(store.clone())?;
    let mut updates = Updates::of(&memory, &file)?;

    let bar = tour.report.spinner("updating");
    updates.run()?;
    store.add(
        Rule::new(Fault::Fail(Failure::NoSpace))
            .on(&[OperationKind::Write])
            .forever(),
    );
    // The updates succeed until the memory is full of data that cannot be written.
    let refusal = updates.run().err();
    let complaint = file.sync_all().err();
    store.heal();
    // New updates are refused until the waiting data is written. The first sync may still report a
    // write that failed in the background before the store worked again.
    file.sync_all().or_else(|_| file.sync_all())?;
    updates.run()?;
    file.sync_all()?;
    bar.finish_and_clear();
    let failed_writes = file.stats().write_errors;
    let Updates {
        expected,
        done,
        accessor,
        ..
    } = updates;
    drop((accessor, file, store, memory));

    let (size, limit) = (ByteSize(len), ByteSize(limit));
    let (done, failed) = (Grouped(done), Grouped(failed_writes));
    findings.here(format!(
        "{done} updates to a file of {size} in a memory of {limit}; the store failed {failed} writes"
    ));
    if let Some(refusal) = refusal {
        findings.here(format!("then: {refusal}"));
    }
    match complaint {
        Some(error) => findings.here(format!("sync: {error}")),
        None => findings.fail("a sync of what could not be written said that all is well"),
    }
    match count_lost(&path, &expected)? {
        0 => findings
            .here("with the store repaired, a sync and a plain read find every update in the file"),
        lost => findings.fail(format!("{} updates are not in the file", Grouped(lost))),
    }
    // Only a broken disk could cause this.
    findings.kernel(
        "not measured: Linux marks a page clean even if its write fails, so the next fsync(2) \
         succeeds although the data is lost",
    );
    Ok(findings)
}

/// Random updates through a shared mapping, and the content that the file must have after them.
struct Updates {
    accessor: Accessor,
    at: VirtAddr,
    random: Random,
    expected: Vec<u64>,
    done: u64,
}

impl Updates {
    fn of(memory: &Memory, file: &PagedFile) -> Result<Updates> {
        let space = memory.create_space()?;
        Ok(Updates {
            at: space.map(Map::file(file).shared().writable())?,
            accessor: space.accessor()?,
            random: Random::new(6),
            expected: vec![0; file.len() as usize / 8],
            done: 0,
        })
    }

    /// Makes [`UPDATES`] updates, or fewer if one is refused, which then changes nothing.
    fn run(&mut self) -> Result<()> {
        for _ in 0..UPDATES {
            let place = self.random.below(self.expected.len() as u64);
            let value = self.random.next();
            let stored = self.accessor.store(self.at + place * 8, value);
            stored.map_err(|fault| self.accessor.explain(fault))?;
            self.expected[place as usize] = value;
            self.done += 1;
        }
        Ok(())
    }
}

/// Reads the file in the ordinary way, and counts the words that are wrong.
fn count_lost(path: &Path, expected: &[u64]) -> Result<u64> {
    let bytes = fs::read(path)?;
    let (words, rest) = bytes.as_chunks::<8>();
    if words.len() != expected.len() || !rest.is_empty() {
        return Err(format!("the file has {} bytes", bytes.len()).into());
    }
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    Ok(words
        .zip(expected)
        .filter(|(word, expected)| word != *expected)
        .count() as u64)
}
