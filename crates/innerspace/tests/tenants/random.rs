//! Random hostile programs, shrunk to the smallest that does harm.
//!
//! A commits one act after the other, each on a thread of its own, because it may hang. After each
//! act, B does a round of its work (`victim`). B's round must succeed, end within a bound that only
//! a hang reaches, and take no more calls of B's store than a stated number. The usage that the
//! groups report, the heap, and the process's resident memory stay under the limits and a stated
//! constant. When A's rope is cut, everything is dropped and the memory is at rest, nothing is left
//! charged.
//!
//! A few programs with a fixed seed in the suite. For a time, with random seeds:
//! `cargo xtask tenants 3600`, which also prints how long B's rounds took, alone and after each
//! kind of act. A failure names its seed, which `INNERSPACE_TENANTS_SEED` repeats.
#![cfg(target_os = "linux")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use innerspace::{KIB, MIB, Threads};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::attacker::{Act, Attacker, acts};
use crate::calls::{self, Call};
use crate::foreign::silence_own_panics;
use crate::victim::Victim;
use crate::world::{World, alone};
use crate::{BOUND, HEAP};

const LIMIT: u64 = 32 * MIB;

/// Heap that no group is charged for: threads of the acts and of the memory, the table of frames.
const HEAP_BESIDE: u64 = 6 * MIB;

/// Resident memory besides limit and heap: stacks, code, memory that the allocator keeps.
const RESIDENT_BESIDE: u64 = 24 * MIB;

/// The most calls of B's store in one round: 25 to 45 were counted.
const CALLS: u64 = 200;

const PROGRAMS: u32 = 12;

/// How often a program is run that is to be shrunk.
const TRIES: u32 = 4;

/// Between what went wrong and where.
const AFTER: &str = ", after ";

/// What went wrong, without numbers: a program is shrunk as long as the same does.
fn kind(reason: &str) -> String {
    let what = reason.split(AFTER).next().unwrap_or(reason);
    what.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * KIB
}

/// How long B's rounds took: alone, and after each kind of act.
#[derive(Default)]
struct Times(BTreeMap<String, Vec<Duration>>);

impl Times {
    fn of(&mut self, act: Option<&Act>) -> &mut Vec<Duration> {
        let name = act.map_or("alone".to_owned(), |act| format!("after {act:?}"));
        let end = name.find('(').unwrap_or(name.len());
        self.0.entry(name[..end].to_owned()).or_default()
    }

    fn print(&mut self) {
        println!("B's rounds           times      median        99 %       worst");
        for (name, times) in &mut self.0 {
            times.sort_unstable();
            let at = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
            let (middle, most, worst) = (at(50), at(99), at(100));
            let count = times.len();
            println!("{name:18} {count:7} {middle:8} us {most:8} us {worst:8} us");
        }
    }
}

/// Does what must end.
///
/// # Errors
/// When it does not.
fn within_bound(what: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let (over, ends) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        let _ = over.send(());
    });
    match ends.recv_timeout(BOUND) {
        Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("{what} does not end")),
        _ => thread.join().map_err(|_| format!("{what} panicked")),
    }
}

/// Runs a program. Whatever it does, A is ended and all is dropped: what a failed program left
/// would count against the next.
fn run(program: &[Act], times: &mut Times) -> Result<(), String> {
    let (heap, before) = (HEAP.current_usage() as u64, resident());
    // ThreadSanitizer keeps several bytes of its own for each byte that the program uses.
    let has_shadow = std::env::var_os("TSAN_OPTIONS").is_some();
    let world = World::new(LIMIT, Threads::Service);
    // A may change its own limits, so it gets a group below the one that limits it.
    let own = world
        .a
        .create_child_unlimited("tenant")
        .map_err(|error| error.to_string())?;
    let mut attacker = Attacker::new(&world.memory, &own);
    drop(own);
    let mut victim = Victim::new(&world.memory, &world.b);
    // B has a thread of its own, so that a round that hangs is detected.
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answers) = mpsc::channel();
    let thread = thread::spawn(move || {
        for () in asked {
            let _ = answer.send(victim.round());
        }
    });
    let round = |times: &mut Vec<Duration>| {
        let start = Instant::now();
        ask.send(()).map_err(|_| "B panicked".to_owned())?;
        let done = answers
            .recv_timeout(BOUND)
            .map_err(|error| format!("B hangs: {error}"))?;
        times.push(start.elapsed());
        match done {
            Err(error) => Err(format!("B is refused: {error}")),
            Ok(calls) if calls > CALLS => Err(format!("{calls} calls of B's store")),
            Ok(_) => Ok(()),
        }
    };
    let mut acts = || {
        for _ in 0..3 {
            round(times.of(None))?;
        }
        for (number, act) in program.iter().enumerate() {
            attacker.begin(act);
            let after = |error| format!("{error}{AFTER}act {number}, {act:?}");
            round(times.of(Some(act))).map_err(after)?;
            let charged = world.a.usage() + world.b.usage();
            let more = (HEAP.current_usage() as u64).saturating_sub(heap);
            // The portable build has frames on the heap.
            if more > charged + HEAP_BESIDE && !cfg!(portable) {
                return Err(after(format!("{more} bytes of heap, {charged} charged")));
            }
            let resident = resident().saturating_sub(before);
            if resident > LIMIT + RESIDENT_BESIDE && !has_shadow {
                return Err(after(format!("{resident} bytes resident")));
            }
        }
        Ok(())
    };
    let harm = acts();
    let ended = attacker.end();
    harm.and(ended)?;
    drop(ask);
    thread.join().map_err(|_| "B panicked".to_owned())?;
    let World { memory, a, b, .. } = world;
    // Waits for jobs of futures that were dropped: a running job has a handle and a view for a
    // moment.
    let at_rest = memory.clone();
    within_bound("the check of the memory", move || at_rest.validate())?;
    let left = (a.usage(), b.usage());
    if left != (0, 0) {
        return Err(format!("{left:?} bytes are charged when all is dropped"));
    }
    within_bound("the drop of the last handle", move || drop((memory, a, b)))
}

