//! The state of a snapshot's devices.

use crate::group::{HeapBytes, LimitError, MayReclaim};
use crate::space::core::space::SpaceInner;
use crate::space::vma::device::DeviceRef;
use crate::sync::Arc;

/// A device of a snapshot, with its state at that time.
pub(crate) struct DeviceState {
    device: DeviceRef,
    state: Vec<u8>,
}

impl DeviceState {
    /// Asks the device, which is mapped in `space`, for its state. The caller holds no lock.
    pub(crate) fn of(space: &SpaceInner, device: DeviceRef) -> DeviceState {
        let _inside = space.enter_device();
        let state = device.snapshot();
        DeviceState { device, state }
    }

    /// Restores the device, which is mapped in `space`. The caller holds no lock.
    pub(crate) fn bring_back(&self, space: &SpaceInner) {
        let _inside = space.enter_device();
        self.device.restore(&self.state);
    }
}

/// The states of all devices of a snapshot.
pub(crate) struct DeviceStates {
    states: Vec<DeviceState>,
    _heap: HeapBytes,
}

impl DeviceStates {
    /// Asks the devices of a space, which is charged for the answers; `None` without a device.
    ///
    /// # Errors
    /// The space's group has no room.
    pub(crate) fn of(
        space: &SpaceInner,
        devices: Vec<DeviceRef>,
    ) -> Result<Option<Arc<DeviceStates>>, LimitError> {
        if devices.is_empty() {
            return Ok(None);
        }
        let bytes = size_of::<DeviceStates>() + 16 + devices.len() * size_of::<DeviceState>();
        let mut heap = space.group.charge_heap(bytes, MayReclaim::Yes)?;
        let mut states = Vec::with_capacity(devices.len());
        for device in devices {
            let device = DeviceState::of(space, device);
            let bytes = heap.bytes() + device.state.capacity() as u64;
            heap.set(bytes, MayReclaim::Yes)?;
            states.push(device);
        }
        let _heap = heap;
        Ok(Some(Arc::new(DeviceStates { states, _heap })))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &DeviceState> {
        self.states.iter()
    }
}
