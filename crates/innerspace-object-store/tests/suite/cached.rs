//! An object store whose reads go through the cache.

use std::sync::Arc;
use std::time::Duration;

use innerspace::{MIB, Memory};
use innerspace_object_store::object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, WriteMultipart, path::Path,
};
use innerspace_object_store::{CachedObjectStore, Tier};
use innerspace_test_s3::S3Server;

use crate::common::{bytes, quick};

const LEN: usize = 3_000_001;

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

fn cached(server: &S3Server, memory: &Memory) -> CachedObjectStore {
    CachedObjectStore::new(memory, server.client()).options(quick())
}

#[test]
fn reads_are_those_of_the_store_behind_and_the_second_asks_for_nothing() {
    let server = S3Server::start();
    let data = bytes(1, LEN);
    server.put("data", data.clone());
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let store = cached(&server, &memory).revalidate_after(Duration::from_secs(600));
    run(async {
        let path = Path::from("data");
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == data);
        let before = server.requests();
        let ranges = [0..10, 5_000..2_000_000, 2_999_990..LEN as u64 + 5];
        let got = store.get_ranges(&path, &ranges).await.unwrap();
        for (range, got) in ranges.iter().zip(got) {
            let end = range.end.min(LEN as u64) as usize;
            assert!(got == data[range.start as usize..end]);
        }
        let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(7)));
        let tail = store.get_opts(&path, suffix).await.unwrap();
        assert_eq!(tail.range, LEN as u64 - 7..LEN as u64);
        assert_eq!(tail.bytes().await.unwrap(), data[LEN - 7..]);
        assert_eq!(server.requests(), before);
        assert!(
            store
                .get_range(&path, LEN as u64..LEN as u64 + 1)
                .await
                .is_err()
        );
        assert!(store.get(&Path::from("none")).await.is_err());
    });
    assert!(memory.stats().peak <= 8 * MIB);
}

#[test]
fn changes_are_seen_at_once_through_the_store_and_soon_past_it() {
    let server = S3Server::start();
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tier = Tier::open(folder.path(), 8 * MIB).unwrap();
    let store = Arc::new(cached(&server, &memory).tier(&tier));
    run(async {
        let path = Path::from("data");
        for version in 1..4 {
            store.put(&path, bytes(version, LEN).into()).await.unwrap();
            let got = store.get_range(&path, 1000..2000).await.unwrap();
            assert_eq!(got, bytes(version, LEN)[1000..2000]);
        }
        // The cached version is gone on the server: the read begins again with the new one.
        server.put("data", bytes(9, LEN));
        let got = store
            .get_ranges(&path, std::slice::from_ref(&(2_000_000..2_000_100)))
            .await
            .unwrap();
        assert_eq!(got[0], bytes(9, LEN)[2_000_000..2_000_100]);
        let upload = store.put_multipart(&path).await.unwrap();
        let mut writer = WriteMultipart::new(upload);
        writer.write(&bytes(5, 100));
        writer.finish().await.unwrap();
        assert_eq!(
            store.get(&path).await.unwrap().bytes().await.unwrap(),
            bytes(5, 100)
        );
        store.copy(&path, &Path::from("copy")).await.unwrap();
        store.delete(&path).await.unwrap();
        assert!(store.get(&path).await.is_err());
        let copy = store.get(&Path::from("copy")).await.unwrap();
        assert_eq!(copy.bytes().await.unwrap(), bytes(5, 100));
    });
    assert!(tier.stats().written > 0);
}

#[test]
fn conditions_are_those_of_the_version_that_is_read() {
    let server = S3Server::start();
    server.put("data", bytes(1, 5000));
    let memory = Memory::with_limit(MIB).unwrap();
    let store = cached(&server, &memory).revalidate_after(Duration::ZERO);
    run(async {
        let path = Path::from("data");
        let tag = store.head(&path).await.unwrap().e_tag.unwrap();
        let wanted = |tag: &str| GetOptions::new().with_if_match(Some(tag.to_owned()));
        assert!(store.get_opts(&path, wanted(&tag)).await.is_ok());
        assert!(store.get_opts(&path, wanted("\"other\"")).await.is_err());
        server.put("data", bytes(2, 5000));
        assert!(store.get_opts(&path, wanted(&tag)).await.is_err());
        let got = store.get_range(&path, 0..100).await.unwrap();
        assert_eq!(got, bytes(2, 5000)[..100]);
    });
}
