//! Values that lie in two pages.
//!
//! Such a value is loaded in two parts. A store needs both pages to be valid at the same time, in
//! one section. That is impossible with a device, which is called outside every section. In that
//! case both parts are checked before either is stored, and the part that may still be refused is
//! stored first.

use super::single::{Core, Sectioned};
use super::what::What;
use crate::space::core::address::crosses;
use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::vma::device::{DeviceCall, Transfer};
use crate::{PAGE_SIZE, VirtAddr};

/// The part of a value in one page, with the device if a device is mapped there.
struct Part<'bytes> {
    at: VirtAddr,
    bytes: &'bytes [u8],
    device: Option<DeviceCall>,
}

impl Core {
    /// Completes an access that failed with [`FaultKind::Device`], because its value lies in two
    /// pages or belongs to a device. Returns any other fault as it is.
    #[cold]
    #[inline(never)]
    pub(crate) fn value_elsewhere<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: Transfer<'_>,
        fault: Fault,
    ) -> Result<(), Fault> {
        let in_two_pages = fault.kind() == FaultKind::Device && crosses(at, bytes.len());
        let of = What::page(fault.access(), bytes.len());
        match bytes {
            Transfer::Store(bytes) if in_two_pages => self.write_across::<S>(at, bytes, of),
            Transfer::Load(_) if in_two_pages => self.transfer::<S>(at, bytes, of),
            bytes => {
                let call = self.device_of(fault)?;
                self.call::<S>(fault, || call.device.transfer(call.offset, bytes))
            }
        }
    }

    /// Writes bytes that lie in two pages, wholly or not at all, unless a device refuses its part
    /// after the other part was written. `part` says what to look up in each page, and what a fault
    /// reports.
    pub(crate) fn write_across<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: &[u8],
        part: What,
    ) -> Result<(), Fault> {
        let (first, second) = bytes.split_at(PAGE_SIZE - at.page_offset());
        let next = self.space.after(at, first.len() as u64);
        loop {
            self.enter::<S>();
            let translator = &self.translator;
            let low = translator.hit(at.0, first.len(), AccessKind::Store);
            let high = translator.hit(next.0, second.len(), AccessKind::Store);
            if let (Some(low), Some(high)) = (low, high) {
                low.write(first);
                high.write(second);
                self.leave::<S>();
                return Ok(());
            }
            self.leave::<S>();
            let low = self.find_part::<S>(at, first, part)?;
            let high = self.find_part::<S>(next, second, part)?;
            if low.device.is_some() || high.device.is_some() {
                return self.write_to_devices::<S>(low, high);
            }
        }
    }

    /// Brings in the page, or finds the device, to which the part will be stored. Fails if neither
    /// is possible, or if the part goes beyond the end of the device.
    fn find_part<'bytes, S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: &'bytes [u8],
        part: What,
    ) -> Result<Part<'bytes>, Fault> {
        let device = match self.access::<S, ()>(at, part, drop) {
            Ok(()) => None,
            Err(fault) => {
                let call = self.device_of(fault)?;
                let inside = call.device.check_end(call.offset, bytes.len());
                inside.map_err(|cause| self.failed(fault, cause))?;
                Some(call)
            }
        };
        Ok(Part { at, bytes, device })
    }

    /// Stores a value of which at least one part goes to a device or a guarded file. The caller has
    /// checked both parts, but a device may still refuse.
    fn write_to_devices<S: Sectioned>(
        &mut self,
        low: Part<'_>,
        high: Part<'_>,
    ) -> Result<(), Fault> {
        // The part most likely to be refused is stored first: a device's part, then a guarded
        // file's, then one in memory. If both belong to guarded files, the upper part is first,
        // because a truncated file has lost its end.
        let turn = |part: &Part<'_>| match &part.device {
            Some(call) => u8::from(call.device.file().is_some()),
            None => 2,
        };
        let parts = match (turn(&low), turn(&high)) {
            (1, 1) => [high, low],
            (of_low, of_high) if of_high < of_low => [high, low],
            _ => [low, high],
        };
        for Part { at, bytes, device } in parts {
            match device {
                Some(call) => self.run_of_calls::<S>(at, Transfer::Store(bytes), &call)?,
                None => self.write::<S>(at, bytes)?,
            }
        }
        Ok(())
    }
}
