//! Two tenants of one memory, one of them hostile: what A may do by safe calls, and how B is
//! affected (`docs/spec/tenants.md`).
//!
//! The name of a test states the hostile act; B stays inside its `min`. Each act is followed by B's
//! work, which must succeed, and by a comparison of the usage that the groups report with that of
//! the allocator.

mod attacker;
mod calls;
mod foreign;
mod held;
mod victim;
mod world;

mod accessors;
mod bytes;
mod charges;
mod heap;
mod hung;
mod numbers;
mod opening;
mod random;
mod reclaim;
mod sessions;

use std::time::Duration;

use peak_alloc::PeakAlloc;

/// How long B's work may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(20);

/// Returns an error if the condition does not hold.
#[track_caller]
fn must(holds: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let line = std::panic::Location::caller().line();
    let wrong = || format!("wrong bytes, line {line}").into();
    holds.then_some(()).ok_or_else(wrong)
}

/// Counts the heap of the whole process. The tests of one process run concurrently: a test that
/// reads the count first takes [`world::alone`].
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;
