//! Reads that a memory's ring has in flight.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::store::{Batch, FileEngine, FileStore};
use crate::sync::Mutex;
use crate::sys::file::disk_dir;

fn read_only() -> FileOptions {
    FileOptions::new().block_size(4096).name("data.bin")
}

/// Creates a store over a file of this many pages full of `A`, if its reads can use a ring.
fn file_of(pages: u64) -> Option<(tempfile::TempDir, FileStore)> {
    let dir = disk_dir();
    let path = dir.path().join("A");
    std::fs::write(&path, vec![b'A'; (pages * 4096) as usize]).unwrap();
    let store = FileStore::open(&path).unwrap();
    if store.engine() == FileEngine::IoUring {
        return Some((dir, store));
    }
    eprintln!("left out: no io_uring");
    None
}

/// A store that opens a file for each batch of reads, and then other files: the number of a closed
/// descriptor soon belongs to another file.
struct Opens {
    dir: PathBuf,
    kept: Mutex<Vec<FileStore>>,
}

impl Store for Opens {
    fn len(&self) -> io::Result<u64> {
        Ok(64 << 20)
    }
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(b'A');
        Ok(buf.len())
    }
    fn submit(&self, batch: Batch) {
        // The bytes are in file A, which this store closes again before it returns.
        let file = FileStore::open(self.dir.join("A")).unwrap();
        file.submit(batch);
        drop(file);
        let other = FileStore::open(self.dir.join("B")).unwrap();
        self.kept.lock().push(other);
    }
}

// spec: R6
#[test]
fn a_read_in_flight_keeps_the_descriptor_it_goes_by() {
    let Some((dir, probe)) = file_of(16 << 10) else {
        return;
    };
    drop(probe);
    std::fs::write(dir.path().join("B"), vec![b'B'; 64 << 20]).unwrap();
    let cache = memory(16 << 10);
    cache.begin_service();
    let store = Arc::new(Opens {
        dir: dir.path().to_owned(),
        kept: Mutex::default(),
    });
    let file = open(&cache, &store, &read_only());
    file.view(0..1).unwrap();
    for number in 1..300u64 {
        let at = (number * 7_919 % 16_000) * 4096;
        let mut future = file.ready(at..at + 8);
        let view = future.wait_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(view.unwrap()[..], *b"AAAAAAAA", "read {number}");
    }
}

/// A store that passes its batches on to a file.
struct Around(Arc<FileStore>);

impl Store for Around {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn submit(&self, batch: Batch) {
        self.0.submit(batch);
    }
}

// spec: R15
#[test]
fn a_ring_that_refuses_a_read_tells_the_file_whoever_handed_the_read_on() {
    let Some((_dir, store)) = file_of(64) else {
        return;
    };
    let cache = memory(256);
    cache.begin_service();
    cache.flights().unwrap().refuse();
    let store = Arc::new(store);
    let file = open(&cache, &Arc::new(Around(store.clone())), &read_only());
    file.view(0..1).unwrap();
    assert_eq!(store.engine(), FileEngine::IoUring, "none was tried");
    read_byte(&file, 10);
    assert_eq!(store.engine(), FileEngine::Calls);
}

/// Reads a byte of page `page` through a future.
fn read_byte(file: &PagedFile, page: u64) {
    let mut future = file.ready(page * 4096..page * 4096 + 1);
    let view = future.wait_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(view.unwrap()[..], *b"A");
}

// spec: R15
#[test]
fn files_whose_ring_is_broken_say_that_they_are_read_by_calls() {
    let Some((_dir, first)) = file_of(64) else {
        return;
    };
    let Some((_other, second)) = file_of(64) else {
        return;
    };
    let cache = memory(256);
    cache.begin_service();
    let stores = [first, second].map(Arc::new);
    let files = [0, 1].map(|at| open(&cache, &stores[at], &read_only()));
    let engines = || [0, 1].map(|at| stores[at].engine());
    for file in &files {
        file.view(0..1).unwrap();
        read_byte(file, 10);
    }
    assert_eq!(engines(), [FileEngine::IoUring; 2]);
    cache.flights().unwrap().break_ring();
    read_byte(&files[0], 20);
    assert_eq!(
        engines(),
        [FileEngine::Calls, FileEngine::IoUring],
        "not tried yet"
    );
    read_byte(&files[1], 20);
    assert_eq!(engines(), [FileEngine::Calls; 2]);
    for file in &files {
        read_byte(file, 30);
    }
}
