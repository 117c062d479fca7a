//! Files whose stores are made of other files of the same memory, or of another memory whose files
//! are stored in this one. Random programs over a stack of such files have to end, and every file
//! has to equal a plain vector. A store may use any file below it, and unrelated files. The memory
//! is small, so reclaim goes through the stack all the time.
//!
//! - `store`: a store in a file, with a word to a log; now and then its calls first do other work,
//!   and fail
//! - `program`: the stack, the threads, the vectors
//! - `notes`: a watchdog that prints what each thread was doing when a program does not end
//! - `alone`: each bug that was found, in a test of its own
//!
//! An operation may fail if it needs memory, or calls a store that fails. A file never gets the
//! error that its store came back to it. After an operation that failed, the model of a file is the
//! content that a sync and a read then find.
//!
//! There are [`RUNS`] programs. `INNERSPACE_STACKED_RUNS=100000` runs that many with other seeds,
//! from `INNERSPACE_STACKED_FIRST` on if that is set, and `INNERSPACE_STACKED_SEED=7` runs a single
//! one again. With more than one thread, or a service, a seed decides the operations, but not their
//! timing.
#![cfg(not(miri))]

mod alone;
mod notes;
mod program;
mod store;

pub(crate) const PAGE: u64 = innerspace::PAGE_SIZE as u64;

/// The number of programs in a run, unless the environment sets another.
const RUNS: u64 = 60;

/// The number of programs that run at the same time. They share nothing, and mostly wait.
const AT_ONCE: u64 = 2;

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
    let end = first + runs.unwrap_or(RUNS);
    std::thread::scope(|scope| {
        for part in 0..AT_ONCE {
            scope.spawn(move || (first + part..end).step_by(AT_ONCE as usize).for_each(run));
        }
    });
}
