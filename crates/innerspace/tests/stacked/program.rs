//! A random program: a stack of files, threads that use the files at the top, and the content that
//! has to be there at the end.
//!
//! ```text
//!   top 0     top 1      top 2         top 3
//!     |         |          |             |
//!     |       whole      part, log     whole
//!   part      "low"        |        "far", in the other memory
//!     |         | part     |             | part
//!   ──┴─────────┴──── "base" ────────────┴──── and a part that is used directly;  "log"
//! ```

use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, Group, KIB, Map, Memory, OpenError, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::{FileAccess, FileError},
};

use crate::PAGE;
use crate::notes;
use crate::store::{Around, Stacked, Where, take_one};

/// The most bytes of a top file.
const MOST: u64 = 40 * PAGE;
/// The room in the base for each file.
const PART: u64 = 64 * PAGE;
const PARTS: u64 = 5;
/// The number of steps of each thread.
const STEPS: u64 = 60;

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Checks why an operation failed: there is no memory, or a store was told to fail. Anything else
/// is a bug.
fn check(error: &FileError, failing: bool) {
    let kind = error.kind();
    let allowed = kind == ErrorKind::OutOfMemory || failing && kind == ErrorKind::Other;
    assert!(allowed, "out of nowhere ({kind:?}): {error}");
}

struct Top {
    name: &'static str,
    store: Arc<Stacked>,
    block: u64,
    group: Group,
    /// `None` if a failure has left more than one possibility.
    model: Option<Vec<u8>>,
}

struct World {
    around: Arc<Around>,
    other: Memory,
    base: PagedFile,
    log: PagedFile,
    group: Group,
    /// The names of files that have lost data.
    lost: Mutex<Vec<String>>,
    failing: bool,
}

impl World {
    fn memory(&self) -> &Memory {
        &self.around.memory
    }

    /// Whether an operation succeeded, which it need not.
    fn did<T>(&self, result: Result<T, FileError>) -> Option<T> {
        result.map_err(|error| check(&error, self.failing)).ok()
    }

    fn collect_lost(&self, memories: &[&Memory]) {
        for memory in memories {
            for error in memory.take_errors() {
                check(&error, self.failing);
                let text = error.to_string();
                let name = text.split(':').next().unwrap().to_owned();
                self.lost.lock().unwrap().push(name);
            }
        }
    }

    /// Waits for a future, which another thread serves.
    fn wait<F: Future>(&self, mut future: Pin<&mut F>, random: &mut Random) -> F::Output {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            // Stores may call `tick` meanwhile.
            for _ in 0..random.below(4) {
                self.direct(random);
            }
            self.memory().tick();
            thread::yield_now();
        }
    }

    /// Uses files under others directly.
    fn direct(&self, random: &mut Random) {
        let file = [&self.base, &self.log][random.below(2) as usize];
        let start = (PARTS - 1) * PART + random.below(PART);
        let len = 1 + random.below(4 * PAGE);
        let range = start..start + len;
        let _at = notes::at(format!("{} {range:?}", file.name()));
        let bytes = vec![7; len as usize];
        match random.below(12) {
            0..4 => drop(self.did(file.write_at(&bytes, start))),
            4 => drop(self.did(file.append(&bytes))),
            5 => drop(self.did(file.punch(range))),
            6 => drop(self.did(file.sync_range(range))),
            7 => drop(self.did(file.set_len(PARTS * PART))),
            8 => drop(self.did(file.invalidate(range))),
            9 => drop(file.evict(..)),
            10 => drop(self.did(file.prefetch(random.below(MOST)..PARTS * PART))),
            _ => drop(self.did(file.read_at(&mut vec![0; len as usize], random.below(start)))),
        }
    }

    fn limits(&self, random: &mut Random) {
        match random.below(4) {
            0 => drop(self.group.set_max((16 + random.below(200)) * PAGE)),
            1 => drop(self.group.set_high(Some((8 + random.below(200)) * PAGE))),
            2 => drop(self.group.set_high(None)),
            _ => drop(self.memory().reclaim(random.below(60) * PAGE)),
        }
    }
}

