//! Futures of spaces: waits for pages, and deferred calls.

mod devices;

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Task, Threads, VirtAddr,
    file::FileAccess,
    space::{
        AccessKind, Advice, AtFork, Device, DeviceError, Fault, FaultKind, Protection, Remap,
        SpaceError,
    },
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory(limit: u64) -> Memory {
    let options = Memory::builder(limit).threads(Threads::None);
    options.build().unwrap()
}

/// Counts wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future>(future: Pin<&mut F>, bell: &Arc<Bell>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(bell.clone())))
}

/// Returns the result of a future that has to wait for one tick.
#[track_caller]
fn after_a_tick<F: Future>(memory: &Memory, future: F) -> F::Output {
    let bell = Arc::new(Bell::default());
    let mut future = pin!(future);
    assert!(poll(future.as_mut(), &bell).is_pending());
    assert!(poll(future.as_mut(), &bell).is_pending());
    memory.tick();
    assert_eq!(bell.rung(), 1);
    match poll(future, &bell) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a tick does it"),
    }
}

/// Returns the result of a future that need not wait.
#[track_caller]
fn at_once<F: Future>(future: F) -> F::Output {
    match poll(pin!(future), &Arc::new(Bell::default())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("there is nothing to wait for"),
    }
}

/// Creates a file of 16 pages, page n full of n + 1, and a shared mapping of it.
fn mapped(memory: &Memory) -> (PagedFile, Space, VirtAddr) {
    let bytes: Vec<u8> = (0..16 * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(MemoryStore::from_bytes(&bytes)).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    space.advise(at, 16 * PAGE, Advice::Random).unwrap();
    (file, space, at)
}

// spec: P29, P31
#[test]
fn pages_that_would_block_are_there_after_a_tick() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let mut a = space.accessor().unwrap();
    assert!(
        a.try_load::<u64>(at + (2 * PAGE - 4))
            .unwrap_err()
            .would_block()
    );
    after_a_tick(
        &memory,
        space.ready(at + (2 * PAGE - 4), 8, AccessKind::Load),
    )
    .unwrap();
    assert_eq!(
        file.stats().filled,
        2,
        "both pages of the value, and no other"
    );
    assert_eq!(
        a.try_load::<u64>(at + (2 * PAGE - 4)),
        Ok(0x0303_0303_0202_0202)
    );
    assert_eq!(file.stats().dirty.0, 0);
    at_once(space.ready(at + PAGE, 2 * PAGE, AccessKind::Load)).unwrap();

    after_a_tick(&memory, space.ready(at + 5 * PAGE, 1, AccessKind::Store)).unwrap();
    assert_eq!(file.stats().dirty.0, 1);
    assert_eq!(a.try_store(at + 5 * PAGE, 50_u8), Ok(()));
    at_once(space.ready(at, 0, AccessKind::Load)).unwrap();
    drop(a);
    memory.validate();
}

#[test]
fn what_takes_no_waiting_is_had_at_the_first_poll() {
    let memory = memory(8 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    at_once(space.ready(at, 64 * PAGE, AccessKind::Load)).unwrap();
    assert_eq!(space.stats().pages.zero.0, 64);
    at_once(space.ready(at, 64 * PAGE, AccessKind::Store)).unwrap();
    assert_eq!(space.stats().pages.own.0, 64);
}

/// A device whose loads return zeros.
struct Zeros;

impl Device for Zeros {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0);
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn a_device_has_nothing_to_wait_for_and_what_follows_is_waited_for() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let before = VirtAddr(at.0 - PAGE);
    space.map(Map::device(Zeros, PAGE).at(before)).unwrap();
    at_once(space.ready(before, PAGE, AccessKind::Load)).unwrap();
    assert_eq!(space.accessor().unwrap().try_load::<u8>(before), Ok(0));
    after_a_tick(&memory, space.ready(before, 2 * PAGE, AccessKind::Load)).unwrap();
    assert_eq!(file.stats().filled, 1);
}

