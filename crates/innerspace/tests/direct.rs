//! Direct access files through the public calls: which calls are refused, and with which errors.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use innerspace::{
    DaxFile, MIB, Map, Memory, PAGE_SIZE, Threads,
    dax::{DaxDevice, DaxError, HoleWrites, OnShrink, PinHolder},
    file::FileAccess,
    space::{Fault, FaultKind, MappingKind, SpaceError},
};

#[test]
fn a_host_files_device_has_no_blocks_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let host = memory
        .dax_options()
        .create(folder.path().join("data.bin"))
        .unwrap();
    let error = memory
        .create_dax_on(host.device(), "other.bin")
        .unwrap_err();
    assert!(matches!(error, DaxError::Unsupported { .. }), "{error}");
}

/// Files of sysfs are regular files, but cannot be mapped.
#[test]
#[cfg(target_os = "linux")]
fn a_file_system_without_shared_mappings_is_named() {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    if !std::path::Path::new(path).exists() {
        return eprintln!("skipped: no {path} here");
    }
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.dax_options().access(FileAccess::ReadOnly);
    let error = options.open(path).unwrap_err();
    assert!(matches!(error, DaxError::Unsupported { .. }), "{error}");
    let text = error.to_string();
    let begins = format!("{path}: no direct access without shared mappings: ");
    assert!(text.starts_with(&begins), "{text}");
    let _cached = memory.open(path).unwrap();
}

#[test]
fn a_file_that_is_made_can_be_written_whatever_was_chosen_before() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.dax_options().access(FileAccess::ReadOnly);
    let file = options.create(folder.path().join("data.bin")).unwrap();
    file.write_at(&[7], 0).unwrap();
    assert_eq!(file.len(), 1);
}

#[test]
fn a_file_of_another_memory_is_not_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["cached.bin", "direct.bin"].map(|name| folder.path().join(name));
    paths
        .iter()
        .for_each(|path| std::fs::write(path, [7; 10_000]).unwrap());
    let (here, there) = (
        Memory::with_limit(MIB).unwrap(),
        Memory::with_limit(MIB).unwrap(),
    );
    let space = here.create_space().unwrap();
    let cached = there.open(&paths[0]).unwrap();
    let direct = there.open_dax_rw(&paths[1]).unwrap();
    for (map, path) in [Map::file(&cached), Map::dax(&direct)]
        .into_iter()
        .zip(&paths)
    {
        let error = space.map(map).unwrap_err();
        assert!(
            matches!(error, SpaceError::OtherMemorysFile { .. }),
            "{error}"
        );
        let text = format!("map of {}: it is open in another memory", path.display());
        assert_eq!(error.to_string(), text);
    }
    assert_eq!(space.stats().len, 0);
}

#[test]
fn a_host_file_keeps_its_bytes_and_its_holes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let file = memory.dax_options().create(&path).unwrap();
    file.set_len(16 * MIB).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + 9 * MIB, 9_u64).unwrap();
    assert_eq!(a.load::<u64>(at + MIB).unwrap(), 0);
    file.write_at(b"by call", 3 * MIB).unwrap();
    space.sync(at, 16 * MIB).unwrap();
    drop((a, space, file));
    let bytes = std::fs::read(&path).unwrap();
    let mib = MIB as usize;
    assert_eq!(
        (bytes.len(), bytes[9 * mib], &bytes[3 * mib..3 * mib + 7]),
        (16 * mib, 9, &b"by call"[..])
    );
    let file = memory.open_dax_rw(&path).unwrap();
    file.set_len(2 * MIB).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * MIB);
}

