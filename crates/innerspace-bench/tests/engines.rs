//! The command `engines` as its users see it. No test depends on the time that anything takes.
#![cfg(all(target_os = "linux", feature = "engines"))]

use std::process::{Command, Stdio};

/// Measures a row in a new folder, and returns its text; `None` where nothing can be measured.
fn measured(only: &str) -> Option<String> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace-bench"));
    command.args(["engines", "--quick", "--only", only, "--dir", path]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("that is memory") || told.contains("no memory cgroup can be made") {
        eprintln!("skipped: {told}");
        return None;
    }
    assert!(output.status.success(), "{told}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "left behind");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn reads_of_a_database_are_measured_and_nothing_is_left_behind() {
    if let Some(text) = measured("redb, cold random reads of 200,000") {
        assert!(
            text.contains("innerspace at most 1.0 x FileBackend"),
            "{text}"
        );
    }
}

#[test]
fn queries_are_measured_and_find_what_they_find_without_a_limit() {
    if let Some(text) = measured("cold queries") {
        assert!(
            text.contains("innerspace at most 1.0 x MmapDirectory"),
            "{text}"
        );
    }
}
