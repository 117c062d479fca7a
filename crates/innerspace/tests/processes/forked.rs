//! Children of fork(2), and the end of the process, with requests in flight.
//!
//! Every fork is made by a process that was started only for this.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use innerspace::store::{FileOptions, Store};
use innerspace::{
    MIB, Space,
    file::{FileAccess, Ready, WriteOrder},
    group::LimitReason,
    space::SpaceError,
};

use super::*;

/// The engines that read a file, by their names in `INNERSPACE_FALLBACK`.
pub(super) const ENGINES: [&str; 4] = ["ring", "pool", "dontcache", "dropped"];

/// A time longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The length of the file in bytes.
const LEN: usize = 4 << 20;
/// The offset at which the file has unwritten bytes.
const DIRTY: u64 = 1 << 20;

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at / 5 % 251) as u8 + 1).collect()
}

/// A store of zeros whose reads wait until its gate is opened.
#[derive(Clone, Default)]
struct Gated(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Default)]
struct Gate {
    is_open: bool,
    waiting: usize,
}

impl Gated {
    fn open(&self) {
        self.0.0.lock().unwrap().is_open = true;
        self.0.1.notify_all();
    }

    /// Waits until a read is under way.
    fn wait_entered(&self) {
        let gate = self.0.0.lock().unwrap();
        let entered = self.0.1.wait_while(gate, |gate| gate.waiting == 0);
        drop(entered.unwrap());
    }
}

impl Store for Gated {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * BLOCK as u64)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        let mut gate = self.0.0.lock().unwrap();
        gate.waiting += 1;
        self.0.1.notify_all();
        let gate = self.0.1.wait_while(gate, |gate| !gate.is_open);
        drop(gate.unwrap());
        buf.fill(0);
        Ok(buf.len())
    }
}

/// A memory with requests in flight.
struct World {
    memory: Memory,
    file: PagedFile,
    gate: Gated,
    gated: PagedFile,
    ready: Vec<Ready>,
    space: Space,
    at: innerspace::VirtAddr,
    direct: DaxFile,
}

impl World {
    /// Puts reads of the file and of a store that hangs in flight, if there are threads for them.
    fn new(path: &Path, threads: Threads) -> World {
        std::fs::write(path, pattern()).unwrap();
        let memory = Memory::builder(8 * MIB).threads(threads).build().unwrap();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.write_order(WriteOrder::OnSync).open(path).unwrap();
        file.write_at(b"unwritten", DIRTY).unwrap();
        file.read_exact_at(&mut [0; 100], 0).unwrap();
        let gate = Gated::default();
        let gated = memory.file_options().open_store(gate.clone()).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let direct = memory.dax_options().create(path.with_extension("dax"));
        let direct = direct.unwrap();
        direct.write_at(b"direct", 0).unwrap();
        let mut ready: Vec<Ready> = (0..4)
            .map(|number| gated.ready(number * 8192..number * 8192 + 10))
            .collect();
        let more = (32..LEN as u64 / 4096).step_by(8);
        ready.extend(more.map(|block| file.ready(block * 4096..block * 4096 + 10)));
        for one in &mut ready {
            let _ = Pin::new(one).poll(&mut Context::from_waker(Waker::noop()));
        }
        if threads == Threads::Service {
            gate.wait_entered();
        }
        World {
            memory,
            file,
            gate,
            gated,
            ready,
            space,
            at,
            direct,
        }
    }

    /// Checks that all requests in flight arrive, and that all written bytes are there.
    fn ends_well(self, path: &Path) {
        self.gate.open();
        for mut one in self.ready {
            let view = one.wait_timeout(LONG).expect("in time").unwrap();
            assert_eq!(view.len(), 10);
        }
        let mut expected = pattern();
        expected[DIRTY as usize..][..9].copy_from_slice(b"unwritten");
        let mut bytes = vec![0; LEN];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == expected);
        self.file.sync_all().unwrap();
        assert!(std::fs::read(path).unwrap() == expected);
        assert_eq!(self.space.accessor().unwrap().load::<u8>(self.at), Ok(1));
        let mut bytes = [0; 6];
        self.direct.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"direct");
        drop((self.file, self.gated, self.space, self.direct));
        self.memory.validate();
    }
}

/// Runs `work` in a child of fork(2). The child's exit code says whether `work` came to its end.
fn in_child(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: glibc's allocator and standard streams are usable in the child. The test is about the
    // other things that the child uses.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: ends the process by a signal if it hangs.
        unsafe { libc::alarm(30) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // std's `exit` would wait for a lock that another thread of the parent may have held.
        // SAFETY: ends the process. The thread-locals are dropped first, which is tested too.
        unsafe { libc::exit(if result.is_ok() { 0 } else { 1 }) }
    }
    child
}

