//! The points of this layer where a test has something else happen.

pub(super) use crate::sync::midway::{reached, then};

/// Where a thread is in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// In a settlement of what is on the heap: it is charged for, and those who ask without the
    /// lock see the old number.
    Settled,
    /// In a fault of a load from a hole: the entries behind it are locked, and the extent map is
    /// not asked about them.
    HolesLocked,
    /// In a punch: the host has room for what is to be cleared, and nothing is cut out or cleared.
    Clearable,
    /// In a sync: the blocks are flushed, and their entries locked and dirty.
    Flushed,
}

impl crate::sync::midway::Point for Point {}
