//! What an access does that finds no translation.

pub(in crate::space) mod anonymous;
pub(in crate::space) mod direct;
pub(in crate::space) mod driver;
pub(in crate::space) mod fault_around;
pub(in crate::space) mod zero;
