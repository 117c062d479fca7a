//! The points of this layer where a test has something else happen.

pub(super) use crate::sync::midway::{reached, then};

/// Where a thread is in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// In a deletion: the group's number is free, if nothing is charged to it.
    Released,
    /// About to stock what is given back: no group was over its limit when it was asked.
    NotOver,
}

impl crate::sync::midway::Point for Point {}