// spec: P29
#[test]
fn whatever_would_block_can_be_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, [3; 2 * PAGE_SIZE]).unwrap();
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let mut a = space.accessor().unwrap();
    let mut store = |at: VirtAddr| {
        assert!(a.try_store(at, 9_u8).unwrap_err().would_block());
        after_a_tick(&memory, space.ready(at, 1, AccessKind::Store)).unwrap();
        assert_eq!(a.try_store(at, 9_u8), Ok(()));
    };
    // A store to a viewed block would block.
    let view = file.view(..PAGE).unwrap();
    store(at);
    assert_eq!(view[0], 1);
    // So would a store to a hole.
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let holes = options.open_store(MemoryStore::with_len(PAGE)).unwrap();
    store(space.map(Map::file(&holes).shared().writable()).unwrap());
    // So would a store to a direct access file.
    let options = memory.dax_options().access(FileAccess::ReadWrite);
    let direct = options.open(&path).unwrap();
    store(space.map(Map::dax(&direct).shared().writable()).unwrap());
    // So would a store to a page that has to be copied.
    store(space.map(Map::file(&file).private().writable()).unwrap() + 3 * PAGE);
    memory.validate();
}

#[test]
fn a_full_group_makes_room_for_who_waits() {
    let memory = memory(512 * KIB);
    let options = memory.file_options();
    let file = options
        .open_store(MemoryStore::from_bytes(&[1; 256 * PAGE_SIZE]))
        .unwrap();
    file.scan(.., |_| ()).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let refused = (0..64).find(|page| a.try_store(at + page * PAGE, 1_u8).is_err());
    let page = at + refused.expect("the cache has the memory") * PAGE;
    after_a_tick(&memory, space.ready(page, 1, AccessKind::Store)).unwrap();
    assert_eq!(a.try_store(page, 1_u8), Ok(()));
}

// spec: P29
#[test]
fn an_error_comes_with_its_address_and_reason() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let fault = |result: Result<(), SpaceError>| match result.unwrap_err() {
        SpaceError::Access { what, explanation } => {
            let fault = explanation.fault();
            (what, fault.address(), fault.kind(), explanation.to_string())
        }
        other => panic!("{other}"),
    };
    // The first page is there, and the last is not mapped.
    at_once(space.ready(at, 1, AccessKind::Fetch)).unwrap_err();
    let gone = at_once(space.ready(at + 16 * PAGE, 1, AccessKind::Load));
    let (what, address, kind, text) = fault(gone);
    assert_eq!(
        (what, address, kind),
        ("ready", at + 16 * PAGE, FaultKind::NotMapped)
    );
    assert!(text.contains("nearest mapping"), "{text}");
    // A page is cut off while it is waited for.
    let mut ready = pin!(space.ready(at + 14 * PAGE, 2 * PAGE, AccessKind::Load));
    let bell = Arc::new(Bell::default());
    assert!(poll(ready.as_mut(), &bell).is_pending());
    file.set_len(15 * PAGE).unwrap();
    memory.tick();
    let Poll::Ready(cut) = poll(ready, &bell) else {
        panic!("a tick does it")
    };
    let (_, address, kind, text) = fault(cut);
    assert_eq!((address, kind), (at + 15 * PAGE, FaultKind::PastEnd));
    assert!(text.contains("the file ends at 61,440"), "{text}");
}

// spec: P29
#[test]
fn a_dropped_future_leaves_nothing() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    // Nodes of the page table that a fault has made stay. What `map` has replaced is freed.
    space.accessor().unwrap().try_load::<u8>(at).unwrap_err();
    memory.tick();
    let usage = memory.root_group().usage();
    let bell = Arc::new(Bell::default());
    {
        let mut ready = pin!(space.ready(at, 1, AccessKind::Load));
        let mut fork = pin!(space.defer(|space| space.fork()));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        assert!(poll(fork.as_mut(), &bell).is_pending());
    }
    memory.tick();
    assert_eq!((bell.rung(), file.stats().store_reads), (0, 0));
    assert_eq!(memory.root_group().usage(), usage);
    drop((space, file));
    memory.validate();
    assert_eq!(memory.root_group().usage(), 0);
}

fn copy(
    space: &Space,
    to: VirtAddr,
    source: &Space,
    from: VirtAddr,
    len: usize,
) -> Result<(), Fault> {
    let mut source = source.accessor().unwrap();
    space
        .accessor()
        .unwrap()
        .copy_from(to, &mut source, from, len)
}

