//! The options of a space.

use super::error::SpaceError;
use crate::group::Group;
use crate::reclaim::Pool;

/// The number of bits in an address of a space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum AddressWidth {
    /// Addresses below 4 GiB. An access that crosses the last address wraps around to 0, as on a
    /// 32-bit machine. Larger addresses are never mapped.
    Bits32,
    /// Addresses below 2^48. Larger addresses are never mapped.
    #[default]
    Bits48,
}

impl AddressWidth {
    /// Returns the end of the space: the first address past its last.
    pub fn end(self) -> u64 {
        match self {
            AddressWidth::Bits32 => 1 << 32,
            AddressWidth::Bits48 => 1 << 48,
        }
    }
}

const _: () = assert!(crate::space::table::ADDRESS_BITS == 48);

/// The options of a [`Space`](crate::Space); see
/// [`Memory::create_space_with`](crate::Memory::create_space_with).
///
/// ```
/// # use innerspace::{MIB, Map, Memory, space::{AddressWidth, SpaceOptions}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let guest = memory.create_group("guest", MIB)?;
/// let options = SpaceOptions::new().group(&guest).width(AddressWidth::Bits32);
/// let space = memory.create_space_with(&options)?;
/// let at = space.map(Map::anonymous(MIB))?;
/// assert!(at.0 < 1 << 32);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it only has the choices"]
pub struct SpaceOptions {
    pub(crate) group: Option<Group>,
    pub(crate) width: AddressWidth,
}

impl SpaceOptions {
    /// Returns the default options: the root group, 48 bits.
    pub fn new() -> SpaceOptions {
        SpaceOptions::default()
    }

    /// Charges the space to this group.
    pub fn group(mut self, group: &Group) -> SpaceOptions {
        self.group = Some(group.clone());
        self
    }

    /// Sets the number of bits in an address.
    pub fn width(mut self, width: AddressWidth) -> SpaceOptions {
        self.width = width;
        self
    }
}

/// Returns an error if `group` belongs to another memory: the group would be charged for memory
/// that is not its own. `what` names the operation in the error.
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
