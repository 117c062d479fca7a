//! Concurrency primitives: one shim over std and the two model checkers.
//!
//! Every other module takes its atomics, locks, threads and `Arc` from here and never from
//! `std::sync`, so that the same code runs in three worlds, chosen by cfg and never by a feature:
//!
//! | build | types | what it proves |
//! |---|---|---|
//! | plain | `std` | the real thing |
//! | `--cfg loom` | `loom` | orderings of one small protocol, exhaustively, two or three threads |
//! | `--cfg shuttle` | `shuttle` | whole operations, by random sequentially consistent schedules |
//!
//! | file | what |
//! |---|---|
//! | `shim` | the types of the three worlds under one set of names |
//! | `domain` | sections and grace periods |
//! | `gate` | a lock over addresses that readers pass without a shared write |
//! | `rcu_cell` | a value that writers replace as a whole |
//! | `per_thread` | slots that one thread uses with plain accesses, and others may empty |
//! | `pending` | a short list that one thread fills, and others may drain |
//! | `members` | members that come and go, found by tickets |
//! | `self_ref` | a reference of a shared object to itself |
//! | `due` | a flag that a future is due to be woken |
//! | `order` | the lock order, checked in debug builds |
//! | `panics` | panics of foreign code, kept until the work is done |
//! | `failpoint` | points at which a test can step in |
//!
//! **What a loom build contains.** Loom cannot model raw memory, inline assembly or statics, so a
//! loom build holds the small protocols and nothing else: `sync` (all of it), the primitives of
//! `sys` that protocols are made of (`barrier`, `lock_byte`), `units`, and the protocol modules
//! above (`exec`, `frame::{flags, hold, lock, meta, stack, wait_table}`, `group::stock`,
//! `dax::{entry, grab, waits}`). Everything else carries `#[cfg(not(loom))]` where its parent
//! declares it, and a module that is in the loom build may name only modules that are in it too. A
//! model lives in its protocol's test module: `#[cfg(all(test, loom))] mod models`. Tests that are
//! not models are `#[cfg(all(test, not(loom), not(shuttle)))]`: the checkers' types panic outside a
//! model run.
//!
//! **Limits of the shim**, which code in a shared module has to live with:
//! - Under loom there is no `Weak`, no `thread::scope`, no method that takes `self` as an `Arc`,
//!   and `new` of a lock or an atomic is not `const`: no statics of these types. Under shuttle
//!   `const` constructors exist, but a static keeps its value from one explored schedule to the
//!   next.
//! - Neither checker models time: a wait with a timeout is a wait without one (a wake-up must
//!   come).
//! - [`OnceLock`] is std's in every build. Its initialiser runs with other threads blocked outside
//!   the checker's sight, so it must not contain a scheduling point (no shim atomic, no shim lock).
//! - Shuttle has no `from_ptr` for atomics. Words in raw memory (page tables and index nodes in
//!   arena frames) are reached through [`raw`]'s std atomics, with a call of [`interleave`] beside
//!   them where another thread's step in between matters.
//! - `compiler_fence` is a `SeqCst` fence under loom, which has no weaker notion of it, and has no
//!   effect under shuttle.
//!
//! Locks here ignore poisoning: a panic in a user's callback must not make the library unusable.
//! What a lock protects is therefore kept valid at every point that can unwind.
//!
//! Locking: none of its own; [`order`] has the order of all locks of the library, and checks it in
//! debug builds. Neighbours: `sys` below uses the same shim.

pub(crate) mod domain;
pub(crate) mod due;
pub(crate) mod failpoint;
pub(crate) mod gate;
pub(crate) mod members;
pub(crate) mod order;
pub(crate) mod panics;
pub(crate) mod pending;
pub(crate) mod per_thread;
pub(crate) mod rcu_cell;
pub(crate) mod self_ref;
mod shim;

pub(crate) use domain::Domain;
pub(crate) use failpoint::failpoint;
pub(crate) use order::{Apart, Rank, may_call_out};
pub(crate) use shim::*;
