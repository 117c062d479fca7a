//! mmap with a hard limit, errors instead of SIGBUS, and a fork in microseconds. Over any store, in safe Rust.
#![warn(missing_docs)]

pub mod store;
mod sync;
mod sys;
mod units;

pub use units::*;
