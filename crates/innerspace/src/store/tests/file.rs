//! Scenarios for `FileStore`, on real files.
#![cfg(not(miri))]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::*;
use crate::sys::file::disk_dir;
use crate::units::{MIB, PAGE_SIZE};

const ALL_MODES: [CacheMode; 4] = [
    CacheMode::DontCache,
    CacheMode::Direct,
    CacheMode::DropAfterUse,
    CacheMode::Kernel,
];

fn file_with(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// Opens a new file in this mode; `None`, with a message, where the mode does not work.
fn create_with(path: &std::path::Path, mode: CacheMode) -> Option<FileStore> {
    match FileOptions::new()
        .create(Create::Truncate)
        .cache_mode(mode)
        .open(path)
    {
        Ok(store) => Some(store),
        Err(error @ OpenError::CacheMode { .. }) => {
            eprintln!("left out: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn it_behaves_like_a_plain_vector_in_every_cache_mode() {
    let dir = disk_dir();
    for mode in ALL_MODES {
        let path = dir.path().join(mode.to_string());
        for seed in 0..4 {
            let Some(store) = create_with(&path, mode) else {
                break;
            };
            assert_eq!(store.cache_mode(), mode);
            compare_with_plain_vector(&store, seed, 300_000);
            let through_store = read_all(&store);
            drop(store);
            assert!(
                std::fs::read(&path).unwrap() == through_store,
                "{mode} seed {seed}"
            );
        }
    }
}

#[test]
fn aligned_memory_and_an_unaligned_end_meet_in_direct_mode() {
    #[repr(align(4096))]
    struct Pages([u8; 4 * PAGE_SIZE]);
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    let Some(store) = create_with(&path, CacheMode::Direct) else {
        return;
    };
    assert_eq!(store.limits().alignment, PAGE_SIZE);
    let mut pages = Pages([0; 4 * PAGE_SIZE]);
    pages.0.copy_from_slice(&pattern(4 * PAGE_SIZE, 3));
    let len = 3 * PAGE_SIZE + 100;
    assert_eq!(
        store.write_at(&pages.0[..len], 0).unwrap(),
        3 * PAGE_SIZE,
        "whole pages first"
    );
    write_all_at(&store, &pages.0[3 * PAGE_SIZE..len], 3 * PAGE_SIZE as u64).unwrap();
    assert_eq!(store.len().unwrap(), len as u64);
    let slices = pages
        .0
        .chunks(PAGE_SIZE)
        .map(IoSlice::new)
        .collect::<Vec<_>>();
    assert_eq!(
        store.write_vectored_at(&slices, PAGE_SIZE as u64).unwrap(),
        4 * PAGE_SIZE
    );
    store.set_len(len as u64).unwrap();

    let mut expected = pattern(PAGE_SIZE, 3);
    expected.extend(&pages.0[..2 * PAGE_SIZE + 100]);
    pages.0.fill(0);
    assert_eq!(read_exact_or_eof(&store, &mut pages.0, 0).unwrap(), len);
    assert!(pages.0[..len] == expected);
    assert!(std::fs::read(&path).unwrap() == expected);
}

/// Writes 8 MiB, syncs, reads it all, then reads and rewrites pages here and there, and syncs.
fn work_hard(store: &FileStore) {
    let len = 8 * MIB;
    let piece = pattern(256 << 10, 9);
    let mut buf = vec![0; piece.len()];
    for offset in (0..len).step_by(piece.len()) {
        write_all_at(store, &piece, offset).unwrap();
    }
    store.sync(SyncWhat::Data).unwrap();
    for offset in (0..len).step_by(piece.len()) {
        assert_eq!(
            read_exact_or_eof(store, &mut buf, offset).unwrap(),
            buf.len()
        );
        assert!(buf == piece);
    }
    let mut dice = Dice(4);
    for _ in 0..200 {
        let offset = dice.roll(len / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        let page = &mut buf[..PAGE_SIZE];
        assert_eq!(read_exact_or_eof(store, page, offset).unwrap(), PAGE_SIZE);
        let offset = dice.roll(len / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        write_all_at(store, page, offset).unwrap();
    }
    store.sync(SyncWhat::Data).unwrap();
}

// spec: P26
#[cfg(target_os = "linux")]
#[test]
fn the_kernel_keeps_almost_nothing_of_a_file() {
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    // The measure itself: a store in mode `Kernel` leaves everything, until it is dropped.
    let store = create_with(&path, CacheMode::Kernel).unwrap();
    work_hard(&store);
    let Ok(all) = kernel_cached_pages(&path) else {
        eprintln!("left out: what the kernel caches cannot be told here");
        return;
    };
    assert_eq!(all.bytes(), 8 * MIB);
    crate::sys::file::drop_cached(&File::open(&path).unwrap(), 0, 0);
    if kernel_cached_pages(&path).unwrap().bytes() == 8 * MIB {
        eprintln!("left out: on this file system the page cache is the file");
        return;
    }
    drop(store);

    let modes = [
        CacheMode::Auto,
        CacheMode::DontCache,
        CacheMode::Direct,
        CacheMode::DropAfterUse,
    ];
    for mode in modes {
        std::fs::remove_file(&path).unwrap();
        let Some(store) = create_with(&path, mode) else {
            std::fs::write(&path, []).unwrap();
            continue;
        };
        work_hard(&store);
        let left = kernel_cached_pages(&path).unwrap();
        // 2 % of 2,048 pages.
        assert!(
            left.0 <= 41,
            "{} ({mode}): {} pages left",
            store.cache_mode(),
            left.0
        );
        assert_ne!(store.cache_mode(), CacheMode::Kernel, "Linux has better");
    }
}

#[test]
fn holes_are_reported_and_made() {
    let dir = disk_dir();
    let store = FileStore::create(dir.path().join("data.bin")).unwrap();
    store.set_len(4 * MIB).unwrap();
    write_all_at(&store, &[1; 65_536], 2 * MIB).unwrap();
    store.sync(SyncWhat::All).unwrap();
    assert!(
        read_all(&store)[..2 * MIB as usize]
            .iter()
            .all(|&byte| byte == 0)
    );
    if !cfg!(target_os = "linux") {
        return;
    }
    assert_eq!(store.next_data(0).unwrap(), Some(2 * MIB));
    assert_eq!(store.next_hole(0).unwrap(), 0);
    assert_eq!(store.next_hole(2 * MIB).unwrap(), 2 * MIB + 65_536);
    assert_eq!(store.next_data(3 * MIB).unwrap(), None);
    assert_eq!(
        (
            store.next_data(9 * MIB).unwrap(),
            store.next_hole(9 * MIB).unwrap()
        ),
        (None, 9 * MIB)
    );

    store.punch(2 * MIB, u64::MAX).unwrap();
    assert_eq!(
        (store.next_data(0).unwrap(), store.len().unwrap()),
        (None, 4 * MIB)
    );
}

#[test]
fn two_names_of_one_file_have_one_identity() {
    let (dir, path) = file_with(b"abc");
    let link = dir.path().join("link.bin");
    std::fs::hard_link(&path, &link).unwrap();
    let other = dir.path().join("other.bin");
    std::fs::write(&other, b"abc").unwrap();
    let open = |path| FileStore::open(path, Access::ReadOnly).unwrap().identity();
    if cfg!(unix) {
        assert!(open(&path).is_some());
        assert_ne!(open(&path), open(&other));
    }
    assert_eq!(open(&path), open(&link));
    assert_eq!(FileStore::identify(&link).unwrap(), open(&path));
    assert_ne!(open(&path), MemoryStore::new().identity());
}

#[test]
fn each_thing_that_cannot_be_opened_has_its_own_error() {
    let (dir, path) = file_with(b"abc");
    let text = |result: Result<FileStore, OpenError>| {
        let error = io::Error::from(result.unwrap_err());
        (
            error.kind(),
            error
                .to_string()
                .replace(&dir.path().display().to_string(), "DIR"),
        )
    };
    let missing = dir.path().join("missing.bin");
    let no_folder = dir.path().join("nowhere/data.bin");
    assert_eq!(
        text(FileStore::open(&missing, Access::ReadOnly)),
        (
            io::ErrorKind::NotFound,
            "DIR/missing.bin: no such file".to_owned()
        )
    );
    assert_eq!(
        text(FileStore::create(&no_folder)),
        (
            io::ErrorKind::NotFound,
            "DIR/nowhere/data.bin: no such file".to_owned()
        )
    );
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let (kind, message) = text(FileStore::open(dir.path(), access));
        assert_eq!(kind, io::ErrorKind::IsADirectory);
        assert_eq!(message, "DIR: is a directory, not a file");
    }
    assert_eq!(
        text(FileOptions::new().create(Create::New).open(&path)),
        (
            io::ErrorKind::AlreadyExists,
            "DIR/data.bin: exists already".to_owned()
        )
    );
    assert!(!missing.exists());
    assert_eq!(std::fs::read(&path).unwrap(), b"abc");
}

#[cfg(unix)]
#[test]
fn a_fifo_is_refused_without_waiting_for_its_other_end() {
    let dir = disk_dir();
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = FileStore::open(&fifo, access).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("/fifo: is a FIFO, not a regular file"),
            "{error}"
        );
    }
    let error = FileStore::open("/dev/null", Access::ReadWrite).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/null: is a character device, not a regular file"
    );
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, path) = file_with(b"abc");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        eprintln!("left out: permissions do not bind this user");
        return;
    }
    let error = FileStore::open(&path, Access::ReadOnly).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("data.bin: no permission to read it"),
        "{error}"
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    let error = FileStore::open(&path, Access::ReadWrite).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("data.bin: no permission to write it"),
        "{error}"
    );
}

