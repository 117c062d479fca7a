//! Bytes of one tenant never reach another: frames, buffers, blocks, tails, messages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use innerspace::store::{Batch, Store};
use innerspace::{MIB, Map, PAGE_SIZE, Threads};

use crate::world::World;

const SECRET: [u8; 8] = *b"A's own!";

/// A store that counts the secret's copies in the buffers it is given, and fills none of them.
#[derive(Default)]
struct Spy {
    found: Arc<AtomicUsize>,
}

impl Store for Spy {
    fn len(&self) -> io::Result<u64> {
        Ok(8 * MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        let found = buf.chunks(SECRET.len()).filter(|&b| b == SECRET).count();
        self.found.fetch_add(found, Ordering::Relaxed);
        Ok(buf.len())
    }
}

/// The same store in completion form, which also looks at the memory of requests.
struct SpyOnRequests(Spy);

impl Store for SpyOnRequests {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn submit(&self, mut batch: Batch) {
        while let Some(mut request) = batch.take() {
            let mut len = 0;
            for mut piece in request.unfilled() {
                len += self.0.read_at(&mut piece, 0).unwrap();
            }
            request.advance(len);
            request.complete(Ok(len));
        }
    }
}

/// The bytes that A writes: nearly all of the memory, so that no frame that B gets is a fresh one.
const WRITTEN: u64 = 14 * MIB;

/// Leaves A's secret in the memory's free frames. Then B reads a file over this store.
fn look(store: impl Store, found: &AtomicUsize, block: u64) {
    let world = World::new(16 * MIB, Threads::None);
    world.a.set_max(15 * MIB).unwrap();
    let space = world.memory.create_space_in(&world.a).unwrap();
    let own = space.map(Map::anonymous(WRITTEN)).unwrap();
    let mut accessor = space.accessor().unwrap();
    let text = SECRET.repeat(PAGE_SIZE / SECRET.len());
    for page in 0..WRITTEN / PAGE_SIZE as u64 {
        let at = own + page * PAGE_SIZE as u64;
        accessor.write(at, &text).unwrap();
    }
    space.unmap(own, WRITTEN).unwrap();
    drop((accessor, space));
    let options = world
        .memory
        .file_options()
        .block_size(block)
        .group(&world.b);
    let file = options.open_store(store).unwrap();
    let mut bytes = vec![0; MIB as usize];
    for at in (0..8).map(|part| part * MIB) {
        let read = file.read_at(&mut bytes, at).unwrap();
        assert_eq!(read, bytes.len());
        assert!(bytes.iter().all(|&byte| byte == 0), "blocks of {block}");
        let view = file.view(at..at + 4096).unwrap();
        assert!(view.iter().all(|&byte| byte == 0), "blocks of {block}");
    }
    assert_eq!(found.load(Ordering::Relaxed), 0, "blocks of {block}");
}

const BLOCKS: [u64; 3] = [4096, 64 << 10, 2 * MIB];

// spec: N1
#[test]
fn a_store_sees_nothing_of_others_in_its_buffer_and_shows_nothing() {
    for block in BLOCKS {
        let spy = Spy::default();
        let found = Arc::clone(&spy.found);
        look(spy, &found, block);
    }
}

// spec: N1
#[test]
fn a_store_sees_nothing_of_others_in_what_a_request_lends() {
    for block in BLOCKS {
        let spy = Spy::default();
        let found = Arc::clone(&spy.found);
        look(SpyOnRequests(spy), &found, block);
    }
}
