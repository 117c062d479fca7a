//! The texts that the library prints about itself: for people, for Prometheus, for programs that
//! read JSON, and in refusals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use innerspace::store::{FaultyStore, FileLock, MemoryStore};
use innerspace::{
    KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Threads, VirtAddr,
    dax::DaxDevice,
    file::{FileAccess, WriteOrder},
    space::{AtFork, FaultKind, Protection},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    options.build().unwrap()
}

fn data_bin(memory: &Memory, group: &str, store: MemoryStore) -> (PagedFile, Arc<MemoryStore>) {
    let group = memory.create_group(group, MIB).unwrap();
    let store = Arc::new(store);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.group(&group).name("data.bin");
    (file.open_store(store.clone()).unwrap(), store)
}

#[test]
fn a_memory_prints_a_line_for_itself_each_group_and_each_file() {
    let memory = memory();
    let (file, _) = data_bin(&memory, "tenant-a", MemoryStore::new());
    for page in 0..8 {
        file.write_at(&[1; PAGE_SIZE], page * PAGE).unwrap();
    }
    let stats = memory.stats();
    let text = stats.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("memory: "), "{first}");
    assert!(first.contains(" KiB of 4.0 MiB, peak "), "{first}");
    assert_eq!(
        memory.root_group().events().to_string(),
        "0 over high, 0 at max, 0 failed, 0 refused, 0 B evicted"
    );
    let parts = lines.next().unwrap();
    assert!(
        parts.starts_with("of which: blocks 32.0 KiB, tables 4.0 KiB, anonymous 0 B, heap 0 B, "),
        "{parts}"
    );
    let of = &stats.parts;
    let sum = of.blocks + of.tables + of.anonymous + of.heap + of.stock + of.free;
    assert_eq!(sum + of.reserve + of.metadata + of.fixed, 4 * MIB, "{of}");
    let root = lines.next().unwrap();
    assert!(root.starts_with("group root: "), "{root}");
    // These are eight blocks and the index node above them.
    assert_eq!(
        lines.next().unwrap(),
        "group root/tenant-a: 36.0 KiB of 1.0 MiB, peak 36.0 KiB, 0 refusals"
    );
    assert_eq!(
        lines.next().unwrap(),
        "file data.bin: 32.0 KiB in blocks of 4.0 KiB; cached 32.0 KiB, dirty 32.0 KiB, writeback 0 B, \
         mapped 0 B, viewed 0 B; filled 0 (ahead 0), written 0, evicted 0, moved 0, write errors 0"
    );
    let totals: HashMap<&str, &str> = lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, value)| (name, value.trim()))
        .collect();
    assert_eq!(totals["pgdirtied"], "8");
    assert_eq!(totals["dirty"], "8");
    assert_eq!(stats.limit, 4 * MIB);
}

/// Checks a Prometheus text line by line against the format: names, one TYPE for each metric before
/// all of its samples, which are together, and no sample twice. Returns the samples.
fn parse_prometheus(text: &str) -> HashMap<String, u64> {
    let mut samples = HashMap::new();
    let mut finished: Vec<String> = Vec::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(
                help.split_once(' ')
                    .is_some_and(|(_, text)| !text.is_empty()),
                "{line}"
            );
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            finished.push(std::mem::replace(&mut current, name.to_owned()));
            assert!(!finished.contains(&current), "declared twice: {line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            assert_eq!(name, current, "a sample away from its TYPE: {line}");
            assert!(name.starts_with("innerspace_"), "{line}");
            let before = samples.insert(sample.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "twice: {line}");
        }
    }
    samples
}

