//! Databases made by ordinary SQLite, and ways to open them.
//!
//! A row is as large as a page: so a branch that changes one row changes one page of the table.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use innerspace::MIB;
use innerspace::store::kernel_cached_pages;
use rusqlite::{Connection, OpenFlags};

use crate::data::{Checksum, Random};
use crate::kernel;
use crate::stations::Result;

/// SQLite's page, which is also the library's.
pub(super) const PAGE: u64 = 4096;

/// The bytes that fill up a row, so that a page has room for only one.
const FILLING: usize = 3500;

/// SQLite's own page cache of a connection, in pages: small, because the memory has the pages.
const CACHED_PAGES: i64 = 10;

/// Makes a database of `rows` accounts, each with the balance [`balance`], by ordinary SQLite.
/// Calls `progress` with the rows done so far.
pub(super) fn make(
    path: &Path,
    rows: u64,
    seed: u64,
    journal: &str,
    progress: impl Fn(u64),
) -> Result<()> {
    let mut database = Connection::open(path)?;
    database.execute_batch(&format!(
        "PRAGMA page_size = {PAGE};
         PRAGMA journal_mode = OFF;
         PRAGMA synchronous = OFF;
         CREATE TABLE account(
             id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, filling BLOB NOT NULL
         );"
    ))?;
    let mut random = Random::new(seed);
    let mut filling = [0; FILLING];
    let transaction = database.transaction()?;
    let mut insert = transaction.prepare("INSERT INTO account VALUES (?1, ?2, ?3)")?;
    for id in 1..=rows {
        random.fill(&mut filling);
        insert.execute((id, balance(seed, id), &filling[..]))?;
        progress(id);
    }
    drop(insert);
    transaction.commit()?;
    database.pragma_update(None, "journal_mode", journal)?;
    database.close().map_err(|(_, error)| error)?;
    // On the disk, so that the kernel's cache can be emptied.
    File::open(path)?.sync_all()?;
    Ok(())
}

/// The balance of an account in a database that was made with this seed.
pub(super) fn balance(seed: u64, id: u64) -> i64 {
    (seed * 1_000_000_007 + id * 31).cast_signed()
}

/// Opens a database by a VFS, with a small page cache of SQLite's own.
pub(super) fn open(path: &Path, vfs: &str) -> Result<Connection> {
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs)?;
    connection.pragma_update(None, "cache_size", CACHED_PAGES)?;
    Ok(connection)
}

/// Opens a database by a URI, with a page cache of SQLite's own of one page: so that each query has
/// to ask the VFS.
pub(super) fn open_uri(path: &Path, parameters: &str) -> Result<Connection> {
    let uri = format!("{}?{parameters}", to_uri(path));
    let connection = Connection::open_with_flags(uri, OpenFlags::default())?;
    connection.pragma_update(None, "cache_size", 1)?;
    Ok(connection)
}

/// Returns a path as a URI: all that could mean something in one is escaped.
fn to_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(byte.into());
            }
            other => write!(uri, "%{other:02x}").expect("a string takes everything"),
        }
    }
    uri
}

/// Returns the balance of an account.
pub(super) fn balance_of(connection: &Connection, id: u64) -> Result<i64> {
    let mut query = connection.prepare_cached("SELECT balance FROM account WHERE id = ?1")?;
    Ok(query.query_row([id], |row| row.get(0))?)
}

/// Returns SQLite's judgement of a database: `ok`, or what is wrong.
pub(super) fn integrity(connection: &Connection) -> Result<String> {
    Ok(connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?)
}

/// Returns a checksum of a file's bytes, and leaves nothing of it in the kernel's cache.
pub(super) fn checksum(path: &Path) -> Result<Checksum> {
    let mut checksum = Checksum::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; MIB as usize];
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        checksum.add(&buffer[..filled]);
        if filled < buffer.len() {
            break;
        }
    }
    kernel::drop_cache(&file)?;
    Ok(checksum)
}

/// Returns how many bytes of a file the kernel has cached. `None` if the system does not report it.
pub(super) fn kernel_cached(path: &Path) -> Option<u64> {
    kernel_cached_pages(path).ok().map(|pages| pages.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_has_a_page_for_each_row_and_any_name_opens_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?c#d%25&é.db");
        make(&path, 100, 7, "WAL", |_| ()).unwrap();
        let pages = std::fs::metadata(&path).unwrap().len() / PAGE;
        assert_eq!(pages, 100 + 2, "the schema, the root, and the rows");
        let connection = open_uri(&path, "mode=rw").unwrap();
        assert_eq!(balance_of(&connection, 100).unwrap(), balance(7, 100));
        assert_eq!(integrity(&connection).unwrap(), "ok");
        let before = checksum(&path).unwrap();
        connection
            .execute("UPDATE account SET balance = 1 WHERE id = 100", [])
            .unwrap();
        connection.close().unwrap();
        assert_ne!(checksum(&path).unwrap(), before);
    }
}
