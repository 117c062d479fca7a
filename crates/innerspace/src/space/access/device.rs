//! Device ranges: loads and stores that are calls. A direct access file that is guarded against
//! being cut short is mapped in the same way; what fails there is a fault of the file, not of a
//! device.
//!
//! A mapping of a device has no pages. An access there finds no translation, ever, so it comes to
//! the fault, which finds the mapping and its protection and hands the device back; the access then
//! calls it, outside every section and with no lock held. A session is suspended meanwhile.
//!
//! While a thread is in a device's handler (or in a store's callback for a fault or a change of the
//! space), it may not use the same space: its accesses fail, and so do changes of the mappings. To
//! find out, the space's other accessors are asked to look at their mail, which leads their next
//! access past [`is_in_callback`](crate::exec::reentry::is_in_callback).

use std::fmt;

use super::session::Interrupted;
use super::single::{Core, Sectioned};
use crate::VirtAddr;
use crate::dax::{DaxFile, DaxRef};
use crate::exec::reentry::InCallback;
use crate::space::SpaceInner;
use crate::space::core::error::{AccessKind, Cause, Fault, FaultKind};
use crate::space::vma::area::Protection;
use crate::sync::Arc;

/// Something that answers loads and stores of a range of addresses; see
/// [`Map::device`](crate::Map::device).
///
/// An access of a program is one call with as many bytes as it has: 1, 2, 4, 8 or 16, at any
/// alignment, in the machine's byte order. Bulk accesses are runs of calls of at most 8 bytes,
/// aligned to their size; an access across the end of a page is two such runs, and what a call has
/// stored stays when a later one is refused. An atomic load or store is one call too, and an atomic
/// read-modify-write is refused. Several threads may call at once. A handler may not use the space
/// it is mapped in: see [`FaultKind::Reentered`].
pub trait Device: Send + Sync + 'static {
    /// Answers a load of `bytes.len()` bytes at `offset` from the start of the device.
    ///
    /// # Errors
    /// The access fails with [`FaultKind::Device`], and its explanation gives the reason.
    fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Takes a store of `bytes` at `offset` from the start of the device.
    ///
    /// # Errors
    /// As for [`Device::load`].
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// The device's state, for a snapshot of the space, right after the memory was frozen; nothing
    /// by default. Where both have to be of one moment, let no accessor run meanwhile.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes back to a state that [`Device::snapshot`] gave, right after the memory was restored;
    /// does nothing by default.
    fn restore(&self, _state: &[u8]) {}
}

macro_rules! forward_device {
    ($pointer:ident) => {
        impl<D: Device + ?Sized> Device for $pointer<D> {
            fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
                (**self).load(offset, bytes)
            }
            fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
                (**self).store(offset, bytes)
            }
            fn snapshot(&self) -> Vec<u8> {
                (**self).snapshot()
            }
            fn restore(&self, state: &[u8]) {
                (**self).restore(state)
            }
        }
    };
}

forward_device!(Arc);
forward_device!(Box);

/// Why a device refused an access.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(String);

impl DeviceError {
    /// A refusal for this reason, told as `load of 4 bytes at 0x1000: REASON`.
    pub fn new(reason: impl Into<String>) -> DeviceError {
        DeviceError(reason.into())
    }
}

/// What answers the accesses of a mapping by calls, as mappings refer to it.
#[derive(Clone)]
pub(in crate::space) struct DeviceRef(Arc<Target>);

enum Target {
    Device(Box<dyn Device>),
    /// A direct access file, guarded against being cut short. No handle: a mapping may go anywhere,
    /// and a handle ends its file.
    File(DaxRef),
}

impl DeviceRef {
    pub(in crate::space) fn new(device: impl Device) -> DeviceRef {
        DeviceRef(Arc::new(Target::Device(Box::new(device))))
    }

    pub(in crate::space) fn guarded(file: &DaxFile) -> DeviceRef {
        DeviceRef(Arc::new(Target::File(DaxRef::new(file.core().clone()))))
    }

    /// The file whose bytes it answers with, if it is no device.
    pub(in crate::space) fn file(&self) -> Option<&DaxRef> {
        match &*self.0 {
            Target::Device(_) => None,
            Target::File(file) => Some(file),
        }
    }

    /// Why it may not be mapped with what is above its ceiling.
    pub(in crate::space) fn rules_out(&self, wanted: Protection) -> &'static str {
        match (&*self.0, wanted.allows(Protection::EXECUTE)) {
            (Target::Device(_), _) => "a device is never executable",
            (Target::File(_), true) => "a file guarded against being cut short is never executable",
            (Target::File(_), false) => {
                "a guarded file is written by shared mappings, if it was opened writable"
            }
        }
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Cause> {
        match &*self.0 {
            Target::Device(device) => device.load(offset, bytes).map_err(Cause::Device),
            Target::File(file) => {
                let loaded = file.core().load_guarded(bytes, offset);
                loaded.map_err(|error| Cause::Direct(std::sync::Arc::new(error)))
            }
        }
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), Cause> {
        match &*self.0 {
            Target::Device(device) => device.store(offset, bytes).map_err(Cause::Device),
            Target::File(file) => {
                let stored = file.core().store_guarded(bytes, offset);
                stored.map_err(|error| Cause::Direct(std::sync::Arc::new(error)))
            }
        }
    }

    /// Neither has a read-modify-write.
    fn no_exchange(&self, offset: u64) -> Cause {
        match &*self.0 {
            Target::Device(_) => {
                Cause::Device(DeviceError::new("a device has no atomic read-modify-write"))
            }
            Target::File(file) => {
                let error = file.core().no_atomic_access(offset);
                Cause::Direct(std::sync::Arc::new(error))
            }
        }
    }