#[test]
fn prometheus_can_read_what_a_memory_counts() {
    let memory = memory();
    let (file, _) = data_bin(&memory, "say \"a\\b\"", MemoryStore::new());
    let _unlimited = memory.root_group().create_child_unlimited("b").unwrap();
    file.write_at(&[1; PAGE_SIZE], 0).unwrap();
    let samples = parse_prometheus(&memory.stats().prometheus());
    assert_eq!(samples["innerspace_pgdirtied_total"], 1);
    assert_eq!(samples["innerspace_dirty"], 1);
    let of_group =
        |name: &str| samples[&format!(r#"innerspace_group_{name}{{group="root/say \"a\\b\""}}"#)];
    assert_eq!(of_group("usage_bytes"), file.group().usage());
    assert_eq!(of_group("max_bytes"), MIB);
    assert_eq!(
        samples[r#"innerspace_group_usage_bytes{group="root/b"}"#],
        0
    );
    assert!(!samples.contains_key(r#"innerspace_group_max_bytes{group="root/b"}"#));
}

#[test]
fn a_space_prints_its_mappings_in_the_manner_of_smaps() {
    let memory = memory();
    let (file, _) = data_bin(
        &memory,
        "tenant-a",
        MemoryStore::from_bytes(&[1; 2 * PAGE_SIZE]),
    );
    let space = memory.create_space().unwrap();
    let anonymous = VirtAddr(0x10_0000);
    space.map(Map::anonymous(64 * KIB).at(anonymous)).unwrap();
    let shown = VirtAddr(0x20_0000);
    space
        .map(Map::file(&file).range(PAGE..2 * PAGE).at(shown))
        .unwrap();
    let mut a = space.accessor().unwrap();
    a.store(anonymous, 1u8).unwrap();
    a.store(anonymous + PAGE, 1u8).unwrap();
    a.load::<u8>(anonymous + 2 * PAGE).unwrap();
    a.load::<u8>(shown).unwrap();
    let stats = space.stats();
    assert_eq!(
        stats.to_string(),
        "0x100000..0x110000 rw private anonymous: 8.0 KiB of 64.0 KiB resident, 0 B direct, 0 B dirty, 4.0 KiB zero\n\
         0x200000..0x201000 r- private data.bin: 4.0 KiB of 4.0 KiB resident, 0 B direct, 0 B dirty, 0 B zero\n\
         total 68.0 KiB mapped, 12.0 KiB resident (4.0 KiB file, 8.0 KiB own, 0 B shared), 0 B direct, 0 B dirty, 4.0 KiB zero, \
         20.0 KiB tables"
    );
    assert_eq!(stats.mappings[1].offset, PAGE);
    let _child = space.fork().unwrap();
    let pages = space.stats().pages;
    assert_eq!(
        (pages.own.0, pages.shared.0),
        (0, 2),
        "a fork shares all of it"
    );
}

#[cfg(feature = "serde")]
#[test]
fn counters_serialize_with_the_names_of_their_fields() {
    let memory = memory();
    let (file, _) = data_bin(
        &memory,
        "tenant-a",
        MemoryStore::from_bytes(&[1; 2 * PAGE_SIZE]),
    );
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    space.accessor().unwrap().load::<u8>(at).unwrap();
    let value = serde_json::to_value(memory.stats()).unwrap();
    assert_eq!(value["limit"], 4 * MIB);
    assert_eq!(value["groups"][1]["path"], "root/tenant-a");
    assert_eq!(value["groups"][1]["max"], MIB / PAGE);
    assert_eq!(value["files"][0]["name"], "data.bin");
    assert_eq!(value["totals"]["groups"], 2);
    let value = serde_json::to_value(space.stats()).unwrap();
    assert_eq!(value["mappings"][0]["start"], at.0);
    assert_eq!(value["mappings"][0]["protection"], "r-");
    assert_eq!(value["mappings"][0]["file"], "data.bin");
    assert_eq!(value["pages"]["file"], 1);
}

#[test]
fn an_access_past_a_file_that_was_cut_short_outside_says_so() {
    let memory = memory();
    let (file, store) = data_bin(&memory, "tenant-a", MemoryStore::with_len(MIB));
    file.write_at(&[1; PAGE_SIZE], 8 * PAGE).unwrap();
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    let space = memory.create_space().unwrap();
    let at = VirtAddr(0x10_0000);
    space
        .map(Map::file(&file).at(at).protection(Protection::READ))
        .unwrap();
    store.set_len_externally(4 * PAGE).unwrap();
    let fault = space
        .accessor()
        .unwrap()
        .load::<u64>(at + 8 * PAGE)
        .unwrap_err();
    assert_eq!(fault.kind(), FaultKind::PastEnd);
    assert_eq!(
        space.explain(fault).to_string(),
        "load of 8 bytes at 0x108000: data.bin: wanted 4096 bytes at 32,768 but the \
         file now ends at 16,384 (it was 1,048,576 when opened)"
    );
}

#[test]
fn a_group_that_cannot_be_as_asked_says_why() {
    let memory = memory();
    let error = memory.create_group("small", 8 * KIB).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group root/small: limit 8.0 KiB is below the minimum of 40.0 KiB (8 pages and 2 for each of 1 accessor(s))"
    );
    let tenant = memory.create_group("tenant-a", 256 * KIB).unwrap();
    let error = tenant.set_max(4 * KIB).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("group root/tenant-a: limit 4.0 KiB is below the minimum of ")
    );
    let error = tenant.set_min(Some(MIB)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group root/tenant-a: a minimum of 1.0 MiB does not fit in its limit of 256.0 KiB"
    );
    let error = memory.create_group("tenant-a", MIB).unwrap_err();
    assert_eq!(error.to_string(), "group root already has a group tenant-a");
    // Neither a cycle nor a second deletion can be expressed: a group is made below an existing
    // one, stays below it, and is deleted by its last handle.
    drop(tenant);
    let again = memory.create_group("tenant-a", 256 * KIB).unwrap();
    assert_eq!(again.usage(), 0);
}

#[test]
fn groups_of_one_name_in_two_places_are_told_apart() {
    let memory = memory();
    let [(a, in_a), (_b, in_b)] = ["tenant-a", "tenant-b"].map(|tenant| {
        let tenant = memory.create_group(tenant, MIB).unwrap();
        let cache = tenant.create_child("cache", 64 * KIB).unwrap();
        (tenant, cache)
    });
    assert_eq!((in_a.name(), in_b.name()), ("cache".into(), "cache".into()));
    assert_eq!(in_b.path(), "root/tenant-b/cache");
    assert_eq!(in_b.path(), in_b.stats().path);

    let space = memory.create_space_in(&in_b).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    let mut accessor = space.accessor().unwrap();
    let fault = accessor.write(at, &[1; MIB as usize]).unwrap_err();
    let text = accessor.explain(fault).to_string();
    let full = "group root/tenant-b/cache is full: ";
    assert!(text.contains(full), "{text}");

    let exists = a.create_child("cache", MIB).unwrap_err();
    let text = "group root/tenant-a already has a group cache";
    assert_eq!(exists.to_string(), text);
    let small = in_a.set_max(KIB).unwrap_err().to_string();
    assert!(small.starts_with("group root/tenant-a/cache: limit"));
    let min = in_a.set_min(Some(MIB)).unwrap_err().to_string();
    assert!(min.starts_with("group root/tenant-a/cache: a minimum"));
    let bad = in_a.create_child("x", KIB).unwrap_err().to_string();
    assert!(bad.starts_with("group root/tenant-a/cache/x: limit"));
}

#[test]
fn a_limit_below_what_is_pinned_names_the_group_and_the_views_and_holds() {
    let memory = memory();
    let (file, _) = data_bin(
        &memory,
        "tenant-a",
        MemoryStore::from_bytes(&[1; 64 * PAGE_SIZE]),
    );
    let group = file.group().clone();
    let views: Vec<_> = (0..64)
        .map(|page| file.view(page * PAGE..(page + 1) * PAGE).unwrap())
        .collect();
    let error = group.set_max(128 * KIB).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group root/tenant-a is full: 260.0 of 128.0 KiB, of which 256.0 pinned by 64 views, 4.0 page tables and \
         index nodes; nothing can be evicted. Drop views or raise the limit"
    );
    let error = file.write_at(&[2; PAGE_SIZE], 70 * PAGE).unwrap_err();
    assert!(
        error.to_string().contains("group root/tenant-a is full: "),
        "{error}"
    );
    assert!(group.events().oom > 0);
    drop(views);
    file.write_at(&[2; PAGE_SIZE], 70 * PAGE).unwrap();
    assert!(
        group.usage() <= 128 * KIB,
        "usable again, and under its limit"
    );
}

/// What stands in the way of a long view, and what the error says to do about it.
#[test]
fn a_long_view_that_fails_names_what_to_give_up_and_that_helps() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let options = || memory.file_options().access(FileAccess::ReadWrite);
    let file = options()
        .open_store(MemoryStore::with_len(5 * MIB))
        .unwrap();
    file.write_at(&[1; 1000], 0).unwrap();
    let refused = |expected: [&str; 2]| {
        let text = file.view(..).unwrap_err().to_string();
        for part in expected {
            assert!(text.contains(part), "{text}");
        }
    };
    // Pinned pages.
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(4 * MIB)).unwrap();
    let pins = space.pin(at, 4 * MIB, AtFork::Copy).unwrap();
    refused(["4.0 anonymous", "Unmap anonymous memory"]);
    drop(pins);
    space.unmap(at, 4 * MIB).unwrap();
    assert_eq!(file.view(..).unwrap().len() as u64, 5 * MIB);
    // Data that its store refuses.
    let store = FaultyStore::new(MemoryStore::new());
    let no_space = Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]);
    store.add(no_space.forever());
    let failing = options().name("failing").open_store(store).unwrap();
    let mut written = 0;
    while written < 7 * MIB && failing.write_at(&[2; 64 << 10], written).is_ok() {
        written += 64 << 10;
    }
    assert!(written > 3 * MIB, "{written} bytes");
    refused(["dirty and failing to be written", "discard"]);
    failing.discard().unwrap();
    assert_eq!(file.view(..).unwrap().len() as u64, 5 * MIB);
    // A file that is too large for any view.
    let large = options()
        .open_store(MemoryStore::with_len(9 * MIB))
        .unwrap();
    let text = large.view(..).unwrap_err().to_string();
    assert!(text.contains("use chunks, scan or read_at"), "{text}");
    let chunks = large.chunks(..).unwrap().map(|view| view.unwrap().len());
    assert_eq!(chunks.sum::<usize>() as u64, 9 * MIB);
}

