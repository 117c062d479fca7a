//! The tool as its users see it: what it prints, its exit codes, and that it leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// The smallest tour, in a temporary folder of its own.
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

    /// Runs a tour that has to verify everything, and returns what it printed, without line ends.
    fn verified(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{arguments:?}: {text}");
        assert_eq!(text.lines().last(), Some("6 of 6 verified"), "{text}");
        assert_eq!(text.lines().filter(|line| *line == "  verified").count(), 6);
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            "",
            "no progress bars in a pipe"
        );
        assert!(!text.contains(['\x1b', '\r']), "{text:?}");
        self.assert_nothing_left();
        assert_short(&text);
        unwrapped(&text)
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(self.folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The printed text without line ends.
fn unwrapped(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

/// Checks that no line of evidence is longer than a report is wide.
fn assert_short(text: &str) {
    for line in text.lines().filter(|line| line.starts_with(' ')) {
        assert!(line.chars().count() <= 98, "{line}");
    }
}

/// The exit code, and the one line of an error.
fn complaint(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(output.stdout, b"");
    (output.status.code(), text.trim_end().to_owned())
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * i / 7 + i / 251) as u8).collect()
}

#[test]
fn a_sample_is_made_shown_and_removed() {
    let tool = Tool::new();
    let text = tool.verified(&["tour", "--size", "4MiB", "--limit", "512KiB"]);
    assert!(
        text.starts_with("sample.bin: 4.0 MiB, with a limit of 512.0 KiB "),
        "{text}"
    );
    let told = "data.bin: wanted 4096 bytes at 3,145,728 but the file now ends at 524,288 \
                (it was 4,194,304 when opened)";
    assert!(text.contains(told), "{text}");
    #[cfg(unix)]
    assert!(
        text.contains("a process that did the same with mmap: SIGBUS"),
        "{text}"
    );
    assert!(text.contains(": 0 evicted, 0 read again"), "{text}");
    assert!(
        text.contains("sync: updates.bin: write of 4096 bytes at "),
        "{text}"
    );
}