/// A thread of the program, and what it owns.
struct Worker<'w> {
    world: &'w World,
    random: Random,
    tops: Vec<Top>,
    open: Vec<Option<PagedFile>>,
    space: Option<Space>,
    accessor: Option<Accessor>,
}

/// Returns the address at which a top file is mapped.
fn mapped_at(number: usize) -> VirtAddr {
    VirtAddr((number as u64 + 1) << 24)
}

impl Top {
    /// None if there is no memory for what is set aside.
    fn open(&self, world: &World) -> Option<PagedFile> {
        let options = world.memory().file_options().access(FileAccess::ReadWrite);
        let options = options.block_size(self.block).name(self.name);
        let options = options.group(&self.group);
        // A handle that was left in `Around` may be the last one, and closing it need not succeed.
        match options.open_store(self.store.clone()) {
            Err(OpenError::File(FileError::Limit(_))) => None,
            opened => Some(opened.unwrap()),
        }
    }

    /// Takes a new model after a failure: the cached bytes may have been older than those that the
    /// store has now.
    fn adopt(&mut self, world: &World, file: &PagedFile) -> Option<()> {
        let _at = notes::at(format!("{} adopt", self.name));
        world.did(file.sync_all())?;
        world.did(file.invalidate(..))?;
        let mut bytes = vec![0; file.len() as usize];
        world.did(file.read_exact_at(&mut bytes, 0))?;
        self.model = Some(bytes);
        Some(())
    }

    /// Applies the change to the model, if the file was changed.
    fn then(&mut self, done: Option<()>, change: impl FnOnce(&mut Vec<u8>)) {
        match done {
            None => self.model = None,
            Some(()) => drop(self.model.as_mut().map(change)),
        }
    }
}

fn put(model: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    model.resize(model.len().max(end), 0);
    model[start..end].copy_from_slice(bytes);
}