/// Runs a program, and one that is to be shrunk for some reason a few times over: threads may meet
/// in another way each time.
fn runs(
    program: &[Act],
    run: &impl Fn(&[Act]) -> Result<(), String>,
    to_shrink: &RefCell<Option<String>>,
) -> Result<(), TestCaseError> {
    let wanted = to_shrink.borrow().clone();
    let tries = if wanted.is_some() { TRIES } else { 1 };
    for _ in 0..tries {
        let Err(reason) = run(program) else {
            continue;
        };
        if wanted
            .as_ref()
            .is_none_or(|wanted| *wanted == kind(&reason))
        {
            *to_shrink.borrow_mut() = Some(kind(&reason));
            return Err(TestCaseError::fail(reason));
        }
    }
    Ok(())
}

/// Runs the programs of a seed until one does harm. Returns what it does, and the smallest program
/// found that does the same.
fn search(seed: u64, run: impl Fn(&[Act]) -> Result<(), String>) -> Result<(), (String, Vec<Act>)> {
    let config = Config {
        cases: PROGRAMS,
        failure_persistence: None,
        max_shrink_iters: 256,
        // Milliseconds: each try may wait for a hang.
        max_shrink_time: 180_000,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let to_shrink = RefCell::default();
    let outcome = TestRunner::new(config).run(&vec(acts(), 1..12), |program| {
        runs(&program, &run, &to_shrink)
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, program)) => Err((reason.to_string(), program)),
        Err(failure) => panic!("{failure}"),
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

// spec: N2, N3, N5, N6, N7
#[test]
fn no_program_of_one_tenant_harms_the_other() {
    let _alone = alone();
    silence_own_panics();
    let seconds = variable("INNERSPACE_TENANTS_SECONDS").map(Duration::from_secs);
    let end = seconds.map(|seconds| Instant::now() + seconds);
    let mut seed = variable("INNERSPACE_TENANTS_SEED").unwrap_or(match end {
        None => 0x7e4a_4715,
        Some(_) => RandomState::new().hash_one(0),
    });
    let times = RefCell::new(Times::default());
    loop {
        if let Err((reason, program)) =
            search(seed, |program| run(program, &mut times.borrow_mut()))
        {
            panic!("{reason}\nby {program:?}\nINNERSPACE_TENANTS_SEED={seed}");
        }
        if end.is_none_or(|end| Instant::now() > end) {
            break;
        }
        seed = seed.wrapping_add(1);
    }
    times.into_inner().print();
}

// spec: N2, N3, N5, N6, N7
#[test]
fn no_call_of_one_tenant_harms_the_other() {
    let _alone = alone();
    silence_own_panics();
    let all: Vec<_> = (0..calls::count()).collect();
    for arguments in 0..4 {
        let acts = all.chunks(32).map(|some| {
            let calls = some.iter().map(|which| Call::new(*which, arguments));
            Act::Calls(calls.collect())
        });
        let acts: Vec<_> = acts.collect();
        run(&acts, &mut Times::default()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A harm of two acts, which is found in one run of two, and another that a program may do too.
#[test]
fn a_program_is_shrunk_to_the_acts_that_do_the_harm() {
    let runs = Cell::new(0_u32);
    let harm = |program: &[Act]| {
        runs.set(runs.get() + 1);
        let many = |act: &Act| matches!(act, Act::Files(number, ..) if *number > 5);
        let first = program.iter().position(many);
        let dropped = |act: &Act| matches!(act, Act::DropAll | Act::DropHalf);
        match first {
            Some(at) if program[at..].iter().any(dropped) && runs.get().is_multiple_of(2) => {
                Err(format!("B hangs{AFTER}act {at}"))
            }
            _ if program.len() == 1 => Err("another harm".to_owned()),
            _ => Ok(()),
        }
    };
    let mut found = 0;
    // Numbers of objects are chosen from two ranges, and shrunk to the least of theirs: 6 or 40.
    for seed in 0..200 {
        let Err((reason, program)) = search(seed, harm) else {
            continue;
        };
        if kind(&reason) == "B hangs" {
            assert!(
                matches!(
                    &program[..],
                    [Act::Files(6 | 40, ..), Act::DropAll | Act::DropHalf]
                ),
                "{program:?}"
            );
            found += 1;
        }
    }
    assert!(found > 0);
}
