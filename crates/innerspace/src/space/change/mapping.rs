//! Mapping, unmapping and changing protections: structural changes (`steps`).

use std::ops::Range;

use super::map::{Map, Population, place};
use super::region::Region;
use super::remap::{self, Remap};
use super::steps::Payment;
use crate::group::SetAside;
use crate::reclaim::AllocMode;
use crate::space::core::error::SpaceError;
use crate::space::core::space::Space;
use crate::space::table::PATH_NODES;
use crate::space::table::edit::Edit;
use crate::space::vma::area::{Backing, Vma};
use crate::space::vma::protection::Protection;
use crate::space::vma::set::VmaSet;
use crate::sync::{Arc, failpoint};
use crate::{PageCount, VirtAddr};

impl Space {
    /// Maps a file, a device or anonymous memory, and returns the first address of the mapping.
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`],
    /// [`SpaceError::NoRoom`], [`SpaceError::Overlaps`] (with [`Map::at`]),
    /// [`SpaceError::NullPage`], [`SpaceError::Reentered`], [`SpaceError::Frozen`],
    /// [`SpaceError::Forbidden`] (such as a shared writable mapping of a file opened read-only),
    /// [`SpaceError::SharedAnonymous`], [`SpaceError::OtherMemorysFile`], [`SpaceError::Limit`]:
    /// nothing is changed. With [`Map::populated`], also the errors of [`Space::populate`]: then
    /// nothing stays mapped, and with [`Map::replacing`] the old mapping is gone.
    pub fn map(&self, map: Map) -> Result<VirtAddr, SpaceError> {
        let at = map.place_address(self.0.end());
        self.0.check_live("map", at, map.len())?;
        if map.population == Population::OnDemand {
            return Ok(VirtAddr(self.put(&map, Some(Edit::Detach))?.start));
        }
        // If populating fails, the mapping is undone. Undoing it takes new nodes if a fork has
        // meanwhile shared the tables at its ends.
        let (group, nodes) = (self.group(), PageCount(2 * PATH_NODES as u64));
        let nodes = self.0.pool.charge(group.id(), nodes, AllocMode::Wait)?;
        let nodes = Arc::new(SetAside::new(group, nodes));
        let range = self.put(&map, Some(Edit::Detach))?;
        let (at, len) = (VirtAddr(range.start), range.end - range.start);
        self.populate(at, len).inspect_err(|_| {
            // The group is probably full, so the frames come from what was set aside.
            failpoint!(Undoing);
            let scope = self.0.pool.store_scope(Some(nodes));
            let _scope = Some(scope);
            let unmapped = self.unmap_paid(Payment::After { _scope }, &range);
            debug_assert!(
                unmapped.is_ok(),
                "what it takes was set aside: {unmapped:?}"
            );
        })?;
        Ok(at)
    }

    /// Maps a file privately in place of anonymous memory. Pages of that memory become private
    /// copies of the file's pages. The caller has only stored to the memory, and no other thread
    /// uses it.
    pub(crate) fn map_behind(&self, map: &Map) -> Result<(), SpaceError> {
        self.put(map, None).map(drop)
    }

    /// Adds a mapping, applies `edit` to the pages that are there, and returns the mapping's range.
    fn put(&self, map: &Map, edit: Option<Edit>) -> Result<Range<u64>, SpaceError> {
        let space = &self.0;
        let mut vma = map.to_vma(space.end())?;
        map.check_memory(&space.pool)?;
        if let Backing::Device(device) = &vma.backing {
            device.pay(self.group())?;
        }
        let writer = space.gate.write();
        let range = place(space, &writer.vmas, map, vma.end)?;
        (vma.start, vma.end) = (range.start, range.end);
        space.change(Payment::Own, writer, &range, edit, |vmas| vmas.put(vma))?;
        Ok(range)
    }

    /// Unmaps `len` bytes (rounded up to whole pages) at `at`. Parts that are not mapped are
    /// skipped. Once this call has returned, no access reads or writes the old pages; dirty shared
    /// pages stay in their file. One exception: if an access has begun a call to a
    /// [`Device`](crate::space::Device), or on a file with
    /// [`OnShrink::Error`](crate::dax::OnShrink::Error), the call may still be under way, and that
    /// access then succeeds. Such calls are not waited for, because a handler may take as long as
    /// it likes, and may need a lock that the caller holds. [`Space::wait_for_calls`] waits for
    /// them.
    ///
    /// # Errors
    /// [`SpaceError::Empty`], [`SpaceError::Unaligned`], [`SpaceError::OutOfRange`],
    /// [`SpaceError::Limit`] (a shared table must be copied if only a part of it is unmapped).
    /// Nothing is changed then.
    pub fn unmap(&self, at: VirtAddr, len: u64) -> Result<(), SpaceError> {
        let range = self.0.live_range("unmap", at, len)?;
        self.unmap_paid(Payment::Own, &range)
    }

    /// Waits for the calls to devices and on files with
    /// [`OnShrink::Error`](crate::dax::OnShrink::Error) that accesses to this space have begun.
    /// [`Space::unmap`], [`Space::protect`] and all other changes of the mappings return without
    /// waiting for such calls. Once a change and then this call have returned, no call is under way
    /// that the change would have refused, so the device can be torn down.
    ///
    /// Calls that begin later are not waited for. If a handler never returns, or waits for the
    /// caller, this call does not return either.
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory, space::{Device, DeviceError}};
    /// # struct Uart;
    /// # impl Device for Uart {
    /// #     fn load(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> { Ok(()) }
    /// #     fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> { Ok(()) }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let at = space.map(Map::device(Uart, 8))?;
    /// space.unmap(at, 8)?;
    /// space.wait_for_calls()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SpaceError::Reentered`] from inside such a call, which would wait for itself;
    /// [`SpaceError::OtherProcess`].
    pub fn wait_for_calls(&self) -> Result<(), SpaceError> {
        let whole = self.0.end();
        self.0.check_entry("wait for calls", VirtAddr(0), whole)?;
        self.0.calls.wait();
        Ok(())
    }

    /// Unmaps as [`Space::unmap`] does. `payment` says how the nodes of the mappings are paid for.
    fn unmap_paid(&self, payment: Payment, range: &Range<u64>) -> Result<(), SpaceError> {
        let writer = self.0.gate.write();
        if writer.vmas.overlapping(range).next().is_none() {
            return Ok(());
        }
        let remove = |vmas: &mut VmaSet| vmas.remove(range);
        (self.0).change(payment, writer, range, Some(Edit::Detach), remove)
    }

    /// Sets the protection of `len` bytes (rounded up to whole pages) at `at`. Once this call has
    /// returned, no access does anything that is now forbidden, except calls to devices that have
    /// begun: see [`Space::wait_for_calls`].
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::Forbidden`] if
    /// what is mapped, or the way the file was opened, rules the protection out; otherwise the
    /// errors of [`Space::unmap`]. Nothing is changed then.
    pub fn protect(
        &self,
        at: VirtAddr,
        len: u64,
        protection: Protection,
    ) -> Result<(), SpaceError> {
        let (space, what) = (&self.0, "protect");
        let range = space.live_range(what, at, len)?;
        let writer = space.gate.write();
        let vmas = &writer.vmas;
        vmas.check_covers(&range, what, len)?;
        for vma in vmas.overlapping(&range) {
            if !vma.ceiling.allows(protection) {
                let mapping = vma.to_string();
                return Err(SpaceError::Forbidden {
                    mapping,
                    wanted: protection,
                    reason: vma.backing.rules_out(protection),
                });
            }
        }
        let gives = |right: Protection| {
            protection.allows(right)
                && !vmas
                    .overlapping(&range)
                    .all(|vma| vma.protection.allows(right))
        };
        // Forks share the tables, and still forbid what is allowed here from now on. So the paths
        // must be made this space's own.
        let gives_more = gives(Protection::READ) || gives(Protection::EXECUTE);
        let may_execute = |vma: &Vma| vma.protection.allows(Protection::EXECUTE);
        let takes_execute =
            !protection.allows(Protection::EXECUTE) && vmas.overlapping(&range).any(may_execute);
        let edit = match (
            protection.allows(Protection::READ),
            protection.allows(Protection::WRITE),
        ) {
            (false, _) => Some(Edit::Forbid),
            // If the leaf stayed shared, a fork that may still execute could make the page valid
            // for fetches again.
            (true, _) if gives_more || takes_execute => Some(Edit::Part),
            (true, false) => Some(Edit::ForbidWrite),
            // There is no right to take away, and a fault gives an access its new rights.
            (true, true) => None,
        };
        let set = |vmas: &mut VmaSet| vmas.update(&range, |part| part.protection = protection);
        space.change(Payment::Own, writer, &range, edit, set)
    }

    /// Changes the length of the mapping at `at` from `old_len` to `new_len` bytes, both rounded up
    /// to whole pages, and returns its address. The bytes move with the mapping; added pages have
    /// the content that a mapping of that length would have there.
    ///
    /// A call that shrinks unmaps the end, which may cover several mappings or none. If such a call
    /// keeps the address, only the first page of the old range must be mapped; otherwise the part
    /// that moves must be in one mapping. A call that keeps length and address changes nothing. In
    /// all other cases the old range must be in one mapping.
    ///
    /// ```
    /// # use innerspace::{MIB, Map, Memory, space::Remap};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let space = Memory::with_limit(4 * MIB)?.create_space()?;
    /// let at = space.map(Map::anonymous(4096))?;
    /// space.accessor()?.store(at, 7_u64)?;
    /// let at = space.remap(at, 4096, MIB, Remap::MayMove)?;
    /// assert_eq!(space.accessor()?.load::<u64>(at)?, 7);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`]; [`SpaceError::NoRoom`] if the mapping cannot grow where it is and
    /// may not move, or no free range is large enough; [`SpaceError::Overlaps`] if the new range
    /// overlaps the old; [`SpaceError::DeviceEnds`] if a mapping of a device would become longer;
    /// [`SpaceError::NullPage`], [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`], [`SpaceError::Limit`]. Nothing is changed then.
    pub fn remap(
        &self,
        at: VirtAddr,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Result<VirtAddr, SpaceError> {
        remap::remap(&self.0, at, old_len, new_len, to)
    }

    /// Creates a region that is empty at first, and reserves `most` bytes for it (rounded up to
    /// whole pages), at an address that the space chooses.
    ///
    /// # Errors
    /// As for [`Space::map`].
    pub fn create_region(&self, most: u64) -> Result<Region, SpaceError> {
        let start = self.map(Map::anonymous(most).protection(Protection::NONE))?;
        Ok(Region::new(self, start, most))
    }
}
