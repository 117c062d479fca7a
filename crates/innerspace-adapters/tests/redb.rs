//! redb on the library: what it writes is what redb reads by itself, within the limit.

#![cfg(feature = "redb_4")]

use std::path::Path;
use std::sync::Arc;

use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use innerspace::store::{FaultyStore, MemoryStore};
use innerspace::{KIB, MIB, Memory, file::FileAccess};
use innerspace_adapters::redb::PagedBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition,
};

const ROWS: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");

fn open(memory: &Memory, path: &Path) -> Result<Database, DatabaseError> {
    let backend = PagedBackend::open(memory.file_options(), path).unwrap();
    let mut builder = Database::builder();
    builder
        .set_cache_size(MIB as usize)
        .create_with_backend(backend)
}

fn insert(database: &Database, rows: std::ops::Range<u64>) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    let mut table = write.open_table(ROWS)?;
    for row in rows {
        table.insert(row, &*vec![row as u8; 200])?;
    }
    drop(table);
    Ok(write.commit()?)
}

fn rows(database: &Database) -> Vec<u64> {
    let read = database.begin_read().unwrap();
    let table = read.open_table(ROWS).unwrap();
    let rows = table.iter().unwrap().map(|row| {
        let (row, bytes) = row.unwrap();
        assert_eq!(bytes.value(), vec![row.value() as u8; 200]);
        row.value()
    });
    rows.collect()
}

#[test]
fn a_database_larger_than_the_limit_is_the_same_to_redb_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.redb");
    let memory = Memory::with_limit(MIB).unwrap();
    let database = open(&memory, &path).unwrap();
    for batch in 0..10 {
        insert(&database, batch * 1000..(batch + 1) * 1000).unwrap();
    }
    assert_eq!(rows(&database), (0..10_000).collect::<Vec<_>>());
    assert!(path.metadata().unwrap().len() > 2 * MIB);
    assert!(memory.root_group().usage() <= MIB);
    drop(database);
    let by_redb_itself = Database::open(&path).unwrap();
    assert_eq!(rows(&by_redb_itself), (0..10_000).collect::<Vec<_>>());
    insert(&by_redb_itself, 10_000..11_000).unwrap();
    drop(by_redb_itself);
    assert_eq!(
        rows(&open(&memory, &path).unwrap()),
        (0..11_000).collect::<Vec<_>>()
    );
}

#[test]
fn a_database_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.redb");
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let open_already = |opened| matches!(opened, Err(DatabaseError::DatabaseAlreadyOpen));
    let database = open(&memory, &path).unwrap();
    insert(&database, 0..10).unwrap();
    assert!(open_already(open(&memory, &path)), "by the same memory");
    let another = Memory::with_limit(4 * MIB).unwrap();
    assert!(open_already(open(&another, &path)), "by another memory");
    assert!(open_already(Database::open(&path)), "by redb itself");
    drop(database);
    let by_redb_itself = Database::open(&path).unwrap();
    assert!(open_already(open(&memory, &path)));
    drop(by_redb_itself);
    assert_eq!(rows(&open(&memory, &path).unwrap()).len(), 10);
}

#[test]
fn readers_of_both_kinds_share_a_database_and_let_go_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.redb");
    let memory = Memory::with_limit(4 * MIB).unwrap();
    insert(&open(&memory, &path).unwrap(), 0..10).unwrap();
    let read_only = || {
        let backend = PagedBackend::open_read_only(memory.file_options(), &path).unwrap();
        Database::builder().open_read_only_with_backend(backend)
    };
    let by_redb_itself = redb::ReadOnlyDatabase::open(&path).unwrap();
    let here = read_only().unwrap();
    let there_too = redb::ReadOnlyDatabase::open(&path).unwrap();
    let read = here.begin_read().unwrap();
    let row = read.open_table(ROWS).unwrap().get(3).unwrap().unwrap();
    assert_eq!(row.value(), [3; 200]);
    drop((row, read, by_redb_itself, there_too));
    assert!(Database::open(&path).is_err(), "a reader has it");
    drop(here);
    insert(&open(&memory, &path).unwrap(), 10..20).unwrap();
    assert_eq!(
        read_only()
            .unwrap()
            .begin_read()
            .unwrap()
            .open_table(ROWS)
            .unwrap()
            .len()
            .unwrap(),
        20
    );
}

#[test]
fn a_store_that_fails_is_redbs_error_and_loses_no_commit() {
    let memory = Memory::with_limit(MIB).unwrap();
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let open = || {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options
            .block_size(4 * KIB)
            .open_store(store.clone())
            .unwrap();
        Database::builder().create_with_backend(PagedBackend::new(file))
    };
    let database = open().unwrap();
    insert(&database, 0..1000).unwrap();
    let full = Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]);
    store.add(full.forever());
    let error = insert(&database, 1000..2000).unwrap_err();
    assert!(error.to_string().contains("no storage space"), "{error}");
    store.heal();
    drop(database);
    // The second commit is there as a whole, or not at all: its failed sync does not say which.
    let rows = rows(&open().unwrap());
    assert!(rows.iter().copied().eq(0..1000) || rows.iter().copied().eq(0..2000));
}