impl Worker<'_> {
    fn run(mut self) -> Vec<Top> {
        for _ in 0..STEPS {
            match self.random.below(10) {
                0 => self.world.direct(&mut self.random),
                1 => self.elsewhere(),
                _ => {
                    let number = self.random.below(self.tops.len() as u64) as usize;
                    self.step(number);
                }
            }
        }
        self.tops
    }

    fn elsewhere(&mut self) {
        let world = self.world;
        let _at = notes::at("elsewhere".to_owned());
        match self.random.below(6) {
            0 => world.memory().tick(),
            1 => world.limits(&mut self.random),
            2 => drop(take_one(&world.around.views)),
            3 => drop(take_one(&world.around.spaces)),
            4 => {
                // This uses private memory for a while.
                let Ok(space) = world.memory().create_space() else {
                    return;
                };
                let pages = 1 + self.random.below(30);
                let at = space.map(Map::anonymous(pages * PAGE));
                if let (Ok(at), Ok(mut a)) = (at, space.accessor()) {
                    let stored = |page| a.store(at + page * PAGE, page).is_ok();
                    let _ = (0..pages).all(stored);
                }
                world.around.spaces.lock().unwrap().push(space);
            }
            _ => self.fork(),
        }
    }

    /// Drops a top file: its handle, its mapping, or a space that another thread drops some time
    /// later.
    fn close(&mut self, number: usize) {
        let unmap = |space: &Option<Space>| {
            let unmapped = space
                .as_ref()
                .map(|space| space.unmap(mapped_at(number), MOST));
            drop(unmapped);
        };
        match self.random.below(4) {
            0 => unmap(&self.space),
            1 => self.open[number] = None,
            _ => self.fork(),
        }
        unmap(&self.space);
        self.open[number] = None;
    }

    fn fork(&self) {
        let forked = self.space.as_ref().map(Space::fork);
        if let Some(Ok(child)) = forked {
            self.world.around.spaces.lock().unwrap().push(child);
        }
    }

    fn file(&mut self, number: usize) -> Option<PagedFile> {
        let top = &mut self.tops[number];
        if let Some(file) = &self.open[number] {
            return Some(file.clone());
        }
        let _at = notes::at(format!("{} open", top.name));
        let file = top.open(self.world)?;
        self.open[number] = Some(file.clone());
        self.world.collect_lost(&[self.world.memory()]);
        let mut lost = self.world.lost.lock().unwrap();
        if let Some(at) = lost.iter().position(|name| name == top.name) {
            lost.swap_remove(at);
            top.model = None;
        }
        Some(file)
    }

    fn step(&mut self, number: usize) {
        let world = self.world;
        let Some(file) = self.file(number) else {
            return;
        };
        let top = &mut self.tops[number];
        if top.model.is_none() && top.adopt(world, &file).is_none() {
            return;
        }
        let len = top.model.as_ref().unwrap().len() as u64;
        let offset = self.random.below(len + PAGE).min(MOST - 1);
        let most = if self.random.below(8) == 0 { 20 } else { 3 };
        let count = (1 + self.random.below(most * PAGE)).min(MOST - offset);
        let inside = offset.min(len)..(offset + count).min(len);
        let what = self.random.below(26);
        let _at = notes::at(format!("{} {what}: {offset} +{count}", top.name));
        let bytes = vec![self.random.below(255) as u8 + 1; count as usize];
        match what {
            0..5 => {
                let done = world.did(file.write_at(&bytes, offset));
                top.then(done, |model| put(model, &bytes, offset));
            }
            5 if len + count <= MOST => {
                let done = world.did(file.append(&bytes));
                top.then(done.map(|_| ()), |model| put(model, &bytes, len));
            }
            5..9 => {
                let mut found = vec![0; count as usize];
                if let Some(got) = world.did(file.read_at(&mut found, offset)) {
                    top.assert_shows(&found[..got], inside);
                }
            }
            9..11 => {
                if let Some(view) = world.did(file.view(inside.clone())) {
                    top.assert_shows(&view, inside);
                    let mut views = world.around.views.lock().unwrap();
                    if views.len() < 4 {
                        views.push(view);
                    }
                }
            }
            11..14 => self.map(number, &file, inside),
            14 => {
                let done = world.did(file.set_len(offset));
                top.then(done, |model| model.resize(offset as usize, 0));
            }
            15 => {
                let done = world.did(file.punch(inside.clone()));
                let inside = inside.start as usize..inside.end as usize;
                top.then(done, |model| model[inside].fill(0));
            }
            16 => drop(world.did(file.sync_data())),
            17 => drop(world.did(file.sync_range(inside))),
            18 => {
                // Data that a successful sync has written is not lost.
                let synced = world.did(file.sync_all());
                let done = world.did(file.discard());
                top.then(synced.and(done), |_| {});
            }
            19 => drop(world.did(file.invalidate(inside))),
            20 => drop(file.evict(inside)),
            21 => drop(world.did(file.prefetch(inside))),
            22 => {
                let view = pin!(file.ready(inside.clone()));
                if let Some(view) = world.did(world.wait(view, &mut self.random)) {
                    top.assert_shows(&view, inside);
                }
            }
            23 => {
                let data = bytes.clone();
                let write = pin!(file.defer(move |file| file.write_at(&data, offset)));
                let done = world.did(world.wait(write, &mut self.random));
                top.then(done, |model| put(model, &bytes, offset));
            }
            24 => {
                let mut handles = world.around.handles.lock().unwrap();
                if handles.len() < 4 {
                    handles.push(file.clone());
                }
            }
            _ => {
                self.mapped(number, &file);
                drop(file);
                self.close(number);
                // This gives other threads time to find the file before it is opened again.
                for _ in 0..self.random.below(6) {
                    world.direct(&mut self.random);
                }
            }
        }
    }

    /// Returns the address at which a top file is mapped now, or `None` if there was no memory for
    /// that.
    fn mapped(&mut self, number: usize, file: &PagedFile) -> Option<VirtAddr> {
        if self.space.is_none() {
            self.space = self.world.memory().create_space().ok();
            self.accessor = self.space.as_ref()?.accessor().ok();
            if self.accessor.is_none() {
                self.space = None;
            }
        }
        let space = self.space.as_ref()?;
        let at = mapped_at(number);
        if space.mapping_at(at).is_none() {
            let map = Map::file(file).range(..MOST).shared().writable();
            space.map(map.at(at)).ok()?;
        }
        Some(at)
    }

    /// Stores and loads through a mapping.
    fn map(&mut self, number: usize, file: &PagedFile, inside: std::ops::Range<u64>) {
        let (Some(at), Some(a)) = (self.mapped(number, file), &mut self.accessor) else {
            return;
        };
        let top = &mut self.tops[number];
        let at = at + inside.start;
        let mut bytes = vec![0; (inside.end - inside.start) as usize];
        if self.random.below(2) == 0 {
            if a.read(at, &mut bytes).is_ok() {
                top.assert_shows(&bytes, inside);
            }
        } else {
            bytes.fill(self.random.below(255) as u8 + 1);
            let done = a.write(at, &bytes).ok();
            top.then(done, |model| put(model, &bytes, inside.start));
        }
    }
}