fn wait(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the child is ours, and the status lives as long as the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the child ended so: {status:#x}"
    );
}

/// Checks, in a child, that every call is refused without waiting.
fn is_refused(world: World, maker: u32, path: &Path) {
    let World {
        memory,
        file,
        gated,
        ready,
        space,
        direct,
        ..
    } = world;
    let begin = Instant::now();
    let owner = format!("the process that made it (pid {maker})");
    let mut buf = [7; 100];
    let clone = file.clone();
    let whole = 0..LEN as u64;
    let refusals = [
        file.read_at(&mut buf, 0).map(drop),
        file.read_at(&mut buf, 3 << 20).map(drop),
        file.read_at_uncached(&mut buf, 3 << 20).map(drop),
        file.try_read_at(&mut buf, 0).map(drop),
        file.view(0..10).map(drop),
        file.view(4000..5000).map(drop),
        file.try_view(0..10).map(drop),
        file.scan(whole.clone(), |_| ()),
        file.block_reader().view_block(0).map(drop),
        file.write_at(b"child", 0),
        file.try_write_at(b"child", 0),
        file.append(b"child").map(drop),
        file.set_len(1),
        file.punch(0..4096),
        file.sync_data(),
        file.sync_all(),
        file.sync_range(..),
        file.try_sync_all(),
        file.discard(),
        file.invalidate(..).map(drop),
        file.evict(..).map(drop),
        file.prefetch(whole),
        file.defer(|file| file.sync_all())
            .wait_timeout(LONG)
            .unwrap(),
        file.defer_shared(move |file| file.read_to_vec(0..10))
            .wait_timeout(LONG)
            .unwrap()
            .map(drop),
        file.ready(0..10).wait_timeout(LONG).unwrap().map(drop),
        gated.read_at(&mut buf, 0).map(drop),
        gated.read_at(&mut buf, 40 * 4096).map(drop),
        clone.read_at(&mut buf, 0).map(drop),
    ];
    for (number, refused) in refusals.into_iter().enumerate() {
        let error = refused.expect_err(&format!("call {number}"));
        assert!(
            matches!(error, FileError::OtherProcess { pid, .. } if pid == maker),
            "call {number}: {error}"
        );
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains(&owner), "{error}");
    }
    for mut one in ready {
        one.wait_timeout(LONG).expect("at once").unwrap_err();
    }
    assert_eq!(buf, [7; 100]);
    let refusals = [
        direct.read_at(&mut buf, 0).map(drop),
        direct.try_read_at(&mut buf, 0).map(drop),
        direct.write_at(b"child", 0).map(drop),
        direct.set_len(0),
        direct.punch(0..4096),
        direct.sync_all(),
        direct.invalidate(..),
        direct.pin(0..1).map(drop),
        direct
            .defer(|file| file.sync_all())
            .wait_timeout(LONG)
            .unwrap(),
    ];
    for (number, refused) in refusals.into_iter().enumerate() {
        let error = refused.expect_err(&format!("direct call {number}"));
        assert!(
            matches!(error, DaxError::OtherProcess { pid, .. } if pid == maker),
            "direct call {number}: {error}"
        );
        assert!(error.to_string().contains(&owner), "{error}");
    }
    let error = memory.open(path).unwrap_err();
    assert!(error.to_string().contains(&owner), "{error}");
    let error = memory.create_space().unwrap_err();
    let SpaceError::Limit(limit) = &error else {
        panic!("{error}");
    };
    let reason = limit.details().reason;
    assert_eq!(reason, LimitReason::OtherProcess { pid: maker });
    assert!(error.to_string().contains(&owner), "{error}");
    let error = space.map(Map::anonymous(MIB)).unwrap_err();
    assert!(
        matches!(error, SpaceError::OtherProcess { pid, .. } if pid == maker),
        "{error}"
    );
    let error = space.accessor().unwrap_err();
    let reason = error.details().reason;
    assert_eq!(reason, LimitReason::OtherProcess { pid: maker });
    memory.tick();
    assert_eq!(memory.reclaim(MIB), 0);
    drop((space, clone, file, gated, direct, memory));
    assert!(begin.elapsed() < LONG / 4, "something was waited for");
}

