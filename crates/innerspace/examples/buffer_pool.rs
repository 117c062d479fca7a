//! A page store with a log: no page reaches its disk before the log record of its change is
//! durable.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{
    MIB, Memory, PagedFile,
    file::{FileAccess, WriteOrder},
};

type Disk = Arc<MemoryStore>;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A database is bytes in pages. A log record is the place of a byte and its value. (A real one has
/// a checksum.)
struct Database {
    log: PagedFile,
    pages: PagedFile,
}

impl Database {
    fn open(log: &Disk, pages: &Disk) -> Result<Database> {
        let memory = Memory::with_limit(2 * MIB)?;
        let file = memory.file_options().access(FileAccess::ReadWrite);
        let open = |name, order, disk: &Disk| {
            let file = file.clone().name(name).write_order(order);
            file.open_store(disk.clone())
        };
        let log = open("log", WriteOrder::OnSync, log)?;
        let pages = open("pages", WriteOrder::Ordered, pages)?;
        for record in log.view(..)?.chunks_exact(9) {
            pages.write_at(&record[8..], u64::from_le_bytes(record[..8].try_into()?))?;
        }
        Ok(Database { log, pages })
    }

    fn put(&self, place: u64, value: u8) -> Result<()> {
        let record = [&place.to_le_bytes()[..], &[value]].concat();
        self.log.append(&record)?;
        self.pages.set_barrier(self.log.len()); // what is written from here on waits for the log
        Ok(self.pages.write_at(&[value], place)?)
    }

    fn commit(&self) -> Result<()> {
        self.log.sync_data()?; // one sync, whatever number of pages changed
        self.pages.release_through(self.log.len());
        Ok(())
    }
}

fn main() -> Result<()> {
    let (log, pages) = (Disk::default(), Arc::new(MemoryStore::with_len(MIB)));
    let database = Database::open(&log, &pages)?;
    database.put(8 * 4096, 1)?;
    let error = database.pages.sync_all().unwrap_err();
    println!("before the commit: {error}");
    database.commit()?;
    database.put(9 * 4096, 2)?;
    // The power fails. So far no page was written, and only the first record of the log.
    let log = Arc::new(MemoryStore::copy_of(&*log)?);
    let pages = Arc::new(MemoryStore::copy_of(&*pages)?);
    assert!(pages.to_vec().iter().all(|&byte| byte == 0));
    Database::open(&log, &pages)?.pages.sync_all()?; // recovery and a checkpoint
    assert_eq!([8, 9].map(|page| pages.to_vec()[page * 4096]), [1, 0]);
    println!("after recovery: the first change is there, the second is not");
    Ok(())
}
