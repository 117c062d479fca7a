//! The space itself, its errors and its options.

pub(in crate::space) mod error;
pub(in crate::space) mod options;
pub(in crate::space) mod space;
