//! Counts of events, kept per thread and summed on request.
//!
//! **What it is.** A shared module that every layer may use. One list of events and one of gauges,
//! in the manner of `/proc/vmstat`; everything else (the struct, the texts) is made from the two
//! lists, so that a counter is added in one place.
//!
//! **Key types.** [`Counters`]: one per memory, striped by thread; [`Event`]: the kinds of events;
//! [`Totals`]: a plain struct of all sums and gauges, with `Display` for people,
//! [`Totals::prometheus`] for machines and `Serialize` behind the feature `serde`.
//!
//! **Locking.** None. A sum taken while threads count is a sum of whole events, but not of one
//! instant.
//!
//! **Not here.** Counters per group live in `group`, per file in `cache`, per space in `space`.

mod counters;
mod totals;

pub(crate) use counters::{Counters, thread_number};
pub(crate) use totals::Event;
pub use totals::Totals;
