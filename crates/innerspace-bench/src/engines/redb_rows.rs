//! redb on `PagedBackend`, compared with its own `FileBackend`.
//!
//! Keys are random, values have 150 bytes, and a transaction inserts 10,000 rows, which the commit
//! makes durable: each changes about as many pages. Both contenders give redb's own cache the same
//! part of the memory.

use std::error::Error;
use std::path::{Path, PathBuf};

use innerspace::{MIB, Memory};
use innerspace_adapters::redb::PagedBackend;
use redb::{Database, ReadableDatabase, TableDefinition};

use super::{FILE_BACKEND, Pair, Task, Work, link_all, unless};
use crate::disk::Fallible;
use crate::disk::child::{Taken, timed};
use crate::disk::file::Random;
use crate::harness::{Measured, Plan};

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");
const NAME: &str = "rows.redb";
/// The memory of these rows; redb's own cache is a part of it.
const MEMORY: u64 = 32 * MIB;
const ENGINES_CACHE: u64 = 8 * MIB;
/// Room for the program: its code, its stacks, and what redb allocates besides its cache, of which
/// a transaction that inserts needs more. More would be a larger page cache for `FileBackend`, and
/// nothing for the library, whose limit is fixed: with 10 MiB for readers `FileBackend` filled 42.0
/// MiB, and the library 32.6.
const INSERTING: u64 = 10 * MIB;
const READING: u64 = 2 * MIB;
/// Rows of one transaction.
const AT_ONCE: u64 = 10_000;

/// The key of a row.
fn key(row: u64) -> u64 {
    Random::new(row).next()
}

fn value(row: u64) -> [u8; 150] {
    std::array::from_fn(|at| (row >> (at % 8 * 8)) as u8)
}

pub(super) fn rows(
    plan: Plan,
    only: &str,
    folder: &Path,
    measured: &mut Vec<Measured>,
) -> Result<(), Box<dyn Error>> {
    for (full, text) in [(200_000, "200,000"), (1_000_000, "1,000,000")] {
        let rows = plan.operations(full);
        let name = format!("redb, {text} inserts");
        // A million takes long, and varies the less.
        let inserts = if full < 1_000_000 { plan } else { plan.short() };
        if name.contains(only) {
            let pair = Pair {
                name,
                work: Work::Insert { rows },
                own_way: FILE_BACKEND,
                memory: MEMORY,
                program: INSERTING,
                budget: 1.1,
                make: &|folder| Ok(folder.join(NAME)),
            };
            measured.push(pair.measure(inserts, folder)?);
        }
        let name = format!("redb, cold random reads of {text}");
        if name.contains(only) {
            let made = tempfile::tempdir_in(folder)?;
            let database = Database::create(made.path().join(NAME))?;
            insert_into(&database, rows).map_err(|error| error.to_string())?;
            drop(database);
            let make = |folder: &Path| -> Result<PathBuf, Box<dyn Error>> {
                link_all(made.path(), folder)?;
                Ok(folder.join(NAME))
            };
            let reads = plan.operations(20_000);
            let pair = Pair {
                name,
                work: Work::Get { reads, of: rows },
                own_way: FILE_BACKEND,
                memory: MEMORY,
                program: READING,
                budget: 1.0,
                make: &make,
            };
            measured.push(pair.measure(plan, folder)?);
        }
    }
    Ok(())
}

/// Opens the database; the memory lives as long as its file.
fn open(task: &Task) -> Fallible<Database> {
    let mut builder = Database::builder();
    builder.set_cache_size(ENGINES_CACHE as usize);
    if !task.ours {
        return Ok(builder.create(&task.path)?);
    }
    let memory = Memory::with_limit(task.memory - ENGINES_CACHE)?;
    let backend = PagedBackend::open(memory.file_options(), &task.path)?;
    Ok(builder.create_with_backend(backend)?)
}

fn insert_into(database: &Database, rows: u64) -> Fallible {
    for first in (0..rows).step_by(AT_ONCE as usize) {
        let write = database.begin_write()?;
        let mut table = write.open_table(TABLE)?;
        for row in first..rows.min(first + AT_ONCE) {
            table.insert(key(row), &value(row)[..])?;
        }
        drop(table);
        write.commit()?;
    }
    Ok(())
}

pub(super) fn insert(task: &Task, rows: u64) -> Fallible<Taken> {
    let database = open(task)?;
    let taken = timed(|| insert_into(&database, rows))?;
    let read = database.begin_read()?;
    check(&read.open_table(TABLE)?, rows / 2)?;
    Ok(taken)
}

pub(super) fn get(task: &Task, reads: u64, of: u64) -> Fallible<Taken> {
    let database = open(task)?;
    let numbers = Random::new(1).distinct(reads, of);
    timed(|| {
        let read = database.begin_read()?;
        let table = read.open_table(TABLE)?;
        numbers.iter().try_for_each(|&row| check(&table, row))
    })
}

fn check(table: &redb::ReadOnlyTable<u64, &[u8]>, row: u64) -> Fallible {
    let found = table.get(key(row))?;
    let same = found.is_some_and(|found| found.value() == value(row));
    unless(same, || format!("row {row} is not as it was inserted"))
}