#[test]
fn a_read_only_store_takes_no_writes() {
    let (_dir, path) = file_with(b"abc");
    let store = FileStore::open(&path, Access::ReadOnly).unwrap();
    assert!(!store.writable());
    let results = [
        store.write_at(b"x", 0).map(drop),
        store.write_vectored_at(&[IoSlice::new(b"x")], 0).map(drop),
        store.set_len(0),
        store.punch(0, 1),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::ReadOnly);
        assert_eq!(error.to_string(), "opened read-only");
    }
    assert_eq!(read_all(&store), b"abc");
    assert_eq!(store.name(), path.display().to_string());
}

#[test]
fn a_second_writer_is_refused_and_changes_nothing() {
    let (_dir, path) = file_with(b"abc");
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    let in_use = |result: Result<FileStore, OpenError>| match result.unwrap_err() {
        OpenError::InUse { holder, .. } => holder,
        error => panic!("{error}"),
    };
    let known = if cfg!(target_os = "linux") {
        Holder::ThisProcess
    } else {
        Holder::Unknown
    };
    let holder = in_use(FileStore::open(&path, Access::ReadWrite));
    assert!(holder == known || holder == Holder::Unknown);
    in_use(FileStore::create(&path));
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"abc",
        "create does not empty a file in use"
    );

    let reader = FileStore::open(&path, Access::ReadOnly).unwrap();
    store.write_at(b"X", 0).unwrap();
    assert_eq!(read_all(&reader), b"Xbc");
    drop(store);
    FileStore::create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

