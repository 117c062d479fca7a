//! A store, device, waker or hook that hangs or panics stops only its own tenant.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use innerspace::store::faulty::{Fault, OperationKind, Release, Rule};
use innerspace::store::{FaultyStore, MemoryStore, Store};
use innerspace::{
    Group, KIB, MIB, Map, Memory, PagedFile, Threads,
    file::FileAccess,
    space::{AccessKind, Device, DeviceError},
};

use crate::world::World;

/// A bound that only a failure reaches.
const LONG: Duration = Duration::from_secs(20);

const PAGE: u64 = 4096;

/// Does `work`, and fails if it does not end in time.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (over, ends) = channel();
    thread::spawn(move || over.send(work()));
    ends.recv_timeout(LONG)
        .unwrap_or_else(|_| panic!("{what} ends"))
}

fn open(memory: &Memory, group: &Group, store: Arc<dyn Store>) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.group(group).open_store(store).unwrap()
}

/// Creates a file of A whose store hangs in each call of this kind, until it is released.
fn hanging(world: &World, kind: OperationKind) -> (PagedFile, Arc<FaultyStore<MemoryStore>>) {
    let bytes = MemoryStore::from_bytes(&[7; 100_000]);
    let store = Arc::new(FaultyStore::new(bytes));
    store.add(Rule::new(Fault::Hang).on(&[kind]).forever());
    (open(&world.memory, &world.a, store.clone()), store)
}

/// Ends all calls that hang in a store, and lets no more hang.
fn end(store: &FaultyStore<MemoryStore>) {
    store.heal();
    store.release(Release::Proceed);
}

/// Does the usual work of a tenant, with files and spaces of its own.
fn work(memory: &Memory, group: &Group) {
    let store = Arc::new(MemoryStore::from_bytes(&[3; 100_000]));
    let file = open(memory, group, store.clone());
    let view = file.ready(50_000..50_010).wait_timeout(LONG);
    assert_eq!(view.expect("it is ready").unwrap()[..], [3; 10]);
    let write = file.defer(|file| file.write_at(&[1; 10], 0));
    { write }.wait_timeout(LONG).expect("it is made").unwrap();
    let sync = file.defer(PagedFile::sync_all);
    { sync }.wait_timeout(LONG).expect("it is made").unwrap();
    let space = memory.create_space_in(group).unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let ready = space.ready(at + 90_000, 10, AccessKind::Load);
    { ready }.wait_timeout(LONG).expect("it is ready").unwrap();
    let child = space.fork().unwrap();
    child
        .accessor()
        .unwrap()
        .store(at, u64::from_ne_bytes([9; 8]))
        .unwrap();
    drop((file, child));
    space.unmap(at, 100_000_u64.next_multiple_of(PAGE)).unwrap();
    space.wait_for_calls().unwrap();
    assert_eq!(store.to_vec()[..8], [9; 8], "it is closed");
}

/// Checks that B can work, and that the memory's last handle can be dropped, while a call of A's
/// hangs.
fn goes_on(world: World) {
    let World { memory, a, b, .. } = world;
    let theirs = memory.clone();
    let b = within("the work of B", move || {
        work(&theirs, &b);
        b
    });
    within("the drop of the last of the memory", move || drop(memory));
    drop((a, b));
}

// spec: N6
#[test]
fn a_store_that_hangs_in_a_background_write_stops_its_own_tenant() {
    let world = World::new(16 * MIB, Threads::Service);
    let (file, store) = hanging(&world, OperationKind::Write);
    // More pages than may be left to age.
    for page in 0..300 {
        file.write_at(&[1; 100], page * PAGE).unwrap();
    }
    store.wait_hanging(1);
    goes_on(world);
    end(&store);
}

// spec: N6
#[test]
fn a_store_that_hangs_when_old_blocks_are_written_stops_no_tick() {
    let world = World::new(16 * MIB, Threads::Service);
    let (file, store) = hanging(&world, OperationKind::Write);
    file.write_at(&[1; 100], 0).unwrap();
    let memory = world.memory.clone();
    within("ticking", move || (0..40).for_each(|_| memory.tick()));
    store.wait_hanging(1);
    goes_on(world);
    end(&store);
}

/// A store that drops its file's last handle in a call of its own, which then hangs.
struct GoesInside {
    own: Mutex<Option<PagedFile>>,
    bytes: Arc<FaultyStore<MemoryStore>>,
}

