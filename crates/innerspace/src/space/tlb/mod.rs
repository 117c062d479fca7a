//! What an accessor remembers of the page table.

pub(in crate::space) mod coalesced;
#[cfg(all(feature = "layout", not(shuttle)))]
pub(in crate::space) mod layout;
#[cfg(all(test, feature = "layout", not(any(loom, shuttle))))]
mod layout_tests;
pub(in crate::space) mod translator;
