//! Work that may wait for a store, off the caller's thread: lanes of jobs, and the threads that run
//! them.
//!
//! **What it is.** Each file has two lanes: one for the calls of its store, one for the calls of
//! its futures. A lane runs a bounded number of jobs at a time, so a store that hangs keeps its own
//! share of the threads and nobody else's. The threads are the memory's: started when there is
//! work, ended when there has been none for a second. The payer of a lane (a number to this layer)
//! can lose so many threads and no more. A memory without threads of its own runs the same jobs in
//! [`Workers::run_one`], in whatever thread waits or ticks.
//!
//! - `lanes`: [`Workers`], [`Lane`], [`Job`]: queues, shares, the threads
//! - `in_flight`: [`InFlight`]: requests by the blocks that they have, until each has ended once
//! - `payers`: how many jobs of each payer run
//! - `keyed`: [`Lanes`]: lanes by what their jobs are about
//! - `deferred`: [`Deferred`]: calls of foreign code, left by threads that could not make them
//! - `after`: wakers that a job leaves behind, called when its share of the lane is free again
//! - `reentry`: the guard against re-entry: which callbacks, store calls and file locks a thread is
//!   inside
//!
//! **Locking.** One mutex for all lanes of a memory, a leaf: no job, drop of a job or waker runs
//! under it. `in_flight` has its own.
//!
//! **Neighbours.** Below: `sync`. Above: `cache` has the jobs. This layer knows no file, no store
//! and no future.

mod after;
#[cfg(not(loom))]
mod deferred;
mod in_flight;
#[cfg(not(loom))]
mod keyed;
mod lanes;
#[cfg(all(test, loom))]
mod loom_models;
mod payers;
#[cfg(not(loom))]
pub(crate) mod reentry;

pub(crate) use after::run_with_wakers;
pub(crate) use after::{is_in_job, wake_after};
#[cfg(not(loom))]
pub(crate) use deferred::Deferred;
pub(crate) use in_flight::{Entry, InFlight, Stage};
#[cfg(not(loom))]
pub(crate) use keyed::{About, Lanes};
pub(crate) use lanes::{Job, Lane, Served, Turn, Workers};