impl Store for GoesInside {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let own = self.own.lock().unwrap().take();
        drop(own);
        self.bytes.write_at(buf, offset)
    }

    fn writable(&self) -> bool {
        true
    }
}

// spec: N6
#[test]
fn a_closing_that_hangs_stops_no_closing_of_others() {
    let world = World::new(16 * MIB, Threads::Service);
    let bytes = Arc::new(FaultyStore::new(MemoryStore::new()));
    bytes.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]).forever());
    for _ in 0..20 {
        let store = Arc::new(GoesInside {
            own: Mutex::default(),
            bytes: bytes.clone(),
        });
        let file = open(&world.memory, &world.a, store.clone());
        for page in 0..20 {
            file.write_at(&[1; 100], page * PAGE).unwrap();
        }
        *store.own.lock().unwrap() = Some(file);
    }
    bytes.wait_hanging(1);
    // Other files of A are dropped in threads of their own, which hang.
    let others: Vec<_> = (0..20)
        .map(|_| hanging(&world, OperationKind::Write))
        .map(|(file, store)| {
            thread::spawn(move || {
                let _ = file.write_at(&[1; 100], 0);
                drop(file);
            });
            store
        })
        .collect();
    goes_on(world);
    end(&bytes);
    others.iter().for_each(|store| end(store));
}

/// Reports that it was called, and then waits for the other end to be dropped.
struct Hangs(Sender<()>, Mutex<Receiver<()>>);

impl Hangs {
    /// Creates the object that hangs, the receiver of its calls, and the sender that keeps it
    /// hanging.
    fn new() -> (Arc<Hangs>, Receiver<()>, Sender<()>) {
        let (called, calls) = channel();
        let (keep, ends) = channel();
        (Arc::new(Hangs(called, Mutex::new(ends))), calls, keep)
    }

    fn hang(&self) {
        let _ = self.0.send(());
        let ends = self.1.lock().unwrap_or_else(|ends| ends.into_inner());
        let _ = ends.recv();
    }
}

impl Wake for Hangs {
    fn wake(self: Arc<Self>) {
        self.hang();
    }
}

/// Polls the futures of A once, each with a waker made by `waker`.
fn poll_all(world: &World, files: usize, waker: impl Fn() -> Waker) -> Vec<Box<dyn Send>> {
    let mut kept: Vec<Box<dyn Send>> = Vec::new();
    for _ in 0..files {
        let store = Arc::new(MemoryStore::from_bytes(&[7; 100_000]));
        let file = open(&world.memory, &world.a, store);
        let waker = waker();
        let context = &mut Context::from_waker(&waker);
        let mut sync = Box::pin(file.defer(PagedFile::sync_all));
        let _ = sync.as_mut().poll(context);
        let mut ready = Box::pin(file.ready(50_000..50_010));
        let _ = Pin::as_mut(&mut ready).poll(context);
        kept.push(Box::new((sync, ready)));
    }
    kept
}

// spec: N6
#[test]
fn wakers_that_never_return_stop_their_own_tenant() {
    let world = World::new(16 * MIB, Threads::Service);
    let (hangs, calls, keep) = Hangs::new();
    let kept = poll_all(&world, 100, || Waker::from(hangs.clone()));
    calls.recv_timeout(LONG).expect("one is called");
    goes_on(world);
    drop(keep);
    drop(kept);
}

struct PanicsInWrite;

impl Store for PanicsInWrite {
    fn len(&self) -> io::Result<u64> {
        Ok(1 << 41)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        panic!("a store of A's");
    }

    fn writable(&self) -> bool {
        true
    }
}

// spec: N2, N6
#[test]
fn a_store_that_panics_where_its_group_makes_room_leaves_nothing_charged() {
    let world = World::new(16 * MIB, Threads::None);
    for pages in 0..64 {
        let group = world.a.create_child("small", 256 * KIB).unwrap();
        let file = open(&world.memory, &group, Arc::new(PanicsInWrite));
        let space = world.memory.create_space_in(&group).unwrap();
        let at = space.map(Map::anonymous(MIB)).unwrap();
        let each = |work: &mut dyn FnMut()| {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        };
        each(&mut || drop(file.write_at(&[1; 4096], 0)));
        let mut accessor = space.accessor().unwrap();
        for page in 0..pages {
            each(&mut || accessor.store(at + page * PAGE, 1_u64).unwrap_or_default());
        }
        // A place far away needs nodes of the index besides its page.
        each(&mut || drop(file.view(1 << 40..(1 << 40) + 1)));
        each(&mut || drop(file.write_at(&[1; 8192], 1 << 39)));
        each(&mut || drop(file.write_at(&[1; 4096], 1 << 38)));
        drop((accessor, space));
        let mut file = Some(file);
        each(&mut || drop(file.take()));
        assert_eq!(group.usage(), 0, "{pages} pages");
        world.memory.validate();
    }
}

