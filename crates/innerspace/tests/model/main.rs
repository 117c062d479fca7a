//! Compares the whole library with plain vectors: random operations on files, views and spaces of
//! one small memory, with stores that fail by countdown. Each object has a model:
//!
//! - a file: a `Vec<u8>`
//! - a view: a copy of its bytes when it was taken, compared after every step
//! - a space: a map from page numbers to the content of the page: a page of a file, shared or
//!   private, or zeros
//! - a private page that was stored to: its 4096 bytes
//! - fork: a clone of the map
//!
//! An operation that fails has changed nothing, with three exceptions: a write to a file may have
//! written a prefix (by blocks), a punch may have left zeros in parts of the range, and a bulk
//! store may have stored everything before the faulting address. A group may be full at any time.
//! Then views and spaces are dropped, and everything has to be readable again. After the stores
//! have healed and a sync, a store has the bytes of the model. `validate()` of the memory and of
//! every space runs after every step.
//!
//! The test runs 512 cases of 60 steps with a fixed seed. With `PROPTEST_CASES` set, it runs that
//! many with a random seed.
#![cfg(feature = "test-util")]

mod files;
mod ops;
mod spaces;
mod world;

use ops::{Op, limits, operations};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use world::World;

const CASES: u32 = 512;
const STEPS: usize = 60;

fn config() -> Config {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
        config.rng_seed = RngSeed::Fixed(0x1a4e_5bac);
    }
    config.failure_persistence = None;
    config.max_shrink_iters = 4096;
    config
}

fn run(limit: u64, ops: &[Op]) {
    let mut world = World::new(limit);
    for op in ops {
        world.step(op);
        world.check();
    }
    world.finish();
}

// spec: A5
#[test]
fn random_operations_agree_with_plain_vectors() {
    let mut runner = TestRunner::new(config());
    let outcome = runner.run(&(limits(), operations(STEPS)), |(limit, ops)| {
        let ended = std::panic::catch_unwind(|| run(limit, &ops));
        ended.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            TestCaseError::fail(text.unwrap_or_default())
        })
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