/// Not a test of its own: the other process of the next test.
#[test]
fn other_process_that_holds_a_lock() {
    let Some(path) = std::env::var_os("INNERSPACE_TEST_LOCK_FILE") else {
        return;
    };
    let _store = FileStore::open(path, Access::ReadWrite).unwrap();
    println!("\nlocked");
    io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_file_that_another_process_writes_is_in_use_by_its_pid() {
    let (_dir, path) = file_with(b"abc");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::tests::file::other_process_that_holds_a_lock",
            "--nocapture",
        ])
        .env("INNERSPACE_TEST_LOCK_FILE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "locked"),
        "the child never locked the file"
    );
    let error = FileStore::open(&path, Access::ReadWrite).unwrap_err();
    let message = error.to_string();
    let with_pid = format!("data.bin is in use by another process (pid {})", child.id());
    // The pid is missing in a pid namespace, and where there is no /proc/locks.
    let without = "data.bin is in use by another process";
    assert!(
        message.ends_with(&with_pid) || message.ends_with(without),
        "{message}"
    );

    writeln!(child.stdin.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    FileStore::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn a_file_cut_short_from_outside_is_an_error_with_both_lengths() {
    let (_dir, path) = file_with(&[1; 1_000_000]);
    for mode in ALL_MODES {
        std::fs::write(&path, [1; 1_000_000]).unwrap();
        let options = FileOptions::new().cache_mode(mode);
        let Ok(store) = options.open(&path) else {
            continue;
        };
        let mut buf = vec![0; 4096];
        assert_eq!(
            read_exact_or_eof(&store, &mut buf, 999_000).unwrap(),
            1000,
            "the real end"
        );
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(500_000)
            .unwrap();
        for offset in [499_712, 700_000] {
            let error = read_exact_or_eof(&store, &mut buf, offset).unwrap_err();
            assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Shrank);
            let expected = format!(
                "wanted 4096 bytes at {} but the file now ends at 500,000 \
                 (it was 1,000,000 when opened)",
                crate::units::Grouped(offset)
            );
            assert_eq!(error.to_string(), expected, "{mode}");
        }
        assert_eq!(read_exact_or_eof(&store, &mut buf, 2_000_000).unwrap(), 0);
    }
}

