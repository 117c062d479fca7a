//! Two tenants of one memory, one of them hostile: what A may do with safe calls, and what B sees
//! of it (`docs/spec/tenants.md`).
//!
//! A test names the hostile act; B stays inside its `min`. Each act is followed by B's work, which
//! must succeed, and by the sums: what the groups say is in use, and what the allocator says.

mod attacker;
mod foreign;
mod victim;
mod world;

mod accessors;
mod bytes;
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

/// An error where something does not hold.
#[track_caller]
fn must(holds: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let line = std::panic::Location::caller().line();
    let wrong = || format!("wrong bytes, line {line}").into();
    holds.then_some(()).ok_or_else(wrong)
}

/// Counts the heap of the whole process. The tests of one process run side by side: one that reads
/// it takes [`world::alone`] first.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;
