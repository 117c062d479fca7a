//! Protection and sharing of a mapping.

use std::fmt;

/// The accesses that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Protection(u8);

impl Protection {
    /// No access.
    pub const NONE: Protection = Protection(0);
    /// Loads.
    pub const READ: Protection = Protection(1);
    /// Stores, and loads with them, as on most hardware.
    pub const WRITE: Protection = Protection(3);
    /// Instruction fetches, which are told apart from loads.
    pub const EXECUTE: Protection = Protection(4);
    /// Loads and stores.
    pub const READ_WRITE: Protection = Protection(3);

    /// The protection as a number; only [`Protection::from_bits`] can read it.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// The protection with these bits; `None` for any other number.
    pub(crate) fn from_bits(bits: u8) -> Option<Protection> {
        let known = [0, 1, 3, 4, 5, 7];
        known.contains(&bits).then_some(Protection(bits))
    }

    /// Whether it allows everything that `other` allows.
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

/// Whether stores to a mapping are visible to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// Only this space sees them: a store copies the page.
    Private,
    /// Everybody who maps or reads the file sees them.
    Shared,
}
