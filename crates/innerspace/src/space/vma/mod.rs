//! Mappings.
//!
//! | file | what is in it |
//! |---|---|
//! | `protection`, `device` | rights and sharing; what answers accesses by calls |
//! | `area` | one mapped range |
//! | `ledger`, `tree` | the payer of the nodes; a persistent tree of wide nodes |
//! | `rmap`, `set` | from a file's pages to the mappings that show them; all mappings of a space |
//! | `cache` | an accessor's own slots of mappings found last |

pub(in crate::space) mod area;
pub(in crate::space) mod cache;
pub(in crate::space) mod device;
pub(in crate::space) mod ledger;
pub(in crate::space) mod protection;
pub(in crate::space) mod rmap;
pub(in crate::space) mod set;
pub(in crate::space) mod tree;
