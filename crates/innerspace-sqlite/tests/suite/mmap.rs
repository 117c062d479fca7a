//! Pages that SQLite uses in place.

use crate::common::{create, open, transact, verify};

#[test]
fn mmap_size_is_set_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let connection = open(&folder.path().join("data.db"));
    let size = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!(size("PRAGMA mmap_size = 1000000"), 1_000_000);
    assert_eq!(size("PRAGMA mmap_size"), 1_000_000);
    assert_eq!(size("PRAGMA mmap_size = 0"), 0);
}

#[test]
fn pages_in_place_are_current() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let writer = open(&path);
    create(&writer);
    let reader = open(&path);
    reader.pragma_update(None, "mmap_size", 64 << 20).unwrap();
    for n in 1..=60 {
        transact(&writer, "test").unwrap();
        assert_eq!(verify(&reader), n);
    }
    writer
        .execute_batch("DELETE FROM log WHERE n > 10; VACUUM")
        .unwrap();
    assert_eq!(
        reader.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0)),
        Ok(10)
    );
}
