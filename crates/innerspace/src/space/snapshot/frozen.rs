//! Taking a snapshot, reading from it, and forking from it.

use std::collections::BTreeSet;

use super::devices::DeviceStates;
use crate::group::{Group, LimitError};
use crate::space::access::accessor::Accessor;
use crate::space::core::error::SpaceError;
use crate::space::core::space::{Role, Space};
use crate::space::report::SpaceStats;
use crate::space::vma::area::Backing;
use crate::space::vma::device::DeviceRef;
use crate::sync::Arc;

/// A space as it was at one moment: the same mappings and the same private bytes, while the
/// snapshot lives.
///
/// It is a handle, cheap to clone, `Send` and `Sync`. Any number of threads may read it, each
/// through an [`Accessor`] of its own. Stores to it, and changes of its mappings, are refused.
/// Pages of files are not part of it, unless a private store had copied them: a read returns the
/// file's content at the time of the read. Devices are asked for their state when the snapshot is
/// taken, and get it back when a space is restored; the snapshot itself does not call them.
///
/// ```
/// use innerspace::{MIB, Map, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.create_space()?;
/// let at = space.map(Map::anonymous(MIB))?;
/// let mut a = space.accessor()?;
/// a.store(at, 1_u64)?;
/// let snapshot = space.freeze()?;
/// a.store(at, 2_u64)?;
/// assert_eq!(snapshot.accessor()?.load::<u64>(at)?, 1);
/// assert_eq!(space.changed_since(&snapshot)?, [at..at + 4096]);
/// space.restore(&snapshot)?;
/// assert_eq!(a.load::<u64>(at)?, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot(pub(super) Space, pub(super) Option<Arc<DeviceStates>>);

impl Space {
    /// Freezes the space as it is now. It takes microseconds, whatever is mapped, and waits for no
    /// accessor longer than its current access. The snapshot costs a page, the states of devices,
    /// and then the old copy of each page that the space changes while the snapshot lives.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn freeze(&self) -> Result<Snapshot, SpaceError> {
        let role = Role::Frozen { of: self.0.id };
        let frozen = self.copy(&self.0.group, role)?;
        let states = DeviceStates::of(&self.0, frozen.devices())?;
        Ok(Snapshot(frozen, states))
    }
}

impl Space {
    /// Returns the devices that are mapped, each once.
    fn devices(&self) -> Vec<DeviceRef> {
        self.0.inside(|tables| {
            let (mut found, mut known) = (Vec::new(), BTreeSet::new());
            for vma in tables.vmas.iter() {
                if let Backing::Device { device, .. } = &vma.backing
                    && known.insert(device.address())
                {
                    found.push(device.clone());
                }
            }
            found
        })
    }
}

impl Snapshot {
    /// Creates a space that starts as this snapshot, in the same group. Takes no lock that readers
    /// or other forks hold for long: many threads may fork from one snapshot at the same time.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_into(self.0.group())
    }

    /// Forks like [`Snapshot::fork`], with the fork's own pages and tables charged to `group`,
    /// which must be of the same `Memory`.
    ///
    /// # Errors
    /// As [`Space::fork_into`].
    pub fn fork_into(&self, group: &Group) -> Result<Space, SpaceError> {
        self.0.fork_into(group)
    }

    /// Creates an accessor for reading: its stores fail with
    /// [`FaultKind::Frozen`](crate::space::FaultKind::Frozen). Charged like any accessor.
    ///
    /// # Errors
    /// As [`Space::accessor`].
    pub fn accessor(&self) -> Result<Accessor, LimitError> {
        self.0.accessor()
    }

    /// Returns the mappings and counts their resident pages.
    pub fn stats(&self) -> SpaceStats {
        self.0.stats()
    }

    /// Returns the group that pays for the snapshot's root, and for tables that its readers need.
    pub fn group(&self) -> &Group {
        self.0.group()
    }

    /// Checks everything that the snapshot keeps. No other thread uses it meanwhile.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    #[cfg(any(test, feature = "test-util"))]
    pub fn validate(&self) {
        self.0.validate();
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("group", self.group())
            .finish_non_exhaustive()
    }
}
