//! What is mapped where.

pub(in crate::space) mod area;
pub(in crate::space) mod cache;
pub(in crate::space) mod device;
pub(in crate::space) mod ledger;
pub(in crate::space) mod protection;
pub(in crate::space) mod rmap;
pub(in crate::space) mod set;
pub(in crate::space) mod tree;