// spec: P29, P31
#[test]
fn calls_are_made_by_a_tick_in_the_order_of_their_first_polls() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let _unpolled = space.defer(move |space| space.unmap(at, PAGE));
    let mut a = space.accessor().unwrap();
    after_a_tick(
        &memory,
        space.defer(move |space| space.populate(at, 16 * PAGE)),
    )
    .unwrap();
    assert_eq!(file.stats().cached.0, 16);
    assert_eq!(a.try_store(at, 7_u8), Ok(()));
    assert_eq!(file.stats().dirty.0, 1);
    after_a_tick(&memory, space.defer(move |space| space.sync(at, PAGE))).unwrap();
    assert_eq!((file.stats().dirty.0, file.stats().written), (0, 1));

    let bell = Arc::new(Bell::default());
    let own = at_once_after(
        &memory,
        space.defer(move |space| space.map(Map::anonymous(16 * PAGE))),
    );
    let mut copied =
        pin!(space.defer(move |space| copy(space, own, space, at + PAGE, 2 * PAGE_SIZE)));
    let mut fork = pin!(space.defer(|space| space.fork()));
    let mut moved =
        pin!(space.defer(move |space| space.remap(own, 16 * PAGE, 32 * PAGE, Remap::MayMove)));
    for polled in [
        poll(copied.as_mut(), &bell).is_pending(),
        poll(fork.as_mut(), &bell).is_pending(),
        poll(moved.as_mut(), &bell).is_pending(),
    ] {
        assert!(polled);
    }
    assert_eq!(space.stats().pages.own.0, 0, "not yet");
    memory.tick();
    assert_eq!(bell.rung(), 3);
    let Poll::Ready(Ok(fork)) = poll(fork, &bell) else {
        panic!("a tick does it")
    };
    assert!(matches!(poll(copied, &bell), Poll::Ready(Ok(()))));
    let Poll::Ready(Ok(moved)) = poll(moved, &bell) else {
        panic!("a tick does it")
    };
    assert_eq!(
        fork.accessor().unwrap().load::<u8>(own + PAGE),
        Ok(3),
        "the copy came before"
    );
    assert_eq!(a.load::<u8>(moved + PAGE), Ok(3));

    let frozen = at_once_after(&memory, space.defer(|space| space.freeze()));
    a.store(moved, 99_u8).unwrap();
    let snapshot = frozen.clone();
    after_a_tick(&memory, space.defer(move |space| space.restore(&snapshot))).unwrap();
    assert_eq!(a.load::<u8>(moved), Ok(2));
    after_a_tick(&memory, space.defer(move |space| space.lock(moved, PAGE))).unwrap();
    let pinned = at_once_after(
        &memory,
        space.defer(move |space| space.pin(moved, PAGE, AtFork::Copy)),
    );
    assert_eq!(pinned.pages().0, 1);
    drop(pinned);
    after_a_tick(
        &memory,
        space.defer(move |space| space.protect(moved, PAGE, Protection::READ)),
    )
    .unwrap();
    let refused = a.store(moved, 1_u8).unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Forbidden);
    after_a_tick(
        &memory,
        space.defer(move |space| space.unmap(moved, 32 * PAGE)),
    )
    .unwrap();
    assert_eq!(
        a.load::<u8>(moved).unwrap_err().kind(),
        FaultKind::NotMapped
    );
    after_a_tick(
        &memory,
        space.defer(move |space| space.advise(at, 16 * PAGE, Advice::PageOut)),
    )
    .unwrap();
    assert_eq!(file.stats().cached.0, 0);
    let source = fork.clone();
    let copied = space.defer(move |space| copy(space, at, &source, VirtAddr(MIB), 8));
    let fault = after_a_tick(&memory, copied).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, VirtAddr(MIB))
    );
    drop((a, fork, frozen));
    memory.validate();
}

fn gather(space: &Space, mut reads: Vec<(VirtAddr, Vec<u8>)>) -> Result<Vec<Vec<u8>>, Fault> {
    let buffers = reads.iter_mut().map(|(at, buffer)| (*at, &mut buffer[..]));
    space
        .accessor()
        .unwrap()
        .gather(&mut buffers.collect::<Vec<_>>())?;
    Ok(reads.into_iter().map(|(_, buffer)| buffer).collect())
}

