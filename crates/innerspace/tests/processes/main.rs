//! Behaviour that needs several processes: locks, kills at random moments, full disks.
//!
//! The other process is this test program again: [`the_other_process`] plays the part that the
//! environment names.

#![cfg(unix)]

mod direct;
mod engines;
mod forked;
mod full;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use innerspace::store::{self, LockHolder, StoreErrorKind};
use innerspace::{
    DaxFile, Grouped, KIB, Map, Memory, OpenError, PagedFile, Threads,
    dax::{DaxError, OnShrink},
    file::{FileError, StoreAction},
    space::FaultKind,
};

const PART: &str = "INNERSPACE_TEST_PART";
const PATH: &str = "INNERSPACE_TEST_PATH";
const SEED: &str = "INNERSPACE_TEST_SEED";

/// Not a test of its own: runs the part of a process that these tests start.
#[test]
fn the_other_process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let path = PathBuf::from(std::env::var_os(PATH).unwrap());
    match part.as_str() {
        "hold" => hold(&path),
        "write" => write_and_sync(&path, std::env::var(SEED).unwrap().parse().unwrap()),
        "fill" => fill_the_disk(&path),
        "fork" => forked::fork_with_requests_in_flight(&path, Threads::Service),
        "fork without threads" => forked::fork_with_requests_in_flight(&path, Threads::None),
        "exit" => forked::exit_with_requests_in_flight(&path),
        "return" => forked::return_with_requests_in_flight(&path),
        "drop" => forked::drop_with_requests_in_flight(&path),
        "engine" => forked::say_engine(&path),
        "leave nothing" => engines::work_and_leave_nothing(&path),
        #[cfg(target_os = "linux")]
        "no rings, ENOSYS" => engines::work_without_rings(&path, libc::ENOSYS),
        #[cfg(target_os = "linux")]
        "no rings, EPERM" => engines::work_without_rings(&path, libc::EPERM),
        #[cfg(target_os = "linux")]
        "rings go, ENOSYS" => engines::work_while_rings_go(&path, libc::ENOSYS),
        #[cfg(target_os = "linux")]
        "rings go, EPERM" => engines::work_while_rings_go(&path, libc::EPERM),
        #[cfg(target_os = "linux")]
        "no locked memory" => engines::work_without_locked_memory(&path),
        #[cfg(target_os = "linux")]
        "tmpfs" => engines::work_on_tmpfs(&path),
        "limit" => meet_the_size_limit(&path),
        "hold direct" => direct::hold_direct(&path),
        "cut" => direct::cut(&path),
        "fill direct" => direct::fill_the_disk_directly(&path),
        "fill beside holes" => direct::fill_the_disk_beside_holes(&path),
        "fill in a batch" => full::fill_the_disk_in_a_batch(&path),
        _ => panic!("no such part: {part}"),
    }
}

/// Starts this program again through `before`: words that come before its own name.
fn other(before: &[&str], part: &str, path: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = match before {
        [] => Command::new(own),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(own);
            command
        }
    };
    command
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(PART, part)
        .env(PATH, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// Prints a line for the process that started this one. The test harness prints lines of its own
/// before it.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "\n> {line}").unwrap();
    out.flush().unwrap();
}

/// Returns the lines that the other process prints, until it ends.
fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines
        .map_while(|line| match line {
            Ok(line) => Some(line.strip_prefix("> ").map(str::to_owned)),
            Err(_) => None,
        })
        .flatten()
}

/// Creates a folder on a real disk: /tmp may be in memory.
fn disk_folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

// --- locks

fn hold(path: &Path) {
    let memory = Memory::with_limit(256 * KIB).unwrap();
    let file = memory.open_rw(path).unwrap();
    file.write_at(b"theirs", 0).unwrap();
    file.sync_all().unwrap();
    say("open");
    io::stdin().read_line(&mut String::new()).unwrap();
}

