//! Snapshots: a space frozen at a moment, to look into, to fork from, to compare with and to go
//! back to.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod` | [`Snapshot`]: taking one, reading it, forking from it |
//! | `view` | [`PageView`]: bytes of a snapshot as a slice |
//! | `restore` | going back, in two forms |
//! | `changes` | which pages a space has changed since it last went back |
//! | `ghosts` | which pages it has given back lately |
//! | `diff` | what differs, from the tables alone |
//! | `file` | saving one, and loading it |
//! | `error` | [`SnapshotFileError`]: what can go wrong with that |
//!
//! A snapshot is a fork that nobody can store to or map in: it shares every table and page with its
//! space, costs as much as a fork, and pays for what its space changes later by keeping the old
//! pages. What files show is not part of it: a page of a file that was not copied by a private
//! store is read from the file as it is when it is read.
//!
//! Locking: as for any space; a restore is a structural change, with the gate closed. `changes` has
//! a mutex of its own, taken inside sections and under no other.

mod changes;
mod diff;
mod error;
mod file;
mod ghosts;
mod restore;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod view;

use super::device::{DeviceRef, DeviceState};
use super::vma::Backing;
use super::{Accessor, Role, Space, SpaceError, SpaceStats};
use crate::group::Group;
use crate::sync::Arc;

pub(super) use self::changes::Changes;
pub(super) use self::diff::merged;
pub use self::error::SnapshotFileError;
pub use self::view::PageView;

/// A space as it was at one moment: the same mappings and the same private bytes, for as long as it
/// lives.
///
/// A handle, cheap to clone, `Send` and `Sync`; any number of threads may read it, each through an
/// [`Accessor`] of its own. Stores to it, and changes of its mappings, are refused. Pages of files
/// are not part of it, unless a private store had copied them: they are read from the file, as it
/// is at the time. Devices are asked for their state when the snapshot is taken, and given it back
/// when a space is restored; the snapshot itself does not answer for them.
///
/// ```
/// use innerspace::{MIB, Map, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.space()?;
/// let at = space.map(Map::anonymous(MIB))?;
/// let mut a = space.accessor();
/// a.store(at, 1_u64)?;
/// let snapshot = space.freeze()?;
/// a.store(at, 2_u64)?;
/// assert_eq!(snapshot.accessor().load::<u64>(at)?, 1);
/// assert_eq!(space.changed_since(&snapshot)?, [at..at + 4096]);
/// space.restore(&snapshot)?;
/// assert_eq!(a.load::<u64>(at)?, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Snapshot(Space, Arc<[DeviceState]>);

impl Space {
    /// Freezes the space as it is now, in microseconds, whatever is mapped; waits for no accessor
    /// longer than its current access. The snapshot costs a page, and then whatever the space
    /// changes while it lives.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn freeze(&self) -> Result<Snapshot, SpaceError> {
        let role = Role::Frozen { of: self.0.id };
        let frozen = self.copy(&self.0.group, role)?;
        let devices = frozen.devices();
        let states = devices
            .into_iter()
            .map(|device| DeviceState::of(&self.0, device));
        let states = states.collect();
        Ok(Snapshot(frozen, states))
    }
}

impl Space {
    /// The devices that are mapped, each once.
    fn devices(&self) -> Vec<DeviceRef> {
        self.0.inside(|tables| {
            let mut found: Vec<DeviceRef> = Vec::new();
            for vma in tables.vmas.iter() {
                if let Backing::Device { device, .. } = &vma.backing
                    && !found.iter().any(|known| known.is(device))
                {
                    found.push(device.clone());
                }
            }
            found
        })
    }
}

impl Snapshot {
    /// A new space that starts as this snapshot, in the same group. Takes no lock that its readers
    /// or other forks hold for long: many threads may fork from one snapshot at once.
    ///
    /// # Errors
    /// As [`Space::fork`].
    pub fn fork(&self) -> Result<Space, SpaceError> {
        self.fork_into(self.0.group())
    }

    /// Like [`Snapshot::fork`], with the fork's own pages and tables charged to `group`, which must
    /// be of the same `Memory`.
    ///
    /// # Errors
    /// As [`Space::fork_into`].
    pub fn fork_into(&self, group: &Group) -> Result<Space, SpaceError> {
        self.0.fork_into(group)
    }

    /// A new accessor, to read with: its stores fail with
    /// [`FaultKind::Frozen`](crate::FaultKind::Frozen). Charged like any accessor.
    pub fn accessor(&self) -> Accessor {
        self.0.accessor()
    }

    /// The mappings and what of them is resident.
    pub fn stats(&self) -> SpaceStats {
        self.0.stats()
    }

    /// The group that pays for the snapshot's root, and for tables that its readers need.
    pub fn group(&self) -> &Group {
        self.0.group()
    }

    /// Checks everything the snapshot keeps. At rest.
    ///
    /// # Panics
    /// When an invariant is broken.
    #[doc(hidden)]
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
