//! Tests of files that cannot grow: on a full file system, and at a size limit.
#![cfg(all(not(miri), target_os = "linux"))]

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use super::file::{ALL_MODES, create_with};
use super::*;
use crate::sys::file::disk_dir;

#[test]
fn a_full_device_is_sorted_as_no_space() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = (&full).write_all(b"x").unwrap_err();
    assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::NoSpace);
}

/// Runs one test of this binary in another process, with [`INSIDE`] set. The test has to pass.
fn run_inside(mut command: Command, test: &str) {
    let name = format!("store::tests::file_full::{test}");
    command.arg(std::env::current_exe().expect("path of the test"));
    command
        .args(["--exact", &name, "--nocapture"])
        .env(INSIDE, "1");
    let output = command.output().expect("the child runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

const INSIDE: &str = "INNERSPACE_TEST_INSIDE";

// spec: P19
#[test]
fn a_full_file_system_refuses_the_write_and_keeps_what_it_has() {
    if std::env::var_os(INSIDE).is_some() {
        return on_a_full_file_system();
    }
    // In a mount namespace of its own the process need not be root to mount.
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
#[test]
fn a_file_at_its_size_limit_refuses_the_write_and_keeps_what_it_has() {
    if std::env::var_os(INSIDE).is_some() {
        return at_the_size_limit();
    }
    // The limit is 64 KiB in units of 512 bytes, if the shell is a POSIX shell.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap "" XFSZ; ulimit -f 128 && exec "$0" "$@""#]);
    run_inside(
        shell,
        "a_file_at_its_size_limit_refuses_the_write_and_keeps_what_it_has",
    );
}

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
        // Within the limit everything works.
        write_all_at(&store, &[5; 8 << 10], 0).unwrap();
        assert!(read_all(&store)[..8 << 10] == [5; 8 << 10], "{mode}");
    }
}