pub(super) fn fork_with_requests_in_flight(path: &Path, threads: Threads) {
    let maker = std::process::id();
    let mut world = World::new(path, threads);
    let view = world.file.view(0..10).unwrap();
    let long = world.file.view(0..512 << 10).unwrap();
    // The third time, the two pages are hot.
    let [_, _, over_end] = [(); 3].map(|()| world.file.view(4090..4102).unwrap());
    let mut accessor = world.space.accessor().unwrap();
    accessor.load::<u8>(world.at).unwrap();
    let mut reader = world.file.block_reader();
    reader.view_block(0).unwrap();
    // Each child is forked at another point of the parent's work.
    for _ in 0..5 {
        let ready = world.file.ready(LEN as u64 - 10..LEN as u64);
        world.ready.push(ready);
        let child = in_child(|| {
            // SAFETY: these are the child's own copies. The child ends in this code and never
            // returns to the parent's.
            let (world, views, mut accessor, mut reader) = unsafe {
                use std::ptr::read;
                let views = [read(&view), read(&long), read(&over_end)];
                (read(&world), views, read(&accessor), read(&reader))
            };
            for view in &views {
                assert_eq!(view.clone().len(), view.len());
                assert_eq!(view.slice(5..10)[..], [0; 5]);
            }
            let fault = accessor.load::<u8>(world.at).unwrap_err();
            assert_eq!(fault.kind(), FaultKind::OtherProcess);
            reader.read_at(&mut [0; 10], 0).unwrap_err();
            drop((views, accessor, reader));
            is_refused(world, maker, path);
        });
        let mut bytes = [0; 10];
        world.file.read_exact_at(&mut bytes, 2 << 20).unwrap();
        wait(child);
        assert!(
            std::fs::read(path).unwrap() == pattern(),
            "a child has written"
        );
    }
    assert_eq!(view[..], pattern()[..10]);
    assert_eq!(long[..], pattern()[..512 << 10]);
    assert_eq!(over_end[..], pattern()[4090..4102]);
    drop((view, long, over_end, accessor, reader));
    world.ends_well(path);
    say("done");
}

/// Checks that the other process ends in time, and with success.
fn ends_in_time(mut child: Child, what: &str) {
    let end = Instant::now() + LONG;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            None => {
                child.kill().unwrap();
                panic!("{what} hangs");
            }
        }
    };
    let said: Vec<String> = said(&mut child).collect();
    assert!(status.success(), "{what}: {status}");
    assert_eq!(said.last().map(String::as_str), Some("done"), "{what}");
}

fn with_each_engine(part: &str) {
    for engine in ENGINES {
        let folder = disk_folder();
        let path = folder.path().join("data.bin");
        let mut child = other(&[], part, &path);
        let child = child.env("INNERSPACE_FALLBACK", engine).spawn().unwrap();
        ends_in_time(child, &format!("{part} with {engine}"));
    }
}

// spec: R23, S10
#[cfg(target_os = "linux")]
#[test]
fn a_child_of_fork_gets_errors_and_its_parent_goes_on() {
    with_each_engine("fork");
}

// spec: R23, S10
#[cfg(target_os = "linux")]
#[test]
fn a_child_of_fork_gets_errors_also_without_threads() {
    with_each_engine("fork without threads");
}

pub(super) fn exit_with_requests_in_flight(path: &Path) {
    let world = World::new(path, Threads::Service);
    say("done");
    let _world = std::mem::ManuallyDrop::new(world);
    std::process::exit(0);
}

pub(super) fn return_with_requests_in_flight(path: &Path) {
    let world = World::new(path, Threads::Service);
    std::mem::forget(world);
    say("done");
}

pub(super) fn drop_with_requests_in_flight(path: &Path) {
    let World {
        memory,
        file,
        gate,
        gated,
        ready,
        space,
        ..
    } = World::new(path, Threads::Service);
    // The file has to wait for a call to its store that is under way.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        gate.open();
    });
    drop((ready, space, gated, file, memory));
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[DIRTY as usize..][..9], *b"unwritten");
    say("done");
}

// spec: R23
#[test]
fn a_process_ends_with_requests_in_flight() {
    for part in ["exit", "return", "drop"] {
        with_each_engine(part);
    }
}

/// Prints which engine is in force, and which mode.
pub(super) fn say_engine(path: &Path) {
    let store = FileOptions::new().open(path).unwrap();
    say(&format!("{} {}", store.engine(), store.cache_mode()));
}

#[cfg(target_os = "linux")]
#[test]
fn the_tests_have_the_engine_that_they_ask_for() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, pattern()).unwrap();
    let told = |engine| {
        let mut child = other(&[], "engine", &path);
        let mut child = child.env("INNERSPACE_FALLBACK", engine).spawn().unwrap();
        let told = said(&mut child).last().expect("it says so");
        assert!(child.wait().unwrap().success());
        told
    };
    let usual = told("ring");
    let (_, mode) = usual.split_once(' ').unwrap();
    assert_eq!(told("pool"), format!("calls {mode}"));
    assert_eq!(told("dropped"), "calls drop-after-use");
}
