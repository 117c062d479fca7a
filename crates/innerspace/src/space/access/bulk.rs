//! Bulk accesses: buffers are copied page by page. Each page is accessed in its own section, or all
//! in the session's.

use std::cmp::Ordering;

use super::accessor::Accessor;
use super::forms::forms;
use super::single::{Core, Sectioned, Single};
use super::what::What;
use crate::space::core::fault::{AccessKind, Fault};
use crate::space::table::still::COMPARED;
use crate::space::vma::device::Transfer;
use crate::{PAGE_SIZE, VirtAddr};

forms! { Accessor, Single => {
    /// Copies `len` bytes from another accessor's space, or from the same one, into this
    /// accessor's. Ranges of the same space must not overlap: use [`Accessor::copy_within`] for
    /// those.
    ///
    /// # Errors
    /// A [`Fault`] of either space, with the address that could not be read or written;
    /// [`Fault::access`] says which of the two it was. Bytes already copied stay.
    fn copy_from, try_copy_from(
        &mut self,
        to: VirtAddr,
        source: &mut Accessor,
        from: VirtAddr,
        len: usize,
    ) -> Result<(), Fault> {
        self.core.copy_from::<M>(to, &mut source.core, from, len)
    }
} }

impl Core {
    pub(crate) fn copy_from<S: Sectioned>(
        &mut self,
        to: VirtAddr,
        source: &mut Core,
        from: VirtAddr,
        len: usize,
    ) -> Result<(), Fault> {
        let mut buffer = [0; PAGE_SIZE];
        let mut done = 0;
        while done < len {
            // No piece lies in two pages of the source. So if a page of the source faults, all
            // bytes before that page have been copied.
            let start = source.space.after(from, done as u64);
            let piece = (PAGE_SIZE - start.page_offset()).min(len - done);
            source.read::<S>(start, &mut buffer[..piece])?;
            let there = self.space.after(to, done as u64);
            self.write::<S>(there, &buffer[..piece])?;
            done += piece;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn read<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        buffer: &mut [u8],
    ) -> Result<(), Fault> {
        self.transfer::<S>(at, Transfer::Load(buffer), What::page(AccessKind::Load, 0))
    }

    #[inline]
    pub(crate) fn write<S: Sectioned>(&mut self, at: VirtAddr, bytes: &[u8]) -> Result<(), Fault> {
        self.transfer::<S>(at, Transfer::Store(bytes), What::page(AccessKind::Store, 0))
    }

    /// Copies bytes out of the space or into it, page by page. `of` says which kind of access this
    /// is, and what a fault reports.
    #[inline(always)]
    pub(crate) fn transfer<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        mut bytes: Transfer<'_>,
        of: What,
    ) -> Result<(), Fault> {
        let mut start = 0;
        for (at, len) in self.space.pieces(at, bytes.len()) {
            let at = VirtAddr(at);
            let rest = bytes.len() - start - len;
            let next = (rest > 0).then(|| self.space.after(at, len as u64));
            let piece = bytes.part(start, len);
            let copied =
                self.access_before::<S, ()>(at, of.part(len, rest), next, |page| match piece {
                    Transfer::Load(to) => page.read(to),
                    Transfer::Store(from) => page.write(from),
                });
            copied.or_else(|fault| self.device_bulk::<S>(at, bytes.part(start, len), fault))?;
            start += len;
        }
        Ok(())
    }

    pub(crate) fn fill<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        byte: u8,
        len: usize,
    ) -> Result<(), Fault> {
        for (at, len) in self.space.pieces(at, len) {
            let what = What::page(AccessKind::Store, 0).part(len, 0);
            let at = VirtAddr(at);
            let done = self.access::<S, ()>(at, what, |page| page.fill(byte, len));
            done.or_else(|fault| {
                self.device_bulk::<S>(at, Transfer::Store(&vec![byte; len]), fault)
            })?;
        }
        Ok(())
    }

    pub(crate) fn compare<S: Sectioned>(
        &mut self,
        mut at: VirtAddr,
        mut bytes: &[u8],
    ) -> Result<Ordering, Fault> {
        let mut buffer = [0; COMPARED];
        let mut order = Ordering::Equal;
        while order.is_eq() && !bytes.is_empty() {
            // Every piece but the last ends at a multiple of `COMPARED`, so that no word is read in
            // two parts.
            let piece;
            (piece, bytes) = bytes.split_at(bytes.len().min(COMPARED - at.0 as usize % COMPARED));
            self.read::<S>(at, &mut buffer[..piece.len()])?;
            order = buffer[..piece.len()].cmp(piece);
            at = self.space.after(at, piece.len() as u64);
        }
        Ok(order)
    }

    /// Copies `len` bytes from `from` to `to` inside the space. The bytes go through a buffer of
    /// one page, so that the copy makes progress even if one of the two pages is removed while the
    /// other is brought in.
    pub(crate) fn copy<S: Sectioned>(
        &mut self,
        to: VirtAddr,
        from: VirtAddr,
        len: usize,
    ) -> Result<(), Fault> {
        let mut buffer = [0; PAGE_SIZE];
        // The distance from `from` up to `to`. In a narrow space it wraps around at the end.
        let distance = self.space.after(to, from.0.wrapping_neg()).0;
        let forward = distance >= len as u64;
        let mut done = 0;
        while done < len {
            let piece = PAGE_SIZE.min(len - done);
            let offset = if forward { done } else { len - done - piece } as u64;
            let (start, there) = (self.space.after(from, offset), self.space.after(to, offset));
            self.read::<S>(start, &mut buffer[..piece])?;
            self.write::<S>(there, &buffer[..piece])?;
            done += piece;
        }
        Ok(())
    }
}
