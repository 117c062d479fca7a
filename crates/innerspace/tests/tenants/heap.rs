//! Every object that a tenant makes in large numbers is charged at its real size, or bounded by a
//! stated number.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use innerspace::store::{Identity, Store};
use innerspace::{
    DaxFile, Group, KIB, MIB, Map, PAGE_SIZE, PagedFile, Task, Threads,
    dax::DaxDevice,
    file::{FileError, Ready},
    space::{AtFork, Device, DeviceError, Protection},
};

use crate::world::{World, alone, heap};

/// The number of objects of one kind.
const MANY: usize = 1_000;

/// A store of zeros. It has an identity of its own if it has a number.
struct Zeros(Option<u64>);

impl Store for Zeros {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity::new("zeros", [self.0?, 0]))
    }
}

/// A device without any function.
struct Nothing;

impl Device for Nothing {
    fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0);
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A device with a state of this many bytes.
struct Stateful(usize);

impl Device for Stateful {
    fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        Nothing.load(offset, bytes)
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        vec![1; self.0]
    }
}

/// Makes many objects of one kind, and compares the bytes that the allocator gave with those that
/// the group is charged for beyond `frames` bytes each.
fn check<T>(kind: &str, group: &Group, frames: u64, make: impl FnMut(usize) -> T) {
    check_many(kind, MANY, group, frames, make);
}

fn check_many<T>(
    kind: &str,
    many: usize,
    group: &Group,
    frames: u64,
    mut make: impl FnMut(usize) -> T,
) {
    let mut kept = Vec::with_capacity(2 * many);
    // Tables that all objects share have their full size by now.
    kept.extend((0..many).map(&mut make));
    let before = (heap(), group.usage());
    kept.extend((many..2 * many).map(&mut make));
    let taken = heap().saturating_sub(before.0);
    let charged = group.usage() - before.1 - frames * many as u64;
    println!(
        "{kind}: {} taken, {} charged",
        taken / many as u64,
        charged / many as u64
    );
    let slack = taken / 10 + PAGE_SIZE as u64;
    assert!(
        charged + slack >= taken && charged <= taken + slack,
        "{many} of {kind}: {taken} bytes taken, {charged} charged"
    );
    drop(kept);
}

/// Polls a future once. It does not become ready.
fn begin<F: Future + Unpin>(mut future: F) -> F {
    let polled = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    future
}

// spec: N2
#[test]
fn files_and_what_is_made_of_them_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let open = |store| {
        let options = world.memory.file_options().group(&world.a);
        options.open_store(store).unwrap()
    };
    check("file", &world.a, 0, |_| open(Zeros(None)));
    check("file with an identity", &world.a, 0, |number| {
        open(Zeros(Some(number as u64)))
    });
    let file = open(Zeros(None));
    check("handle", &world.a, 0, |_| file.clone());
    check("block reader", &world.a, 0, |_| file.block_reader());
    let call = |_| -> Task<(), FileError> { file.defer(|file: &PagedFile| file.sync_all()) };
    check("task", &world.a, 0, call);
    check("task that is queued", &world.a, 0, |number| {
        begin(call(number))
    });
    let wait = |_| -> Ready { begin(file.ready(..4)) };
    check("future of bytes", &world.a, 0, wait);
}

// spec: N2
#[test]
fn groups_and_watches_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let child = |number: usize| world.a.create_child_unlimited(&number.to_string()).unwrap();
    check("group", &world.a, 0, child);
    check("watch", &world.a, 0, |_| world.a.watch().unwrap());
    let state = [0_u64; 8];
    let watch = |_| world.a.on_events(move |_| assert_eq!(state[0], 0)).unwrap();
    check("watch with a callback", &world.a, 0, watch);
}

// spec: N2
#[test]
fn direct_files_and_pins_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let device = DaxDevice::memory(4 * MIB).unwrap();
    let open = |_| -> DaxFile {
        let options = world.memory.dax_options().group(&world.a);
        options.create_on(&device, "d").unwrap()
    };
    check("direct file", &world.a, 0, open);
    let file = open(0);
    file.set_len(MIB).unwrap();
    file.write_at(&[1; 8 * KIB as usize], 0).unwrap();
    check("pin of a direct file", &world.a, 0, |_| {
        file.pin(0..4096).unwrap()
    });
    let task = |_| -> Task<(), innerspace::dax::DaxError> { file.defer(DaxFile::sync_all) };
    check("task of a direct file", &world.a, 0, task);
}

