//! A disk that fails on demand, to see what a program does then. Nothing that was written is lost
//! because a write failed.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule, Unsynced};
use innerspace::{MIB, Memory, file::FileAccess};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let disk = Arc::new(FaultyStore::new(MemoryStore::from_bytes(
        &[b'.'; 64 * 4096],
    )));
    let memory = Memory::with_limit(MIB)?;
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .name("data.bin");
    let file = options.open_store(disk.clone())?;

    // The disk is full from the first write on.
    let full = Fault::Fail(Failure::NoSpace);
    disk.add(Rule::new(full).on(&[OperationKind::Write]).forever());
    file.write_at(b"first", 0)?;
    file.write_at(b"second", 32 * 4096)?;
    let error = file.sync_all().unwrap_err();
    println!("sync: {error}");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);

    // Nothing reached the disk, and nothing is lost: both blocks are still dirty.
    assert_eq!(disk.inner().to_vec(), [b'.'; 64 * 4096]);
    assert_eq!(file.stats().dirty.0, 2);
    assert_eq!(file.view(0..5)?[..], *b"first");

    // Somebody makes room, and the same sync succeeds.
    disk.heal();
    file.sync_all()?;
    assert_eq!(disk.inner().to_vec()[32 * 4096..][..6], *b"second");
    println!("sync after making room: ok");

    // A block that cannot be read fails alone, and is read again when it is next asked for.
    let broken = Fault::Fail(Failure::Io);
    disk.add(
        Rule::new(broken)
            .on(&[OperationKind::Read])
            .within(40 * 4096..41 * 4096),
    );
    let error = file.view(40 * 4096..41 * 4096).unwrap_err();
    println!("view: {error}");
    assert_eq!(file.view(40 * 4096..41 * 4096)?[0], b'.');

    // The power fails before a sync: the data of the last sync is there.
    file.write_at(b"third", 0)?;
    disk.power_cut(Unsynced::Lose)?;
    println!("sync without power: {}", file.sync_all().unwrap_err());
    disk.power_on();
    assert_eq!(disk.inner().to_vec()[..5], *b"first");
    file.sync_all()?;
    assert_eq!(disk.inner().to_vec()[..5], *b"third");
    Ok(())
}
