//! Tests of shared mappings: which changes are seen, touching, writing back, and unmapping.

use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::memory::HUGE_PAGE;
use super::super::process::tests::keeps_what_is_there;
use super::super::{copy, file};
use super::*;

const PAGE: u64 = 4096;

fn put(mapping: &SharedMapping, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= mapping.len());
    // SAFETY: the bytes are inside the mapping, and tests stay inside the file.
    unsafe { copy::copy_out(mapping.base().add(offset), bytes) }
}

fn get(mapping: &SharedMapping, offset: usize, len: usize) -> Vec<u8> {
    assert!(offset + len <= mapping.len());
    let mut bytes = vec![0xFF; len];
    // SAFETY: as above.
    unsafe { copy::copy_in(&mut bytes, mapping.base().add(offset)) };
    bytes
}

#[test]
fn a_mapping_shows_its_file_and_the_file_what_was_stored() {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"before", 5000).unwrap();
    let mapping = SharedMapping::new(&file, 10_000, Rights::ReadWrite).unwrap();
    assert!(mapping.base().addr().is_multiple_of(HUGE_PAGE));
    assert_eq!(get(&mapping, 5000, 6), b"before");
    put(&mapping, 10, b"stored");
    mapping.sync(10..16).unwrap();
    let mut found = [0; 6];
    file.read_exact_at(&mut found, 10).unwrap();
    assert_eq!(&found, b"stored");
    let readable = SharedMapping::new(&file, 4096, Rights::Read).unwrap();
    assert_eq!(get(&readable, 10, 6), b"stored");
}

#[test]
fn a_mapping_lies_over_nobody_elses() {
    const LEN: usize = 2 * HUGE_PAGE;
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    let done = AtomicBool::new(false);
    // Maps memory for a moment, as often as possible, at a place where another mapping's
    // reservation may just have been given back.
    let memory = || {
        while !done.load(Relaxed) {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let nowhere = std::ptr::null_mut();
            // SAFETY: a new mapping at an address of the kernel's choice, which only this thread
            // uses and unmaps.
            unsafe {
                let at = libc::mmap(nowhere, LEN, rights, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                let place = at.cast::<u8>().add(HUGE_PAGE);
                copy::copy_out(place, b"mine");
                std::thread::yield_now();
                let mut found = [0; 4];
                copy::copy_in(&mut found, place);
                assert_eq!(&found, b"mine");
                assert_eq!(libc::munmap(at, LEN), 0);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(memory);
        scope.spawn(memory);
        for _ in 0..8000 {
            drop(SharedMapping::new(&file, LEN, Rights::ReadWrite).unwrap());
        }
        done.store(true, Relaxed);
    });
}

#[test]
fn a_file_grows_under_a_mapping_that_is_larger() {
    let file = tempfile::tempfile().unwrap();
    let mapping = SharedMapping::new(&file, 64 << 20, Rights::ReadWrite).unwrap();
    for len in [PAGE, 3 << 20, 64 << 20] {
        file.set_len(len).unwrap();
        put(&mapping, len as usize - 5, b"tail.");
        assert_eq!(get(&mapping, len as usize - 5, 5), b"tail.");
        mapping.sync(0..mapping.len()).unwrap();
    }
}

#[test]
fn impossible_mappings_are_errors() {
    let file = tempfile::tempfile().unwrap();
    let refuse = |len| {
        SharedMapping::new(&file, len, Rights::Read)
            .unwrap_err()
            .kind()
    };
    for len in [0, usize::MAX, isize::MAX as usize] {
        assert_eq!(refuse(len), io::ErrorKind::InvalidInput);
    }
    let error = SharedMapping::new(&File::open("/").unwrap(), 4096, Rights::Read);
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::Unsupported);
    let readable = File::open("/proc/self/exe").unwrap();
    let error = SharedMapping::new(&readable, 4096, Rights::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[test]
#[cfg_attr(
    portable,
    ignore = "the portable form of a mapping is memory of the allocator's, which has pages of its own already"
)]
fn a_touched_page_is_written_to_as_far_as_the_system_knows() {
    // A private mapping of zeros gets a page of its own when a byte is stored to it, not when one
    // is read.
    let mapping = super::super::memory::Mapping::new(4 * HUGE_PAGE).unwrap();
    let start = mapping.base().addr();
    // With a flag of its own the mapping is listed separately. The system would otherwise join it
    // to its neighbours, which come and go. SAFETY: the flag changes only the contents of a core
    // dump.
    let apart = unsafe { libc::madvise(mapping.base().cast(), mapping.len(), libc::MADV_DONTDUMP) };
    assert_eq!(apart, 0);
    let own_pages = || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| {
            let range = line
                .split_once(' ')
                .and_then(|(range, _)| range.split_once('-'));
            let range = range.and_then(|(from, to)| {
                let number = |text| usize::from_str_radix(text, 16).ok();
                Some(number(from)?..number(to)?)
            });
            !range.is_some_and(|range| range.contains(&start))
        });
        let line = lines.find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let mut byte = [9];
    // SAFETY: the byte is inside the mapping, which nothing else has.
    unsafe { copy::copy_in(&mut byte, mapping.base()) };
    let before = own_pages();
    // SAFETY: as above.
    unsafe { touch(mapping.base().add(PAGE as usize)) };
    assert!(own_pages() > before, "it was only read");
    // SAFETY: as above.
    unsafe { copy::copy_in(&mut byte, mapping.base().add(PAGE as usize)) };
    assert_eq!(byte, [0]);
}

