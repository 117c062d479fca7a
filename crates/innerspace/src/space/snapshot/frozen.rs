//! The copies of a space: forking, taking a snapshot, reading from it, and going back to it.

use std::ops::Range;

use super::devices::DeviceStates;
use super::{diff, restore};
use crate::VirtAddr;
use crate::group::{Group, LimitError};
use crate::space::access::accessor::Accessor;
use crate::space::change::fork;
use crate::space::core::error::SpaceError;
use crate::space::core::space::{Role, Space};
use crate::space::report::SpaceStats;
use crate::sync::Arc;

/// A space as it was at one moment: the same mappings and the same private bytes, while the
/// snapshot lives.
///
/// It is a handle, cheap to clone, `Send` and `Sync`. Any number of threads may read it, each
/// through its own [`Accessor`]. Stores to it, and changes of its mappings, are refused. Pages of
/// files are not part of it, unless a private store has copied them: a read returns the file's
/// content at the time of the read. Devices are asked for their state when the snapshot is taken,
/// and get it back when a space is restored; the snapshot itself does not call them.
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
    /// Makes a copy-on-write copy of this space, in the same group, with the same mappings and the
    /// same bytes. Afterwards neither side sees what the other stores to private memory. Shared
    /// file mappings stay shared. A fork takes microseconds, whatever is mapped, unless many pages
    /// are pinned. It waits for no accessor longer than for its current access, and for a
    /// [`Session`](crate::space::Session) until its next safepoint. Locks ([`Space::lock`]) are not
    /// inherited, as on Linux.
    ///
    /// # Errors
    /// [`SpaceError::Limit`] if the group has no page for the child's root, or for a copy of each
    /// pinned page; [`SpaceError::PinnedAlone`] while a page is pinned with
    /// [`AtFork::Refuse`](crate::space::AtFork::Refuse); [`SpaceError::TooManyForks`];
    /// [`SpaceError::Reentered`]. After an error the space is unchanged.
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_in(&self.0.group.clone())
    }

    /// Forks like [`Space::fork`], with the child's own pages and tables charged to `group`, which
    /// must belong to the same `Memory`.
    ///
    /// # Errors
    /// As [`Space::fork`]; [`SpaceError::OtherMemorysGroup`].
    pub fn fork_in(&self, group: &Group) -> Result<Space, SpaceError> {
        // This may be a snapshot's space, which the snapshot's accessors give out
        // ([`Accessor::space`]).
        let born_of = self.0.is_frozen().then_some(self.0.id);
        fork::copy(&self.0, group, Role::Live { born_of })
    }

    /// Freezes the space as it is now. The call takes as long, and waits for as much, as
    /// [`Space::fork`]; then it asks the devices for their states. The snapshot costs a page, the
    /// states of devices, and then the old copy of each page that the space changes while the
    /// snapshot lives.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn freeze(&self) -> Result<Snapshot, SpaceError> {
        let role = Role::Frozen { of: self.0.id };
        let frozen = fork::copy(&self.0, &self.0.group, role)?;
        let states = DeviceStates::of(&self.0, &frozen.0)?;
        Ok(Snapshot(frozen, states))
    }

    /// Takes the space back to `snapshot`: mappings, protections, locks and private bytes are as
    /// they were then. Bytes of files are not part of a snapshot. The snapshot must be one of this
    /// space, or the one from which this space was forked.
    ///
    /// The time is in proportion to the pages changed since. If a space is restored to the same
    /// snapshot again and again, and stores to about the same pages each time, a restore costs a
    /// copy of each of these pages and little more.
    ///
    /// # Errors
    /// [`SpaceError::OtherSpace`]; [`SpaceError::Pinned`] while a page is pinned;
    /// [`SpaceError::Limit`] if the group has no room for mappings of files that the space has lost
    /// since; [`SpaceError::TooManyForks`]; [`SpaceError::Frozen`]; [`SpaceError::Reentered`].
    /// After an error the space is unchanged.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<(), SpaceError> {
        restore::restore(&self.0, &snapshot.0.0, snapshot.1.as_deref())
    }

    /// Returns the ranges of pages that may differ from `snapshot`, by address. Reads no bytes: the
    /// time is in proportion to the tables that were changed. A page that was changed before the
    /// call is always named. A page may be named although its bytes are equal, if the same bytes
    /// were stored or a restore has copied them back. Bytes of files are not compared, but the
    /// addresses at which files are mapped are. Protections, locks and advice are not compared,
    /// though a restore brings them back: a mapping that differs only in these is not named.
    ///
    /// # Errors
    /// [`SpaceError::OtherMemory`].
    pub fn changed_since(&self, snapshot: &Snapshot) -> Result<Vec<Range<VirtAddr>>, SpaceError> {
        diff::differences("changed_since", &self.0, &snapshot.0.0)
    }
}

impl Snapshot {
    /// Creates a space that starts as a copy of this snapshot, in the same group. Takes no lock
    /// that readers or other forks hold for a long time: many threads may fork from one snapshot at
    /// the same time.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_in(self.0.group())
    }

    /// Forks like [`Snapshot::fork`], with the fork's own pages and tables charged to `group`,
    /// which must belong to the same `Memory`.
    ///
    /// # Errors
    /// As [`Space::fork_in`].
    pub fn fork_in(&self, group: &Group) -> Result<Space, SpaceError> {
        self.0.fork_in(group)
    }

    /// Returns the ranges of pages that may differ between this snapshot and `other`, of the same
    /// space or of another; see [`Space::changed_since`].
    ///
    /// # Errors
    /// [`SpaceError::OtherMemory`].
    pub fn diff(&self, other: &Snapshot) -> Result<Vec<Range<VirtAddr>>, SpaceError> {
        diff::differences("diff", &self.0.0, &other.0.0)
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

    /// Checks everything that the snapshot keeps. No other thread may use it meanwhile.
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
