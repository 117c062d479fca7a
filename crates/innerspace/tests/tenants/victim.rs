//! B: work of every kind inside its `min`, which must always succeed.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::store::{MemoryStore, Store, SyncWhat};
use innerspace::{
    Group, KIB, Map, Memory, PAGE_SIZE, PagedFile, Space, file::FileAccess, space::SpaceOptions,
};

use crate::{BOUND, must};

const PAGE: u64 = PAGE_SIZE as u64;

/// The length of B's file in bytes.
const LEN: u64 = 512 * KIB;

/// The number of pages of a round's anonymous memory.
const OWN: u64 = 32;

/// B's store, which counts its calls.
struct Counted {
    bytes: MemoryStore,
    calls: Arc<AtomicU64>,
}

impl Counted {
    fn bytes(&self) -> &MemoryStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.bytes
    }
}

impl Store for Counted {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes().read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.bytes().write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes().set_len(len)
    }
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.bytes().sync(what)
    }
    fn writable(&self) -> bool {
        true
    }
}

/// B between two rounds of its work.
pub(crate) struct Victim {
    memory: Memory,
    group: Group,
    file: PagedFile,
    space: Space,
    calls: Arc<AtomicU64>,
    round: u64,
}

type Done = Result<(), Box<dyn Error + Send + Sync>>;

impl Victim {
    pub(crate) fn new(memory: &Memory, group: &Group) -> Victim {
        let calls = Arc::new(AtomicU64::new(0));
        let store = Counted {
            bytes: MemoryStore::new(),
            calls: Arc::clone(&calls),
        };
        store.bytes.set_len(LEN).unwrap();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.group(group).name("b").open_store(store).unwrap();
        Victim {
            memory: memory.clone(),
            group: group.clone(),
            file,
            space: memory.create_space_in(group).unwrap(),
            calls,
            round: 0,
        }
    }

    /// Does one round of work. Returns how many calls of B's store it took.
    pub(crate) fn round(&mut self) -> Result<u64, Box<dyn Error + Send + Sync>> {
        self.round += 1;
        let before = self.calls.load(Ordering::Relaxed);
        self.use_file()?;
        self.use_space()?;
        self.use_mapping()?;
        self.use_futures()?;
        self.make_objects()?;
        Ok(self.calls.load(Ordering::Relaxed) - before)
    }

    /// Returns the offset of this round's 16 pages of the file.
    fn place(&self) -> u64 {
        self.round * 16 * PAGE % LEN
    }

    fn use_file(&self) -> Done {
        let at = self.place();
        let bytes = vec![self.round as u8; 16 * PAGE_SIZE];
        self.file.write_at(&bytes, at)?;
        must(self.file.view(at..at + PAGE)?[..] == bytes[..PAGE_SIZE])?;
        self.file.sync_all()?;
        self.file.evict(..)?;
        let mut read = vec![0; 16 * PAGE_SIZE];
        self.file.read_exact_at(&mut read, at)?;
        must(read == bytes)?;
        self.file.punch(at..at + PAGE)?;
        must(self.file.read_to_vec(at..at + PAGE)? == vec![0; PAGE_SIZE])
    }

    fn use_space(&self) -> Done {
        let at = self.space.map(Map::anonymous(OWN * PAGE))?;
        let mut a = self.space.accessor()?;
        for page in 0..OWN {
            a.store(at + page * PAGE, self.round ^ page)?;
        }
        let child = self.space.fork()?;
        a.store(at, 7_u64)?;
        must(child.accessor()?.load::<u64>(at)? == self.round)?;
        let frozen = self.space.freeze()?;
        a.store(at + PAGE, 8_u64)?;
        self.space.restore(&frozen)?;
        must(a.load::<u64>(at + PAGE)? == self.round ^ 1)?;
        self.space.unmap(at, OWN * PAGE)?;
        Ok(())
    }

    fn use_mapping(&self) -> Done {
        let at = self.space.map(Map::file(&self.file).shared().writable())?;
        let mut a = self.space.accessor()?;
        let place = at + self.place() + 2 * PAGE;
        must(a.load::<u8>(place)? == self.round as u8)?;
        a.store(place, !self.round)?;
        self.space.sync(place, 8)?;
        self.space.unmap(at, LEN)?;
        Ok(())
    }

    fn use_futures(&self) -> Done {
        let at = self.place() + 4 * PAGE;
        self.file.evict(at..at + PAGE)?;
        let view = self.file.ready(at..at + PAGE).wait_timeout(BOUND)??;
        must(view[0] == self.round as u8)?;
        drop(view);
        let mut sync = self.file.defer(|file| file.sync_all());
        sync.wait_timeout(BOUND)??;
        let mut call = self.space.defer(|space| space.fork());
        drop(call.wait_timeout(BOUND)??);
        Ok(())
    }

    fn make_objects(&self) -> Done {
        let child = self.group.create_child("b's child", 256 * KIB)?;
        let space = self
            .memory
            .create_space_with(&SpaceOptions::new().group(&child))?;
        let at = space.map(Map::anonymous(8 * PAGE))?;
        space.accessor()?.store(at, 1_u8)?;
        let options = self.memory.file_options().group(&child);
        let other = options.name("b's other").open_store(MemoryStore::new())?;
        drop(other);
        Ok(())
    }
}