impl Top {
    fn assert_shows(&self, found: &[u8], range: std::ops::Range<u64>) {
        let model = self.model.as_ref().unwrap();
        let want = &model[range.start as usize..range.end as usize];
        assert_eq!(found.len(), want.len(), "{}: {range:?}", self.name);
        let differs = (0..want.len()).find(|at| found[*at] != want[*at]);
        if let Some(at) = differs {
            let offset = range.start + at as u64;
            panic!(
                "{} at {offset}: {} and not {}",
                self.name, found[at], want[at]
            );
        }
    }

    /// Checks that the file equals its model, in its store too.
    fn assert_kept(&mut self, world: &World) {
        let _at = notes::at(format!("{} at the end", self.name));
        for turn in 0..2 {
            let file = self.open(world).expect("there is memory");
            // This settles the state that a failure has left open: the store gets all data, and the
            // cache keeps none.
            with_room(world, || file.sync_all());
            with_room(world, || file.invalidate(..));
            let mut found = vec![0; file.len() as usize];
            for (page, bytes) in found.chunks_mut(PAGE_SIZE).enumerate() {
                with_room(world, || file.read_exact_at(bytes, page as u64 * PAGE));
            }
            match &self.model {
                Some(model) => self.assert_shows(&found, 0..model.len() as u64),
                None => self.model = Some(found),
            }
            drop(file);
            assert!(world.memory().take_errors().is_empty(), "turn {turn}");
        }
    }
}

/// Repeats `work` until there is memory for it.
fn with_room<T>(world: &World, mut work: impl FnMut() -> Result<T, FileError>) -> T {
    work().unwrap_or_else(|_| {
        world.memory().reclaim(u64::MAX);
        world.other.reclaim(u64::MAX);
        work().unwrap_or_else(|error| panic!("there is memory: {error}"))
    })
}

