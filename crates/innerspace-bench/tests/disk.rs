//! The command `disk` as its users see it. No test depends on the time that anything takes.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A step that does not end is an error after this time.
const PATIENCE: Duration = Duration::from_secs(60);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_innerspace-bench"));
    command.arg("disk").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The standard error of a run that was refused before it printed anything.
fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    assert_eq!(output.stdout, b"");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A new folder, below the one of the build, which is on a disk more often than that of temporary
/// files.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Measures rows with a small file. Returns the text and the figures; `None` where the folder is in
/// memory.
fn measured(only: &str) -> Option<(String, Value)> {
    let (folder, figures) = (folder(), tempfile::NamedTempFile::new().unwrap());
    let path = folder.path().to_str().unwrap();
    let json = figures.path().to_str().unwrap();
    let mut arguments = vec!["--only", only, "--dir", path, "--json", json];
    arguments.extend(["--quick", "--size", "64MiB", "--limit", "16MiB"]);
    let output = run(&arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    if told.contains("that is memory") {
        eprintln!("skipped: {told}");
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}{text}");
    assert_eq!(left_in(folder.path()), Vec::<PathBuf>::new());
    let figures = serde_json::from_slice(&fs::read(figures.path()).unwrap()).unwrap();
    Some((text, figures))
}

fn left_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Checks that each contender of a row has figures, and no failure.
fn check_row(text: &str, row: &Value, name: &str, contenders: &[&str], aims: usize) {
    assert!(text.contains(&format!("\n{name}\n")), "{text}");
    assert_eq!(row["name"], name);
    let all = row["contenders"].as_array().unwrap();
    let names: Vec<_> = all.iter().map(|of| of["contender"].as_str()).collect();
    let expected: Vec<_> = contenders.iter().copied().map(Some).collect();
    assert_eq!(names, expected, "{name}");
    for of in all {
        let wall = |key: &str| of[key].as_f64().unwrap();
        assert!(of["rate"].as_f64().unwrap() > 0.0, "{of}");
        assert!(
            wall("wall_seconds_min") <= wall("wall_seconds"),
            "{name}: {of}"
        );
        assert!(
            wall("wall_seconds") <= wall("wall_seconds_max"),
            "{name}: {of}"
        );
        assert!(of["failure"].is_null(), "{name}: {of}");
    }
    assert_eq!(row["aims"].as_array().unwrap().len(), aims, "{name}");
}

#[test]
fn scans_are_measured_and_nothing_is_left_behind() {
    let Some((text, figures)) = measured("scan") else {
        return;
    };
    let contenders = ["calls", "read_at", "mapping", "pread", "mmap", "io_uring"];
    for (row, name) in ["scan", "scan by two threads"].into_iter().enumerate() {
        check_row(&text, &figures["rows"][row], name, &contenders, 6);
    }
    assert!(text.contains("CPU time is that of the process"), "{text}");
    // The note above all rows must agree with those in the lines about the memory cgroup.
    let not_held = text.matches("  not held to the limit\n").count();
    let noted = text.contains("no memory cgroup can be made");
    assert_eq!(not_held, if noted { 4 } else { 0 }, "{text}");
}

#[test]
fn random_reads_by_futures_are_measured() {
    let Some((text, figures)) = measured("32 futures") else {
        return;
    };
    let name = "random 4 KiB, 32 futures";
    let contenders = ["futures", "pread", "io_uring"];
    check_row(&text, &figures["rows"][0], name, &contenders, 2);
}

#[test]
fn batches_are_measured() {
    let Some((text, figures)) = measured("16 reads") else {
        return;
    };
    let contenders = ["calls", "pread", "mmap", "io_uring"];
    for (row, (spread, aims)) in [("uniform", 0), ("80 % to 20 %", 1)]
        .into_iter()
        .enumerate()
    {
        let name = format!("16 reads of 16 KiB, {spread}");
        check_row(&text, &figures["rows"][row], &name, &contenders, aims);
    }
}

#[test]
fn writes_are_measured_and_read_back() {
    let Some((text, figures)) = measured("then a sync") else {
        return;
    };
    let row = &figures["rows"][0];
    let name = "70/30 of 256 bytes, then a sync";
    check_row(&text, row, name, &["calls", "pread", "mmap"], 0);
    let row = &figures["rows"][1];
    let contenders = ["calls", "pread", "io_uring"];
    check_row(&text, row, "load by 1 MiB, then a sync", &contenders, 0);
}

#[test]
fn a_folder_in_memory_is_refused_in_one_line() {
    let memory = "/dev/shm";
    if !Path::new(memory).is_dir() {
        eprintln!("skipped: there is no {memory}");
        return;
    }
    let told = complaint(&run(&["--dir", memory]));
    let text = "innerspace-bench: \"/dev/shm\" is on tmpfs: that is memory, not a disk; \
                pass --dir with a folder on a disk\n";
    assert_eq!(told, text);
}

/// Runs the command in an overlay of its own, with the upper layer in the folder given.
fn run_in_overlay(upper: &Path) -> Option<Output> {
    for folder in ["lower", "the, upper", "work", "merged"] {
        fs::create_dir(upper.join(folder)).unwrap();
    }
    // The comma is escaped for mount(8), and comma and space in the list of mounts.
    let script = r#"
        cd "$1" && mount -t overlay overlay merged \
            -o "lowerdir=$1/lower,upperdir=$1/the\, upper,workdir=$1/work" || exit 77
        exec "$2" disk --dir merged --size 8MiB --limit 4MiB --quick --only 'load by'
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(upper)
        .arg(env!("CARGO_BIN_EXE_innerspace-bench"))
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let told = String::from_utf8_lossy(&output.stderr);
    let started = output.status.success() || told.starts_with("innerspace-bench: ");
    if !started {
        eprintln!("skipped: no overlay can be mounted: {told}");
    }
    started.then_some(output)
}

#[test]
fn an_overlay_is_refused_only_when_its_upper_layer_is_in_memory() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: there is no /dev/shm");
        return;
    };
    let Some(output) = run_in_overlay(memory.path()) else {
        return;
    };
    let told = complaint(&output);
    assert!(
        told.starts_with("innerspace-bench: \"merged\" is on an overlay whose upper layer, \"")
            && told.ends_with(
                "the, upper\", is on tmpfs: that is memory, not a disk; \
                 pass --dir with a folder on a disk\n"
            ),
        "{told}"
    );
    let disk = folder();
    let Some(output) = run_in_overlay(disk.path()) else {
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    if !told.contains("that is memory") {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("load by 1 MiB, then a sync"), "{told}{text}");
        assert!(!text.contains("cannot be seen from here"), "{text}");
    }
}

