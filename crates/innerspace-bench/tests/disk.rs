//! The command `disk` as its users meet it. How long anything takes is not looked at.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace-bench"));
    command.arg("disk").args(arguments).output().unwrap()
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn scans_are_measured_and_checked_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let figures = tempfile::NamedTempFile::new().unwrap();
    let json = figures.path().to_str().unwrap();
    let small = ["--quick", "--size", "16MiB", "--limit", "4MiB"];
    let mut arguments = vec!["--only", "scan", "--dir", path, "--json", json];
    arguments.extend(small);
    let output = run(&arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("is in memory") {
        eprintln!("skipped: {path} is in memory; set TMPDIR to a folder on a disk");
        return;
    }
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: serde_json::Value =
        serde_json::from_slice(&fs::read(figures.path()).unwrap()).unwrap();
    for (row, name) in ["scan", "scan by two threads"].into_iter().enumerate() {
        assert!(text.contains(&format!("\n{name}\n")), "{text}");
        let row = &figures["rows"][row];
        assert_eq!(row["name"], name);
        let contenders = row["contenders"].as_array().unwrap();
        assert_eq!(contenders.len(), 6);
        for contender in contenders {
            assert!(contender["rate"].as_f64().unwrap() > 0.0, "{contender}");
            assert!(contender["failure"].is_null(), "{contender}");
        }
        assert_eq!(row["aims"].as_array().unwrap().len(), 6);
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "left behind"
    );
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line() {
    let memory = "/dev/shm";
    if Path::new(memory).is_dir() {
        let told = complaint(&run(&["--dir", memory]));
        let text = "innerspace-bench: \"/dev/shm\" is in memory, not on a disk: \
                    pass --dir with a folder on a disk\n";
        assert_eq!(told, text);
    }
    let told = complaint(&run(&["--size", "64MiB"]));
    let text = "innerspace-bench: --size (64 MiB) must be at least twice --limit (128 MiB)\n";
    assert_eq!(told, text);
    let told = complaint(&run(&["--dir", "/no/such/folder"]));
    assert!(
        told.starts_with("innerspace-bench: \"/no/such/folder\": "),
        "{told}"
    );
    let told = complaint(&run(&["--only", "no such row"]));
    let text = "innerspace-bench: no row has a name that contains \"no such row\"\n";
    assert_eq!(told, text);
    assert!(complaint(&run(&["--size", "12q"])).contains("is no size"));
    assert!(complaint(&run(&["--size", "9000TiB"])).contains("is no size"));
}
