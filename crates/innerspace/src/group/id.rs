//! The number of a group.

/// Names a group of one `GroupTree`. Written into the metadata of every frame charged to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GroupId(pub(crate) u16);

impl GroupId {
    /// The root: the whole memory.
    pub(crate) const ROOT: GroupId = GroupId(0);
}
