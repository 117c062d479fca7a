//! Bugs that the random programs have found, each in a test of its own.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    DaxFile, DaxOpener, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    dax::{DaxDevice, OnShrink},
    file::{FileAccess, FileError},
};

use crate::PAGE;
use crate::notes;

type Work = Box<dyn FnOnce() + Send>;

/// A store that keeps its bytes in another file.
struct Over {
    below: PagedFile,
    /// The file in which each write is logged.
    log: Option<PagedFile>,
    /// Work that the next write does first.
    first: Mutex<Option<Work>>,
}

impl Store for Over {
    fn uses_files(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.below.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.below.read_at(buffer, offset)?)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _at = notes::at(format!("a write of {} bytes at {offset}", bytes.len()));
        let first = self.first.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
        if let Some(log) = &self.log {
            log.append(b"a word")?;
        }
        self.below.write_at(bytes, offset)?;
        Ok(bytes.len())
    }

    fn writable(&self) -> bool {
        true
    }
}

fn memory() -> Memory {
    let options = Memory::builder(MIB).threads(Threads::None);
    options.build().unwrap()
}

fn open(memory: &Memory, store: impl Store) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(store).unwrap()
}

fn over(below: &PagedFile, log: Option<&PagedFile>) -> Arc<Over> {
    Arc::new(Over {
        below: below.clone(),
        log: log.cloned(),
        first: Mutex::default(),
    })
}

/// Does `work` when the only memory available is in dirty pages of the file above.
fn when_full(memory: &Memory, above: &PagedFile, work: impl FnOnce()) {
    when_full_but_for(12, memory, above, work);
}

fn when_full_but_for(dirty: usize, memory: &Memory, above: &PagedFile, work: impl FnOnce()) {
    above.write_at(&vec![5; dirty * PAGE_SIZE], 0).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    let root = memory.root_group();
    // The rest of the memory is private.
    let most = root.stats().max.unwrap().0 * PAGE;
    let mut a = space.accessor().unwrap();
    for page in 0.. {
        if root.usage() + 2 * PAGE > most || a.store(at + page * PAGE, 1_u8).is_err() {
            break;
        }
    }
    work();
    drop((a, space));
    let mut found = vec![0; dirty * PAGE_SIZE];
    above.sync_all().unwrap();
    above.read_exact_at(&mut found, 0).unwrap();
    assert!(found.iter().all(|byte| *byte == 5));
    memory.validate();
}

#[test]
fn an_append_that_wants_memory_does_not_wait_for_a_store_that_appends_there() {
    notes::watched(0, || {
        let memory = memory();
        let base = open(&memory, MemoryStore::new());
        let log = open(&memory, MemoryStore::new());
        let above = open(&memory, over(&base, Some(&log)));
        when_full(&memory, &above, || {
            for _ in 0..30 {
                log.append(&[1; PAGE_SIZE]).unwrap();
            }
        });
    });
}

#[test]
fn a_punch_that_wants_memory_does_not_wait_for_a_store_that_writes_there() {
    notes::watched(0, || {
        let memory = memory();
        let bytes = MemoryStore::from_bytes(&[7; 80 * PAGE_SIZE]);
        let base = open(&memory, bytes);
        let above = open(&memory, over(&base, None));
        when_full(&memory, &above, || {
            for page in 50..80 {
                base.punch(page * PAGE + 1..page * PAGE + 2).unwrap();
            }
        });
        for page in 50..80 {
            let view = base.view(page * PAGE..page * PAGE + 3).unwrap();
            assert_eq!(view[..], [7, 0, 7]);
        }
    });
}

/// More dirty pages than the set-aside memory is enough to write.
const MUCH: usize = 90;
/// The pages after those, which are in the store.
const READ: usize = 20;

/// Does `work` with a file in another one, in a memory that is full.
fn in_a_full_memory(work: impl FnOnce(&PagedFile, &PagedFile) + Send + 'static) {
    notes::watched(0, || {
        let memory = memory();
        let bytes = MemoryStore::from_bytes(&[7; (MUCH + READ) * PAGE_SIZE]);
        let base = open(&memory, bytes);
        let above = open(&memory, over(&base, None));
        above.write_at(&[5; MUCH * PAGE_SIZE], 0).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::anonymous(MIB)).unwrap();
        let root = memory.root_group();
        let most = root.stats().max.unwrap().0 * PAGE;
        let mut a = space.accessor().unwrap();
        for page in 0.. {
            if root.usage() + 2 * PAGE > most || a.store(at + page * PAGE, 1_u8).is_err() {
                break;
            }
        }
        work(&above, &base);
        drop((a, space));
        memory.validate();
    });
}

#[test]
fn a_sync_through_two_files_makes_room_for_the_one_below() {
    in_a_full_memory(|above, base| {
        above.sync_all().unwrap();
        let mut found = vec![0; MUCH * PAGE_SIZE];
        base.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 5));
    });
}

