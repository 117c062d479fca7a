//! Device ranges, where loads and stores are calls. A direct-access file that is guarded against
//! truncation is mapped in the same way; a failure there is a fault of the file, not of a device.
//!
//! A mapping of a device has no pages, so an access there never finds a translation. The fault
//! finds the mapping, checks its protection and returns the device; the access then calls the
//! device, outside every section and with no lock held. A session leaves its own section during the
//! call.
//!
//! While a thread is in a device's handler (or in a store's callback for a fault or a change of the
//! space), it may not use the same space: its accesses fail, and so do its changes to mappings. An
//! access that hits does not check this. So before a device is called, the space's other accessors
//! are asked to read their mail: their next access then takes the slow path, which calls
//! [`is_in_callback`](crate::exec::reentry::is_in_callback).

use super::single::{Core, Paused, Sectioned};
use crate::VirtAddr;
use crate::space::core::fault::{Cause, Fault, FaultKind};
use crate::space::vma::device::{DeviceCall, Transfer};

impl Core {
    /// Returns the device call that a fault found, or else the fault.
    pub(crate) fn device_of(&mut self, fault: Fault) -> Result<DeviceCall, Fault> {
        if fault.kind() != FaultKind::Device {
            return Err(fault);
        }
        self.vmas.device.take().ok_or(fault)
    }

    /// Calls a device for the access `wanted`, outside every section.
    pub(crate) fn call<S: Sectioned>(
        &mut self,
        wanted: Fault,
        act: impl FnOnce() -> Result<(), Cause>,
    ) -> Result<(), Fault> {
        let paused = Paused::<S>::new(self);
        let sections = &mut paused.core.translator.sections;
        // If a section is open here, it is a session's.
        let is_session = sections.is_open();
        if is_session {
            sections.leave();
        }
        let inside = paused.core.space.enter_device();
        let done = act();
        drop(inside);
        if is_session {
            paused.core.translator.sections.enter();
        }
        drop(paused);
        done.map_err(|cause| self.failed(wanted, cause))
    }

    /// Completes a bulk access within one page that failed with [`FaultKind::Device`], by calls to
    /// the device. Returns any other fault as it is.
    #[cold]
    pub(crate) fn device_bulk<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: Transfer<'_>,
        fault: Fault,
    ) -> Result<(), Fault> {
        let call = self.device_of(fault)?;
        self.run_of_calls::<S>(at, bytes, &call)
    }

    /// Loads or stores bytes of one page by calls to the device that is mapped there. Each call is
    /// for 1, 2, 4 or 8 bytes, aligned to that size. The bytes beyond the device's end come last:
    /// they fail together, without a call to the device.
    pub(crate) fn run_of_calls<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        mut bytes: Transfer<'_>,
        DeviceCall { device, offset, .. }: &DeviceCall,
    ) -> Result<(), Fault> {
        let inside = device.bytes_before_end(*offset, bytes.len());
        let mut start = 0;
        while start < bytes.len() {
            let here = at + start as u64;
            let size = match inside.saturating_sub(start) {
                0 => bytes.len() - start,
                left => 1 << here.0.trailing_zeros().min(3).min(left.ilog2()),
            };
            let wanted = Fault::new(FaultKind::Device, here, bytes.access(), 0);
            let piece = bytes.part(start, size);
            self.call::<S>(wanted, || device.transfer(offset + start as u64, piece))?;
            start += size;
        }
        Ok(())
    }

    /// Returns the fault of a read-modify-write that failed with [`FaultKind::Device`]: devices do
    /// not support such an access. Returns any other fault as it is.
    #[cold]
    pub(crate) fn device_exchange(&mut self, fault: Fault) -> Fault {
        match self.device_of(fault) {
            Ok(call) => {
                let cause = call.device.no_exchange(call.offset, fault.bytes());
                self.failed(fault, cause)
            }
            Err(fault) => fault,
        }
    }

    /// Returns the fault of the access `wanted`, which was refused for `cause`. Remembers the
    /// cause, so that the fault can be explained.
    pub(crate) fn failed(&self, wanted: Fault, cause: Cause) -> Fault {
        let fault = wanted.of_kind(cause.kind());
        self.space.remember(fault, cause);
        fault
    }
}
