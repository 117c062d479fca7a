//! Many reads in one call: they return the same bytes as single reads, and put their misses in one
//! batch.

use std::io;
use std::sync::{Arc, Mutex};

use innerspace::store::{Batch, MemoryStore, Store};
use innerspace::{
    KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr, space::FaultKind,
};

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 256;

/// A store that notes how many requests came together.
struct Noting {
    store: MemoryStore,
    together: Mutex<Vec<usize>>,
}

impl Store for Noting {
    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.together.lock().unwrap().push(1);
        self.store.read_at(buffer, offset)
    }

    fn submit(&self, mut batch: Batch) {
        let mut requests = 0;
        while let Some(request) = batch.take() {
            requests += 1;
            request.run(&self.store);
        }
        self.together.lock().unwrap().push(requests);
    }
}

fn opened(limit: u64) -> (Memory, PagedFile, Arc<Noting>) {
    let options = Memory::builder(limit).threads(Threads::None);
    let memory: Memory = options.build().unwrap();
    let store = MemoryStore::new();
    for word in 0..PAGES * PAGE / 8 {
        store.write_at(&word.to_le_bytes(), word * 8).unwrap();
    }
    let store = Arc::new(Noting {
        store,
        together: Mutex::default(),
    });
    let file = memory.file_options().open_store(store.clone()).unwrap();
    (memory, file, store)
}

fn mapped(limit: u64) -> (Memory, Space, VirtAddr, Arc<Noting>) {
    let (memory, file, store) = opened(limit);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    store.together.lock().unwrap().clear();
    (memory, space, at, store)
}

/// Reads a word of each of these pages in one call, and checks it.
fn gather(space: &Space, at: VirtAddr, pages: &[u64]) {
    let mut words = vec![[0_u8; 8]; pages.len()];
    let buffers = words.iter_mut().map(|word| &mut word[..]);
    let places = pages.iter().map(|page| at + page * PAGE + 16);
    let mut reads: Vec<_> = places.zip(buffers).collect();
    space.accessor().unwrap().gather(&mut reads).unwrap();
    for (page, word) in pages.iter().zip(words) {
        assert_eq!(u64::from_le_bytes(word), page * 512 + 2);
    }
}

#[test]
fn more_than_there_is_memory_for_is_read_once() {
    let (_memory, space, at, store) = mapped(512 * KIB);
    let all: Vec<u64> = (0..PAGES).collect();
    gather(&space, at, &all);
    let together = store.together.lock().unwrap();
    assert!(
        together.iter().sum::<usize>() < all.len() / 4,
        "{together:?}"
    );
}

#[test]
fn misses_that_lie_apart_are_one_batch() {
    let (_memory, space, at, store) = mapped(8 * MIB);
    let pages: Vec<u64> = (0..32).map(|i| (i * 97 + 5) % PAGES).collect();
    gather(&space, at, &pages);
    assert_eq!(*store.together.lock().unwrap(), [32]);
    gather(&space, at, &pages);
    assert_eq!(store.together.lock().unwrap().len(), 1, "all in memory");
    let all: Vec<u64> = (0..PAGES).collect();
    gather(&space, at, &all);
    let together = store.together.lock().unwrap();
    // Neighbours are one request, and the pages between two requests are cached.
    assert!(together[1..].iter().sum::<usize>() <= 40, "{together:?}");
}

#[test]
fn neighbours_are_one_request_in_whatever_order_they_are_mapped() {
    let (memory, file, store) = opened(8 * MIB);
    let space = memory.create_space().unwrap();
    let mut at = [(); 2].map(|()| space.map(Map::file(&file)).unwrap());
    at.sort_unstable();
    store.together.lock().unwrap().clear();
    let mut words = [[0_u8; 8]; 3];
    let [first, second, third] = &mut words;
    let mut reads = [
        (at[0] + 8 * PAGE, &mut first[..]),
        (at[1] + 7 * PAGE, &mut second[..]),
        (at[1] + 8 * PAGE, &mut third[..]),
    ];
    space.accessor().unwrap().gather(&mut reads).unwrap();
    assert_eq!(
        words.map(u64::from_le_bytes),
        [8 * 512, 7 * 512, 8 * 512],
        "the first words of the pages"
    );
    assert_eq!(*store.together.lock().unwrap(), [1]);
}

#[test]
fn where_there_is_no_room_the_bytes_are_right_all_the_same() {
    let (memory, space, at, _store) = mapped(512 * KIB);
    let pages: Vec<u64> = (0..PAGES).map(|i| (i * 97 + 5) % PAGES).collect();
    gather(&space, at, &pages);
    gather(&space, at, &pages);
    memory.validate();
}

#[test]
fn the_first_byte_that_cannot_be_read_is_named_and_all_before_it_is_there() {
    let (_memory, space, at, _store) = mapped(8 * MIB);
    space.unmap(at + 2 * PAGE, PAGE).unwrap();
    let mut buffers = [[0_u8; 16]; 3];
    let [first, second, third] = &mut buffers;
    let across = VirtAddr(at.0 + 2 * PAGE - 8);
    let mut reads = [
        (at + 8, &mut first[..]),
        (across, &mut second[..]),
        (at + 5 * PAGE, &mut third[..]),
    ];
    let fault = space.accessor().unwrap().gather(&mut reads).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    assert_eq!(fault.address(), at + 2 * PAGE);
    assert_eq!(first[..8], 1_u64.to_le_bytes());
    assert_eq!(second[..8], 1023_u64.to_le_bytes());
    assert_eq!(*third, [0; 16]);
    assert_eq!(space.accessor().unwrap().gather(&mut []), Ok(()));
}