#[test]
fn arguments_that_cannot_be_measured_are_refused_in_one_line() {
    let told = complaint(&run(&["--size", "64MiB"]));
    let text = "innerspace-bench: --size (64 MiB) must be at least twice --limit (128 MiB)\n";
    assert_eq!(told, text);
    let told = complaint(&run(&["--dir", "/no/such/folder"]));
    assert!(
        told.starts_with("innerspace-bench: \"/no/such/folder\": "),
        "{told}"
    );
    let told = complaint(&run(&["--dir", env!("CARGO_BIN_EXE_innerspace-bench")]));
    assert!(told.ends_with(": not a folder\n"), "{told}");
    let told = complaint(&run(&["--only", "no such row"]));
    let text = "innerspace-bench: no row has a name that contains \"no such row\"\n";
    assert_eq!(told, text);
    for (size, text) in [
        ("12q", "\"12q\" is no size: give it as 64MiB or 2GiB"),
        ("0", "nothing can be measured with 0 bytes"),
        ("9000TiB", "\"9000TiB\" is more than 8 TiB"),
        (
            "300001KiB",
            "\"300001KiB\" is not a multiple of 1 MiB, the largest read and write of the rows: \
             give 293MiB",
        ),
    ] {
        let told = complaint(&run(&["--size", size]));
        assert!(told.contains(text), "{told}");
    }
}

/// Waits until something is there.
fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A run of the command, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn interrupt(&self, signal: &str) {
        let process = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.unwrap().success());
    }

    /// The process that runs a contender.
    fn contender(&self) -> Option<u32> {
        let process = self.0.id();
        let children = format!("/proc/{process}/task/{process}/children");
        let child = fs::read_to_string(children).ok()?;
        let child: u32 = child.split_whitespace().next()?.parse().ok()?;
        let program = fs::read(format!("/proc/{child}/cmdline")).ok()?;
        let is_contender = program.split(|&byte| byte == 0).nth(1)? == b"disk-child";
        is_contender.then_some(child)
    }
}

/// The memory cgroups of a run.
fn groups(process: u32) -> Vec<PathBuf> {
    let name = format!("innerspace-bench-{process}");
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name() == name.as_str() {
                found.push(entry.path());
            }
            folders.push(entry.path());
        }
    }
    found
}

#[test]
fn an_interrupt_leaves_no_process_no_file_and_no_memory_cgroup() {
    for signal in ["-INT", "-TERM"] {
        let folder = folder();
        let path = folder.path().to_str().unwrap();
        // One read at a time, which takes seconds on any disk.
        let mut arguments = vec!["--dir", path, "--size", "256MiB", "--limit", "16MiB"];
        arguments.extend(["--only", "1 thread"]);
        let mut command = command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().unwrap());
        let found = wait_for("contender, nor an end", || {
            match running.0.try_wait().unwrap() {
                Some(_) => Some(None),
                None => running.contender().map(Some),
            }
        });
        let Some(contender) = found else {
            let output = output_of(running);
            assert!(output.contains("that is memory"), "{output}");
            eprintln!("skipped: {output}");
            return;
        };
        // The second contender uses the kernel, and runs in a memory cgroup if one can be made.
        let contender = wait_for("second contender", || {
            running.contender().filter(|now| *now != contender)
        });
        assert_ne!(left_in(folder.path()), Vec::<PathBuf>::new());
        let process = running.0.id();
        running.interrupt(signal);
        let told = output_of(running);
        assert_eq!(
            told,
            "innerspace-bench: interrupted; the files are removed\n"
        );
        assert_eq!(left_in(folder.path()), Vec::<PathBuf>::new());
        assert_eq!(groups(process), Vec::<PathBuf>::new());
        let alive = Path::new("/proc").join(contender.to_string());
        assert!(!alive.exists(), "process {contender} still runs");
    }
}

/// Standard error of a run, after its end.
fn output_of(mut running: Running) -> String {
    use std::io::Read;
    let mut text = String::new();
    let mut stderr = running.0.stderr.take().unwrap();
    stderr.read_to_string(&mut text).unwrap();
    assert!(!running.0.wait().unwrap().success());
    text
}
