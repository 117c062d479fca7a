//! Opening under random schedules: a store is opened and closed again and again.

use std::io;

use super::{assert_nothing_left, explore, memory};
use crate::Memory;
use crate::cache::FileAccess;
use crate::store::{Identity, MemoryStore, Store};
use crate::sync::{Arc, thread};

/// A store that answers so slowly that others may open and drop it meanwhile.
struct Slow(Arc<MemoryStore>, u32);

impl Slow {
    fn dawdle(&self) {
        (0..self.1).for_each(|_| thread::yield_now());
    }
}

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        let len = self.0.len();
        self.dawdle();
        len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.dawdle();
        self.0.write_at(buf, offset)
    }

    fn writable(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.0.identity()
    }
}

/// Opens the store, appends to it, and drops it; other stores enter the table meanwhile.
fn add(memory: &Memory, bytes: &Arc<MemoryStore>, slowness: u32) {
    for _ in 0..2 {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(Slow(bytes.clone(), slowness)).unwrap();
        file.append(b"0123456789").unwrap();
        drop(file);
        drop(
            memory
                .file_options()
                .open_store(MemoryStore::new())
                .unwrap(),
        );
    }
}

// spec: P27
#[test]
fn a_store_that_is_open_while_another_asks_it_loses_nothing() {
    explore(|| {
        let memory = memory();
        let bytes = Arc::new(MemoryStore::new());
        let adding = thread::spawn({
            let (memory, bytes) = (memory.clone(), bytes.clone());
            move || add(&memory, &bytes, 600)
        });
        add(&memory, &bytes, 0);
        adding.join().unwrap();
        assert_eq!(bytes.len().unwrap(), 40, "a file began with an old length");
        assert_nothing_left(memory);
    });
}
