//! Counts of events, kept per thread and summed on request.
//!
//! **What it is.** A shared module that every layer may use. It has one list of events and one of
//! gauges, like `/proc/vmstat`. The struct and the texts are made from these lists, so a new
//! counter is added in one place.
//!
//! **Key types.** [`Counters`]: one per memory, striped by thread; [`Event`]: the kinds of events;
//! [`Totals`]: a plain struct of all sums and gauges, with `Display` for people,
//! [`Totals::prometheus`] for machines and `Serialize` behind the feature `serde`.
//!
//! **Locking.** None. A sum that is taken while threads count contains only whole events, but is
//! not the state at one instant.
//!
//! **Events for `tracing`** are reported by `tell!`, which is used only in calls that are not hot.
//!
//! **Not here.** Counters of a group are in `group`, of a file in `cache`, and of a space in
//! `space`.

mod counters;
mod totals;

/// Reports an event to the program's `tracing` subscriber, with the feature `tracing_0_1`.
///
/// A subscriber is foreign code: it may hang, panic or call this library. So the caller must hold
/// no lock and be in no section, and must run on one of the program's threads or in a lane.
macro_rules! tell {
    ($level:ident, $($event:tt)*) => {
        #[cfg(feature = "tracing_0_1")]
        tracing::$level!(target: "innerspace", $($event)*);
    };
}
pub(crate) use tell;

#[cfg(all(test, not(loom)))]
pub(crate) use counters::for_tests::as_thread;
pub(crate) use counters::{Counters, thread_number};
pub(crate) use totals::Event;
pub use totals::Totals;