#[test]
fn a_read_through_two_files_makes_room_for_the_one_below() {
    in_a_full_memory(|above, _| {
        let offset = MUCH as u64 * PAGE;
        for page in 0..READ as u64 {
            let mut bytes = [0; PAGE_SIZE];
            above
                .read_exact_at(&mut bytes, offset + page * PAGE)
                .unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    });
}

/// Creates a file, one in it, and one in that. The last has unwritten data when the middle one
/// writes and `first` is called.
fn while_written(first: impl FnOnce(&Memory, &mut Option<PagedFile>) + Send + 'static) {
    const DIRTY: usize = 70;
    notes::watched(0, || {
        let memory = memory();
        let group = memory.create_group("top", MIB).unwrap();
        let base = open(&memory, MemoryStore::new());
        let store = over(&base, None);
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let middle = options.open_store(store.clone()).unwrap();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let top = options
            .group(&group)
            .open_store(over(&middle, None))
            .unwrap();
        top.write_at(&[3; DIRTY * PAGE_SIZE], 0).unwrap();
        middle.write_at(&[4; PAGE_SIZE], 100 * PAGE).unwrap();
        let top = Arc::new(Mutex::new(Some(top)));
        let (inside, its) = (memory.clone(), top.clone());
        let work = move || first(&inside, &mut its.lock().unwrap());
        *store.first.lock().unwrap() = Some(Box::new(work));
        middle.sync_all().unwrap();
        assert!(store.first.lock().unwrap().is_none());
        let top = top.lock().unwrap().take();
        if let Some(top) = top {
            top.sync_all().unwrap();
        }
        memory.tick();
        let errors = memory.take_errors();
        assert!(errors.is_empty(), "{errors:?}");
        let mut found = [0; DIRTY * PAGE_SIZE];
        middle.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 3));
        memory.validate();
    });
}

#[test]
fn a_tick_from_a_store_writes_nothing_that_is_stored_above_it() {
    while_written(|memory, _| memory.tick());
}

#[test]
fn a_file_that_goes_in_a_call_of_a_store_below_it_is_closed_after_it() {
    while_written(|_, top| drop(top.take()));
}

#[test]
fn who_makes_room_in_a_store_writes_nothing_that_is_stored_above_it() {
    while_written(|memory, top| {
        let group = top.as_ref().unwrap().group();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let other = options.group(group).open_store(MemoryStore::new()).unwrap();
        assert!(group.set_max(20 * PAGE).is_err(), "it is unwritten");
        // Nothing is granted beyond it either.
        let refused = other.write_at(b"another word", 0).unwrap_err();
        assert!(matches!(refused, FileError::Limit(_)), "{refused}");
        group.set_max(MIB).unwrap();
    });
}

#[test]
fn a_future_is_served_after_a_call_of_its_files_store_that_ticks() {
    notes::watched(0, || {
        let memory = memory();
        let base = open(&memory, MemoryStore::new());
        let store = over(&base, None);
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let middle = options.open_store(store.clone()).unwrap();
        middle.write_at(&[6; 100], 0).unwrap();
        middle.sync_all().unwrap();
        base.sync_all().unwrap();
        assert!(middle.evict(..).unwrap().0 > 0 && base.evict(..).unwrap().0 > 0);
        middle.write_at(&[7; 100], 5 * PAGE).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut wanted = pin!(middle.ready(0..10));
        assert!(wanted.as_mut().poll(&mut context).is_pending());
        let (inside, below) = (memory.clone(), base.clone());
        *store.first.lock().unwrap() = Some(Box::new(move || {
            inside.tick();
            // A real waker would be of no use: no executor polls this future again.
            let mut context = Context::from_waker(Waker::noop());
            let polled = pin!(below.ready(0..10)).poll(&mut context);
            assert!(matches!(polled, Poll::Ready(Ok(view)) if view[..] == [6; 10]));
            let written =
                pin!(below.defer(move |file| file.write_at(&[8], 9 * PAGE))).poll(&mut context);
            assert!(matches!(written, Poll::Ready(Ok(()))));
        }));
        middle.sync_all().unwrap();
        assert!(store.first.lock().unwrap().is_none());
        memory.tick();
        let served = wanted.as_mut().poll(&mut context);
        assert!(matches!(served, Poll::Ready(Ok(view)) if view[..] == [6; 10]));
    });
}

/// A store that keeps its bytes in a direct file.
struct OverDirect(DaxFile);

impl Store for OverDirect {
    fn uses_files(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset).map_err(io::Error::other)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn writable(&self) -> bool {
        true
    }
}

fn on_a_device(options: DaxOpener) -> DaxFile {
    let device = DaxDevice::memory(4 * MIB).unwrap();
    options.create_on(&device, "direct").unwrap()
}

/// Does `work` in a group whose only memory is in dirty pages of the direct file that `open`
/// creates.
fn when_full_above_direct(
    open: impl FnOnce(DaxOpener) -> DaxFile,
    work: impl FnOnce(&Memory, &DaxFile),
) {
    notes::watched(0, || {
        let memory = memory();
        let group = memory.create_group("both", MIB).unwrap();
        let direct = memory.dax_options().group(&group);
        let direct = open(direct.access(FileAccess::ReadWrite));
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let above = options.group(&group).open_store(OverDirect(direct.clone()));
        let above = above.unwrap();
        above.write_at(&[5; 12 * PAGE_SIZE], 0).unwrap();
        group.set_max(group.usage()).unwrap();
        work(&memory, &direct);
        group.set_max(MIB).unwrap();
        above.sync_all().unwrap();
        let mut found = vec![0; 12 * PAGE_SIZE];
        direct.read_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 5));
        memory.validate();
    });
}

