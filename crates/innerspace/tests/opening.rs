//! One store, one file: what a second open of the same thing in one memory gives.

#![cfg(not(target_family = "wasm"))]

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{FileAccess, KIB, MIB, Memory, OpenError, PagedFile};

fn refused(opened: Result<PagedFile, OpenError>) -> String {
    match opened {
        Err(error @ (OpenError::OpenOtherwise { .. } | OpenError::NotEmptied { .. })) => {
            error.to_string()
        }
        Err(error) => panic!("{error}"),
        Ok(file) => panic!("{file:?}"),
    }
}

// spec: P27
#[test]
fn a_second_open_of_a_path_is_the_same_file() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![1; 20_000]).unwrap();
    let first = memory.open_rw(&path).unwrap();
    first.write_at(&[2; 100], 5_000).unwrap();
    // By whatever name, and for whatever access: the unwritten data is there, in one cache.
    let other_name = folder.path().join("link.bin");
    std::fs::hard_link(&path, &other_name).unwrap();
    for again in [memory.open(&path), memory.open_rw(&other_name)] {
        let again = again.unwrap();
        assert_eq!(again.view(5_000..5_100).unwrap()[..], [2; 100]);
        assert_eq!(
            again.view(0..10).unwrap().as_ptr(),
            first.view(0..10).unwrap().as_ptr()
        );
        again.write_at(&[3], 0).unwrap();
        assert_eq!(first.view(0..1).unwrap()[..], [3]);
    }
    assert_eq!(memory.stats().files.len(), 1);
    // But not in another way, and it is not emptied.
    let larger = memory
        .options()
        .access(FileAccess::ReadWrite)
        .block_size(64 * KIB);
    let name = path.display();
    assert_eq!(
        refused(larger.open_path(&path)),
        format!(
            "{name}: is open already with another block size; close it first, or open it the same way"
        )
    );
    refused(memory.create(&path));
    assert_eq!(first.len(), 20_000);
    drop(first);
    let reader = memory.open(&path).unwrap();
    assert_eq!(
        reader.view(5_000..5_100).unwrap()[..],
        [2; 100],
        "written by the last drop"
    );
    assert!(refused(memory.open_rw(&path)).contains("is open already read-only"));
    drop(reader);
    assert_eq!(memory.create(&path).unwrap().len(), 0);
}

// spec: P27
#[test]
fn a_store_that_knows_itself_is_one_file_and_others_are_not() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let store = Arc::new(MemoryStore::with_len(8192));
    let open = || {
        let options = memory.options().access(FileAccess::ReadWrite);
        options.open_store(store.clone()).unwrap()
    };
    let (first, second) = (open(), open());
    first.write_at(&[1; 10], 0).unwrap();
    assert_eq!(second.view(0..10).unwrap()[..], [1; 10]);
    let other = memory.options().open(MemoryStore::with_len(8192)).unwrap();
    assert_eq!(other.view(0..10).unwrap()[..], [0; 10]);
    assert_eq!(memory.stats().files.len(), 2);
}