    pub(in crate::space) fn is(&self, other: &DeviceRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A device of a snapshot, and its state then.
pub(in crate::space) struct DeviceState {
    device: DeviceRef,
    state: Vec<u8>,
}

impl DeviceState {
    /// Asks the device, which is mapped in `space`. With no lock held.
    pub(in crate::space) fn of(space: &SpaceInner, device: DeviceRef) -> DeviceState {
        let _inside = enter_device(space);
        let state = match &*device.0 {
            Target::Device(device) => device.snapshot(),
            Target::File(_) => Vec::new(), // its bytes are the file's
        };
        DeviceState { device, state }
    }

    /// Takes the device back, which is mapped in `space`. With no lock held.
    pub(in crate::space) fn bring_back(&self, space: &SpaceInner) {
        let _inside = enter_device(space);
        if let Target::Device(device) = &*self.device.0 {
            device.restore(&self.state);
        }
    }
}

impl fmt::Debug for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Target::Device(_) => f.write_str("device"),
            Target::File(file) => f.write_str(file.name()),
        }
    }
}

/// What a fault found instead of a page.
#[derive(Debug)]
pub(in crate::space) struct DeviceCall {
    pub(in crate::space) device: DeviceRef,
    pub(in crate::space) offset: u64,
}

/// Marks this thread as inside a device's handler of the space until the result is dropped.
fn enter_device(space: &SpaceInner) -> InCallback {
    let inside = InCallback::begin(space.id);
    // The next access of each looks at that, whatever it has cached.
    let accessors = space.accessors.lock();
    if accessors.len() > 1 {
        accessors
            .iter()
            .for_each(|accessor| accessor.request_safepoint());
    }
    inside
}

/// The sizes in which a run of bytes is accessed: at most 8, each aligned to its size. Offset and
/// length of each.
fn calls(mut at: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let aligned = 1_usize << at.trailing_zeros().min(3);
        let fits = match len - done {
            0 => return None,
            left => 1 << left.ilog2(),
        };
        let (start, size) = (done, aligned.min(fits));
        at += size as u64;
        done += size;
        Some((start, size))
    })
}

impl Core {
    /// The device behind a fault, or else the fault.
    pub(in crate::space) fn device_of(&mut self, fault: Fault) -> Result<DeviceCall, Fault> {
        if fault.kind() != FaultKind::Device {
            return Err(fault);
        }
        self.vmas.device.take().ok_or(fault)
    }

    fn call<S: Sectioned>(
        &mut self,
        wanted: Fault,
        act: impl FnOnce() -> Result<(), Cause>,
    ) -> Result<(), Fault> {
        let suspended = Interrupted::new(self, S::suspend, S::unsuspend);
        let inside = enter_device(&suspended.core.space);
        let done = act();
        drop(inside);
        drop(suspended);
        done.map_err(|cause| {
            let fault = wanted.of_kind(cause.kind());
            self.space.remember(fault, cause);
            fault
        })
    }

    /// A load of a value that met `fault`.
    #[cold]
    pub(in crate::space) fn device_load<S: Sectioned>(
        &mut self,
        bytes: &mut [u8],
        fault: Fault,
    ) -> Result<(), Fault> {
        let DeviceCall { device, offset } = self.device_of(fault)?;
        self.call::<S>(fault, || device.load(offset, bytes))
    }

    /// A store of a value that met `fault`.
    #[cold]
    pub(in crate::space) fn device_store<S: Sectioned>(
        &mut self,
        bytes: &[u8],
        fault: Fault,
    ) -> Result<(), Fault> {
        let DeviceCall { device, offset } = self.device_of(fault)?;
        self.call::<S>(fault, || device.store(offset, bytes))
    }

    /// A bulk load inside one page that met `fault`.
    #[cold]
    pub(in crate::space) fn device_read<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: &mut [u8],
        fault: Fault,
    ) -> Result<(), Fault> {
        let DeviceCall { device, offset } = self.device_of(fault)?;
        for (start, size) in calls(at.0, bytes.len()) {
            let wanted = Fault::new(FaultKind::Device, at + start as u64, AccessKind::Load, 0);
            let piece = &mut bytes[start..start + size];
            self.call::<S>(wanted, || device.load(offset + start as u64, piece))?;
        }
        Ok(())
    }

    /// A bulk store inside one page that met `fault`.
    #[cold]
    pub(in crate::space) fn device_write<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: &[u8],
        fault: Fault,
    ) -> Result<(), Fault> {
        let call = self.device_of(fault)?;
        self.store_run::<S>(at, bytes, &call)
    }

    /// Stores bytes of one page to the device there.
    pub(in crate::space) fn store_run<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        bytes: &[u8],
        DeviceCall { device, offset }: &DeviceCall,
    ) -> Result<(), Fault> {
        for (start, size) in calls(at.0, bytes.len()) {
            let wanted = Fault::new(FaultKind::Device, at + start as u64, AccessKind::Store, 0);
            let piece = &bytes[start..start + size];
            self.call::<S>(wanted, || device.store(offset + start as u64, piece))?;
        }
        Ok(())
    }

    /// A read-modify-write that met `fault`: no device has any.
    #[cold]
    pub(in crate::space) fn device_exchange(&mut self, fault: Fault) -> Fault {
        let Ok(DeviceCall { device, offset }) = self.device_of(fault) else {
            return fault;
        };
        let cause = device.no_exchange(offset);
        let fault = fault.of_kind(cause.kind());
        self.space.remember(fault, cause);
        fault
    }
}
