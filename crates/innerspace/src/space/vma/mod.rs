//! Mappings.
//!
//! | file | what is in it |
//! |---|---|
//! | `protection`, `device` | rights and sharing; mappings whose accesses are calls |
//! | `area` | one mapped range |
//! | `ledger`, `tree` | the account of the nodes; a persistent tree of wide nodes |
//! | `rmap`, `set` | from a file's pages to the mappings that show them; all mappings of a space |
//! | `cache` | an accessor's slots, with the mappings found last |

pub(crate) mod area;
pub(crate) mod cache;
pub(crate) mod device;
pub(crate) mod ledger;
pub(crate) mod protection;
pub(crate) mod rmap;
pub(crate) mod set;
pub(crate) mod tree;
