//! Stores: those that the library has, and the requests that it hands to A's own.

use std::io::Write;
use std::sync::mpsc::channel;

use innerspace::store::{
    Batch, CacheMode, FileAccess, FileLock, FileOptions, FileStore, MemoryStore, Store,
};

use super::{Arguments, Entry, calls};
use crate::held::Held;

const ACCESSES: [FileAccess; 2] = [FileAccess::ReadOnly, FileAccess::ReadWrite];

/// One request to read, whose result is waited for.
fn with_request(
    x: &mut Arguments,
    end: impl FnOnce(innerspace::store::Request),
) -> std::io::Result<usize> {
    let (done, is_done) = channel();
    let mut batch = Batch::new();
    batch.read(x.number(), vec![0; x.len() + 1], move |_, result| {
        let _ = done.send(result);
    });
    end(batch.take().expect("one was added"));
    is_done.recv().expect("a request is completed once")
}

calls! {
    MemoryStore {
        new: |h, _| h.file_of(h.options().open_store(MemoryStore::new())?);
        with_len: |h, x| h.file_of(h.options().open_store(MemoryStore::with_len(x.number() >> 1))?);
        from_bytes: |h, x| h.file_of(h.options().open_store(MemoryStore::from_bytes(&x.buffer()))?);
        counts: |_, _| MemoryStore::new().counts();
        to_vec: |_, x| MemoryStore::from_bytes(&x.buffer()).to_vec();
        try_to_vec: |_, _| MemoryStore::with_len(1 << 60).try_to_vec()?;
        resident_bytes: |_, x| MemoryStore::from_bytes(&x.buffer()).resident_bytes();
        change_externally: |h, x| {
            let store = std::sync::Arc::new(MemoryStore::with_len(1 << 20));
            let file = h.options().open_store(store.clone())?;
            file.read_at(&mut x.buffer(), x.below(1 << 20))?;
            store.change_externally(&x.buffer(), x.below(1 << 20))?;
            h.file_of(file)
        };
        set_len_externally: |h, x| {
            let store = std::sync::Arc::new(MemoryStore::with_len(1 << 20));
            h.file_of(h.options().open_store(store.clone())?);
            store.set_len_externally(x.below(1 << 20))?
        };
        copy_of: |_, x| MemoryStore::copy_of(&MemoryStore::from_bytes(&x.buffer()))?;
    }
    FileStore {
        open: |h, x| h.file_of(h.options().open_store(FileStore::open(h.path(x))?)?);
        open_rw: |h, x| h.file_of(h.options().open_store(FileStore::open_rw(h.path(x))?)?);
        create: |h, x| h.file_of(h.options().open_store(FileStore::create(h.path(x))?)?);
        identify: |h, x| FileStore::identify(h.path(x))?;
        cache_mode: |h, x| FileStore::open(h.path(x))?.cache_mode();
        engine: |h, x| FileStore::open(h.path(x))?.engine();
        access: |h, x| FileStore::open_rw(h.path(x))?.access();
    }
    FileOptions {
        access: |h, x| {
            let store = FileOptions::new().access(x.one_of(&ACCESSES)).open(h.path(x))?;
            h.file_of(h.options().open_store(store)?)
        };
        create: |h, x| h.file_of(h.options().open_store(FileOptions::new().create(h.path(x))?)?);
        create_new: |h, x| {
            let store = FileOptions::new().create_new(h.path(x))?;
            h.file_of(h.options().open_store(store)?)
        };
        open_or_create: |h, x| {
            let store = FileOptions::new().open_or_create(h.path(x))?;
            h.file_of(h.options().open_store(store)?)
        };
        cache_mode: |h, x| {
            let options = FileOptions::new().cache_mode(CacheMode::Kernel);
            h.file_of(h.options().open_store(options.open(h.path(x))?)?)
        };
        open: |h, x| h.file_of(h.options().open_store(FileOptions::new().open(h.path(x))?)?);
        open_file: |h, x| {
            let file = std::fs::File::open(h.path(x))?;
            h.file_of(h.options().open_store(FileOptions::new().open_file(file)?)?)
        };
        lock: |h, x| {
            let lock = x.one_of(&[FileLock::None, FileLock::Shared, FileLock::Exclusive]);
            h.file_of(h.options().open_store(FileOptions::new().lock(lock).open(h.path(x))?)?)
        };
    }
    Batch {
        call: |_, x| {
            let mut batch = Batch::new();
            batch.read(x.number(), x.buffer(), |_, _| ());
            batch.call(&MemoryStore::from_bytes(&x.buffer()))
        };
        take: |_, x| {
            let mut batch = Batch::new();
            batch.write(x.number(), x.buffer(), |_, _| ());
            drop(batch.take())
        };
        read: |_, x| {
            let mut batch = Batch::new();
            batch.read(x.number(), x.buffer(), |_, _| ());
            MemoryStore::from_bytes(&x.buffer()).submit(batch)
        };
        write: |_, x| {
            let mut batch = Batch::new();
            batch.write(x.below(1 << 20), x.buffer(), |_, _| ());
            MemoryStore::from_bytes(&x.buffer()).submit(batch)
        };
        remaining: |_, x| {
            let mut batch = Batch::new();
            batch.read(x.number(), x.buffer(), |_, _| ());
            batch.remaining()
        };
    }
    Request {
        operation: |_, x| with_request(x, |request| { let _ = request.operation(); });
        offset: |_, x| with_request(x, |request| { let _ = request.offset(); });
        len: |_, x| with_request(x, |request| assert!(request.len() > 0))?;
        filled: |_, x| with_request(x, |request| assert_eq!(request.filled(), 0))?;
        fill: |_, x| with_request(x, |mut request| {
            request.fill(&[1; 5]);
            request.fill(&[2; 70_000]);
            request.complete(Ok(usize::MAX));
        })?;
        unfilled: |_, x| with_request(x, |mut request| {
            request.fill(&[1]);
            if let Some(piece) = request.unfilled().first_mut() {
                let _ = (&mut **piece).write(&[3; 9]);
            }
            request.complete(Ok(0));
        })?;
        advance: |_, x| with_request(x, |mut request| {
            request.unfilled();
            request.advance(1);
            request.complete(Ok(0));
        })?;
        complete: |_, x| with_request(x, |request| request.complete(Ok(usize::MAX)))?;
        run: |_, x| with_request(x, |request| request.run(&MemoryStore::from_bytes(&[1; 9])))?;
        bytes: |_, x| {
            let mut batch = Batch::new();
            batch.write(x.number(), x.buffer(), |_, _| ());
            batch.take().map(|request| request.bytes().len())
        };
    }
}