/// Runs the program of a seed, from beginning to end.
pub(crate) fn run(seed: u64) {
    let mut random = Random::new(seed);
    let limit = [640, 768, 896, 1024][random.below(4) as usize] * KIB;
    let service = [Threads::None, Threads::Service][random.below(2) as usize];
    let threads = 1 + random.below(3) as usize;
    let failing = random.below(4) == 0;
    let meddles = [2, 8, 1 << 40][random.below(3) as usize];
    let build = |limit| Memory::builder(limit).threads(service).build().unwrap();
    let (memory, other) = (build(limit), build(640 * KIB));
    let group = memory.create_group("tops", limit / 2).unwrap();
    fn open(memory: &Memory, name: &str, store: impl Store) -> PagedFile {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        options.name(name).open_store(store).unwrap()
    }
    let base = open(&memory, "base", MemoryStore::new());
    base.set_len(PARTS * PART).unwrap();
    let log = open(&memory, "log", MemoryStore::new());
    let around = Arc::new(Around {
        memory: memory.clone(),
        apart: open(&memory, "apart", MemoryStore::new()),
        views: Mutex::default(),
        spaces: Mutex::default(),
        handles: Mutex::default(),
        failing: AtomicBool::new(false),
    });
    let mut store = |name, below: &PagedFile, part: Option<u64>, log: Option<&PagedFile>| Stacked {
        name,
        below: below.clone(),
        place: match part {
            None => Where::Whole,
            Some(number) => Where::Part {
                start: number * PART,
                len: AtomicU64::new(0),
            },
        },
        // A part of the base may also be reached through a mapping.
        through: (part.is_some() && random.below(3) == 0).then(|| {
            let space = memory.create_space().unwrap();
            let map = Map::file(below).range(..PARTS * PART).shared().writable();
            let at = space.map(map).unwrap();
            (space, at)
        }),
        log: log.cloned(),
        around: around.clone(),
        random: Mutex::new(Random::new(random.below(1 << 40))),
        meddles,
    };
    let low = open(&memory, "low", store("low", &base, Some(1), None));
    let far = open(&other, "far", store("far", &base, Some(3), None));
    let stores = [
        ("top0", store("top0", &base, Some(0), None)),
        ("top1", store("top1", &low, None, None)),
        ("top2", store("top2", &base, Some(2), Some(&log))),
        ("top3", store("top3", &far, None, None)),
    ];
    let world = World {
        around,
        other: other.clone(),
        base,
        log,
        group: group.clone(),
        lost: Mutex::default(),
        failing,
    };
    let mut tops = stores.map(|(name, store)| Top {
        name,
        store: Arc::new(store),
        block: [4, 4, 8, 16][random.below(4) as usize] * KIB,
        group: [memory.root_group(), &group][random.below(2) as usize].clone(),
        model: Some(Vec::new()),
    });
    // Writes the first content. A failed attempt to write it in a full memory is repeated.
    for top in &mut tops {
        let file = top.open(&world).expect("there is memory");
        let bytes = vec![9; random.below(10 * PAGE) as usize];
        let written = file.write_at(&bytes, 0).and_then(|()| file.sync_all());
        top.model = written.ok().map(|()| bytes);
    }
    world.around.failing.store(failing, Ordering::Relaxed);
    let mut shares: Vec<Vec<Top>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, top) in tops.into_iter().enumerate() {
        shares[number % threads].push(top);
    }
    let seeds: Vec<Random> = shares
        .iter()
        .map(|_| Random::new(random.below(1 << 40)))
        .collect();
    let world = &world;
    let mut tops: Vec<Top> = thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .zip(seeds)
            .map(|(tops, random)| {
                let open = tops.iter().map(|_| None).collect();
                let worker = Worker {
                    world,
                    random,
                    tops,
                    open,
                    space: None,
                    accessor: None,
                };
                scope.spawn(move || worker.run())
            })
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join().unwrap());
        ended.collect::<Vec<_>>().into_iter().flatten().collect()
    });
    let _at = notes::at("the end".to_owned());
    world.around.failing.store(false, Ordering::Relaxed);
    while take_one(&world.around.views).is_some() {}
    while take_one(&world.around.spaces).is_some() {}
    while take_one(&world.around.handles).is_some() {}
    let _ = group.set_high(None);
    let _ = group.set_max(limit);
    memory.tick();
    world.collect_lost(&[&memory, &other]);
    for top in &mut tops {
        let lost = world.lost.lock().unwrap();
        if lost
            .iter()
            .any(|name| name == top.name || name == "low" || name == "far")
        {
            top.model = None;
        }
        drop(lost);
        top.assert_kept(world);
    }
    memory.validate();
    other.validate();
}