// spec: P27
#[test]
fn a_file_that_another_process_has_open_is_refused_and_kept() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, b"before").unwrap();
    let mut child = other(&[], "hold", &path).spawn().unwrap();
    assert_eq!(said(&mut child).next().as_deref(), Some("open"));

    let memory = Memory::with_limit(256 * KIB).unwrap();
    for refused in [memory.open_rw(&path), memory.create(&path)] {
        let error = refused.unwrap_err();
        let OpenError::Path(store::FileOpenError::InUse { holder, .. }) = &error else {
            panic!("{error}");
        };
        // A pid namespace, or a system without /proc/locks, hides the pid.
        assert!([LockHolder::Process(child.id()), LockHolder::Unknown].contains(holder));
        let text = error.to_string();
        assert!(
            text.contains(&format!("data.bin is in use by {holder}")),
            "{text}"
        );
    }
    // The open is refused with nothing done: the content is unchanged, and readers may open the
    // file.
    let reader = memory.open(&path).unwrap();
    assert_eq!(reader.view(..).unwrap()[..], *b"theirs");
    drop(reader);
    // The lock goes with the process, however that ends.
    child.kill().unwrap();
    child.wait().unwrap();
    let file = memory.open_rw(&path).unwrap();
    file.write_at(b"ours", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"oursrs");
}

// --- kills

/// The blocks of the file that is written while its writer is killed: more than its memory has.
const BLOCKS: u64 = 256;
const BLOCK: usize = 4096;

/// One step of the writer. The seed alone decides the steps.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { block: u64 },
    SyncAll,
    SyncRange { from: u64, to: u64 },
}

struct Steps(u64);

impl Iterator for Steps {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let mut roll = |below: u64| {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % below
        };
        Some(match roll(100) {
            0 => Step::SyncAll,
            1 | 2 => {
                let from = roll(BLOCKS);
                Step::SyncRange {
                    from,
                    to: from + 1 + roll(BLOCKS - from),
                }
            }
            _ => Step::Write {
                block: roll(BLOCKS),
            },
        })
    }
}

