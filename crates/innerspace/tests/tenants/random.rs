//! Random hostile programs, shrunk to the smallest that does harm.
//!
//! A commits one act after the other, each on a thread of its own, because it may hang. After each
//! act, B does a round of its work (`victim`). B's round must succeed, end within a bound that only
//! a hang reaches, and take no more calls of B's store than a stated number. The usage that the
//! groups report, the heap, and the process's resident memory stay under the limits and a stated
//! constant. When A's rope is cut, everything is dropped and the memory is at rest, nothing is left
//! charged.
//!
//! The suite runs a few programs with a fixed seed. `cargo xtask tenants 3600` runs programs with
//! random seeds for that many seconds, and also prints how long B's rounds took alone and together
//! with A.
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use innerspace::{KIB, MIB, Threads};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::attacker::{Act, Attacker, acts};
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

/// How long B's rounds took.
#[derive(Default)]
struct Times {
    alone: Vec<Duration>,
    beside: Vec<Duration>,
}

impl Times {
    fn print(&mut self) {
        for (name, times) in [("alone", &mut self.alone), ("beside A", &mut self.beside)] {
            times.sort_unstable();
            if let Some(worst) = times.last() {
                let middle = times[times.len() / 2];
                let most = times[times.len() * 99 / 100];
                println!(
                    "B's rounds {name}: {} times, median {middle:?}, 99 % {most:?}, worst {worst:?}",
                    times.len()
                );
            }
        }
    }
}

fn run(program: &[Act], times: &mut Times) -> Result<(), String> {
    let (heap, before) = (HEAP.current_usage() as u64, resident());
    let world = World::new(LIMIT, Threads::Service);
    // A may change its own limits, so it gets a group below the one that limits it.
    let own = world
        .a
        .child_unlimited("tenant")
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
    for _ in 0..3 {
        round(&mut times.alone)?;
    }
    for (number, act) in program.iter().enumerate() {
        attacker.begin(act);
        let after = |error| format!("after act {number}, {act:?}: {error}");
        round(&mut times.beside).map_err(after)?;
        let charged = world.a.usage() + world.b.usage();
        let more = (HEAP.current_usage() as u64).saturating_sub(heap);
        if more > charged + HEAP_BESIDE {
            return Err(after(format!("{more} bytes of heap, {charged} charged")));
        }
        let resident = resident().saturating_sub(before);
        if resident > LIMIT + RESIDENT_BESIDE {
            return Err(after(format!("{resident} bytes resident")));
        }
    }
    attacker.end()?;
    drop(ask);
    thread.join().map_err(|_| "B panicked".to_owned())?;
    let World { memory, a, b, .. } = world;
    // Waits for jobs of futures that were dropped: a running job has a handle and a view for a
    // moment.
    memory.validate();
    let left = (a.usage(), b.usage());
    if left != (0, 0) {
        return Err(format!("{left:?} bytes are charged when all is dropped"));
    }
    Ok(())
}

// spec: N2, N3, N5, N6, N7
#[test]
fn no_program_of_one_tenant_harms_the_other() {
    let _alone = alone();
    silence_own_panics();
    let seconds = std::env::var("INNERSPACE_TENANTS_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("a number of seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut config = Config {
        cases: PROGRAMS,
        failure_persistence: None,
        max_shrink_iters: 64,
        ..Config::default()
    };
    if end.is_none() {
        config.rng_seed = RngSeed::Fixed(0x7e4a_4715);
    }
    let times = std::cell::RefCell::new(Times::default());
    loop {
        let outcome = TestRunner::new(config.clone()).run(&vec(acts(), 1..12), |program| {
            run(&program, &mut times.borrow_mut()).map_err(TestCaseError::fail)
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, program)) => panic!("{reason}\nby {program:?}"),
            Err(failure) => panic!("{failure}"),
        }
        if end.is_none_or(|end| Instant::now() > end) {
            break;
        }
    }
    times.into_inner().print();
}
