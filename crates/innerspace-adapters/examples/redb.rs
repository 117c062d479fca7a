//! A redb database for each of two tenants, in one memory of 8 MiB.

use innerspace::{MIB, Memory};
use innerspace_adapters::redb::PagedBackend;
use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};

const TABLE: TableDefinition<u64, [u8; 100]> = TableDefinition::new("rows");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let memory = Memory::with_limit(8 * MIB)?;
    for tenant in ["first", "second"] {
        let group = memory.create_group(tenant, 3 * MIB)?;
        let path = folder.path().join(tenant);
        let backend = PagedBackend::open(memory.file_options().group(&group), &path)?;
        // redb's own cache is small: the blocks are in the memory's.
        let mut builder = Database::builder();
        let database = builder
            .set_cache_size(MIB as usize)
            .create_with_backend(backend)?;
        for batch in 0..20 {
            let write = database.begin_write()?;
            let mut table = write.open_table(TABLE)?;
            for row in batch * 1000..(batch + 1) * 1000 {
                table.insert(row, [row as u8; 100])?;
            }
            drop(table);
            write.commit()?;
        }
        let rows = database.begin_read()?.open_table(TABLE)?.len()?;
        println!(
            "{tenant}: {rows} rows, {} in a file of {}",
            innerspace::ByteSize(group.usage()),
            innerspace::ByteSize(path.metadata()?.len())
        );
        assert_eq!(rows, 20_000);
        assert!(group.usage() <= 3 * MIB);
    }
    Ok(())
}
