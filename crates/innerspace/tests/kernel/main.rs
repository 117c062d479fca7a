//! The kernel as oracle: one random program of mapping operations, run on the library and on the
//! host's mmap.
//!
//! | here | there |
//! |---|---|
//! | a space, and its forks | a process, and its forks |
//! | files over a `MemoryStore` | files of a temporary folder |
//! | map, unmap, protect, remap, advise, sync | mmap, munmap, mprotect, mremap, madvise, msync |
//! | punch | fallocate |
//! | a load or store that fails | the signal and its code, which kill a child of that process |
//!
//! Both sides make the program from the same seed and print the result of each step: the bytes, or
//! the kind of error. After the last step, both print every page of every space, and the files. The
//! lines have to be the same.
//!
//! Some cases are left out, because the two sides differ on purpose or the kernel's answer depends
//! on more than the program: lengths of zero where the kernel does nothing, writing without
//! reading, executing alone, and a file cut short under private mappings (the kernel removes copied
//! pages with it; here they stay).
//!
//! There are [`RUNS`] programs with fixed seeds. `INNERSPACE_KERNEL_RUNS=10000` runs that many with
//! other seeds, and `INNERSPACE_KERNEL_SEED=7` runs a single one again.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod host;
mod library;
mod program;

use std::process::{Command, Stdio};

use program::Program;

/// The number of programs in a run, unless the environment sets another.
const RUNS: u64 = 40;
/// The number of steps in a program.
const STEPS: usize = 120;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Returns the kernel's results for the program of this seed, from a process of its own.
fn ask_the_kernel(seed: u64) -> Vec<String> {
    let test = std::env::current_exe().unwrap();
    let output = Command::new(test)
        .args([
            "--exact",
            "the_kernels_side",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("INNERSPACE_KERNEL_SIDE", seed.to_string())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "the kernel's side ended with {}",
        output.status
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("> "));
    lines.map(str::to_owned).collect()
}

fn compare(seed: u64) {
    let program = Program::new(seed, STEPS);
    let ours = library::run(&program);
    let theirs = ask_the_kernel(seed);
    for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(
            ours,
            theirs,
            "seed {seed}, step {step}, library and kernel, after:\n{}",
            program.told(step)
        );
    }
    assert_eq!(
        ours.len(),
        theirs.len(),
        "seed {seed}: a side stopped early"
    );
}

// spec: V13
#[test]
#[cfg_attr(
    portable,
    ignore = "a sanitizer's runtime maps memory of its own into the window of addresses that is compared"
)]
fn random_programs_end_alike_here_and_on_the_host() {
    if let Some(seed) = number("INNERSPACE_KERNEL_SEED") {
        return compare(seed);
    }
    let runs = number("INNERSPACE_KERNEL_RUNS");
    let first = if runs.is_some() { 1_000_000 } else { 0 };
    for seed in first..first + runs.unwrap_or(RUNS) {
        compare(seed);
    }
}

/// The code of the other process in the test above.
#[test]
#[ignore = "run by the test above, in a process of its own"]
fn the_kernels_side() {
    let seed = number("INNERSPACE_KERNEL_SIDE").expect("run by the test above");
    println!(); // ends the line that the harness has begun
    for line in host::run(&Program::new(seed, STEPS)) {
        println!("> {line}");
    }
}
