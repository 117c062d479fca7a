//! The protection and sharing of a mapping.

use std::fmt;

/// The accesses that a mapping allows.
///
/// ```
/// # use innerspace::{MIB, Map, Memory, space::Protection};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
/// let code = Protection::READ | Protection::EXECUTE;
/// assert!(code.allows(Protection::READ) && !code.allows(Protection::WRITE));
/// let at = space.map(Map::anonymous(4096))?;
/// space.protect(at, 4096, code)?;
/// assert_eq!(space.mapping_at(at).unwrap().protection.to_string(), "r-x");
/// assert!(space.accessor()?.store(at, 1_u8).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(u8);

impl Protection {
    /// Allows no access.
    pub const NONE: Protection = Protection(0);
    /// Allows loads.
    pub const READ: Protection = Protection(1);
    /// Allows stores, and loads with them, as on most hardware.
    pub const WRITE: Protection = Protection(3);
    /// Allows instruction fetches, which are separate from loads.
    pub const EXECUTE: Protection = Protection(4);
    /// Allows loads and stores.
    pub const READ_WRITE: Protection = Protection(3);

    /// Returns the protection as a number for [`Protection::from_bits`].
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Returns the protection with these bits; `None` if no protection has them.
    pub(crate) fn from_bits(bits: u8) -> Option<Protection> {
        let known = [0, 1, 3, 4, 5, 7];
        known.contains(&bits).then_some(Protection(bits))
    }

    /// Returns whether this protection allows everything that `other` allows.
    pub fn allows(self, other: Protection) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Protection {
    type Output = Protection;

    fn bitor(self, other: Protection) -> Protection {
        Protection(self.0 | other.0)
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |which: Protection, letter| if self.allows(which) { letter } else { '-' };
        let (r, w) = (
            letter(Protection::READ, 'r'),
            letter(Protection::WRITE, 'w'),
        );
        match self.allows(Protection::EXECUTE) {
            true => write!(f, "{r}{w}x"),
            false => write!(f, "{r}{w}"),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Protection {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether others see the stores to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum Sharing {
    /// Only this space sees the stores: the first store to a page copies it.
    Private,
    /// The stores are visible wherever the file is mapped or read.
    Shared,
}
