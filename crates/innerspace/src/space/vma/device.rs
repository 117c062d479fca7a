//! Mappings whose accesses are calls: of a device, or of a direct-access file that is guarded
//! against truncation.

use std::fmt;

use super::protection::Protection;
use crate::dax::{DaxFile, DaxRef};
use crate::group::{Group, HeapBytes, LimitError, MayReclaim};
use crate::space::core::calls::UnderWay;
use crate::space::core::fault::{AccessKind, Cause, DeviceError};
use crate::sync::{Arc, OnceLock};

/// Something that answers loads and stores of a range of addresses; see
/// [`Map::device`](crate::Map::device).
///
/// Calls stay inside the length with which the device was mapped: an access beyond that is a fault,
/// [`FaultKind::PastDevice`](crate::space::FaultKind::PastDevice).
///
/// A single access of a program is one call for all of its bytes: 1, 2, 4, 8 or 16, at any
/// alignment, in native byte order. A bulk access is a run of calls of at most 8 bytes, aligned to
/// their size; an access across the end of a page is two such runs. If a call is refused, the
/// stores of earlier calls stay. An atomic load or store is one call too. An atomic
/// read-modify-write is refused. Several threads may call at the same time. A handler may not use
/// the space in which its device is mapped: see
/// [`FaultKind::Reentered`](crate::space::FaultKind::Reentered). A panic in a handler propagates
/// out of the access that called it.
pub trait Device: Send + Sync + 'static {
    /// Answers a load of `bytes.len()` bytes at `offset` from the start of the device.
    ///
    /// # Errors
    /// An error makes the access fail with [`FaultKind::Device`](crate::space::FaultKind::Device),
    /// and the fault's explanation gives the reason.
    fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Performs a store of `bytes` at `offset` from the start of the device.
    ///
    /// # Errors
    /// As for [`Device::load`].
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Returns the device's state for a snapshot of the space; nothing by default. Called right
    /// after the memory was frozen. State and memory show the same moment only if no accessor runs
    /// in between.
    fn snapshot(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores a state that [`Device::snapshot`] returned; does nothing by default. Called right
    /// after the memory was restored.
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

/// The size of the two reference counts of an `Arc`.
const ARC_BYTES: usize = 16;

/// A device, or a guarded file, as mappings refer to it.
#[derive(Clone)]
pub(crate) struct DeviceRef(Arc<Shared>);

struct Shared {
    target: Target,
    /// The length of a device; `u64::MAX` for a file, because calls to a file check its end
    /// themselves.
    len: u64,
    /// The charge for the heap that this value takes; set by the first mapping.
    heap: OnceLock<HeapBytes>,
}

enum Target {
    Device(Box<dyn Device>),
    /// A direct-access file, guarded against truncation. Not a handle: dropping a handle may wait
    /// for a grace period, and a mapping may be dropped anywhere.
    File(DaxRef),
}

impl DeviceRef {
    /// Returns the device's state; nothing for a file, whose only state is its bytes.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        match &self.0.target {
            Target::Device(device) => device.snapshot(),
            Target::File(_) => Vec::new(),
        }
    }

    /// Restores a state that the device returned before. Does nothing for a file.
    pub(crate) fn restore(&self, state: &[u8]) {
        if let Target::Device(device) = &self.0.target {
            device.restore(state);
        }
    }

    /// Creates a reference to a device of `len` bytes.
    pub(crate) fn new(device: impl Device, len: u64) -> DeviceRef {
        DeviceRef::to(Target::Device(Box::new(device)), len)
    }

    pub(crate) fn guarded(file: &DaxFile) -> DeviceRef {
        DeviceRef::to(Target::File(DaxRef::new(file.core().clone())), u64::MAX)
    }

    fn to(target: Target, len: u64) -> DeviceRef {
        let heap = OnceLock::new();
        DeviceRef(Arc::new(Shared { target, len, heap }))
    }

    /// Charges the group, once, for the heap that this value takes.
    pub(crate) fn pay(&self, group: &Group) -> Result<(), LimitError> {
        if self.0.heap.get().is_none() {
            let boxed = match &self.0.target {
                Target::Device(device) => size_of_val(&**device),
                Target::File(_) => 0,
            };
            let bytes = size_of::<Shared>() + ARC_BYTES + boxed;
            let heap = group.charge_heap(bytes, MayReclaim::Yes)?;
            let _first = self.0.heap.set(heap);
        }
        Ok(())
    }

    /// Returns the guarded file, if this is one.
    pub(crate) fn file(&self) -> Option<&DaxRef> {
        match &self.0.target {
            Target::Device(_) => None,
            Target::File(file) => Some(file),
        }
    }

    /// Returns the reason why a mapping of this device or file cannot have a protection above its
    /// ceiling.
    pub(crate) fn rules_out(&self, wanted: Protection) -> &'static str {
        match (&self.0.target, wanted.allows(Protection::EXECUTE)) {
            (Target::Device(_), _) => "a device is never executable",
            (Target::File(_), true) => "a file guarded against being cut short is never executable",
            (Target::File(_), false) => {
                "a guarded file is written by shared mappings, if it was opened writable"
            }
        }
    }

    /// Returns how many of `len` bytes at `offset` are before the end.
    pub(crate) fn bytes_before_end(&self, offset: u64, len: usize) -> usize {
        self.0.len.saturating_sub(offset).min(len as u64) as usize
    }

    /// Returns an error if the access goes beyond the end.
    pub(crate) fn check_end(&self, offset: u64, len: usize) -> Result<(), Cause> {
        match self.bytes_before_end(offset, len) < len {
            true => Err(Cause::PastDevice { len: self.0.len }),
            false => Ok(()),
        }
    }

    /// Calls the device, or the file, for an access at `offset`.
    pub(crate) fn transfer(&self, offset: u64, bytes: Transfer<'_>) -> Result<(), Cause> {
        self.check_end(offset, bytes.len())?;
        match (&self.0.target, bytes) {
            (Target::Device(device), Transfer::Load(to)) => {
                device.load(offset, to).map_err(Cause::Device)
            }
            (Target::Device(device), Transfer::Store(from)) => {
                device.store(offset, from).map_err(Cause::Device)
            }
            (Target::File(file), Transfer::Load(to)) => Ok(file.core().load_guarded(to, offset)?),
            (Target::File(file), Transfer::Store(from)) => {
                Ok(file.core().store_guarded(from, offset)?)
            }
        }
    }

    /// Returns the error for an atomic read-modify-write of `len` bytes, which neither a device nor
    /// a guarded file supports.
    pub(crate) fn no_exchange(&self, offset: u64, len: usize) -> Cause {
        match (&self.0.target, self.check_end(offset, len)) {
            (_, Err(past_end)) => past_end,
            (Target::Device(_), Ok(())) => {
                Cause::Device(DeviceError::new("a device has no atomic read-modify-write"))
            }
            (Target::File(file), Ok(())) => file.core().no_atomic_access(offset).into(),
        }
    }

    /// Returns a number that no other device has while this one exists.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    pub(crate) fn is(&self, other: &DeviceRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.target {
            Target::Device(_) => f.write_str("device"),
            Target::File(file) => f.write_str(file.name()),
        }
    }
}

/// The bytes of an access to a device.
pub(crate) enum Transfer<'bytes> {
    Load(&'bytes mut [u8]),
    Store(&'bytes [u8]),
}

impl Transfer<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Transfer::Load(to) => to.len(),
            Transfer::Store(from) => from.len(),
        }
    }

    /// Returns the bytes of a part of the access.
    pub(crate) fn part(&mut self, start: usize, len: usize) -> Transfer<'_> {
        match self {
            Transfer::Load(to) => Transfer::Load(&mut to[start..start + len]),
            Transfer::Store(from) => Transfer::Store(&from[start..start + len]),
        }
    }

    /// Returns the kind of the access.
    pub(crate) fn access(&self) -> AccessKind {
        match self {
            Transfer::Load(_) => AccessKind::Load,
            Transfer::Store(_) => AccessKind::Store,
        }
    }
}

/// A call that takes the place of an access, because a fault found a device instead of a page.
pub(crate) struct DeviceCall {
    /// Counts the call. Dropped before the device, whose destructor may run the program's code.
    pub(crate) _under_way: UnderWay,
    pub(crate) device: DeviceRef,
    pub(crate) offset: u64,
}
