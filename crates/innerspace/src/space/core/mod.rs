//! The space itself, its errors and its options.

pub(in crate::space) mod address;
pub(in crate::space) mod error;
pub(in crate::space) mod options;
pub(in crate::space) mod payer;
pub(in crate::space) mod pinned_leaves;
pub(in crate::space) mod space;
pub(in crate::space) mod structure;