#[test]
fn a_length_changed_through_the_store_is_no_shrink() {
    let (_dir, path) = file_with(&[1; 100_000]);
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    let mut buf = [0; 100];
    store.set_len(10_000).unwrap();
    assert_eq!(read_exact_or_eof(&store, &mut buf, 50_000).unwrap(), 0);
    write_all_at(&store, &[2; 100], 20_000).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(15_000)
        .unwrap();
    let error = read_exact_or_eof(&store, &mut buf, 20_000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "wanted 100 bytes at 20,000 but the file now ends at 15,000 \
         (it was 20,100 after it was last changed here)"
    );
    assert!(store.set_len(u64::MAX).is_err());
    store.set_len(20_100).unwrap();
    assert_eq!(read_exact_or_eof(&store, &mut buf, 20_000).unwrap(), 100);
}

#[test]
fn changes_from_outside_make_a_new_version_and_own_ones_do_not() {
    let (_dir, path) = file_with(&[1; 100_000]);
    let store = FileStore::open(&path, Access::ReadWrite).unwrap();
    let first = store.version().unwrap();
    store.write_at(&[2; 4096], 0).unwrap();
    assert_eq!(store.version().unwrap(), first);
    store.set_len(200_000).unwrap();
    store.punch(0, 4096).unwrap();
    assert_eq!(store.version().unwrap(), first);
    assert_eq!(store.version().unwrap(), first);

    let outside = File::options().write(true).open(&path).unwrap();
    let stamp = |age: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + age);
    outside.set_modified(stamp(1)).unwrap();
    let second = store.version().unwrap();
    assert_ne!(second, first);
    store.write_at(&[3; 4096], 0).unwrap();
    assert_eq!(store.version().unwrap(), second);
    outside.set_len(300_000).unwrap();
    assert_ne!(store.version().unwrap(), second);

    let reader = FileStore::open(&path, Access::ReadOnly).unwrap();
    let before = reader.version().unwrap();
    store.write_at(&[4; 1], 300_000).unwrap();
    assert_ne!(
        reader.version().unwrap(),
        before,
        "to a reader the writer is outside"
    );
}

