//! Tests of the trait's defaults, the transfer loops, batches and the kinds of errors.

use super::*;
use crate::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule};

/// A backend with only the two required methods.
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
    // The calls return 2048 of 4096 bytes; 952 of the next 1024, because the store ends at 3000;
    // the interruption; and nothing.
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
        "the store wrote 0 of 3 bytes at 1,048,576"
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
    store.set_len_externally(524_288).unwrap();
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
        fn submit(&self, mut batch: Batch) {
            // Completes the second request on another thread, drops the first, and never takes the
            // third.
            let first = batch.take();
            let second = batch.take().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| second.run(&self.0));
            });
            drop(first);
            assert_eq!(batch.remaining(), 1);
        }
    }
    let (done, over) = std::sync::mpsc::channel();
    let mut batch = Batch::new();
    for offset in [0, 2, 4] {
        let done = done.clone();
        batch.read(offset, vec![0; 2], move |bytes, result| {
            let result = result.map_err(|error| error.to_string());
            done.send((offset, bytes, result)).unwrap();
        });
    }
    Careless(MemoryStore::from_bytes(b"abcdef")).submit(batch);
    let dropped = || Err("the store dropped the request without finishing it".to_owned());
    let results: Vec<_> = over.try_iter().collect();
    assert_eq!(
        results,
        [
            (2, b"cd".to_vec(), Ok(2)),
            (0, vec![0; 2], dropped()),
            (4, vec![0; 2], dropped())
        ]
    );
}

#[test]
fn the_default_batch_reads_and_writes_in_order() {
    let store = Arc::new(MemoryStore::from_bytes(b"abcdef"));
    let (done, over) = std::sync::mpsc::channel();
    let mut batch = Batch::new();
    let note = |number: u32| {
        let done = done.clone();
        move |bytes: Vec<u8>, result: io::Result<usize>| {
            done.send((number, bytes, result.unwrap())).unwrap();
        }
    };
    batch.read(1, vec![0; 3], note(1));
    batch.write(1, b"XYZ".to_vec(), note(2));
    batch.read(0, vec![0; 9], note(3));
    let shared: Arc<dyn Store> = store.clone();
    shared.submit(batch);
    let results: Vec<_> = over.try_iter().collect();
    assert_eq!(results[0], (1, b"bcd".to_vec(), 3));
    assert_eq!(results[1], (2, b"XYZ".to_vec(), 3));
    assert_eq!((&results[2].1[..6], results[2].2), (&b"aXYZef"[..], 6));
}

// spec: R13
#[test]
fn a_request_shows_a_store_nothing_old_and_counts_what_it_was_given() {
    struct Looks;
    impl Store for Looks {
        fn len(&self) -> io::Result<u64> {
            Ok(100)
        }
        fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            assert!(buf.iter().all(|byte| *byte == 0), "what was there before");
            Ok(buf.len())
        }
        fn submit(&self, mut batch: Batch) {
            let mut request = batch.take().unwrap();
            assert_eq!((request.len(), request.fill(b"abc")), (8, 3));
            {
                let mut slices = request.unfilled();
                assert!(
                    slices
                        .iter()
                        .all(|slice| slice.iter().all(|byte| *byte == 0))
                );
                slices[0][0] = b'd';
            }
            request.advance(1);
            assert_eq!(request.filled(), 4);
            // The store claims to have filled all of it, but its claim is ignored.
            request.complete(Ok(8));
            batch.take().unwrap().run(self);
        }
    }
    let (done, over) = std::sync::mpsc::channel();
    let mut batch = Batch::new();
    for _ in 0..2 {
        let done = done.clone();
        batch.read(0, vec![0xee; 8], move |bytes, result| {
            done.send((bytes, result.unwrap())).unwrap();
        });
    }
    Looks.submit(batch);
    let results: Vec<_> = over.try_iter().collect();
    assert_eq!((&results[0].0[..4], results[0].1), (&b"abcd"[..], 4));
    assert_eq!(results[1], (vec![0; 8], 8));
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

#[test]
fn a_request_that_wrote_nothing_or_too_much_is_an_error() {
    let completed = |len: usize, count: usize| {
        let (done, over) = std::sync::mpsc::channel();
        let mut batch = Batch::new();
        batch.write(1 << 20, vec![7; len], move |_, result| {
            done.send(result).unwrap();
        });
        batch.take().unwrap().complete(Ok(count));
        over.recv().unwrap()
    };
    assert_eq!(completed(3, 3).unwrap(), 3);
    assert_eq!(completed(3, 1).unwrap(), 1);
    assert_eq!(completed(0, 0).unwrap(), 0);
    let error = completed(3, 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    assert_eq!(
        error.to_string(),
        "the store wrote 0 of 3 bytes at 1,048,576"
    );
    let error = completed(3, 4).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// A store that writes several buffers one by one, with the function for one.
struct OneByOne(MemoryStore);

impl Store for OneByOne {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        for buf in bufs {
            write_all_at(self, buf, offset + done as u64)?;
            done += buf.len();
        }
        Ok(done)
    }
}

#[test]
fn a_store_may_write_several_buffers_with_the_function_for_one() {
    let store = OneByOne(MemoryStore::new());
    let mut bufs = [IoSlice::new(b"abc"), IoSlice::new(b"de")];
    write_all_vectored_at(&store, &mut bufs, 1).unwrap();
    write_all_at(&store, b"f", 6).unwrap();
    assert_eq!(read_all(&store), b"\0abcdef");
}