/// Returns the bytes that step `number` writes to `block`: both numbers, and bytes that follow from
/// them.
fn content(number: u64, block: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    bytes.extend(number.to_le_bytes());
    bytes.extend(block.to_le_bytes());
    let mut word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ block;
    while bytes.len() < BLOCK {
        word = word.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(1);
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// Writes and syncs until it is killed. Prints which syncs are complete.
fn write_and_sync(path: &Path, seed: u64) {
    let memory = Memory::with_limit(768 * KIB).unwrap();
    let file = memory.open_rw(path).unwrap();
    for (number, step) in (1..).zip(Steps(seed)) {
        match step {
            Step::Write { block } => {
                file.write_at(&content(number, block), block * BLOCK as u64)
                    .unwrap();
                continue;
            }
            Step::SyncAll => file.sync_all().unwrap(),
            Step::SyncRange { from, to } => {
                let to = (to * BLOCK as u64).min(file.len());
                file.sync_range((from * BLOCK as u64).min(to)..to).unwrap();
            }
        }
        say(&format!("synced {number}"));
    }
}

/// Checks the file that the killed writer left: each block has, whole, the bytes of some step, and
/// none older than the last step that a completed sync covered.
fn check_what_is_left(path: &Path, seed: u64, synced: u64) {
    // The blocks that the reported syncs cover, each with the last step that wrote it.
    let (mut written, mut covered) = (HashMap::new(), HashMap::new());
    for (number, step) in (1..=synced).zip(Steps(seed)) {
        let range = match step {
            Step::Write { block } => {
                written.insert(block, number);
                continue;
            }
            Step::SyncAll => 0..BLOCKS,
            Step::SyncRange { from, to } => from..to,
        };
        covered.extend(range.filter_map(|block| Some((block, *written.get(&block)?))));
    }
    let left = std::fs::read(path).unwrap();
    for (block, oldest) in covered {
        let at = block as usize * BLOCK;
        let bytes = left
            .get(at..at + BLOCK)
            .unwrap_or_else(|| panic!("block {block} of step {oldest} is cut off"));
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(
            bytes == content(number, block),
            "seed {seed}: block {block} is no step's: {number}"
        );
        assert!(
            number >= oldest,
            "seed {seed}: block {block} is of step {number}, synced in {oldest}"
        );
        let step = Steps(seed).nth(number as usize - 1);
        assert!(
            matches!(step, Some(Step::Write { block: of }) if of == block),
            "seed {seed}: step {number} wrote {step:?}, not block {block}"
        );
    }
}

// spec: P24
#[test]
fn a_process_killed_at_any_instant_loses_nothing_that_was_synced() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut covered = 0;
    for round in 0..12u64 {
        let seed = started.wrapping_mul(31).wrapping_add(round);
        std::fs::write(&path, []).unwrap();
        let mut child = other(&[], "write", &path)
            .env(SEED, seed.to_string())
            .spawn()
            .unwrap();
        let mut said = said(&mut child);
        // Kills the writer after some syncs, at a random moment.
        let mut synced = 0;
        let number = |line: String| line.strip_prefix("synced ").unwrap().parse().unwrap();
        for line in said.by_ref().take(1 + (seed % 20) as usize) {
            synced = number(line);
        }
        for _ in 0..seed % 4096 * 64 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The lines that it had printed before it died count as well.
        synced = said.map(number).last().unwrap_or(synced);
        assert!(synced > 0, "the writer never got to a sync");
        covered += synced;
        check_what_is_left(&path, seed, synced);
    }
    assert!(covered > 0);
}

// --- full disks

/// Returns the bytes of a piece of a file, full of `number`.
fn piece(number: u64) -> Vec<u8> {
    content(number, number).repeat(4)
}

fn write_pieces(file: &PagedFile, pieces: u64) {
    for number in 0..pieces {
        file.write_at(&piece(number), number * 4 * BLOCK as u64)
            .unwrap();
    }
}

fn assert_pieces(file: &PagedFile, pieces: u64) {
    let mut bytes = vec![0; 4 * BLOCK];
    for number in 0..pieces {
        file.read_exact_at(&mut bytes, number * 4 * BLOCK as u64)
            .unwrap();
        assert!(bytes == piece(number), "piece {number} is lost");
    }
}

/// Returns the error of a writeback, and its offset in the file.
fn failed_write(error: &FileError) -> (u64, &io::Error) {
    match error {
        FileError::Store {
            action: StoreAction::Write,
            offset,
            source,
            ..
        } => (*offset, source),
        error => panic!("{error}"),
    }
}

/// Runs in a file system of 256 KiB at `path`.
fn fill_the_disk(path: &Path) {
    std::fs::write(path.join("ballast"), vec![1; 128 << 10]).unwrap();
    let memory = Memory::builder(1024 * KIB).build().unwrap();
    let data = path.join("data.bin");
    let file = memory.create(&data).unwrap();
    let other_handle = file.clone();
    write_pieces(&file, 14);
    let error = file.sync_all().unwrap_err();
    let (_, source) = failed_write(&error);
    assert_eq!(
        StoreErrorKind::of(source),
        StoreErrorKind::NoSpace,
        "{error}"
    );
    assert!(error.to_string().contains("data.bin: write of "), "{error}");
    // Every handle reports the failure once, and all of the data is there.
    failed_write(&other_handle.sync_all().unwrap_err());
    assert_pieces(&file, 14);
    assert!(file.stats().dirty.0 > 0, "{}", file.stats());
    // Room is made, as an administrator would do, and the unwritten data reaches the disk.
    std::fs::remove_file(path.join("ballast")).unwrap();
    file.sync_all().or_else(|_| file.sync_all()).unwrap();
    assert_eq!(file.stats().dirty.0, 0);
    drop((file, other_handle));
    assert!(memory.take_errors().is_empty());
    let file = memory.open(&data).unwrap();
    assert_pieces(&file, 14);
    // The file is dropped while there is no room for its data: the memory keeps the error.
    std::fs::write(path.join("ballast"), vec![1; 24 << 10]).unwrap();
    drop(file);
    let file = memory.open_rw(&data).unwrap();
    file.write_at(&[7; 64 << 10], 14 * 4 * BLOCK as u64)
        .unwrap();
    drop(file);
    let errors = memory.take_errors();
    let kinds: Vec<_> = errors
        .iter()
        .map(|error| StoreErrorKind::of(failed_write(error).1))
        .collect();
    assert_eq!(kinds, [StoreErrorKind::NoSpace]);
    say("done");
}

/// Whether the other process reported success at its end.
fn ends_well(mut child: Child) -> bool {
    let last = said(&mut child).last();
    child.wait().unwrap().success() && last.as_deref() == Some("done")
}

/// Mounts an ext4 file system of 16 MiB, in the file `$0.img`, at `$0`. Needs root.
#[cfg(target_os = "linux")]
const MOUNT_EXT4: &str = "truncate -s 16M \"$0.img\" && mkfs.ext4 -q -F -b 4096 \"$0.img\" && mount -o loop \"$0.img\" \"$0\"";

/// Starts the other process with a file system of 256 KiB mounted at `folder`, if that is possible.
#[cfg(target_os = "linux")]
fn on_a_small_disk(part: &str, folder: &Path) -> Option<Child> {
    let mut way = on_a_disk("mount -t tmpfs -o size=256k tmpfs \"$0\"", part, folder)?;
    Some(way.spawn().unwrap())
}

/// Returns the other process, with the file system that the shell mounts at `folder`, its `$0`, if
/// that is possible. It has a mount namespace of its own, so that the mount ends with the process.
#[cfg(target_os = "linux")]
fn on_a_disk(mount: &str, part: &str, folder: &Path) -> Option<Command> {
    let script = &format!("{mount} && exec \"$@\"");
    let at = folder.to_str().unwrap();
    let ways = [
        vec!["unshare", "--mount", "sh", "-c", script, at],
        vec![
            "unshare",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            script,
            at,
        ],
    ];
    for way in ways {
        let mut probe = Command::new(way[0]);
        probe.args(&way[1..]).arg("true").stderr(Stdio::null());
        if probe.status().is_ok_and(|status| status.success()) {
            return Some(other(&way, part, folder));
        }
    }
    eprintln!("left out: no small file system can be mounted here");
    None
}

// spec: P18, P19, P30
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_during_writeback_loses_nothing() {
    let folder = disk_folder();
    if let Some(child) = on_a_small_disk("fill", folder.path()) {
        assert!(ends_well(child), "see above");
    }
}

/// Runs with files limited to 64 KiB.
fn meet_the_size_limit(path: &Path) {
    let memory = Memory::with_limit(1024 * KIB).unwrap();
    let file = memory.create(path).unwrap();
    write_pieces(&file, 6);
    let error = file.sync_all().unwrap_err();
    let (offset, _) = failed_write(&error);
    assert!(offset >= 64 * KIB, "what fits is written: {error}");
    assert_pieces(&file, 6);
    // The data that fitted is on the disk, although its neighbours are not.
    let stored = std::fs::read(path).unwrap();
    assert!((0..4).all(|number| stored[number * 4 * BLOCK..].starts_with(&piece(number as u64))));
    file.discard().unwrap();
    assert_eq!(file.len(), stored.len() as u64);
    file.sync_all().unwrap();
    say("done");
}

// spec: P19
#[test]
fn a_file_that_may_not_grow_keeps_what_fits() {
    let folder = disk_folder();
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""; // blocks of 512 bytes
    let way = ["sh", "-c", script];
    let child = other(&way, "limit", &folder.path().join("data.bin"))
        .spawn()
        .unwrap();
    assert!(ends_well(child), "see above");
}
