//! The benchmarks as their users see them: wrong arguments, and where the figures go. What is
//! measured here takes no time.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The exit code and standard error of a run that must have printed nothing.
fn complaint(output: &Output) -> (Option<i32>, String) {
    assert_eq!(output.stdout, b"");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    (output.status.code(), text)
}

#[test]
fn a_filter_that_no_row_has_in_its_name_is_an_error() {
    for table in ["access", "page-fault", "fork", "hit-ratio", "translation"] {
        let told = complaint(&run(&[table, "--only", "no such row"]));
        let text = "innerspace-bench: no row has a name that contains \"no such row\"\n";
        assert_eq!(told, (Some(1), text.to_owned()), "{table}");
    }
}

#[test]
fn a_file_for_figures_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    // To measure everything would take minutes.
    let (code, text) = complaint(&run(&["fork", "--json", folder]));
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with(&format!("innerspace-bench: {folder:?}: ")),
        "{text}"
    );
}

#[test]
fn rounds_and_quick_exclude_each_other() {
    let (code, text) = complaint(&run(&["fork", "--quick", "--rounds", "3"]));
    assert_eq!(code, Some(2));
    assert!(text.contains("cannot be used with"), "{text}");
}

#[test]
fn figures_take_the_place_of_what_a_file_held_and_need_no_reader_of_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures.json");
    fs::write(&path, "x".repeat(100_000)).unwrap();
    let json = path.to_str().unwrap();
    let none = run(&["hit-ratio", "--only", "no such row", "--json", json]);
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000, "kept");

    let quick = ["hit-ratio", "--quick", "--only", "hot set", "--json", json];
    let mut child = command(&quick).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    let figures: serde_json::Value = serde_json::from_reader(File::open(&path).unwrap()).unwrap();
    assert_eq!(figures["tables"][0]["name"], "hit ratio");
}