#[test]
fn offsets_past_63_bits_are_errors_and_not_the_cursor() {
    let (_dir, path) = file_with(b"abc");
    for mode in ALL_MODES {
        let options = FileOptions::new()
            .access(Access::ReadWrite)
            .cache_mode(mode);
        let Ok(store) = options.open(&path) else {
            continue;
        };
        assert!(store.write_at(b"x", u64::MAX).is_err(), "{mode}");
        assert!(store.read_at(&mut [0; 1], u64::MAX).is_err(), "{mode}");
        assert!(write_zeros(&store, u64::MAX, 2).is_err(), "{mode}");
        assert_eq!(read_all(&store), b"abc");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_sorted_as_no_space() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = (&full).write_all(b"x").unwrap_err();
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::NoSpace);
}

/// This test binary once more, running one test alone with [`INSIDE`] set; it has to pass.
#[cfg(target_os = "linux")]
fn run_inside(mut command: Command, test: &str) {
    let name = format!("store::tests::file::{test}");
    command.arg(std::env::current_exe().expect("path of the test"));
    command
        .args(["--exact", &name, "--nocapture"])
        .env(INSIDE, "1");
    let output = command.output().expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(target_os = "linux")]
const INSIDE: &str = "INNERSPACE_TEST_INSIDE";

// spec: P19
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system_refuses_the_write_and_keeps_what_it_has() {
    if std::env::var_os(INSIDE).is_some() {
        return on_a_full_file_system();
    }
    // Who has mounts of their own needs no root for them.
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount"]);
    let mut granted = Command::new("unshare");
    granted.args(["--user", "--map-root-user", "--mount", "true"]);
    match granted.stderr(Stdio::null()).status() {
        Ok(status) if status.success() => run_inside(
            unshare,
            "a_full_file_system_refuses_the_write_and_keeps_what_it_has",
        ),
        refused => eprintln!("left out: no mounts of one's own here (unshare: {refused:?})"),
    }
}

#[cfg(target_os = "linux")]
fn on_a_full_file_system() {
    let dir = disk_dir();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
    assert!(mount.arg(dir.path()).status().unwrap().success());
    let path = dir.path().join("data.bin");
    for mode in [CacheMode::Auto, CacheMode::Kernel] {
        let store = create_with(&path, mode).unwrap();
        let bytes = pattern(32 << 10, 1);
        write_all_at(&store, &bytes, 0).unwrap();
        let error = write_all_at(&store, &pattern(64 << 10, 2), 32 << 10).unwrap_err();
        assert_eq!(
            StoreErrorKind::of(&error),
            StoreErrorKind::NoSpace,
            "{error}"
        );
        assert!(read_all(&store)[..bytes.len()] == bytes);
        store.punch(0, 16 << 10).unwrap();
        write_all_at(&store, &[5; 8 << 10], 0).unwrap();
    }
    drop(Command::new("umount").arg(dir.path()).status());
}

// spec: P19
#[cfg(target_os = "linux")]
#[test]
fn a_file_at_its_size_limit_refuses_the_write_and_keeps_what_it_has() {
    if std::env::var_os(INSIDE).is_some() {
        return at_the_size_limit();
    }
    // 64 KiB in units of 512 bytes, where the shell is a POSIX one.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap "" XFSZ; ulimit -f 128 && exec "$0" "$@""#]);
    run_inside(
        shell,
        "a_file_at_its_size_limit_refuses_the_write_and_keeps_what_it_has",
    );
}

#[cfg(target_os = "linux")]
fn at_the_size_limit() {
    let dir = disk_dir();
    for mode in ALL_MODES {
        let Some(store) = create_with(&dir.path().join(mode.to_string()), mode) else {
            continue;
        };
        let bytes = pattern(32 << 10, 1);
        write_all_at(&store, &bytes, 0).unwrap();
        let error = write_all_at(&store, &pattern(256 << 10, 2), 32 << 10).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::FileTooLarge,
            "{mode}: {error}"
        );
        assert!(read_all(&store)[..bytes.len()] == bytes, "{mode}");
        // Within the limit all goes on.
        write_all_at(&store, &[5; 8 << 10], 0).unwrap();
        assert!(read_all(&store)[..8 << 10] == [5; 8 << 10], "{mode}");
    }
}