#[test]
fn pages_are_touched_without_a_store_and_without_a_signal_past_the_end() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 * PAGE).unwrap();
    let mapping = SharedMapping::new(&file, 8 * PAGE as usize, Rights::ReadWrite).unwrap();
    put(&mapping, 0, b"kept");
    mapping.sync(0..3 * PAGE as usize).unwrap();
    match mapping.touch(0..3 * PAGE as usize) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            return eprintln!("left out: {error}");
        }
        done => done.unwrap(),
    }
    file.set_len(PAGE).unwrap();
    let error = mapping.touch(0..3 * PAGE as usize).unwrap_err();
    assert_ne!(error.kind(), io::ErrorKind::Unsupported, "{error}");
    assert_eq!(file.metadata().unwrap().len(), PAGE, "it did not come back");
    assert_eq!(get(&mapping, 0, 4), b"kept");
}

#[test]
fn a_child_gives_no_address_range_back() {
    let file = tempfile::tempfile().unwrap();
    let mapping = SharedMapping::new(&file, HUGE_PAGE, Rights::Read).unwrap();
    let (base, len) = (mapping.base(), mapping.len());
    assert!(keeps_what_is_there(base, len, || drop(mapping)));
}

#[test]
fn an_address_range_is_given_back() {
    let file = tempfile::tempfile().unwrap();
    let mapping = SharedMapping::new(&file, HUGE_PAGE, Rights::Read).unwrap();
    let start = mapping.base().addr();
    drop(mapping);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps
        .lines()
        .find(|line| line.starts_with(&format!("{start:x}-")));
    // Another thread may have mapped something there, but not the deleted file.
    assert!(
        !ours.is_some_and(|line| line.contains("(deleted)")),
        "{ours:?}"
    );
}

#[test]
fn a_sealed_file_in_memory_keeps_its_length() {
    let file = sealed_memory(c"test", 8 * PAGE).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8 * PAGE);
    for len in [0, 7 * PAGE, 9 * PAGE] {
        let error = file.set_len(len).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{len} bytes");
    }
    // SAFETY: no memory is passed; the descriptor is open.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    assert_ne!(seals & libc::F_SEAL_SEAL, 0);
    let mapping = SharedMapping::new(&file, 8 * PAGE as usize, Rights::ReadWrite).unwrap();
    put(&mapping, 0, b"memory");
    assert_eq!(get(&mapping, 0, 6), b"memory");
    assert_eq!(mapping.synchronous(), Synchronous::No);
}

#[test]
fn allocated_blocks_are_zeros_that_keep_length_and_content() {
    let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
    let file = file.unwrap();
    file.set_len(100 * PAGE + 1).unwrap();
    file.write_all_at(b"kept", 3 * PAGE).unwrap();
    if let Err(error) = allocate(&file, 2 * PAGE, 4 * PAGE) {
        assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
        return eprintln!("left out: {error}");
    }
    allocate(&file, 100 * PAGE, PAGE).unwrap();
    // This is the minimum: a file system may have larger blocks, and count blocks of its own.
    let blocks = || file.metadata().unwrap().blocks() * 512;
    let allocated = blocks();
    assert!(allocated >= 5 * PAGE, "{allocated} bytes");
    assert_eq!(file.metadata().unwrap().len(), 100 * PAGE + 1);
    let mut found = [1; 8];
    file.read_exact_at(&mut found, 3 * PAGE).unwrap();
    assert_eq!(&found, b"kept\0\0\0\0");
    file::punch(&file, 0, HUGE_PAGE as u64).unwrap();
    assert!(blocks() < allocated);
}
