//! What an accessor remembers of the page table.

pub(in crate::space) mod coalesced;
#[cfg(all(test, feature = "layout", not(any(loom, shuttle))))]
mod layout_tests;
pub(in crate::space) mod page;
pub(in crate::space) mod place;
pub(in crate::space) mod translator;
