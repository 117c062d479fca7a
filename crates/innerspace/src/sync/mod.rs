//! Concurrency primitives: one shim over std and the two model checkers.
//!
//! Every other module takes its atomics, locks, threads and `Arc` from here and never from
//! `std::sync`. The same code therefore runs in three worlds, which are chosen by a `cfg` and never
//! by a cargo feature:
//!
//! | build | types | what it proves |
//! |---|---|---|
//! | plain | `std` | nothing: it is the real thing |
//! | `--cfg loom` | `loom` | orderings of one small protocol, exhaustively, two or three threads |
//! | `--cfg shuttle` | `shuttle` | whole operations, by random sequentially consistent schedules |
//!
//! | file | contents |
//! |---|---|
//! | `shim` | the types of the three worlds under one set of names |
//! | `domain` | sections and grace periods |
//! | `gate` | a lock over addresses that readers pass without a shared write |
//! | `rcu_cell` | a value that writers replace as a whole |
//! | `per_thread` | slots that one thread uses with plain accesses, and others can drain |
//! | `pending` | a short list that one thread fills, and others can drain |
//! | `members` | members that come and go, found by tickets |
//! | `self_ref` | a reference of a shared object to itself |
//! | `due` | a flag for a future that is due to be woken |
//! | `order` | the lock order, checked in debug builds |
//! | `on_drop` | a guard for work that must be done, even on a panic |
//! | `panics` | panics of foreign code, kept until the work is done |
//! | `failpoint` | points at which a test can step in |
//!
//! **What a loom build contains.** Loom cannot model raw memory, inline assembly or statics, so a
//! loom build holds the small protocols and nothing else: `sync` (except `on_drop` and
//! `domain::reader`), `sys::{barrier, process}`, `units`, and the protocol modules above
//! (`exec::{after, in_flight, lanes, payers}`, `frame::{detached, flags, hold, listing, lock,
//! marks, meta, stack, tag, wait_table}`, `group::{id, levels, moves, slot, stock}`, `dax::{entry,
//! grab, waits}`). Everything else carries `#[cfg(not(loom))]` where its parent declares it, or the
//! layer has a root of its own for loom (`group/loom.rs`, `dax/loom.rs`). A module that is in the
//! loom build may use only modules that are in it, too. A model lives in its protocol's test
//! module: `#[cfg(all(test, loom))] mod models`. Tests that are not models are `#[cfg(all(test,
//! not(loom), not(shuttle)))]`: the checkers' types panic outside a model run.
//!
//! **Limits of the shim**, which code in a shared module must respect:
//! - Under loom there is no `Weak`, no `thread::scope`, and no method may take `self` as an `Arc`.
//!   `new` of a lock or an atomic is not `const`, so there are no statics of these types.
//! - Under shuttle `const` constructors exist, but a static keeps its value from one explored
//!   schedule to the next.
//! - Neither checker models time: a wait with a timeout behaves as a wait without one, so the model
//!   must end each wait by a wake-up.
//! - [`OnceLock`] is std's in every build. While its initialiser runs, other threads may be blocked
//!   without the checker knowing, so the initialiser must not contain a scheduling point (an atomic
//!   or a lock of the shim).
//! - Shuttle has no `from_ptr` for atomics. Words in raw memory (page tables and index nodes in
//!   arena frames) are std atomics, reached through [`raw`]. Where a step of another thread between
//!   two of their accesses matters, the code calls [`interleave`] there.
//! - Under loom `compiler_fence` is a `SeqCst` fence, because loom has nothing weaker. Under
//!   shuttle it has no effect.
//!
//! Locks of this module ignore poisoning, because a panic in a user's callback must not make the
//! library unusable. The data that a lock protects is therefore kept valid at every point that can
//! unwind.
//!
//! Locking: `domain`, `gate`, `per_thread` and `self_ref` have mutexes, which are described there.
//! [`order`] has the order of all locks of the library, and checks it in debug builds. Neighbours:
//! `sys` below uses the same shim.

pub(crate) mod domain;
pub(crate) mod due;
pub(crate) mod failpoint;
pub(crate) mod gate;
pub(crate) mod members;
#[cfg(not(loom))]
mod on_drop;
pub(crate) mod order;
pub(crate) mod panics;
pub(crate) mod pending;
pub(crate) mod per_thread;
pub(crate) mod rcu_cell;
pub(crate) mod self_ref;
mod shim;

pub(crate) use domain::Domain;
pub(crate) use failpoint::failpoint;
#[cfg(not(loom))]
pub(crate) use on_drop::OnDrop;
pub(crate) use order::{Apart, Rank, may_call_out};
pub(crate) use shim::*;