// spec: N2
#[test]
fn what_is_made_of_a_space_is_charged_at_its_size() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::anonymous(4 * MIB)).unwrap();
    space.accessor().unwrap().store(at, 1_u64).unwrap();
    let pin = |_| space.pin(at, 8, AtFork::Copy).unwrap();
    check_many("pin", 8_000, &world.a, 0, pin);
    let pin = |_| space.pin(at, 8, AtFork::Refuse).unwrap();
    check_many("pin that forks refuse", 8_000, &world.a, 0, pin);
    check("mapping of a device", &world.a, 0, |_| {
        space.map(Map::device(Nothing, PAGE_SIZE as u64)).unwrap()
    });
    let task = |_| -> Task<(), innerspace::space::SpaceError> {
        space.defer(move |space| space.sync(at, 4096))
    };
    check("task of a space", &world.a, 0, task);
}

// spec: N2
#[test]
fn spaces_and_their_copies_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(128 * MIB, Threads::None);
    let page = PAGE_SIZE as u64;
    check("space", &world.a, page, |_| {
        world.memory.create_space_in(&world.a).unwrap()
    });
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    let mut accessor = space.accessor().unwrap();
    accessor.store(at, 1_u64).unwrap();
    check("fork", &world.a, page, |_| space.fork().unwrap());
    check("snapshot", &world.a, page, |_| space.freeze().unwrap());
    drop(accessor);
    check("space that has refused accesses", &world.a, page, |_| {
        let space = world.memory.create_space_in(&world.a).unwrap();
        let mut accessor = space.accessor().unwrap();
        for page in 0..64_u64 {
            let fault = accessor.load::<u8>(innerspace::VirtAddr(page << 12));
            assert!(fault.is_err());
        }
        space
    });
}

// spec: N2
#[test]
fn copies_of_a_space_with_many_files_and_devices_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(128 * MIB, Threads::None);
    let page = PAGE_SIZE as u64;
    let open = || {
        let options = world.memory.file_options().group(&world.a);
        options.open_store(Zeros(None)).unwrap()
    };
    let space = || world.memory.create_space_in(&world.a).unwrap();
    let own = space();
    let mut files = Vec::with_capacity(2 * MANY);
    check("file that is mapped", &world.a, 0, |_| {
        let file = open();
        own.map(Map::file(&file).range(..page)).unwrap();
        files.push(file);
    });
    drop(own);
    for maps in [1, 64] {
        let mapped = space();
        for file in &files[..maps] {
            mapped.map(Map::file(file).range(..page)).unwrap();
        }
        let kind = format!("fork of a space with {maps} files");
        check_many(&kind, 256, &world.a, page, |_| mapped.fork().unwrap());
        let kind = format!("snapshot of a space with {maps} files");
        check_many(&kind, 256, &world.a, page, |_| mapped.freeze().unwrap());
        let mapped = space();
        for _ in 0..maps {
            mapped.map(Map::device(Nothing, page)).unwrap();
        }
        mapped.map(Map::device(Stateful(3_000), page)).unwrap();
        let kind = format!("snapshot of a space with {maps} devices, and one with a state");
        check_many(&kind, 256, &world.a, page, |_| mapped.freeze().unwrap());
    }
}

// spec: N2
#[test]
fn views_and_watched_pages_of_spaces_are_charged_at_their_size() {
    let _alone = alone();
    let world = World::new(128 * MIB, Threads::None);
    let page = PAGE_SIZE as u64;
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space.accessor().unwrap().store(at, 1_u64).unwrap();
    let file = world.memory.file_options().group(&world.a);
    let file = file.open_store(Zeros(None)).unwrap();
    let snapshot = space.freeze().unwrap();
    check("view of a page of a snapshot", &world.a, 0, |_| {
        snapshot.view(at, 8).unwrap()
    });
    check("view of a copy of a snapshot", &world.a, 0, |_| {
        snapshot.view(at + page - 8, 300).unwrap()
    });
    let mut accessor = space.accessor().unwrap();
    let watch = |space: &innerspace::Space| {
        let code = Map::file(&file).range(..2 * MANY as u64 * page);
        let code = code.protection(Protection::READ | Protection::EXECUTE);
        let at = space.map(code).unwrap();
        space.populate(at, 2 * MANY as u64 * page).unwrap();
        at
    };
    let at = watch(&space);
    check("watched page of a file", &world.a, 0, |number| {
        accessor.watch_code(at + number as u64 * page).unwrap()
    });
    // What a space has watched ends with it.
    let round = || {
        let space = world.memory.create_space_in(&world.a).unwrap();
        let at = watch(&space);
        let mut accessor = space.accessor().unwrap();
        for number in 0..MANY as u64 {
            accessor.watch_code(at + number * page).unwrap();
        }
    };
    round();
    let before = heap();
    round();
    assert!(heap() <= before + 8 * KIB, "{} bytes stay", heap() - before);
}

