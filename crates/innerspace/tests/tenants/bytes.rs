//! Bytes of one tenant never reach another: frames, buffers, blocks, tails, messages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use innerspace::store::Store;
use innerspace::{MIB, Map, PAGE_SIZE, Threads};

use crate::world::World;

const SECRET: [u8; 8] = *b"A's own!";

/// A store that counts the secret's copies in the buffers it is given, and fills none of them.
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

// spec: N1
#[test]
fn a_store_sees_nothing_of_others_in_its_buffer_and_shows_nothing() {
    for block in [4096, 64 << 10, 2 * MIB] {
        let world = World::new(16 * MIB, Threads::None);
        let space = world.memory.space_in(&world.a).unwrap();
        let own = space.map(Map::anonymous(3 * MIB)).unwrap();
        let mut accessor = space.accessor();
        let text = SECRET.repeat(PAGE_SIZE / SECRET.len());
        for page in 0..3 * MIB / PAGE_SIZE as u64 {
            accessor
                .write(own + page * PAGE_SIZE as u64, &text)
                .unwrap();
        }
        space.unmap(own, 3 * MIB).unwrap();
        drop((accessor, space));
        let found = Arc::new(AtomicUsize::new(0));
        let spy = Spy {
            found: Arc::clone(&found),
        };
        let options = world.memory.options().block_size(block).group(&world.b);
        let file = options.open(spy).unwrap();
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
}
