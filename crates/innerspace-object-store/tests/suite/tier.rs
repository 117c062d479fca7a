//! The tier: the right bytes, warm after a restart, never larger than it may be, and no error of
//! a read when its disk fails.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use innerspace::store::{MemoryStore, Store, read_exact_or_eof};
use innerspace::{MIB, Memory};
use innerspace_object_store::{Tier, TierError, TieredStore};
use innerspace_test_s3::S3Server;

use crate::common::{Computed, bytes, open, read};

const LEN: u64 = 1_000_003;

/// Returns the bytes on the disk, and the number of files.
fn footprint(folder: &Path) -> (u64, usize) {
    let entries: Vec<_> = fs::read_dir(folder).unwrap().collect();
    let blocks = entries.iter().map(|entry| {
        let metadata = entry.as_ref().unwrap().metadata().unwrap();
        metadata.len().max(metadata.blocks() * 512)
    });
    (blocks.sum(), entries.len())
}

#[test]
fn a_second_run_reads_from_the_disk_alone() {
    let folder = tempfile::tempdir().unwrap();
    let server = S3Server::start();
    server.put("data", bytes(1, LEN as usize));
    for run in 0..2 {
        let tier = Tier::open(folder.path(), 4 * MIB).unwrap();
        let object = open(&server, "data");
        let whole = read_cached(tier.store(object.clone()).unwrap());
        assert!(whole == bytes(1, LEN as usize));
        let stats = tier.stats();
        let fetched = object.stats().bytes_fetched;
        match run {
            0 => assert_eq!((fetched, stats.chunks), (LEN, 16), "{stats:?}"),
            _ => assert_eq!(
                (fetched, stats.misses, stats.dropped),
                (0, 0, 0),
                "{stats:?}"
            ),
        }
        // Another version has nothing of it.
        if run == 1 {
            server.put("data", bytes(2, LEN as usize));
            let store = tier.store(open(&server, "data")).unwrap();
            assert!(read(&store, 0, LEN as usize).unwrap() == bytes(2, LEN as usize));
            assert_eq!(tier.stats().misses, 16);
        }
    }
}

#[test]
fn the_tier_never_grows_beyond_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let size = 300_000;
    let tier = Tier::options()
        .chunk_size(4096)
        .open(folder.path(), size)
        .unwrap();
    for version in 0..4 {
        let store = tier.store(Computed::new(version, LEN)).unwrap();
        assert!(read(&store, 0, LEN as usize).unwrap() == bytes(version, LEN as usize));
        let (bytes, files) = footprint(folder.path());
        assert!(bytes <= size, "{bytes}");
        assert_eq!(files, 2);
    }
    let stats = tier.stats();
    assert_eq!(stats.evicted, 3 * 69, "{stats:?}");
    assert_eq!(stats.chunks, 69, "{stats:?}");
    drop(tier);
    // A smaller one keeps what fits.
    let tier = Tier::options()
        .chunk_size(4096)
        .open(folder.path(), 100_000)
        .unwrap();
    assert_eq!(tier.stats().chunks_found, 21);
    assert!(footprint(folder.path()).0 <= 100_000);
}

/// Reads the whole store through a cache.
fn read_cached(store: impl Store) -> Vec<u8> {
    let memory = Memory::with_limit(2 * MIB).unwrap();
    let file = memory.file_options().open_store(store).unwrap();
    let mut whole = Vec::new();
    file.scan(.., |piece| whole.extend_from_slice(piece))
        .unwrap();
    whole
}

#[test]
fn a_damaged_chunk_is_dropped_and_read_again() {
    // From the second byte on, no buffer is fit for the disk to read into.
    damage(|store| read(&store, 1, LEN as usize - 1).unwrap());
    damage(|store| {
        let len = LEN as usize;
        let mut memory = vec![0; len + 2 * 4096];
        let start = memory.as_ptr().align_offset(4096);
        let pages = &mut memory[start..start + len.next_multiple_of(4096)];
        assert_eq!(read_exact_or_eof(&store, pages, 0).unwrap(), len);
        pages[1..len].to_vec()
    });
}

fn damage(read_but_one: impl Fn(TieredStore<Computed>) -> Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let computed = Computed::new(1, LEN);
    let tier = Tier::open(folder.path(), 4 * MIB).unwrap();
    read(&tier.store(computed.clone()).unwrap(), 0, LEN as usize).unwrap();
    drop(tier);
    let chunks = fs::File::options()
        .write(true)
        .open(folder.path().join("chunks"))
        .unwrap();
    chunks.write_all_at(b"torn", 3 * 65_536 + 700).unwrap();
    // A record that is not whole is a free slot.
    let records = fs::File::options()
        .write(true)
        .open(folder.path().join("records"))
        .unwrap();
    records.write_all_at(b"torn", 4096 + 64 * 5 + 30).unwrap();
    let tier = Tier::open(folder.path(), 4 * MIB).unwrap();
    let whole = read_but_one(tier.store(computed.clone()).unwrap());
    assert!(whole == bytes(1, LEN as usize)[1..]);
    let stats = tier.stats();
    assert_eq!(
        (stats.chunks_found, stats.dropped, stats.misses),
        (15, 1, 2),
        "{stats:?}"
    );
    assert_eq!(stats.chunks, 16);
}