// spec: P27
#[test]
fn a_host_file_that_is_open_is_the_same_file_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.dax_options().access(FileAccess::ReadWrite);
    let refused = |error: DaxError, how: &str| {
        let text = format!("{}: is open already {how}; close", path.display());
        assert!(error.to_string().starts_with(&text), "{error}");
    };
    let reader = options.clone().access(FileAccess::ReadOnly);
    {
        let _first = reader.clone().open(&path).unwrap();
        refused(memory.open_dax_rw(&path).unwrap_err(), "read-only");
    }
    let writer = memory.open_dax_rw(&path).unwrap();
    let second = reader.open(&path).unwrap();
    writer.set_len(20_000).unwrap();
    writer.write_at(b"seen", 15_000).unwrap();
    let mut bytes = [0; 4];
    second.read_exact_at(&mut bytes, 15_000).unwrap();
    assert_eq!((&bytes, second.len()), (b"seen", 20_000));
    memory.open_dax_rw(&path).unwrap();
    let guarded = options.clone().on_shrink(OnShrink::Error).open(&path);
    refused(
        guarded.unwrap_err(),
        "with another choice for being cut short",
    );
    let text = options.create(&path).unwrap_err().to_string();
    let shown = path.display();
    assert_eq!(
        text,
        format!("{shown}: is open already, so it is not emptied; close it first")
    );
    let cached = memory.open(&path).unwrap_err().to_string();
    assert!(
        cached.contains("is open already for direct access"),
        "{cached}"
    );
    assert!(memory.create(&path).is_err());
    drop((writer, second));
    let cached = memory.open(&path).unwrap();
    refused(
        memory.open_dax_rw(&path).unwrap_err(),
        "through the page cache",
    );
    drop(cached);
    assert_eq!(memory.open_dax_rw(&path).unwrap().len(), 20_000);
}

#[test]
fn a_file_that_was_closed_with_its_mappings_can_be_opened_the_other_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let options = Memory::builder(MIB).threads(Threads::None);
    let memory = options.build().unwrap();
    let space = memory.create_space().unwrap();
    for _ in 0..3 {
        // No thread waits for a grace period unasked: unmapped pages are released some time later.
        let direct = memory.open_dax_rw(&path).unwrap();
        let at = space.map(Map::dax(&direct).shared()).unwrap();
        assert_eq!(space.accessor().unwrap().load::<u8>(at), Ok(7));
        space.unmap(at, 10_000).unwrap();
        drop(direct);
        let cached = memory.open(&path).unwrap();
        let at = space.map(Map::file(&cached).shared()).unwrap();
        assert_eq!(space.accessor().unwrap().load::<u8>(at), Ok(7));
        space.unmap(at, 10_000).unwrap();
        drop(cached);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_that_comes_to_name_another_file_names_that_one() {
    let folder = tempfile::tempdir().unwrap();
    let [path, aside, other] =
        ["data.bin", "aside.bin", "other.bin"].map(|n| folder.path().join(n));
    // Returns the number of which all of the file is full.
    let content = |file: &DaxFile| {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [bytes[0]; 4096]);
        bytes[0]
    };
    std::fs::write(&path, [1; 4096]).unwrap();
    std::fs::write(&other, [2; 4096]).unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    std::thread::scope(|scope| {
        let renames = scope.spawn(|| {
            // The two files change names again and again.
            for _ in 0..2_000 {
                std::fs::rename(&path, &aside).unwrap();
                std::fs::rename(&other, &path).unwrap();
                std::fs::rename(&aside, &other).unwrap();
            }
        });
        while !renames.is_finished() {
            let files = [&path, &other].map(|path| memory.open_dax_rw(path));
            // There is one state for the same file: a second one would meet the lock of the first.
            for file in files {
                match file {
                    Ok(file) => assert!([1, 2].contains(&content(&file))),
                    Err(error) => assert!(error.to_string().ends_with(": no such file"), "{error}"),
                }
            }
        }
    });
    // The same holds while the file is open by its earlier name.
    let held = [&path, &other].map(|path| memory.open_dax_rw(path).unwrap());
    let had = held.each_ref().map(content);
    assert!(had == [1, 2] || had == [2, 1], "{had:?}");
    std::fs::rename(&path, &aside).unwrap();
    std::fs::rename(&other, &path).unwrap();
    std::fs::rename(&aside, &other).unwrap();
    for (path, byte) in [&path, &other].into_iter().zip([had[1], had[0]]) {
        assert_eq!(std::fs::read(path).unwrap(), [byte; 4096]);
        assert_eq!(content(&memory.open_dax_rw(path).unwrap()), byte);
    }
    // Both handles still refer to the files that they opened.
    held[0].write_at(&[3; 4096], 0).unwrap();
    assert_eq!(content(&memory.open_dax_rw(&other).unwrap()), 3);
    assert_eq!(held.each_ref().map(content), [3, had[1]]);
}