// spec: N2, N6
#[test]
fn a_result_is_given_back_though_its_file_panics_as_the_call_closes_it() {
    let world = World::new(16 * MIB, Threads::None);
    let file = open(&world.memory, &world.a, Arc::new(PanicsInWrite));
    file.write_at(&[1; 4096], 0).unwrap();
    let mut task = Box::pin(file.defer(|file| file.view(8 * PAGE..16 * PAGE)));
    let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    // The call has the last handle.
    drop(file);
    let each = |work: &mut dyn FnMut()| {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    };
    each(&mut || world.memory.tick());
    drop(task);
    world.memory.validate();
    assert_eq!(world.a.usage(), 0);
}

struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker of A's");
    }
}

// spec: N6
#[test]
fn wakers_hooks_and_stores_that_panic_stop_nothing() {
    let world = World::new(16 * MIB, Threads::Service);
    let kept = poll_all(&world, 20, || Waker::from(Arc::new(Panicking)));
    let watch = world.a.on_events(|_| panic!("a watcher of A's"));
    let file = open(&world.memory, &world.a, Arc::new(PanicsInWrite));
    world
        .memory
        .set_error_hook(|_| panic!("a hook of somebody's"));
    for page in 0..300 {
        let _ = file.write_at(&[1; 100], page * PAGE);
    }
    within("A's closing", move || {
        let drop = std::panic::AssertUnwindSafe(|| drop(file));
        let _ = std::panic::catch_unwind(drop);
    });
    world.memory.tick();
    goes_on(world);
    drop((kept, watch));
}

// spec: N6
#[test]
fn a_watcher_that_never_returns_stops_its_own_tenant() {
    let world = World::new(16 * MIB, Threads::Service);
    let (hangs, calls, keep) = Hangs::new();
    let watch = world.a.on_events(move |_| hangs.hang());
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::anonymous(8 * MIB)).unwrap();
    let mut accessor = space.accessor().unwrap();
    for page in 0..2048 {
        // A is full long before the end, which is the event.
        let _ = accessor.store(at + page * PAGE, 1_u64);
    }
    world.memory.tick();
    calls.recv_timeout(LONG).expect("it is called");
    drop((accessor, space));
    goes_on(world);
    drop(keep);
    drop(watch);
}

/// A device whose destructor hangs.
struct HangsAtEnd(Arc<Hangs>);

impl Device for HangsAtEnd {
    fn load(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Drop for HangsAtEnd {
    fn drop(&mut self) {
        self.0.hang();
    }
}

// spec: N6
#[test]
fn a_destructor_of_a_device_that_hangs_stops_its_own_tenant() {
    let world = World::new(16 * MIB, Threads::Service);
    let (hangs, calls, keep) = Hangs::new();
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::device(HangsAtEnd(hangs), PAGE)).unwrap();
    let end = thread::spawn(move || {
        space.unmap(at, PAGE).unwrap();
        space
    });
    calls.recv_timeout(LONG).expect("it is dropped");
    goes_on(world);
    drop(keep);
    end.join().unwrap();
}

/// A device whose calls hang.
struct HangsInCalls(Arc<Hangs>);

impl Device for HangsInCalls {
    fn load(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        self.0.hang();
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

// spec: N6
#[test]
fn a_call_of_a_device_that_hangs_stops_its_own_tenant() {
    let world = World::new(16 * MIB, Threads::Service);
    let (hangs, calls, keep) = Hangs::new();
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::device(HangsInCalls(hangs), 8)).unwrap();
    let mut accessor = space.accessor().unwrap();
    let caller = thread::spawn(move || accessor.load::<u8>(at));
    calls.recv_timeout(LONG).expect("it is called");
    let waiter = {
        let space = space.clone();
        thread::spawn(move || space.wait_for_calls().unwrap())
    };
    within("an unmap of A", move || {
        space.fork().unwrap();
        space.unmap(at, PAGE).unwrap();
    });
    goes_on(world);
    drop(keep);
    assert_eq!(caller.join().unwrap(), Ok(0));
    waiter.join().unwrap();
}
