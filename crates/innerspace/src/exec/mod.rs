//! Work that may wait for a store, off the caller's thread: lanes of jobs, and the threads that run
//! them.
//!
//! **What it is.** Each file has two lanes: one for the calls to its store, one for its tasks. A
//! space has one for its tasks, and each payer one for its deferred calls. A lane runs a bounded
//! number of jobs at a time, so a store that hangs ties up only its own share of the threads.
//!
//! The threads belong to the memory. They are started when there is work, and end after a second
//! without any. Each lane has a payer, which to this layer is a number. A payer can lose a bounded
//! number of threads to calls that hang. A memory without threads runs the same jobs by
//! [`Workers::run_one`], in any thread that waits or ticks.
//!
//! - `lanes`: [`Workers`], [`Lane`], [`Job`]: queues, shares, threads
//! - `in_flight`: [`InFlight`]: a file's requests in flight, by their blocks; each ends once
//! - `payers`: the number of running jobs of each payer, and its lanes that have to wait
//! - `keyed`: [`Lanes`]: lanes by the subject of their jobs
//! - `deferred`: [`Deferred`]: calls to foreign code, deferred by threads that could not make them
//! - `waker_slot`: [`WakerSlot`]: the waker of a future, stored with the state that it waits for
//! - `after`: wakers that a job leaves behind, called when its share of the lane is free again
//! - `reentry`: the guard against re-entry: the callbacks and store calls that a thread is in, and
//!   the file locks that it holds
//!
//! **Locking.** One innermost mutex guards all lanes of a memory. No job runs under it, no job is
//! dropped under it, and no waker is called under it. `keyed`, whose mutex is held while a lane is
//! made, `in_flight`, `deferred` and `waker_slot` have mutexes of their own.
//!
//! **Neighbours.** Below: `sync`. Above: `cache` makes the jobs. This layer knows no file and no
//! store.

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
#[cfg(not(loom))]
mod waker_slot;

pub(crate) use after::run_with_wakers;
pub(crate) use after::{is_in_job, wake_after};
#[cfg(not(loom))]
pub(crate) use deferred::Deferred;
pub(crate) use in_flight::{Entry, InFlight, Stage};
#[cfg(not(loom))]
pub(crate) use keyed::Lanes;
pub(crate) use lanes::{Job, Lane, Served, Turn, Workers};
#[cfg(not(loom))]
pub(crate) use waker_slot::WakerSlot;
