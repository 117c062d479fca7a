//! Checks of everything in the pool: [`validate`] for tests and fuzzers, [`holders`] for the error
//! of a request that has failed.

mod holders;
#[cfg(any(test, feature = "test-util"))]
#[path = "tests/validate.rs"]
mod validate;

pub(super) use holders::count_holders;
