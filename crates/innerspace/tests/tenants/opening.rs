//! A file that both tenants open belongs to the group that was named as the payer.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{
    KIB, MIB, OpenError, PagedFile, Threads, dax::DaxError, file::FileAccess, group::GroupError,
};

use crate::world::World;

/// Returns the text of a refusal, which says how the file is open.
fn refused(opened: Result<PagedFile, OpenError>) -> String {
    match opened {
        Err(error @ OpenError::OpenOtherwise { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

// spec: N10, N12
#[test]
fn a_file_that_is_open_for_another_group_is_refused_and_the_error_says_so() {
    let world = World::new(4 * MIB, Threads::None);
    let store = Arc::new(MemoryStore::from_bytes(&[7; 100_000]));
    let options = || world.memory.file_options();
    let first = options().group(&world.a).name("a secret").share();
    let first = first.open_store(store.clone()).unwrap();
    let text = refused(options().group(&world.b).open_store(store.clone()));
    assert!(text.contains("is open already for another group"), "{text}");
    assert!(
        !text.contains("secret") && !text.contains("root/a"),
        "{text}"
    );
    // The same holds for a root that is named, and not if the same group is named.
    let root = world.memory.root_group();
    refused(options().group(root).open_store(store.clone()));
    options().group(&world.a).open_store(store.clone()).unwrap();
    // B is not refused because A is full: B said that it shares, and A had said so too.
    let shared = options().group(&world.b).share();
    let shared = shared.open_store(store.clone()).unwrap();
    assert_eq!(shared.group().name(), "a");
    drop((first, shared));

    // One side is not enough: A's store may merely claim to be B's.
    let own = options().group(&world.b).open_store(store.clone()).unwrap();
    refused(options().group(&world.a).share().open_store(store.clone()));
    drop(own);
    let own = options().group(&world.b).open_store(store).unwrap();
    assert_eq!(own.group().name(), "b");
}

// spec: N10
#[test]
fn a_file_that_is_open_for_reading_says_so_to_a_writer() {
    let world = World::new(4 * MIB, Threads::None);
    let store = Arc::new(MemoryStore::from_bytes(&[7; 100_000]));
    let options = || world.memory.file_options().group(&world.b).share();
    let reader = options().open_store(store.clone()).unwrap();
    let writer = || options().access(FileAccess::ReadWrite);
    let text = refused(writer().open_store(store.clone()));
    assert!(text.contains("is open already read-only"), "{text}");
    drop(reader);
    writer().open_store(store).unwrap();
}

// spec: N10, N12
#[test]
fn a_direct_file_that_is_open_for_another_group_is_refused_and_the_error_says_so() {
    let world = World::new(4 * MIB, Threads::None);
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("own.bin"), folder.path().join("secret"));
    std::fs::write(&path, vec![7; 8192]).unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    let options = || world.memory.dax_options().capacity(64 * KIB);
    let first = options().group(&world.a).share().open(&link).unwrap();
    let error = options().group(&world.b).open(&path).unwrap_err();
    assert!(matches!(error, DaxError::OpenOtherwise { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("is open already for another group"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    refused(world.memory.file_options().group(&world.b).open(&path));
    options().group(&world.b).share().open(&path).unwrap();
    options().open(&path).unwrap();
    drop(first);
    let own = options().group(&world.b).open(&path).unwrap();
    options().group(&world.a).share().open(&link).unwrap_err();
    drop(own);
}

#[test]
fn a_file_whose_blocks_do_not_fit_in_its_group_is_refused_with_the_numbers() {
    let world = World::new(4 * MIB, Threads::None);
    let small = world.a.create_child("small", 48 * KIB).unwrap();
    let inner = small.create_child_unlimited("inner").unwrap();
    let open = |block, group| {
        let store = MemoryStore::from_bytes(&[7; 100_000]);
        let options = world.memory.file_options().block_size(block).group(group);
        options.open_store(store)
    };
    for group in [&small, &inner] {
        let error = open(64 * KIB, group).unwrap_err();
        assert!(matches!(error, OpenError::BlockTooLarge { .. }), "{error}");
        let text = "group root/a/small: limit 48.0 KiB has no room for a block of 64.0 KiB; it has to be 80.0 KiB at least";
        assert!(error.to_string().ends_with(text), "{error}");
    }
    small.set_max(80 * KIB).unwrap();
    let file = open(64 * KIB, &inner).unwrap();
    assert_eq!(file.view(0..10).unwrap()[..], [7; 10]);
    let error = small.set_max(48 * KIB).unwrap_err();
    assert!(
        matches!(error, GroupError::TooSmallForBlocks { .. }),
        "{error}"
    );
    drop(file);
    small.set_max(48 * KIB).unwrap();
    open(16 * KIB, &inner).unwrap().view(0..10).unwrap();
}