#[test]
fn a_direct_write_that_wants_memory_does_not_wait_for_a_store_that_writes_there() {
    when_full_above_direct(on_a_device, |_, direct| {
        direct.write_at(&[1; 10], 100 * PAGE).unwrap();
    });
}

#[test]
fn a_pin_that_wants_memory_does_not_wait_for_a_store_that_writes_there() {
    when_full_above_direct(on_a_device, |_, direct| {
        direct.set_len(700 * PAGE).unwrap();
        let pin = direct.pin(600 * PAGE..600 * PAGE + 10).unwrap();
        drop(pin);
    });
}

#[test]
fn a_guarded_store_that_wants_memory_does_not_wait_for_a_store_that_writes_there() {
    let folder = tempfile::tempdir().unwrap();
    let guarded = |options: DaxOpener| {
        let options = options.on_shrink(OnShrink::Error);
        options.create(folder.path().join("direct")).unwrap()
    };
    when_full_above_direct(guarded, |memory, direct| {
        direct.set_len(700 * PAGE).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::dax(direct).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at + 600 * PAGE, 8_u8).unwrap();
        assert_eq!(a.load(at + 600 * PAGE), Ok(8_u8));
    });
}

#[test]
fn an_append_to_a_file_in_a_file_comes_whole() {
    notes::watched(0, || {
        let memory = memory();
        let base = open(&memory, MemoryStore::new());
        let above = open(&memory, over(&base, None));
        when_full(&memory, &above, || {
            for number in 1..=20 {
                let before = above.len();
                let bytes = [number; 5 * PAGE_SIZE];
                assert_eq!(above.append(&bytes).unwrap(), before);
                assert_eq!(above.len(), before + bytes.len() as u64);
                let mut found = [0; 5 * PAGE_SIZE];
                above.read_exact_at(&mut found, before).unwrap();
                assert_eq!(found, bytes);
            }
        });
    });
}

#[test]
fn a_limit_that_room_is_made_for_is_no_failure() {
    notes::watched(0, || {
        let memory = memory();
        let base = open(&memory, MemoryStore::new());
        let log = open(&memory, MemoryStore::new());
        let above = open(&memory, over(&base, Some(&log)));
        // What is set aside is enough to write as much.
        when_full_but_for(3, &memory, &above, || {
            let count = || {
                (
                    memory.root_group().events().oom,
                    memory.stats().totals.limit_error,
                )
            };
            let before = count();
            for _ in 0..30 {
                log.append(&[1; PAGE_SIZE]).unwrap();
            }
            assert_eq!(count(), before);
        });
    });
}

#[test]
fn a_store_in_a_full_memory_is_written_through_though_files_there_are_stored_in_files() {
    notes::watched(0, || {
        let (near, far) = (memory(), memory());
        let (below_near, below_far) = (
            open(&near, MemoryStore::new()),
            open(&far, MemoryStore::new()),
        );
        let in_near = open(&far, over(&below_near, None));
        let in_far = open(&near, over(&below_far, None));
        in_far.write_at(&[6; 20 * PAGE_SIZE], 0).unwrap();
        when_full(&far, &in_near, || in_far.sync_all().unwrap());
        let mut found = [0; 20 * PAGE_SIZE];
        below_far.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 6));
        near.validate();
    });
}

/// A store that keeps written bytes in private memory.
struct InSpace {
    space: Space,
    at: VirtAddr,
}

impl Store for InSpace {
    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut a = self.space.accessor()?;
        for page in 0..bytes.len() as u64 / PAGE {
            let stored = a.store(self.at + offset + page * PAGE, 7_u8);
            stored.map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_limit_of_another_memory_holds_for_a_store_also_where_files_were_passed_over() {
    const MAX: u64 = 16;
    for beside in [false, true] {
        let (near, far) = (memory(), memory());
        let group = far.create_group("small", MAX * PAGE).unwrap();
        let below = open(&near, MemoryStore::new());
        let options = far
            .file_options()
            .access(FileAccess::ReadWrite)
            .group(&group);
        let passed_over = options.open_store(over(&below, None)).unwrap();
        if beside {
            passed_over.write_at(&[1; PAGE_SIZE], 0).unwrap();
        }
        let space = far.create_space_in(&group).unwrap();
        let at = space.map(Map::anonymous(MIB)).unwrap();
        let file = open(&near, InSpace { space, at });
        for part in 0..4 {
            file.write_at(&[1; 16 * PAGE_SIZE], part * 16 * PAGE)
                .unwrap();
            let _ = file.sync_data();
        }
        assert!(
            group.usage() <= MAX * PAGE,
            "{} pages",
            group.usage() / PAGE
        );
        assert!(group.events().oom > 0);
        file.discard().unwrap();
    }
}
