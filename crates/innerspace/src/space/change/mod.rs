//! Structural changes.

pub(in crate::space) mod advise;
pub(in crate::space) mod fork;
pub(in crate::space) mod map;
pub(in crate::space) mod mapping;
pub(in crate::space) mod region;
pub(in crate::space) mod remap;
pub(in crate::space) mod revoke;
pub(in crate::space) mod steps;
pub(in crate::space) mod take_dirty;
pub(in crate::space) mod zap;
