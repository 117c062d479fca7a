//! Two tenants of one memory, one of them hostile: what A may do with safe calls, and what B sees
//! of it (`docs/spec/tenants.md`).
//!
//! A test names the hostile act; B stays inside its `min`. Each act is followed by B's work, which
//! must succeed, and by the sums: what the groups say is in use, and what the allocator says.

mod world;

mod accessors;
mod bytes;
mod heap;
mod hung;
mod numbers;
mod opening;
mod reclaim;
mod sessions;

use peak_alloc::PeakAlloc;

/// Counts the heap of the whole process. The tests of one process run side by side: one that reads
/// it takes [`world::alone`] first.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;