// spec: N2
#[test]
fn mappings_that_come_and_go_leave_no_charge_behind() {
    let _alone = alone();
    let world = World::new(64 * MIB, Threads::None);
    let page = PAGE_SIZE as u64;
    for _ in 0..2 {
        let before = (heap(), world.a.usage());
        let spaces: Vec<_> = (0..MANY)
            .map(|_| {
                let space = world.memory.create_space_in(&world.a).unwrap();
                for range in 1..6 {
                    let map = Map::anonymous(page).at(innerspace::VirtAddr(8 * range * page));
                    space.map(map).unwrap();
                }
                space
            })
            .collect();
        world.memory.tick();
        let taken = heap().saturating_sub(before.0);
        let charged = world.a.usage() - before.1 - page * MANY as u64;
        let most = taken + taken / 10 + 64 * KIB;
        assert!(charged <= most, "{charged} bytes charged, {taken} taken");
        drop(spaces);
    }
}

// spec: N2, N3
#[test]
fn mappings_are_removed_from_a_group_that_is_full_to_the_last_byte() {
    let world = World::new(8 * MIB, Threads::None);
    let page = PAGE_SIZE as u64;
    for ranges in [1, 5, 40] {
        let full = world.a.create_child("full", 512 * KIB).unwrap();
        let space = world.memory.create_space_in(&full).unwrap();
        let copy = space.fork().unwrap();
        let at = space.map(Map::anonymous(2 * ranges * page)).unwrap();
        for range in 0..ranges {
            space.unmap(at + (2 * range + 1) * page, page).unwrap();
        }
        let frozen = space.freeze().unwrap();
        let file = world
            .memory
            .file_options()
            .group(&full)
            .open_store(Zeros(None));
        let filled: Vec<_> = (0..).map_while(|_| full.watch().ok()).collect();
        assert!(filled.len() > 500);
        for range in 0..ranges {
            space.unmap(at + 2 * range * page, page).unwrap();
        }
        assert!(full.usage() <= 512 * KIB);
        drop((filled, file, frozen, copy, space));
        assert_eq!(full.usage(), 0);
    }
}

// spec: N2
#[test]
fn a_small_group_is_refused_in_the_end_and_has_all_back() {
    let world = World::new(8 * MIB, Threads::None);
    let small = world.a.create_child("small", 64 * KIB).unwrap();
    let device = DaxDevice::memory(4 * MIB).unwrap();
    let fill = |kind: &str, make: &mut dyn FnMut() -> bool| {
        let made = (0..10_000).take_while(|_| make()).count();
        assert!((4..9_000).contains(&made), "{made} of {kind}");
        assert!(small.usage() <= 64 * KIB);
        drop(world.b.watch().unwrap());
    };
    let options = || world.memory.file_options().group(&small);
    let mut files = Vec::new();
    fill("files", &mut || {
        options()
            .open_store(Zeros(None))
            .map(|file| files.push(file))
            .is_ok()
    });
    files.truncate(1);
    let file = files.pop().unwrap();
    let direct = || world.memory.dax_options().group(&small);
    let mut files = Vec::new();
    fill("direct files", &mut || {
        direct()
            .create_on(&device, "d")
            .map(|file| files.push(file))
            .is_ok()
    });
    files.clear();
    let mut watches = Vec::new();
    fill("watches", &mut || {
        small.watch().map(|watch| watches.push(watch)).is_ok()
    });
    watches.clear();
    // Futures end with the refusal. Handles share one that exists already.
    let mut tasks: Vec<Task<(), FileError>> = Vec::new();
    fill("tasks", &mut || {
        let mut task = file.defer(|file: &PagedFile| file.sync_all());
        let polled = Pin::new(&mut task).poll(&mut Context::from_waker(Waker::noop()));
        tasks.push(task);
        match polled {
            Poll::Pending => true,
            Poll::Ready(result) => {
                assert!(result.unwrap_err().is_limit());
                false
            }
        }
    });
    let before = heap();
    let handles: Vec<PagedFile> = (0..10_000).map(|_| file.clone()).collect();
    let taken = heap().saturating_sub(before);
    assert!(taken < 10_000 * 128, "{taken} bytes for handles");
    drop((tasks, handles, file));
    world.memory.tick();
    assert_eq!(small.usage(), 0);
}
