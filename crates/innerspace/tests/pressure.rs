//! The behaviour of the whole library under pressure: which pages stay, which group pays, and that
//! it ends.

use std::io;
use std::sync::Arc;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, Group, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory(bytes: u64) -> Memory {
    let options = Memory::builder(bytes).threads(Threads::None);
    options.build().unwrap()
}

/// Creates a file of `bytes` stored bytes that are not zeros.
fn file_in(memory: &Memory, group: &Group, bytes: u64) -> PagedFile {
    let store = MemoryStore::from_bytes(&vec![7; bytes as usize]);
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .group(group);
    options.open_store(Arc::new(store)).unwrap()
}

// spec: A12
#[test]
fn a_mapped_hot_set_stays_under_a_mapped_stream_of_ten_times_the_memory() {
    let memory = memory(8 * MIB);
    let root = memory.root_group().clone();
    let (hot_pages, stream_pages) = (512, 20 * MIB / PAGE * 4);
    let hot = file_in(&memory, &root, hot_pages * PAGE);
    let stream = file_in(&memory, &root, stream_pages * PAGE);
    let space = memory.create_space().unwrap();
    let hot_at = space.map(Map::file(&hot)).unwrap();
    let stream_at = space.map(Map::file(&stream)).unwrap();
    let mut a = space.accessor().unwrap();
    let touch_hot = |a: &mut Accessor| {
        (0..hot_pages).for_each(|page| assert_eq!(a.load::<u8>(hot_at + page * PAGE), Ok(7)));
    };
    touch_hot(&mut a);
    for page in 0..stream_pages {
        assert_eq!(a.load::<u8>(stream_at + page * PAGE), Ok(7));
        // The hot set is used once while a tenth of the memory's size streams by.
        if page % 200 == 199 {
            let resident = hot.stats().cached.0;
            assert!(
                resident * 100 >= hot_pages * 95,
                "{resident} of {hot_pages} pages after {page} of the stream"
            );
            touch_hot(&mut a);
        }
    }
    assert!(stream.stats().evicted > stream_pages / 2);
    drop(a);
    memory.validate();
}

// spec: M15
#[test]
fn who_brings_a_page_in_pays_until_it_is_gone() {
    let memory = memory(8 * MIB);
    let [a, b] = ["a", "b"].map(|name| memory.create_group(name, 2 * MIB).unwrap());
    let file = file_in(&memory, &a, 64 * PAGE);
    let space = memory.create_space_in(&b).unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let own = space.map(Map::anonymous(32 * PAGE)).unwrap();
    let mut accessor = space.accessor().unwrap();
    // The file's group pays, whichever space touches the pages.
    (0..64).for_each(|page| assert_eq!(accessor.load::<u8>(at + page * PAGE), Ok(7)));
    assert!(a.usage() >= 64 * PAGE, "{}", a.usage());
    assert!(b.usage() < 16 * PAGE, "tables alone: {}", b.usage());
    // A space's group pays for the space's own pages. A space that shares them pays for none until
    // it writes.
    (0..32).for_each(|page| accessor.store(own + page * PAGE, 1u8).unwrap());
    assert!(b.usage() >= 32 * PAGE);
    let c = memory.create_group("c", 2 * MIB).unwrap();
    let child = space.fork_in(&c).unwrap();
    let mut in_child = child.accessor().unwrap();
    (0..32).for_each(|page| assert_eq!(in_child.load::<u8>(own + page * PAGE), Ok(1)));
    let (of_b, of_c) = (b.usage(), c.usage());
    assert!(of_c < 16 * PAGE, "{of_c}");
    (0..10).for_each(|page| in_child.store(own + page * PAGE, 2u8).unwrap());
    assert!(c.usage() >= of_c + 10 * PAGE);
    assert_eq!(b.usage(), of_b, "the first payer goes on paying");
    drop((in_child, child, accessor, space));
    assert_eq!((b.usage(), c.usage()), (0, 0));

    // A deleted group leaves pages that outlive it to its parent.
    let outer = memory.create_group("outer", 2 * MIB).unwrap();
    let inner = outer.create_child("inner", MIB).unwrap();
    let short = file_in(&memory, &inner, 8 * PAGE);
    let view = short.view(0..8 * PAGE).unwrap();
    let pages = outer.usage();
    assert!(pages >= 8 * PAGE);
    drop((short, inner));
    memory.tick();
    assert_eq!(view[0], 7);
    let left = outer.stats();
    assert!(
        left.own.bytes() >= 8 * PAGE && left.usage == left.own,
        "{left:?}"
    );
    assert_eq!(
        outer.create_child("inner", MIB).unwrap().usage(),
        0,
        "a new life owes nothing"
    );
    drop(view);
    memory.tick();
    assert_eq!(outer.usage(), 0);
    memory.validate();
}

