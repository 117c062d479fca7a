//! A disk that is full in the middle of a batch of writes.

use std::sync::atomic::{AtomicBool, Ordering};

use innerspace::{
    MIB,
    file::{FileAccess, WriteOrder},
};

use super::*;

/// The number of pieces in the file: 8 MiB, more than the disk has room for next to the ballast.
const PIECES: u64 = 512;
/// The bytes in a file that is read meanwhile.
const READ: u64 = MIB;

/// Stops a reader when it is dropped, also when the test panics.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads blocks of `file` from the disk again and again, at least once.
fn read_until(file: &PagedFile, stop: &AtomicBool) {
    let mut bytes = vec![0; BLOCK];
    loop {
        file.evict(..).unwrap();
        for block in 0..READ / BLOCK as u64 {
            file.read_exact_at(&mut bytes, block * BLOCK as u64)
                .unwrap();
            assert!(bytes == content(block, block), "block {block}");
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Runs in a file system of 16 MiB at `path`, with the engine that the environment names.
pub(super) fn fill_the_disk_in_a_batch(path: &Path) {
    let beside = path.join("beside.bin");
    let blocks = (0..READ / BLOCK as u64).flat_map(|block| content(block, block));
    std::fs::write(&beside, blocks.collect::<Vec<u8>>()).unwrap();
    let ballast = path.join("ballast");
    std::fs::write(&ballast, vec![1; 8 << 20]).unwrap();
    let memory = Memory::with_limit(64 * MIB).unwrap();
    let beside = memory.open(&beside).unwrap();
    let data = path.join("data.bin");
    std::fs::write(&data, []).unwrap();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    // Nothing is written before the sync, which then has several runs of many blocks.
    let options = options.write_order(WriteOrder::OnSync);
    let file = options.open(&data).unwrap();
    write_pieces(&file, PIECES);

    let stop = AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_until(&beside, &stop));
        let stop = Stop(&stop);
        let error = file.sync_all().unwrap_err();
        drop(stop);
        reader.join().unwrap();
        error
    });
    let (offset, source) = failed_write(&error);
    assert_eq!(source.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert_eq!(
        StoreErrorKind::of(source),
        StoreErrorKind::NoSpace,
        "{error}"
    );
    assert!(offset < file.len(), "{error}");
    let at = Grouped(offset);
    let expected = format!("data.bin: write of 4096 bytes at {at} failed: No space left");
    assert!(error.to_string().contains(&expected), "{error}");
    // In the middle of the batch, some of the data is on the disk, and all of it is in the cache.
    let stats = file.stats();
    assert!(stats.written > 0 && stats.dirty.0 > 0, "{stats}");
    assert_pieces(&file, PIECES);
    memory.validate();

    // Removing the ballast makes room on the disk.
    std::fs::remove_file(&ballast).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
    let stored = std::fs::read(&data).unwrap();
    let expected: Vec<u8> = (0..PIECES).flat_map(piece).collect();
    assert!(stored == expected, "bytes are lost");
    memory.validate();
    drop((file, beside));
    assert!(memory.take_errors().is_empty());
    say("done");
}

// spec: P18, P19
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_in_the_middle_of_a_batch_loses_nothing() {
    for engine in forked::ENGINES {
        let folder = disk_folder();
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).unwrap();
        let Some(mut way) = on_a_disk(MOUNT_EXT4, "fill in a batch", &disk) else {
            return;
        };
        let child = way.env("INNERSPACE_FALLBACK", engine).spawn().unwrap();
        assert!(ends_well(child), "{engine}: see above");
    }
}