#[cfg(target_os = "linux")]
#[test]
fn what_another_process_put_into_a_hole_is_seen_after_an_invalidation() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let memory = Memory::with_limit(MIB).unwrap();
    let file = memory.dax_options().create(&path).unwrap();
    file.set_len(4 * MIB).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(at + MIB).unwrap(), 0);
    let mut bytes = [1; 8];
    file.read_exact_at(&mut bytes, 2 * MIB).unwrap();
    assert_eq!(bytes, [0; 8]);
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.write_at(&[7; 8], MIB).unwrap();
    other.write_at(&[7; 8], 2 * MIB).unwrap();
    file.invalidate(..).unwrap();
    assert_eq!(a.load::<u64>(at + MIB).unwrap(), u64::from_ne_bytes([7; 8]));
    file.read_exact_at(&mut bytes, 2 * MIB).unwrap();
    assert_eq!(bytes, [7; 8]);
}

/// Returns how many descriptors the process may have.
#[cfg(target_os = "linux")]
fn descriptors() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    soft.parse().unwrap_or(u64::MAX) // or "unlimited"
}

#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(
    portable,
    ignore = "a sanitizer leaves less address space than so many files take"
)]
fn several_hundred_host_files_are_open_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(16 * MIB).unwrap();
    // Other tests that run at the same time need some descriptors, too.
    let open: Vec<_> = (0..400.min(descriptors() / 2))
        .map(|number| {
            let path = folder.path().join(number.to_string());
            let file = memory.dax_options().create(path).unwrap();
            file.write_at(&number.to_le_bytes(), 4096 * number).unwrap();
            file
        })
        .collect();
    for (number, file) in (0..).zip(&open) {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 4096 * number).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number);
    }
    let error = open[0].set_len(1 << 40).unwrap_err();
    assert!(matches!(error, DaxError::TooLong { .. }), "{error}");
    let options = memory.dax_options().capacity(1 << 40);
    let long = options.create(folder.path().join("long")).unwrap();
    long.set_len(1 << 40).unwrap();
}

#[test]
fn a_guarded_mapping_fails_as_a_file_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.dax_options().on_shrink(OnShrink::Error);
    let file = options.create(&path).unwrap();
    file.write_at(&[7; 8192], 0).unwrap();
    let space = memory.create_space().unwrap();
    let map = Map::dax(&file).shared().writable();
    let at = space.map(map.range(0..16_384)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at + 8191), Ok(7));
    let name = path.display();
    let info = space.mapping_at(at).unwrap();
    assert_eq!(
        (info.kind, info.file),
        (MappingKind::Guarded, Some(name.to_string()))
    );
    let explain = |fault: Fault, kind, expected: &str| {
        assert_eq!(fault.kind(), kind, "{fault}");
        let text = space.explain(fault).to_string();
        assert!(
            text.ends_with(expected) && !text.contains("device"),
            "{text}"
        );
    };
    let end = format!("{name}: wanted 8 bytes at 8,192 but the file ends at 8,192");
    explain(
        a.load::<u64>(at + 8192).unwrap_err(),
        FaultKind::PastEnd,
        &end,
    );
    explain(
        a.store(at + 8192, 1_u64).unwrap_err(),
        FaultKind::PastEnd,
        &end,
    );
    let swapped = a.swap(at + 4096, 1_u32, std::sync::atomic::Ordering::SeqCst);
    let atomic =
        format!("{name}: no atomic read-modify-write at 4,096: each access is a call of the host");
    explain(swapped.unwrap_err(), FaultKind::Forbidden, &atomic);
    explain(
        a.fetch::<u8>(at).unwrap_err(),
        FaultKind::Forbidden,
        &format!("{name} rw shared"),
    );
}

