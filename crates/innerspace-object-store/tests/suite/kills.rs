//! Processes that are killed while they fill a tier. Afterwards no byte is wrong.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use innerspace_object_store::Tier;

use crate::common::{Computed, bytes, read};

const ROLE: &str = "INNERSPACE_TIER_TEST";
const LEN: u64 = 700_001;
/// Room for half of the chunks of one version: every run evicts.
const SIZE: u64 = 300_000;
/// Room for all chunks of all versions, so that each one that a killed process has left is read.
const ROOM: u64 = 3_000_000;

/// Returns this program as a command that runs one test in a role.
pub(crate) fn child(test: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--nocapture", "--include-ignored"]);
    command.env(ROLE, format!("{role}:{}", folder.display()));
    command
}

/// Returns the folder, if this process was started for a role.
pub(crate) fn child_folder(role: &str) -> Option<PathBuf> {
    let text = std::env::var(ROLE).ok()?;
    let (its, folder) = text.split_once(':')?;
    (its == role).then(|| folder.into())
}

/// Has the system refuse files of this process beyond a size.
pub(crate) fn limit_file_size(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: both calls change this process's settings alone, and take plain values.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

fn kill(test: &str, times: u64) {
    let open = |folder: &Path, size| Tier::options().chunk_size(8192).open(folder, size).unwrap();
    if let Some(folder) = child_folder("fill") {
        let tier = open(&folder, SIZE);
        println!("ready");
        for run in 0.. {
            let store = tier.store(Computed::new(run % 3, LEN)).unwrap();
            read(&store, (run * 7919) % 100_000, 300_000).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut found, mut hits) = (0, 0);
    for n in 0..times {
        let mut command = child(test, "fill", folder.path());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = process.stdout.take().unwrap();
        // The test harness prints a line of its own first.
        let mut text = Vec::new();
        while !text.ends_with(b"ready") {
            let mut byte = [0];
            assert_eq!(
                out.read(&mut byte).unwrap(),
                1,
                "it fills until it is killed"
            );
            text.push(byte[0]);
        }
        std::thread::sleep(Duration::from_micros(n * 7919 % 15_000));
        process.kill().unwrap();
        process.wait().unwrap();
        let sizes = ["chunks", "records"].map(|name| {
            let file = folder.path().join(name);
            std::fs::metadata(file).unwrap().len()
        });
        assert!(sizes.iter().sum::<u64>() <= SIZE);
        let tier = open(folder.path(), ROOM);
        found += tier.stats().chunks_found;
        for version in 0..3 {
            let store = tier.store(Computed::new(version, LEN)).unwrap();
            let got = read(&store, 0, LEN as usize).unwrap();
            assert!(
                got == bytes(version, LEN as usize),
                "kill {n}, version {version}"
            );
        }
        hits += tier.stats().hits;
    }
    assert!(
        found > 0 && hits > 0,
        "the tier was warm: {found} found, {hits} hits"
    );
}

#[test]
fn a_killed_process_leaves_no_wrong_byte() {
    kill("kills::a_killed_process_leaves_no_wrong_byte", 8);
}

#[test]
#[ignore = "takes a minute: cargo test -p innerspace-object-store --test suite -- --ignored"]
fn two_hundred_killed_processes_leave_no_wrong_byte() {
    kill(
        "kills::two_hundred_killed_processes_leave_no_wrong_byte",
        200,
    );
}
