//! The state of a snapshot's devices.

use crate::space::core::space::SpaceInner;
use crate::space::vma::device::DeviceRef;

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