/// Views of a page each, all over the addresses of the memory, in the way of any long view.
#[test]
fn a_long_view_between_views_says_so_and_fits_once_they_are_dropped() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let bytes = vec![1; 64 * MIB as usize];
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&bytes))
        .unwrap();
    drop(bytes);
    let mut kept = Vec::new();
    let error = loop {
        assert!(kept.len() < 64, "every view of 4 MiB found its room");
        let at = kept.len() as u64 * MIB;
        kept.push(file.view(at..at + MIB).unwrap().slice(0..PAGE_SIZE));
        if let Err(error) = file.view(0..4 * MIB) {
            break error;
        }
    };
    let text = error.to_string();
    assert!(text.contains("has no 4.0 MiB in a row"), "{text}");
    assert!(text.contains("Drop views, pins or spaces"), "{text}");
    assert!(memory.root_group().usage() < 8 * MIB, "{text}");
    drop(kept);
    assert_eq!(file.view(0..4 * MIB).unwrap().len() as u64, 4 * MIB);
}

#[test]
fn what_is_pinned_or_locked_or_unwritten_says_what_to_do_and_that_helps() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(64 * KIB)).unwrap();
    let snapshot = space.freeze().unwrap();
    let pinned = space.pin(at, PAGE, AtFork::Refuse).unwrap();
    for refused in [space.restore(&snapshot).err(), space.fork().err()] {
        let text = refused.unwrap().to_string();
        assert!(
            text.contains(&at.to_string()) && text.contains("unpin it first"),
            "{text}"
        );
    }
    drop(pinned);
    space.restore(&snapshot).unwrap();
    drop(space.fork().unwrap());
    // Locked in memory.
    space.lock(at, PAGE).unwrap();
    let text = space.discard(at, PAGE).unwrap_err().to_string();
    assert!(text.contains("unlock it first"), "{text}");
    space.unlock(at, PAGE).unwrap();
    space.discard(at, PAGE).unwrap();
    // Dirty pages that only a sync may write.
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let options = options.write_order(WriteOrder::OnSync).name("log");
    let file = options.open_store(MemoryStore::new()).unwrap();
    let mut end = 0;
    let error = loop {
        match file.write_at(&[1; 64 * KIB as usize], end) {
            Ok(()) => end += 64 * KIB,
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    assert!(
        text.starts_with("log: ") && text.ends_with("sync the file first"),
        "{text}"
    );
    file.sync_all().unwrap();
    file.write_at(&[1; 64 * KIB as usize], end).unwrap();
}

/// Unwritten data that waits for a barrier, fills a group, or has a store that refuses it.
#[test]
fn data_that_cannot_be_written_yet_says_what_to_do_and_that_helps() {
    let memory = memory();
    let options = || memory.file_options().access(FileAccess::ReadWrite);
    // A barrier that is not released.
    let ordered = options().write_order(WriteOrder::Ordered).name("ordered");
    let ordered = ordered.open_store(MemoryStore::new()).unwrap();
    ordered.set_barrier(7);
    ordered.write_at(&[1; PAGE_SIZE], 0).unwrap();
    let text = ordered.sync_all().unwrap_err().to_string();
    assert_eq!(
        text,
        "ordered: 4.0 KiB of unwritten data may not be written yet; release barrier 7 first"
    );
    ordered.release_through(7);
    ordered.sync_all().unwrap();
    // A group whose memory is dirty pages that only a sync may write.
    let log = options().write_order(WriteOrder::OnSync).name("log");
    let log = log.open_store(MemoryStore::new()).unwrap();
    let mut end = 0;
    while log.write_at(&[1; 64 * KIB as usize], end).is_ok() {
        end += 64 * KIB;
    }
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(4 * MIB)).unwrap();
    let mut a = space.accessor().unwrap();
    let fault = a.fill(at, 1, 4 * MIB as usize).unwrap_err();
    let text = space.explain(fault).to_string();
    assert!(
        text.contains(" dirty")
            && text.ends_with("Sync or discard the dirty files, or raise the limit"),
        "{text}"
    );
    log.sync_all().unwrap();
    a.store(fault.address(), 1_u8).unwrap();
    drop((a, space));
    // A store that has no space.
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let no_space = Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]);
    store.add(no_space.forever());
    let full = options().name("full").open_store(store.clone()).unwrap();
    let mut end = 0;
    let error = loop {
        match full.write_at(&[1; 64 * KIB as usize], end) {
            Ok(()) => end += 64 * KIB,
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    assert!(
        text.starts_with("full: ") && text.ends_with("Sync again, or discard it"),
        "{text}"
    );
    store.heal();
    // The first sync reports the failure, and writes all the same.
    let _reported = full.sync_all();
    full.sync_all().unwrap();
    full.write_at(&[1; 64 * KIB as usize], end).unwrap();
}

#[test]
fn pinned_bytes_of_a_direct_file_say_what_to_do_and_that_helps() {
    let memory = memory();
    let device = DaxDevice::memory(16 * PAGE).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    file.write_at(&[7; 2 * PAGE_SIZE], 0).unwrap();
    let pin = file.pin(PAGE..2 * PAGE).unwrap();
    let cut = || file.set_len_within(PAGE, Duration::ZERO);
    let text = cut().unwrap_err().to_string();
    assert!(
        text.starts_with("data.bin: ") && text.ends_with("; unpin them first"),
        "{text}"
    );
    std::thread::scope(|scope| {
        let text = scope.spawn(cut).join().unwrap().unwrap_err().to_string();
        assert!(
            text.starts_with("data.bin: ") && text.ends_with("; try again once they are unpinned"),
            "{text}"
        );
        drop(pin);
        scope.spawn(cut).join().unwrap().unwrap();
    });
    assert_eq!(file.len(), PAGE);
}

/// A file that another memory has open, as another program would, and a file that is open here.
#[test]
fn a_file_that_is_locked_or_open_says_what_to_do_and_that_helps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, b"as it was").unwrap();
    let [here, there] = [memory(), memory()];
    let locked = [
        there.file_options().access(FileAccess::ReadWrite),
        there.file_options().lock(FileLock::Exclusive),
    ];
    for locked in locked {
        let held = locked.open(&path).unwrap();
        let text = here.open_rw(&path).unwrap_err().to_string();
        assert!(
            text.contains("data.bin is in use by ") && text.ends_with("; close it there first"),
            "{text}"
        );
        drop(held);
        drop(here.open_rw(&path).unwrap());
    }
    let reads = here.open(&path).unwrap();
    let text = here.open_rw(&path).unwrap_err().to_string();
    let remedies = "is open already read-only; close it first, or open it the same way";
    assert!(text.ends_with(remedies), "{text}");
    drop(here.open(&path).unwrap());
    drop(reads);
    drop(here.open_rw(&path).unwrap());
}
