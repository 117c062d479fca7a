//! New objects: whole or not at all, on conditions, and nothing lost by a failure.

use innerspace::file::FileAccess;
use innerspace::{MIB, Memory, PagedFile};
use innerspace_object_store::{NewObject, Replace};
use innerspace_test_s3::{Fault, On, S3Server};

use crate::common::{bytes, quick};

fn create(server: &S3Server, memory: &Memory, replace: Replace) -> PagedFile {
    let folder = std::env::temp_dir();
    let object =
        NewObject::create_on(server.client(), &"new".into(), replace, folder, quick()).unwrap();
    memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .open_store(object)
        .unwrap()
}

/// One request, and a multipart upload, both larger than the memory.
const LENGTHS: [usize; 2] = [3_000_000, 21_000_000];

#[test]
fn an_object_is_there_after_a_sync_and_not_before() {
    for len in LENGTHS {
        let server = S3Server::start();
        let memory = Memory::with_limit(2 * MIB).unwrap();
        let file = create(&server, &memory, Replace::Nothing);
        let data = bytes(1, len);
        for (number, piece) in data.chunks(100_000).enumerate() {
            file.write_at(piece, number as u64 * 100_000).unwrap();
        }
        assert_eq!(server.get("new"), None);
        file.sync_all().unwrap();
        assert!(server.get("new").unwrap() == data);
        let before = server.requests();
        file.sync_all().unwrap();
        assert_eq!(server.requests(), before, "nothing has changed");
        file.write_at(b"changed", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(server.get("new").unwrap()[..7], *b"changed");
    }
}

#[test]
fn a_failed_sync_leaves_the_old_object_and_the_new_bytes() {
    for len in LENGTHS {
        let server = S3Server::start();
        server.put("new", "old");
        let memory = Memory::with_limit(2 * MIB).unwrap();
        let file = create(&server, &memory, Replace::Any);
        let data = bytes(1, len);
        file.write_at(&data, 0).unwrap();
        server.inject_always(On::Put, Fault::Status(500));
        let error = file.sync_all().unwrap_err();
        assert!(error.to_string().contains("keeps failing"), "{error}");
        assert_eq!(server.get("new").unwrap(), "old");
        server.heal();
        file.sync_all().unwrap();
        assert!(server.get("new").unwrap() == data);
        assert_eq!(server.parts_left(), 0, "failed uploads are aborted");
    }
}

#[test]
fn a_busy_server_is_asked_again() {
    for len in LENGTHS {
        let server = S3Server::start();
        let memory = Memory::with_limit(2 * MIB).unwrap();
        let file = create(&server, &memory, Replace::Nothing);
        let data = bytes(1, len);
        file.write_at(&data, 0).unwrap();
        server.inject(On::Put, Fault::Status(503));
        server.inject(On::Put, Fault::Status(503));
        file.sync_all().unwrap();
        assert!(server.get("new").unwrap() == data);
    }
}

#[test]
fn conditions_hold_for_small_and_for_large_objects() {
    for len in LENGTHS {
        let server = S3Server::start();
        server.put("new", "old");
        let memory = Memory::with_limit(2 * MIB).unwrap();
        let file = create(&server, &memory, Replace::Nothing);
        file.write_at(&bytes(1, len), 0).unwrap();
        let error = file.sync_all().unwrap_err();
        assert!(error.to_string().contains("exists already"), "{error}");
        assert_eq!(server.get("new").unwrap(), "old");
        assert_eq!(server.parts_left(), 0);
        file.discard().unwrap();
        drop(file);

        let file = create(&server, &memory, Replace::Tag("\"other\"".to_owned()));
        file.write_at(&bytes(1, len), 0).unwrap();
        let error = file.sync_all().unwrap_err();
        assert!(error.to_string().contains("changed the file"), "{error}");
        assert_eq!(server.get("new").unwrap(), "old");
        drop(file);

        // A second sync replaces what the first wrote, and nothing else.
        let file = create(&server, &memory, Replace::Any);
        file.write_at(&bytes(2, len), 0).unwrap();
        file.sync_all().unwrap();
        server.put("new", "another program's");
        file.write_at(b"more", 0).unwrap();
        file.sync_all().unwrap_err();
        assert_eq!(server.get("new").unwrap(), "another program's");
    }
}

#[test]
fn a_staging_folder_that_is_not_there_is_an_error() {
    let server = S3Server::start();
    let error = NewObject::create_on(
        server.client(),
        &"new".into(),
        Replace::Any,
        "/does/not/exist",
        quick(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("/does/not/exist"), "{error}");
}
