//! The trait's defaults, the transfer loops, batches and the sorting of errors.

use super::*;
use crate::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule};

/// A backend with nothing but what it must have.
struct Least(&'static [u8]);

impl Store for Least {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = &self.0[self.0.len().min(offset as usize)..];
        let count = from.len().min(buf.len());
        buf[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }
}

#[test]
fn two_methods_make_a_read_only_store() {
    let store: Box<dyn Store> = Box::new(Least(b"abc"));
    assert!(!store.writable());
    let error = store.write_at(b"x", 0).unwrap_err();
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::ReadOnly);
    assert_eq!(
        StoreErrorKind::of(&store.set_len(0).unwrap_err()),
        StoreErrorKind::ReadOnly
    );
    assert_eq!(
        StoreErrorKind::of(&store.punch(0, 1).unwrap_err()),
        StoreErrorKind::ReadOnly
    );
    store.sync(SyncWhat::All).unwrap();
    assert_eq!(
        (store.next_data(2).unwrap(), store.next_data(3).unwrap()),
        (Some(2), None)
    );
    assert_eq!(
        (store.next_hole(0).unwrap(), store.next_hole(9).unwrap()),
        (3, 9)
    );
    assert_eq!((store.identity(), store.version().unwrap()), (None, None));
    assert_eq!(store.limits(), Limits::default());
    assert_eq!(read_all(&store), b"abc");
}

#[test]
fn short_transfers_and_interruptions_are_retried_and_the_end_is_not() {
    let store = FaultyStore::new(MemoryStore::from_bytes(&pattern(3000, 1)));
    store.add(Rule::new(Fault::Short).times(2));
    store.add(
        Rule::new(Fault::Fail(Failure::Interrupted))
            .on(&[OperationKind::Read])
            .nth(3),
    );
    let mut buf = [0; 4096];
    assert_eq!(read_exact_or_eof(&store, &mut buf, 0).unwrap(), 3000);
    assert_eq!(buf[..3000], pattern(3000, 1));
    // 2048 of 4096, the next half up to the end at 3000, the interruption, then twice nothing more.
    assert_eq!(store.log().iter().filter(|r| r.fault.is_some()).count(), 3);

    store.clear_log();
    store.add(Rule::new(Fault::Short).on(&[OperationKind::Write]).times(3));
    store.add(
        Rule::new(Fault::Fail(Failure::Interrupted))
            .on(&[OperationKind::Write])
            .nth(2),
    );
    write_all_at(&store, &pattern(1000, 2), 500).unwrap();
    assert_eq!(store.inner().to_vec()[500..1500], pattern(1000, 2));
    let writes: Vec<_> = store
        .log()
        .iter()
        .map(|record| (record.len, record.outcome))
        .collect();
    assert_eq!(writes[0], (1000, Ok(500)));
    assert_eq!(writes[1], (500, Ok(250)));
}

#[test]
fn a_store_that_takes_nothing_is_an_error_and_not_a_loop() {
    struct Lazy;
    impl Store for Lazy {
        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }
    }
    let error = write_all_at(&Lazy, b"abc", 1_048_576).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    assert_eq!(
        error.to_string(),
        "the store took 0 of 3 bytes at 1,048,576"
    );
    let error = write_all_vectored_at(&Lazy, &mut [IoSlice::new(b"abc")], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    write_all_vectored_at(&Lazy, &mut [IoSlice::new(&[])], 0).unwrap();
}

#[test]
fn a_short_read_and_a_shrunken_store_are_told_apart() {
    let store = MemoryStore::with_len(1_073_741_824);
    let error = short_read_error(&store, 1_048_576, 4096, 100, 1_073_741_824);
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::ShortRead);
    assert_eq!(
        error.to_string(),
        "wanted 4096 bytes at 1,048,576 and got 100, although the file has 1,073,741,824"
    );
    store.set_len_outside(524_288).unwrap();
    let error = short_read_error(&store, 1_048_576, 4096, 0, 1_073_741_824);
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Shrank);
    assert_eq!(
        error.to_string(),
        "wanted 4096 bytes at 1,048,576 but the file now ends at 524,288 \
         (it was 1,073,741,824 when opened)"
    );
}