// spec: P29
#[test]
fn many_reads_and_a_watch_are_made_by_a_tick() {
    let memory = memory(8 * MIB);
    let (file, space, at) = mapped(&memory);
    let mut a = space.accessor().unwrap();
    assert_eq!(file.stats().cached.0, 0);
    let wanted = [2, 0, 9].map(|page| (at + page * PAGE, vec![0; 3]));
    let got = after_a_tick(&memory, space.defer(|space| gather(space, wanted.into()))).unwrap();
    assert_eq!(got, [[3; 3], [1; 3], [10; 3]]);
    assert_eq!(file.stats().cached.0, 3);
    let gone = vec![(at, vec![0]), (VirtAddr(MIB), vec![0])];
    let fault = after_a_tick(&memory, space.defer(|space| gather(space, gone))).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, VirtAddr(MIB))
    );

    let watch = |at| space.defer(move |space| space.accessor().unwrap().watch_code(at));
    let fault = after_a_tick(&memory, watch(at)).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.access()),
        (FaultKind::Forbidden, AccessKind::Fetch)
    );
    let code = space
        .map(Map::anonymous(PAGE).protection(Protection::READ_WRITE | Protection::EXECUTE))
        .unwrap();
    let page = at_once_after(&memory, watch(code));
    assert!(page.is_current());
    a.store(code, 7_u8).unwrap();
    assert!(!page.is_current());
}

/// Like [`after_a_tick`], for a future that has to succeed.
#[track_caller]
fn at_once_after<T, E: std::fmt::Debug>(
    memory: &Memory,
    future: impl Future<Output = Result<T, E>>,
) -> T {
    after_a_tick(memory, future).unwrap()
}

/// A waker that unparks its thread.
struct Thread(std::thread::Thread);

impl Wake for Thread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

// spec: P29
#[test]
fn the_service_thread_serves_a_space_whose_memory_is_gone() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let (file, space, at) = mapped(&memory);
    drop((memory, file));
    block_on(async {
        let mut a = space.accessor().unwrap();
        for page in 0..16 {
            assert!(
                a.try_load::<u8>(at + page * PAGE)
                    .unwrap_err()
                    .would_block()
            );
            space
                .ready(at + page * PAGE, 1, AccessKind::Load)
                .await
                .unwrap();
            assert_eq!(a.try_load::<u8>(at + page * PAGE), Ok(page as u8 + 1));
        }
        space
            .defer(move |space| space.unmap(at, 16 * PAGE))
            .await
            .unwrap();
        // No file is left to keep the service thread running.
        space.defer(|space| space.fork()).await.unwrap();
    });
}

/// A store that waits for a page of a space before it answers.
struct OverSpace {
    store: MemoryStore,
    below: OnceLock<(Space, VirtAddr)>,
    polled: Mutex<Vec<bool>>,
}

impl Store for OverSpace {
    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some((space, at)) = self.below.get() {
            let ready = pin!(space.ready(*at, 1, AccessKind::Load));
            let polled = poll(ready, &Arc::new(Bell::default()));
            let is_ready = matches!(polled, Poll::Ready(Ok(())));
            self.polled.lock().unwrap().push(is_ready);
        }
        self.store.read_at(buffer, offset)
    }
}

// spec: P29
#[test]
fn who_serves_futures_need_not_wait_for_them() {
    let memory = memory(8 * MIB);
    let (_file, space, at) = mapped(&memory);
    let store = Arc::new(OverSpace {
        store: MemoryStore::from_bytes(&[5; 2 * PAGE_SIZE]),
        below: OnceLock::new(),
        polled: Mutex::default(),
    });
    let over = memory.file_options().open_store(store.clone()).unwrap();
    let above = memory.create_space().unwrap();
    let there = above.map(Map::file(&over)).unwrap();
    assert!(store.below.set((space, at)).is_ok());
    after_a_tick(&memory, above.ready(there, 1, AccessKind::Load)).unwrap();
    let polled = store.polled.lock().unwrap();
    assert!(
        !polled.is_empty() && polled.iter().all(|ready| *ready),
        "{polled:?}"
    );
}

#[test]
fn calls_and_views_come_without_the_memory() {
    let memory = memory(8 * MIB);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&[7; 10000]))
        .unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(PAGE).writable()).unwrap();
    let bell = Arc::new(Bell::default());
    let mut populate = pin!(space.defer(move |space| space.populate(at, PAGE)));
    let mut view = pin!(file.ready(..10));
    assert!(poll(populate.as_mut(), &bell).is_pending());
    assert!(poll(view.as_mut(), &bell).is_pending());
    drop(memory);
    assert_eq!(bell.rung(), 2);
    at_once(populate).unwrap();
    assert_eq!(&*at_once(view).unwrap(), [7; 10]);

    at_once(space.defer(move |space| space.unmap(at, PAGE))).unwrap();
    at_once(file.defer(move |file| file.invalidate(..))).unwrap();
    assert_eq!(&*at_once(file.ready(8192..8202)).unwrap(), [7; 10]);
}
