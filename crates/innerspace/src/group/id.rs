//! The number of a group.

/// The number of a group in its `GroupTree`. The metadata of every frame charged to the group
/// contains it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GroupId(pub(crate) u16);

impl GroupId {
    /// The root: the whole memory.
    pub(crate) const ROOT: GroupId = GroupId(0);
}
