//! Faults and calls that do not wait.
//!
//! A fault that does not wait never queries the device or its file system, makes no entry and takes
//! no translations away. If one of these is necessary, or an entry is locked, perhaps by another
//! such fault, the caller has to take the blocking path (`fault`).

use super::core::DaxCore;
use super::device::Durability;
use super::entry::{Content, Entry, Size};
use super::error::DaxError;
use super::fault::DaxPages;
use super::grab::Wanted;
use super::reference::DaxRef;
use super::stripes::Count;
use crate::cache::{FaultKind, Wait};
use crate::units::PAGE_SIZE;

impl DaxCore {
    /// Returns whether [`DaxCore::put_block`] waits for nothing at such an entry: neither for the
    /// host nor for the readers of a hole.
    pub(super) fn is_put_nonblocking(&self, entry: Entry) -> bool {
        match entry.content() {
            Content::Block(_) => {
                self.is_storable(entry) || self.parts.device.durability() == Durability::Lines
            }
            Content::Empty => self.parts.host.is_none(),
            Content::Zero => false,
        }
    }
}

impl DaxRef {
    /// Returns the page to map at `page` of the file, if that needs no waiting: a block, or a hole
    /// for a load.
    pub(crate) fn try_fault(
        &self,
        page: u64,
        kind: FaultKind,
    ) -> Result<Option<DaxPages>, DaxError> {
        let offset = DaxCore::offset(page);
        if kind == FaultKind::Write {
            self.check_writable(offset)?;
        }
        let found = self.entries.find(page, Wanted::Present, Wait::No)?;
        // The length and the cuts are checked with the entry locked, as on the blocking path.
        if page >= self.pages() {
            return Err(self.past_end(offset, PAGE_SIZE as u64));
        }
        let Some(mut locked) = found else {
            return Ok(None);
        };
        let entry = locked.entry();
        let is_enough = match (entry.content(), kind) {
            (Content::Block(_), FaultKind::Write) => self.is_put_nonblocking(entry),
            (Content::Block(_) | Content::Zero, FaultKind::Read) => true,
            (Content::Empty, _) | (Content::Zero, FaultKind::Write) => false,
        };
        let becomes_dirty = kind == FaultKind::Write && !entry.is_dirty();
        if !is_enough
            || self.is_being_cut(&locked.pages())
            || (becomes_dirty && self.pay_ahead(Wait::No).is_err())
        {
            return Ok(None);
        }
        self.counts.count(Count::Faults);
        if entry.size() == Size::Large {
            self.counts.count(Count::LargeFaults);
        }
        if entry.content() == Content::Zero {
            self.counts.count(Count::ZeroMaps);
        }
        if becomes_dirty {
            locked.set(entry.dirty());
            self.note_dirty(page);
        }
        Ok(Some(DaxPages::of_entry(self, locked.into_held())))
    }
}
