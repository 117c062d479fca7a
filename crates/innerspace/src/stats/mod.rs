//! Counts of events, kept per thread and summed on request.
//!
//! **What it is.** A shared module that every layer may use. It has one list of events and one of
//! gauges, in the manner of `/proc/vmstat`. The struct and the texts are made from these lists, so
//! a new counter is added in one place.
//!
//! **Key types.** [`Counters`]: one per memory, striped by thread; [`Event`]: the kinds of events;
//! [`Totals`]: a plain struct of all sums and gauges, with `Display` for people,
//! [`Totals::prometheus`] for machines and `Serialize` behind the feature `serde`.
//!
//! **Locking.** None. A sum that is taken while threads count consists of whole events, but not of
//! one instant.
//!
//! **Not here.** Counters of a group are in `group`, of a file in `cache`, and of a space in
//! `space`.

mod counters;
mod totals;

pub(crate) use counters::{Counters, thread_number};
pub(crate) use totals::Event;
pub use totals::Totals;