#[test]
fn a_store_without_a_version_or_that_is_written_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut computed = Computed::new(1, LEN);
    computed.version = None;
    let tier = Tier::open(folder.path(), 8 * MIB).unwrap();
    for pattern in [1, 2] {
        computed.pattern = pattern;
        let store = tier.store(computed.clone()).unwrap();
        assert!(read(&store, 0, LEN as usize).unwrap() == bytes(pattern, LEN as usize));
    }
    let store = tier
        .store(MemoryStore::from_bytes(&bytes(3, 200_000)))
        .unwrap();
    assert_eq!(
        read(&store, 100_000, 10).unwrap(),
        bytes(3, 200_000)[100_000..100_010]
    );
    store.write_at(b"new bytes!", 100_000).unwrap();
    assert_eq!(read(&store, 100_000, 10).unwrap(), b"new bytes!");
    store.set_len(100_005).unwrap();
    assert_eq!(read(&store, 100_000, 10).unwrap(), b"new b");
    store.punch(100_000, 2).unwrap();
    assert_eq!(read(&store, 100_000, 10).unwrap(), b"\0\0w b");
}

#[test]
fn one_process_has_a_folder_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Tier::open(folder.path(), MIB).unwrap();
    let error = Tier::open(folder.path(), MIB).unwrap_err();
    assert!(matches!(error, TierError::InUse { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.ends_with("; close it there, or choose another folder"),
        "{text}"
    );
    Tier::open(folder.path().join("another"), MIB).unwrap();
    drop(tier);
    Tier::open(folder.path(), MIB).unwrap();
}

#[test]
fn impossible_sizes_and_folders_say_what_to_choose() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tier::open(folder.path(), 65_536).unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
    let error = Tier::options()
        .chunk_size(5000)
        .open(folder.path(), MIB)
        .unwrap_err();
    assert!(error.to_string().contains("power of two"), "{error}");
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Tier::open(&file, MIB).unwrap_err();
    assert!(error.to_string().contains("choose a folder"), "{error}");
}

#[test]
fn a_disk_that_fails_costs_speed_and_no_read() {
    // A limit on the size of files stands for a full disk: writes beyond it fail.
    let Some(folder) = crate::kills::child_folder("full") else {
        let folder = tempfile::tempdir().unwrap();
        let mut child = crate::kills::child("tier::a_disk_that_fails", "full", folder.path());
        // Its output goes to a pipe, since it could not write to a long file any more.
        let output = child.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    };
    let tier = Tier::open(&folder, 4 * MIB).unwrap();
    let chunks = folder.join("chunks");
    // The files are made, and then the chunks' one is cut and may not grow again.
    crate::kills::limit_file_size(100_000);
    fs::File::options()
        .write(true)
        .open(chunks)
        .unwrap()
        .set_len(0)
        .unwrap();
    let computed = Computed::new(1, LEN);
    let store = tier.store(computed.clone()).unwrap();
    for _ in 0..2 {
        assert!(read(&store, 0, LEN as usize).unwrap() == bytes(1, LEN as usize));
    }
    let stats = tier.stats();
    assert!(stats.write_errors > 0 && stats.bypassed > 0, "{stats:?}");
    assert!(computed.bytes_read() > LEN, "{stats:?}");
}

#[test]
fn many_threads_fetch_each_chunk_once() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Tier::open(folder.path(), 4 * MIB).unwrap();
    let computed = Computed::new(1, LEN);
    let store = Arc::new(tier.store(computed.clone()).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let store = store.clone();
            scope.spawn(move || {
                for n in 0..200 {
                    let offset = (thread * 7919 + n * 104_729) % (LEN - 100);
                    let got = read(&*store, offset, 100).unwrap();
                    let right = (offset..offset + 100).map(|at| crate::common::byte(1, at));
                    assert!(got.into_iter().eq(right));
                }
            });
        }
    });
    assert!(computed.bytes_read() <= LEN, "{}", computed.bytes_read());
}

#[test]
fn chunks_that_were_fetched_together_beside_others_are_read_again_whole() {
    let folder = tempfile::tempdir().unwrap();
    let tier = Tier::options()
        .chunk_size(4096)
        .open(folder.path(), 16 * MIB)
        .unwrap();
    let stores: Vec<_> = (0..8)
        .map(|version| tier.store(Computed::new(version, MIB)).unwrap())
        .collect();
    let mut whole = vec![0; MIB as usize];
    // Each of eight threads fetches, while the others do.
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(move || store.read_at(&mut vec![0; MIB as usize], 0).unwrap());
        }
    });
    for (version, store) in stores.iter().enumerate() {
        assert_eq!(store.read_at(&mut whole, 0).unwrap(), whole.len());
        assert!(whole == bytes(version as u64, MIB as usize));
    }
    assert_eq!(tier.stats().hits, 8 * 256);
}