#[test]
fn a_sync_of_the_space_makes_a_guarded_mapping_durable() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let options = memory.dax_options().on_shrink(OnShrink::Error);
    let file = options.create(folder.path().join("data.bin")).unwrap();
    file.write_at(&[7; 3 * PAGE_SIZE], 0).unwrap();
    file.sync_all().unwrap();
    let space = memory.create_space().unwrap();
    let map = Map::dax(&file).shared().writable();
    let at = space.map(map.range(PAGE..8 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1_u64).unwrap();
    a.store(at + PAGE, 2_u64).unwrap();
    assert_eq!(file.stats().dirty.0, 2);
    space.sync(at + PAGE, PAGE).unwrap();
    assert_eq!(file.stats().dirty.0, 1);
    space.sync(at, 7 * PAGE).unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

const PAGE: u64 = PAGE_SIZE as u64;

/// Returns the result of a call that is made by the next tick and not before.
#[track_caller]
fn after_a_tick<T>(
    memory: &Memory,
    call: impl Future<Output = Result<T, DaxError>>,
) -> Result<T, DaxError> {
    let mut call = pin!(call);
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    memory.tick();
    match call.poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a tick does it"),
    }
}

fn unserved() -> Memory {
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    options.build().unwrap()
}

// spec: P29
#[test]
fn calls_are_made_by_a_tick() {
    let memory = unserved();
    let device = DaxDevice::memory(16 * PAGE).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    drop(file.defer(move |file| file.write_at(b"dropped before its turn", 0)));
    let refused = file.try_write_at(b"hello", 3).unwrap_err();
    assert!(refused.would_block(), "{refused}");
    after_a_tick(&memory, file.defer(move |file| file.write_at(b"hello", 3))).unwrap();
    assert_eq!(
        after_a_tick(&memory, file.defer(move |file| file.read_to_vec(1..))).unwrap(),
        b"\0\0hello"
    );
    let beyond = file.defer(move |file| file.read_to_vec(..9000));
    let error = after_a_tick(&memory, beyond).unwrap_err();
    assert!(matches!(error, DaxError::PastEnd { .. }), "{error}");
    after_a_tick(&memory, file.defer(move |file| file.sync_range(..PAGE))).unwrap();
    assert_eq!((file.stats().dirty.0, file.stats().present.0), (0, 1));
    after_a_tick(&memory, file.defer(move |file| file.invalidate(..))).unwrap();
    assert_eq!(file.stats().present.0, 0, "it is known again by an access");
    after_a_tick(&memory, file.defer(move |file| file.set_len(8 * PAGE))).unwrap();
    let pin = after_a_tick(&memory, file.defer(move |file| file.pin(PAGE..3 * PAGE))).unwrap();
    assert_eq!((pin.bytes(), file.stats().dirty.0), (PAGE..3 * PAGE, 3));
    drop(pin);
    after_a_tick(&memory, file.defer(|file| file.sync_all())).unwrap();
    assert_eq!(file.stats().dirty.0, 0);
    after_a_tick(&memory, file.defer(move |file| file.punch(PAGE..8 * PAGE))).unwrap();
    assert_eq!(device.free_pages().0, 15);
    let long = after_a_tick(&memory, file.defer(move |file| file.set_len(1 << 60))).unwrap_err();
    assert!(matches!(long, DaxError::TooLong { .. }), "{long}");
    // The call keeps the file open.
    let last = file.defer(move |file| file.read_to_vec(3..8));
    drop(file);
    assert_eq!(after_a_tick(&memory, last).unwrap(), b"hello");
    memory.tick();
    assert_eq!(device.free_pages().0, 16);
    memory.validate();
}

// spec: D11
#[test]
fn ranges_of_calls_reach_what_was_written_by_calls_before_them() {
    let memory = unserved();
    let device = DaxDevice::memory(16 * PAGE).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    // The call is made while the file has no bytes.
    let mut write = pin!(file.defer(move |file| file.write_at(b"hello", 0)));
    let mut read = pin!(file.defer(move |file| file.read_to_vec(1..5)));
    let mut sync = pin!(file.defer(move |file| file.sync_range(0..5)));
    let mut forget = pin!(file.defer(move |file| file.invalidate(0..5)));
    assert!(write.as_mut().poll(&mut context).is_pending());
    assert!(read.as_mut().poll(&mut context).is_pending());
    assert!(sync.as_mut().poll(&mut context).is_pending());
    memory.tick();
    assert!(matches!(write.poll(&mut context), Poll::Ready(Ok(()))));
    assert!(matches!(read.poll(&mut context), Poll::Ready(Ok(bytes)) if bytes == b"ello"));
    assert!(matches!(sync.poll(&mut context), Poll::Ready(Ok(()))));
    assert_eq!((file.stats().dirty.0, file.stats().present.0), (0, 1));
    assert!(forget.as_mut().poll(&mut context).is_pending());
    memory.tick();
    assert!(matches!(forget.poll(&mut context), Poll::Ready(Ok(()))));
    assert_eq!(file.stats().present.0, 0);
}

