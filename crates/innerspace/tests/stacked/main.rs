//! Files whose stores are made of other files of the same memory, or of another one whose files are
//! stored in this: random programs over a stack of them have to end, and every file has to be what
//! a plain vector is. A store may use any file below it, and files that have nothing to do with it.
//! The memory is small, so reclaim goes through the stack all the time.
//!
//! - `store`: a store in a file, with a word to a log; its calls do something else first now and
//!   then, and fail
//! - `program`: the stack, the threads, the vectors
//! - `notes`: a watchdog that says what each thread was doing when a program does not end
//! - `alone`: each bug that was found, by itself
//!
//! An operation may fail if it needs memory, or calls a store that fails. A file is never told that
//! its store came back to it. After an operation that failed, a file is what a sync and a read
//! afterwards say.
//!
//! [`RUNS`] programs; `INNERSPACE_STACKED_RUNS=100000` runs as many with other seeds, from
//! `INNERSPACE_STACKED_FIRST` on if that is set, and `INNERSPACE_STACKED_SEED=7` that one again.
//! With more than one thread, or a service, a seed says what is done, and not when.
#![cfg(not(miri))]

mod alone;
mod notes;
mod program;
mod store;

pub(crate) const PAGE: u64 = innerspace::PAGE_SIZE as u64;

/// Programs of a run unless the environment asks for more.
const RUNS: u64 = 60;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

fn run(seed: u64) {
    let ended = std::panic::catch_unwind(|| notes::watched(seed, || program::run(seed)));
    if let Err(panic) = ended {
        eprintln!("INNERSPACE_STACKED_SEED={seed} fails");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn random_programs_over_stacked_files_end_and_lose_nothing() {
    if let Some(seed) = number("INNERSPACE_STACKED_SEED") {
        return run(seed);
    }
    let runs = number("INNERSPACE_STACKED_RUNS");
    let first = if runs.is_some() { 1_000_000 } else { 0 };
    let first = number("INNERSPACE_STACKED_FIRST").unwrap_or(first);
    for seed in first..first + runs.unwrap_or(RUNS) {
        run(seed);
    }
}