#[test]
fn a_given_file_is_read_and_left_as_it_is() {
    let tool = Tool::new();
    let other = tempfile::tempdir().unwrap();
    // Empty; less than a page; not whole pages and 33 times the limit.
    for len in [0, 100, (8 << 20) + 4099] {
        let path = other.path().join("given.bin");
        let bytes = numbers(len);
        fs::write(&path, &bytes).unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        let before = fs::metadata(&path).unwrap();

        tool.verified(&["tour", path.to_str().unwrap(), "--limit", "256KiB"]);

        assert!(fs::read(&path).unwrap() == bytes);
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_name_that_is_no_text_is_shown_as_some() {
    use std::os::unix::ffi::OsStrExt;
    let tool = Tool::new();
    let other = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff\n\x1b[2J");
    let path = other.path().join(name);
    fs::write(&path, "given").unwrap();
    let mut command = tool.command(&["tour", "--limit", "512KiB"]);
    let output = command.arg(&path).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let shown = format!("{}/\u{fffd}\\n\\u{{1b}}[2J", other.path().display());
    let line = format!("{shown}: 5 B, with a limit of 512.0 KiB\n");
    assert!(text.starts_with(&line), "{text}");
}

#[test]
fn a_limit_larger_than_the_file_is_fine() {
    let tool = Tool::new();
    let text = tool.verified(&["tour", "--size", "64KiB", "--limit", "3MiB"]);
    assert!(text.contains("48 stores to a private mapping"), "{text}");
}

#[test]
fn a_limit_may_be_any_number_of_bytes() {
    let tool = Tool::new();
    let text = tool.verified(&["tour", "--size", "1MiB", "--limit", "300001"]);
    assert!(
        text.contains("sync: updates.bin: write of 4096 bytes at "),
        "{text}"
    );
}

#[test]
fn bad_arguments_are_one_line_and_exit_code_2() {
    let tool = Tool::new();
    let no_size = "a size is a number and B, KiB, MiB or GiB, as in 16MiB";
    for (arguments, text) in [
        (
            &["tour", "--limit", "32KiB"][..],
            "limit 32 KiB is below the minimum of 256 KiB".to_owned(),
        ),
        (
            &["tour", "--limit", "262143"],
            "limit 262143 bytes is below the minimum of 256 KiB".to_owned(),
        ),
        (
            &["tour", "--size", "12 parsecs"],
            format!(
                "invalid value '12 parsecs' for '--size <SIZE>': {no_size}; see innerspace tour --help"
            ),
        ),
        (
            &["tour", "--limit", "8589934592GiB"],
            "invalid value '8589934592GiB' for '--limit <LIMIT>': too large a size; \
             see innerspace tour --help"
                .to_owned(),
        ),
        (
            &["tour", "--fast"],
            "unexpected argument '--fast' found; see innerspace tour --help".to_owned(),
        ),
        (
            &["tour", "one", "two"],
            "unexpected argument 'two' found; see innerspace tour --help".to_owned(),
        ),
        (
            &["tour", "one", "--size", "4MiB"],
            "the argument '[FILE]' cannot be used with '--size <SIZE>'; see innerspace tour --help"
                .to_owned(),
        ),
        (
            &["guide"],
            "unrecognized subcommand 'guide'; see innerspace --help".to_owned(),
        ),
        (
            &[],
            "'innerspace' requires a subcommand but one was not provided; see innerspace --help"
                .to_owned(),
        ),
    ] {
        let told = complaint(&tool.run(arguments));
        assert_eq!(told, (Some(2), format!("error: {text}")), "{arguments:?}");
    }
    let (code, text) = complaint(&tool.run(&["tour", "--limit", "1048576GiB"]));
    assert_eq!(code, Some(2));
    let (start, end) = (
        "error: limit 1048576.0 GiB is above the ",
        " that this machine has",
    );
    assert!(text.starts_with(start) && text.ends_with(end), "{text}");
    tool.assert_nothing_left();
}

#[test]
fn a_file_that_cannot_be_opened_is_one_line_and_exit_code_1() {
    let tool = Tool::new();
    let folder = tempfile::tempdir().unwrap();
    let tell = |path: &Path| complaint(&tool.run(&["tour", path.to_str().unwrap()]));
    let missing = folder.path().join("missing.bin");
    let text = format!("error: {}: no such file", missing.display());
    assert_eq!(tell(&missing), (Some(1), text));
    let text = format!(
        "error: {}: is a directory, not a file",
        folder.path().display()
    );
    assert_eq!(tell(folder.path()), (Some(1), text));
    tool.assert_nothing_left();
}

#[cfg(unix)]
#[test]
fn a_file_without_permission_is_one_line_and_exit_code_1() {
    use std::os::unix::fs::PermissionsExt;
    let tool = Tool::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.bin");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    let text = format!("error: {}: no permission to read it", path.display());
    assert_eq!(
        complaint(&tool.run(&["tour", path.to_str().unwrap()])),
        (Some(1), text)
    );
}

#[test]
fn a_missing_temporary_folder_is_one_line_and_exit_code_1() {
    let tool = Tool::new();
    let gone = tool.folder.path().join("gone");
    let mut command = tool.command(&["tour", "--size", "64KiB"]);
    let (code, text) = complaint(&command.env("TMPDIR", &gone).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with("error: cannot make a temporary folder: "),
        "{text}"
    );
    assert!(text.contains(gone.to_str().unwrap()), "{text}");
}

#[cfg(unix)]
#[test]
fn whoever_stops_reading_ends_the_tour_without_a_word() {
    let tool = Tool::new();
    let mut command = tool.command(&["tour", "--size", "1MiB", "--limit", "512KiB"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    // The reader and its end of the pipe are gone after this line.
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert_eq!(first, "sample.bin: 1.0 MiB, with a limit of 512.0 KiB\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    tool.assert_nothing_left();
}

#[test]
fn a_file_that_others_cut_during_the_tour_is_told_as_such() {
    let tool = Tool::new();
    let given = tempfile::NamedTempFile::new().unwrap();
    fs::write(&given, numbers(8 << 20)).unwrap();
    let name = given.path().to_str().unwrap();
    let mut command = tool.command(&["tour", name, "--limit", "512KiB"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // After the first line the length of the file is known, and no station has begun.
    out.read_line(&mut String::new()).unwrap();
    given.as_file().set_len(1).unwrap();
    let rest = std::io::read_to_string(out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let told = format!("\n\n{name} was changed by another program during the tour\n\n");
    assert!(rest.contains(&told), "{rest}");
    assert!(rest.ends_with(" of 6 verified\n"), "{rest}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_tour_leaves_nothing_behind() {
    let tool = Tool::new();
    let mut command = tool.command(&["tour", "--size", "64MiB"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // From the first line on, the folder exists and the handler is set.
    out.read_line(&mut String::new()).unwrap();
    assert_eq!(fs::read_dir(tool.folder.path()).unwrap().count(), 1);
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    tool.assert_nothing_left();
}

/// The file is a pipe that nobody writes to, so the contender, which opens it, ends for no other
/// reason.
#[cfg(unix)]
#[test]
fn a_process_of_the_tour_ends_with_it() {
    let tool = Tool::new();
    let pipe = tool.folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let arguments = ["child", "contender", "read", "1048576", "4096"];
    let mut command = tool.command(&[&arguments[..], &["--", pipe.to_str().unwrap()]].concat());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_contender_that_finds_no_file_names_it_in_plain_text() {
    let tool = Tool::new();
    let odd = "none\n\u{1b}[2J";
    let mut command = tool.command(&["child", "contender", "read", "1", "1", "--", odd]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // The parent, as long as this is open.
    let parent = child.stdin.take();
    let (code, text) = complaint(&child.wait_with_output().unwrap());
    drop(parent);
    assert_eq!(code, Some(1));
    let start = r#"error: "none\n\u{1b}[2J": "#;
    assert!(text.starts_with(start), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_line_and_exit_code_1() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: this user may not mount a file system");
        return;
    };
    let tool = Tool::new();
    let mut command = tool.command(&["tour", "--size", "4MiB", "--limit", "512KiB"]);
    let output = command.env("TMPDIR", disk.folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let start = format!(
        "error: cannot make a sample of 4.0 MiB in \"{}/",
        disk.folder.path().display()
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(
        text.ends_with(": No space left on device (os error 28)\n"),
        "{text}"
    );
    assert_eq!(fs::read_dir(disk.folder.path()).unwrap().count(), 0);

    // The stations that need files of their own report the error, too.
    let given = tool.folder.path().join("given.bin");
    fs::write(&given, "given").unwrap();
    let mut command = tool.command(&["tour", given.to_str().unwrap(), "--limit", "512KiB"]);
    let output = command.env("TMPDIR", disk.folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_short(&text);
    let text = unwrapped(&text);
    for size in ["4.0 MiB", "64.0 KiB"] {
        let line = format!(
            "NOT VERIFIED: cannot write a file of {size} to \"{}/",
            disk.folder.path().display()
        );
        assert!(text.contains(&line), "{text}");
    }
}

/// By default the kernel sends a signal that ends the process.
#[cfg(unix)]
#[test]
fn a_file_larger_than_the_user_may_write_is_one_line_and_exit_code_1() {
    let tool = Tool::new();
    let run = [
        "-c",
        "ulimit -f 100 && exec \"$0\" tour --size 4MiB --limit 512KiB",
    ];
    let mut command = Command::new("sh");
    command.args(run).arg(env!("CARGO_BIN_EXE_innerspace"));
    command.env("TMPDIR", tool.folder.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("error: cannot make a sample of 4.0 MiB in "),
        "{text}"
    );
    assert!(text.contains("File too large"), "{text}");
    tool.assert_nothing_left();
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_longer_than_it_says_is_told_as_such() {
    let tool = Tool::new();
    let output = tool.run(&["tour", "/proc/version", "--limit", "512KiB"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("\n5 of 6 verified\n"), "{text}");
    assert_short(&text);
    let text = unwrapped(&text);
    assert!(
        text.contains(" B, and the file system says that the file has 0 B"),
        "{text}"
    );
}

/// A file system of 64 KiB.
#[cfg(target_os = "linux")]
struct SmallDisk {
    folder: TempDir,
}

#[cfg(target_os = "linux")]
impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(folder.path());
        let done = mount
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        done.then_some(SmallDisk { folder })
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(self.folder.path()).status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "the small disk stays mounted"
        );
    }
}