#[test]
fn errors_of_the_system_are_sorted() {
    use StoreErrorKind::{Changed, Io, NoSpace, Other, ReadOnly, ShortRead, TimedOut};
    let of = |kind: io::ErrorKind| StoreErrorKind::of(&kind.into());
    assert_eq!(of(io::ErrorKind::StorageFull), NoSpace);
    assert_eq!(of(io::ErrorKind::QuotaExceeded), NoSpace);
    assert_eq!(of(io::ErrorKind::TimedOut), TimedOut);
    assert_eq!(of(io::ErrorKind::ReadOnlyFilesystem), ReadOnly);
    assert_eq!(of(io::ErrorKind::UnexpectedEof), ShortRead);
    assert_eq!(of(io::ErrorKind::NotFound), Other);
    assert_eq!(StoreErrorKind::of(&StoreError::Changed.into()), Changed);
    assert_eq!(StoreErrorKind::of(&StoreError::Device.into()), Io);
    assert!(NoSpace.is_transient() && Io.is_transient() && !Changed.is_transient());
    #[cfg(unix)]
    {
        let of = |number| StoreErrorKind::of(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::EIO), Io);
        assert_eq!(of(libc::ENOSPC), NoSpace);
        assert_eq!(of(libc::EDQUOT), NoSpace);
        assert_eq!(of(libc::EROFS), ReadOnly);
        assert_eq!(of(libc::EINVAL), StoreErrorKind::Unaligned);
        assert_eq!(of(libc::ETIMEDOUT), TimedOut);
    }
}

#[test]
fn a_batch_completes_every_request_once_also_those_a_store_drops() {
    struct Careless(MemoryStore);
    impl Store for Careless {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.read_at(buf, offset)
        }
        fn submit(&self, mut batch: Batch<'_>) {
            // Completes the second from another thread, drops the first, never takes the third.
            let first = batch.take();
            let second = batch.take().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| second.run(&self.0));
            });
            drop(first);
            assert_eq!(batch.remaining(), 1);
        }
    }
    let results = crate::sync::Mutex::new(Vec::new());
    let note = |token: u64, result: io::Result<usize>| {
        results
            .lock()
            .push((token, result.map_err(|error| error.to_string())));
    };
    let (mut a, mut b, mut c) = ([0; 2], [0; 2], [0; 2]);
    let mut batch = Batch::new(&note);
    batch.read(10, &mut a, 0);
    batch.read(11, &mut b, 2);
    batch.read(12, &mut c, 4);
    Careless(MemoryStore::from_bytes(b"abcdef")).submit(batch);
    let dropped = || Err("the store dropped the request without finishing it".to_owned());
    assert_eq!(
        *results.lock(),
        [(11, Ok(2)), (10, dropped()), (12, dropped())]
    );
    assert_eq!((&a, &b, &c), (&[0; 2], b"cd", &[0; 2]));
}

#[test]
fn the_default_batch_reads_and_writes_in_order() {
    let store = Arc::new(MemoryStore::from_bytes(b"abcdef"));
    let results = crate::sync::Mutex::new(Vec::new());
    let note = |token: u64, result: io::Result<usize>| {
        results.lock().push((token, result.unwrap()));
    };
    let (mut before, mut after) = ([0; 3], [0; 9]);
    let mut batch = Batch::new(&note);
    batch.read(1, &mut before, 1);
    batch.write(2, b"XYZ", 1);
    batch.read(3, &mut after, 0);
    let shared: Arc<dyn Store> = store.clone();
    shared.submit(batch);
    assert_eq!(*results.lock(), [(1, 3), (2, 3), (3, 6)]);
    assert_eq!((&before, &after[..6]), (b"bcd", &b"aXYZef"[..]));
}

#[test]
fn a_store_that_says_it_read_more_than_was_asked_is_not_believed() {
    #[derive(Debug)]
    struct Boasts;
    impl Store for Boasts {
        fn len(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }
        fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            Ok(buf.len() + 1)
        }
    }
    let error = read_exact_or_eof(&Boasts, &mut [0; 8], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}
