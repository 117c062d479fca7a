//! The demonstrations as their users see them, at a small size.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The tool, with a temporary folder of its own.
struct Tool {
    folder: TempDir,
}

impl Tool {
    fn new() -> Tool {
        let folder = tempfile::tempdir().unwrap();
        Tool { folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace"));
        command.args(arguments).env("TMPDIR", self.folder.path());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a demonstration that has to verify `stations` stations, and returns what it printed, as
    /// one line.
    fn verified(&self, arguments: &[&str], stations: usize) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}{errors}");
        let last = format!("{stations} of {stations} verified");
        assert_eq!(text.lines().last(), Some(&*last), "{text}");
        assert_eq!(errors, "", "no progress bars in a pipe");
        self.assert_nothing_left();
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            assert!(line.chars().count() <= 98, "{line}");
        }
        let words: Vec<_> = text.split_whitespace().collect();
        words.join(" ")
    }

    /// Runs what has to fail, and returns the exit code and the one line of the error.
    fn complaint(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(output.stdout, b"");
        self.assert_nothing_left();
        (output.status.code(), text.trim_end().to_owned())
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
}

#[test]
fn branches_have_their_own_answers_and_the_parent_stays() {
    let small = ["--size", "2MiB", "--limit", "2MiB", "--branches", "20"];
    let text = Tool::new().verified(&[&["demo", "branches"][..], &small].concat(), 7);
    assert_says(
        &text,
        &[
            "bank.db: 2.0 MiB, 20 branches, with a limit of 2.0 MiB",
            "20 of them have the last transaction, which is only in the WAL",
            "fork(2) of a process with 2.0 MiB",
            "cp of 2.0 MiB",
            "it lacks the last transaction",
            "20 different answers of 20 branches",
            "0 of these rows are changed in the parent",
            "branch 17 has changed 4 of 5",
            "branch 10: disk I/O error",
            "19 of the 19 others updated a row meanwhile",
            "by PRAGMA mmap_size: SIGBUS",
            "integrity_check of the parent and of 10 branches: ok",
            "the file and its WAL are the same bytes as before",
            "20 of 20 branches still have what they had",
            "to write branch 1 back now: ",
            "counted by the library: ",
        ],
    );
}

/// One branch is the one that is shown, the one whose disk fails, and all that SQLite checks. The
/// smallest memory has no room for much.
#[test]
fn one_branch_and_the_smallest_memory_will_do() {
    let small = ["--size", "1MiB", "--limit", "256KiB", "--branches", "1"];
    let text = Tool::new().verified(&[&["demo", "branches"][..], &small].concat(), 7);
    assert_says(
        &text,
        &[
            "1 different answers of 1 branches",
            "branch 1: disk I/O error",
        ],
    );
}

#[test]
fn a_noisy_tenant_evicts_nothing_of_the_others() {
    let small = ["--databases", "20", "--limit", "2MiB"];
    let text = Tool::new().verified(&[&["demo", "tenants"][..], &small].concat(), 3);
    assert_says(
        &text,
        &[
            "20 databases of 256.0 KiB, one of 8.0 MiB, with a limit of 2.0 MiB",
            " and 0 B of the others",
            ", 0 wrong answers",
        ],
    );
}

#[test]
fn bad_arguments_are_one_line_and_exit_code_2() {
    let tool = Tool::new();
    for (arguments, text) in [
        (
            &["demo", "branches", "--limit", "32KiB"][..],
            "limit 32 KiB is below the minimum of 256 KiB",
        ),
        (
            &["demo", "branches", "--size", "1MiB", "--branches", "100"],
            "100 branches with 3 pages each need --size 1.6 MiB or more",
        ),
        (
            &["demo", "branches", "--branches", "0"],
            "invalid value '0' for '--branches <BRANCHES>': 0 is not in 1..=1000000; \
             see innerspace demo --help",
        ),
        (
            &["demo", "tenants", "--limit", "1MiB"],
            "1,000 databases whose 5 pages in use are to stay need --limit 29.3 MiB or more",
        ),
        (
            &["demo", "everything"],
            "unrecognized subcommand 'everything'; see innerspace demo --help",
        ),
    ] {
        let told = tool.complaint(arguments);
        assert_eq!(told, (Some(2), format!("error: {text}")), "{arguments:?}");
    }
}

#[test]
fn too_few_files_are_one_line_and_exit_code_1() {
    let tool = Tool::new();
    let run = "ulimit -n 100 && exec \"$0\" demo branches --size 16MiB --branches 1000";
    let mut command = Command::new("sh");
    command
        .args(["-c", run])
        .arg(env!("CARGO_BIN_EXE_innerspace"));
    let output = command.env("TMPDIR", tool.folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let told = "error: 1000 branches need 2064 open files and this user may have 100: take at \
                most 18, or raise the hard limit (ulimit -Hn)\n";
    assert_eq!(text, told);
    tool.assert_nothing_left();
}

#[test]
fn an_interrupted_demonstration_leaves_nothing_behind() {
    for arguments in [
        ["demo", "branches", "--size", "64MiB"],
        ["demo", "tenants", "--limit", "64MiB"],
    ] {
        let tool = Tool::new();
        let mut child = tool
            .command(&arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        // From the first line on, the folder exists and the handler is set.
        out.read_line(&mut String::new()).unwrap();
        assert_eq!(fs::read_dir(tool.folder.path()).unwrap().count(), 1);
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        tool.assert_nothing_left();
    }
}
