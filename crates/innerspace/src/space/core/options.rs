//! Choices for a space.

use super::error::SpaceError;
use crate::group::Group;
use crate::reclaim::Pool;

/// How many bits an address of a space has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AddressWidth {
    /// Addresses to 4 GiB; an access that crosses the last one goes on at 0, as on a machine of 32
    /// bits. Larger addresses are not mapped.
    Bits32,
    /// Addresses to 2^48; the range behind the last one is not mapped.
    #[default]
    Bits48,
}

impl AddressWidth {
    /// The first address that does not exist.
    pub fn end(self) -> u64 {
        match self {
            AddressWidth::Bits32 => 1 << 32,
            AddressWidth::Bits48 => 1 << 48,
        }
    }
}

const _: () = assert!(crate::space::table::ADDRESS_BITS == 48);

/// Choices for a [`Space`](crate::Space); see [`Memory::space_with`](crate::Memory::space_with).
#[derive(Clone, Debug, Default)]
pub struct SpaceOptions {
    pub(crate) group: Option<Group>,
    pub(crate) width: AddressWidth,
}

impl SpaceOptions {
    /// The root group, 48 bits.
    pub fn new() -> SpaceOptions {
        SpaceOptions::default()
    }

    /// Charges the space to this group.
    pub fn group(mut self, group: &Group) -> SpaceOptions {
        self.group = Some(group.clone());
        self
    }

    /// This many bits of address.
    pub fn width(mut self, width: AddressWidth) -> SpaceOptions {
        self.width = width;
        self
    }
}

/// Refuses a group of another memory: `what` would be charged to a memory that it does not use.
pub(crate) fn check_group(
    what: &'static str,
    group: &Group,
    pool: &Pool,
) -> Result<(), SpaceError> {
    match group.belongs_to(&pool.groups) {
        true => Ok(()),
        false => Err(SpaceError::OtherMemorysGroup {
            what,
            group: group.path(),
        }),
    }
}
