//! An accessor's private cache of the page table's leaves.
//!
//! | file | what is in it |
//! |---|---|
//! | `page`, `place` | the bytes of a page that a hit found; the address of a remembered leaf |
//! | `translator` | the cache, its sections, and the hit |
//! | `coalesced` | leaves whose pages are contiguous |

pub(crate) mod coalesced;
#[cfg(all(test, feature = "layout", not(any(loom, shuttle))))]
mod layout_tests;
pub(crate) mod page;
pub(crate) mod place;
pub(crate) mod translator;