// spec: M17
#[test]
fn a_high_mark_holds_the_cache_and_lets_other_memory_pass() {
    /// A sixteenth of a MiB.
    const SCALED: u64 = MIB / 16;
    let memory = memory(16 * MIB);
    let group = memory.create_group("tenant", 8 * MIB).unwrap();
    group.set_high(Some(30 * SCALED)).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let at = space.map(Map::anonymous(31 * SCALED)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..31 * SCALED / PAGE {
        a.store(at + page * PAGE, 1u8).unwrap();
    }
    assert!(group.usage() >= 31 * SCALED);
    drop((a, space));
    assert_eq!(group.usage(), 0);
    let before = group.events();
    let file = file_in(&memory, &group, 50 * SCALED);
    let mut most = 0;
    for page in 0..50 * SCALED / PAGE {
        let mut byte = [0];
        file.read_at(&mut byte, page * PAGE).unwrap();
        most = most.max(group.usage());
    }
    let high = 30 * SCALED;
    assert!(most * 100 <= high * 105, "{most} of {high}");
    assert!(group.usage() * 100 >= high * 85, "{}", group.usage());
    let events = group.events();
    assert!(events.high > before.high);
    assert_eq!((events.max, events.oom), (0, 0));
    assert!(events.reclaimed.bytes() >= 19 * SCALED);
    memory.validate();
}

// spec: M10
#[test]
fn dropping_spaces_and_files_beside_charges_keeps_the_limit_and_ends() {
    let memory = Memory::builder(16 * MIB).build().unwrap();
    let group = memory.create_group("tenant", 2 * MIB).unwrap();
    let workers: Vec<_> = (0..3u64)
        .map(|n| {
            let (memory, group) = (memory.clone(), group.clone());
            std::thread::spawn(move || {
                let mut refused = 0;
                for round in 0..60 {
                    // Three of these spaces do not fit together.
                    let space = memory.create_space_in(&group).unwrap();
                    let at = space.map(Map::anonymous(MIB)).unwrap();
                    let mut a = space.accessor().unwrap();
                    for page in 0..150 + 30 * n {
                        refused += u64::from(a.store(at + page * PAGE, 1u8).is_err());
                        assert!(group.usage() <= 2 * MIB);
                    }
                    drop((a, space));
                    let file = file_in(&memory, &group, 100 * PAGE);
                    for page in 0..100 {
                        // These dirty pages are written when the file is dropped.
                        let written = file.write_at(&[round as u8; 100], page * PAGE);
                        refused += u64::from(written.is_err());
                    }
                    assert!(group.usage() <= 2 * MIB);
                }
                refused
            })
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    let stats = group.stats();
    assert!(stats.peak.bytes() <= 2 * MIB, "{stats}");
    memory.tick();
    assert_eq!(group.usage(), 0);
    memory.validate();
}

/// Returns the share of uses that miss in an LRU cache of each of these sizes.
fn simulated(trace: &[u64], sizes: &[u64]) -> Vec<f64> {
    // There is a bit for each block at the time of its last use, in a Fenwick tree.
    let mut used = vec![0i32; trace.len() + 1];
    let add = |used: &mut Vec<i32>, time: usize, change: i32| {
        let mut at = time + 1;
        while at < used.len() {
            used[at] += change;
            at += at & at.wrapping_neg();
        }
    };
    let up_to = |used: &Vec<i32>, time: usize| {
        let (mut sum, mut at) = (0, time + 1);
        while at > 0 {
            sum += used[at];
            at -= at & at.wrapping_neg();
        }
        sum
    };
    let mut last = std::collections::HashMap::new();
    let mut misses = vec![0u64; sizes.len()];
    for (now, block) in trace.iter().enumerate() {
        let distance = last.insert(*block, now).map_or(u64::MAX, |before| {
            add(&mut used, before, -1);
            (up_to(&used, now) - up_to(&used, before)) as u64
        });
        add(&mut used, now, 1);
        for (miss, size) in misses.iter_mut().zip(sizes) {
            *miss += u64::from(distance >= *size);
        }
    }
    let share = |count| count as f64 / trace.len() as f64;
    misses.into_iter().map(share).collect()
}

/// Creates a memory of 16 MiB with a sample, and a mapping of a file of this many pages.
fn sampled(pages: u64) -> (Memory, PagedFile, Space, VirtAddr) {
    let options = Memory::builder(16 * MIB).threads(Threads::None);
    let memory = options.sample_misses().build().unwrap();
    let file = file_in(&memory, &memory.root_group().clone(), pages * PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    (memory, file, space, at)
}

// spec: M19
#[test]
fn the_miss_curve_sees_what_is_touched_through_mappings() {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    let uses = 100_000;
    // Either no use is a call, or every third one is.
    for calls in [u64::MAX, 3] {
        for (name, skew) in [("even", 1), ("skewed", 2)] {
            let pages = 9_000;
            let trace: Vec<u64> = (0..uses)
                .map(|_| (pages as f64 * random().powi(skew)) as u64)
                .collect();
            let (memory, file, space, at) = sampled(pages);
            let mut a = space.accessor().unwrap();
            for (n, page) in (0..).zip(&trace) {
                match n % 7 {
                    _ if n % calls == 1 => drop(file.view(page * PAGE..page * PAGE + 1).unwrap()),
                    0 => a.store(at + page * PAGE, 7u8).unwrap(),
                    _ => assert_eq!(a.load(at + page * PAGE), Ok(7u8)),
                }
            }
            let curve = memory.miss_curve().unwrap();
            let samples = curve.samples();
            assert!(
                (uses / 10..uses / 2).contains(&samples),
                "{name}: {samples}"
            );
            let sizes: Vec<u64> = (1..=30).map(|n| n * 400).collect();
            for (size, exact) in sizes.iter().zip(simulated(&trace, &sizes)) {
                let estimate = curve.at(size * PAGE);
                assert!(
                    (estimate - exact).abs() <= 0.05,
                    "{name}, {calls}: {estimate} at {size} pages, {exact} by simulation"
                );
            }
            drop(a);
            memory.validate();
        }
    }
}

/// While uses are sampled, sessions and accesses across the end of a page still work, and reclaim
/// sees both pages as used.
#[test]
fn sampled_pages_are_used_like_others() {
    let hot_pages = 1000;
    let (memory, hot, space, at) = sampled(hot_pages);
    let stream = file_in(&memory, &memory.root_group().clone(), 8_000 * PAGE);
    let mut a = space.accessor().unwrap();
    let across = at + (PAGE - 4);
    a.store(across, 0x0101_0101_0101_0101u64).unwrap();
    a.session(|session| {
        for _ in 0..3 {
            assert_eq!(session.load::<u64>(across), Ok(0x0101_0101_0101_0101));
        }
    });
    for page in 0..8_000 {
        if page % 250 == 0 {
            (1..hot_pages).for_each(|page| assert!(a.load::<u8>(at + page * PAGE).is_ok()));
        }
        drop(stream.view(page * PAGE..page * PAGE + 1).unwrap());
    }
    let evicted = hot.stats().evicted;
    assert!(evicted <= 20, "{evicted} of {hot_pages} hot pages went");
    drop(a);
    memory.validate();
}

/// A store with the required methods only; the others are the trait's defaults.
struct Plain(MemoryStore);

impl Store for Plain {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(bytes, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }
    fn writable(&self) -> bool {
        true
    }
}

// The append locks its file. All blocks that can be evicted are the file's, and have to be synced
// first.
#[test]
fn appends_to_a_store_that_says_nothing_of_itself_need_little_memory() {
    let memory = memory(MIB);
    let open = || {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        options.open_store(Plain(MemoryStore::new())).unwrap()
    };
    let (log, other) = (open(), open());
    let record = vec![9; 32 * 4096 + 100];
    for number in 0..100 {
        let at = log.append(&record).unwrap();
        assert_eq!(at, number * record.len() as u64);
        other.write_at(&[1; 4096], number * 4096).unwrap();
    }
    assert_eq!(memory.root_group().events().oom, 0);
}