// spec: D16
#[test]
fn a_cut_as_a_future_waits_for_no_pin() {
    let memory = unserved();
    let device = DaxDevice::memory(16 * PAGE).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    file.write_at(&[7; 2 * PAGE_SIZE], 0).unwrap();
    let pin = || file.pin(PAGE..2 * PAGE).unwrap();
    let pin = std::thread::scope(|scope| scope.spawn(pin).join().unwrap());
    assert_busy_for_others(&memory, &file);
    drop(pin);
    // The thread that makes the cuts takes the pin, and hands it to the caller.
    let pin = after_a_tick(&memory, file.defer(move |file| file.pin(PAGE..2 * PAGE))).unwrap();
    assert_busy_for_others(&memory, &file);
    drop(pin);
    after_a_tick(&memory, file.defer(move |file| file.set_len(0))).unwrap();
    assert_eq!(device.free_pages().0, 16);
}

#[track_caller]
fn assert_busy_for_others(memory: &Memory, file: &DaxFile) {
    for cut in [
        file.defer(move |file| file.set_len(0)),
        file.defer(move |file| file.punch(0..2 * PAGE)),
    ] {
        let busy = after_a_tick(memory, cut).unwrap_err();
        let DaxError::Busy { holder, .. } = busy else {
            panic!("{busy}")
        };
        assert_eq!(holder, PinHolder::Other);
    }
    assert_eq!((file.len(), file.stats().present.0), (2 * PAGE, 2));
}

#[test]
fn the_service_thread_makes_the_calls_of_a_file_whose_memory_is_gone() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let device = DaxDevice::memory(16 * PAGE).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    drop(memory);
    let mut write = file.defer(move |file| file.write_at(&[7; 100], PAGE));
    write
        .wait_timeout(Duration::from_secs(600))
        .unwrap()
        .unwrap();
    let mut bytes = [0; 100];
    assert_eq!(file.try_read_at(&mut bytes, PAGE).unwrap(), 100);
    assert_eq!(bytes, [7; 100]);
}

/// The part of a large block that was never stored to is a hole on a host with tmpfs.
#[test]
fn what_is_stored_to_a_large_block_is_read_by_call() {
    let memory_files = std::path::Path::new("/dev/shm");
    let folder = match memory_files.is_dir() {
        true => tempfile::tempdir_in(memory_files).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let memory = Memory::builder(4 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap();
    let options = memory.dax_options().hole_writes(HoleWrites::Large);
    let file = options.create(folder.path().join("data.bin")).unwrap();
    file.set_len(4 * MIB).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 7_u64).unwrap();
    assert_eq!(file.stats().allocated.0, 512, "what this is about");
    file.invalidate(..).unwrap(); // dirty blocks stay
    let mut bytes = [9; 3];
    file.read_exact_at(&mut bytes, MIB - 1).unwrap();
    assert_eq!(bytes, [0; 3]);
    a.store(at + MIB, 5_u8).unwrap();
    file.read_exact_at(&mut bytes, MIB - 1).unwrap();
    assert_eq!(bytes, [0, 5, 0]);
    file.read_exact_at(&mut bytes, 2 * MIB - 1).unwrap();
    assert_eq!(bytes, [0; 3], "over its end");
}

#[test]
fn a_store_past_the_end_of_a_guarded_file_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let options = memory.dax_options().on_shrink(OnShrink::Error);
    let file = options.create(folder.path().join("data.bin")).unwrap();
    file.set_len(100).unwrap();
    let space = memory.create_space().unwrap();
    let map = Map::dax(&file).range(0..4096).shared().writable();
    let at = space.map(map).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + 200, 7_u64).unwrap();
    assert_eq!(file.len(), 100);
    a.store(at + 96, u64::MAX).unwrap();
    assert_eq!(file.len(), 100);
    let mut tail = [0; 5];
    assert_eq!(file.read_at(&mut tail, 96).unwrap(), 4);
    assert_eq!(tail, [255, 255, 255, 255, 0]);
}
