//! Files in object storage, compared with the bare client of the crate `object_store`.
//!
//! | file | content |
//! |---|---|
//! | `speed` | random reads, scans, and second runs with a tier on local disk |
//! | `peak` | the memory of a process that reads 100 files at once |
//!
//! The server is `s3s-fs` in this process, on loopback, and answers each request 20 ms late. So its
//! work is in the wall time of all contenders alike.

mod peak;
mod speed;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use innerspace::MIB;
use innerspace_test_s3::S3Server;
use tempfile::TempDir;

use crate::disk::catch_interrupts;
use crate::disk::file::{check_folder, default_folder};
use crate::harness::{Plan, Rows};
use crate::report::Table;

pub(crate) use peak::run_child;

/// What is added to each request.
const DELAY: Duration = Duration::from_millis(20);
/// Bytes that the objects and the tier may need.
const ROOM: u64 = 2048 * MIB;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str, dir: Option<&Path>) -> Result<Table, Box<dyn Error>> {
    let folder = dir.map_or_else(default_folder, Path::to_owned);
    let told = |error: Box<dyn Error + Send + Sync>| -> Box<dyn Error> { error };
    check_folder(&folder, ROOM).map_err(told)?;
    catch_interrupts();
    let folder = TempDir::with_prefix_in("innerspace-bench-", folder)?;
    let server = S3Server::start();
    server.set_delay(DELAY);
    let mut rows = Rows::new(plan, only);
    speed::rows(plan, &server, folder.path(), &mut rows)?;
    peak::rows(&server, folder.path(), &mut rows)?;
    Ok(Table {
        name: "object storage (wall time of a read or of a scanned page; bytes at the peak)".into(),
        rows: rows.measured,
    })
}

/// Returns the byte at an offset of an object.
fn byte(object: u64, offset: u64) -> u8 {
    let mixed = (offset / 4096 + object * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as u8
}

/// Puts an object of a length.
fn put(server: &S3Server, key: &str, object: u64, len: u64) {
    let bytes: Vec<u8> = (0..len).map(|at| byte(object, at)).collect();
    server.put(key, bytes);
}

/// Checks that bytes are those of an object from an offset on, by one of each page.
fn check(object: u64, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
    for at in (0..bytes.len()).step_by(4096) {
        if bytes[at] != byte(object, offset + at as u64) {
            return Err(format!("a wrong byte at {}", offset + at as u64).into());
        }
    }
    Ok(())
}
