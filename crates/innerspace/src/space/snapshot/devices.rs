//! The state of a snapshot's devices.

use std::collections::BTreeSet;

use crate::group::{HeapBytes, LimitError, MayReclaim};
use crate::space::core::space::SpaceInner;
use crate::space::vma::area::{Backing, Vma};
use crate::space::vma::device::DeviceRef;
use crate::sync::Arc;
use crate::sync::panics::Panics;

/// The states of all devices of a snapshot.
pub(crate) struct DeviceStates {
    /// The devices, each with its state when the snapshot was taken.
    states: Vec<(DeviceRef, Vec<u8>)>,
    _heap: HeapBytes,
}

impl DeviceStates {
    /// Asks each device that the snapshot maps for its state, once. The group of `space` is charged
    /// for the states. Returns `None` if no device is mapped. The caller holds no lock.
    ///
    /// # Errors
    /// The space's group has no room.
    pub(crate) fn of(
        space: &SpaceInner,
        snapshot: &SpaceInner,
    ) -> Result<Option<Arc<DeviceStates>>, LimitError> {
        let mut known = BTreeSet::new();
        let mut device_of = |vma: &Vma| match &vma.backing {
            Backing::Device(device) => known.insert(device.address()).then(|| device.clone()),
            Backing::Anonymous | Backing::File(_) => None,
        };
        let devices = snapshot.inside(|vmas| vmas.iter().filter_map(&mut device_of).collect());
        let devices: Vec<DeviceRef> = devices;
        if devices.is_empty() {
            return Ok(None);
        }
        let bytes =
            size_of::<DeviceStates>() + 16 + devices.len() * size_of::<(DeviceRef, Vec<u8>)>();
        let mut heap = space.group.charge_heap(bytes, MayReclaim::Yes)?;
        let mut states = Vec::with_capacity(devices.len());
        for device in devices {
            let inside = space.enter_device();
            let state = device.snapshot();
            drop(inside);
            let bytes = heap.bytes() + state.capacity() as u64;
            heap.set(bytes, MayReclaim::Yes)?;
            states.push((device, state));
        }
        let _heap = heap;
        Ok(Some(Arc::new(DeviceStates { states, _heap })))
    }

    /// Gives each device its state back, as a callback of `space`. If one panics, the others are
    /// still restored, and then the panic continues. The caller holds no lock.
    pub(crate) fn bring_back(&self, space: &SpaceInner) {
        let mut panics = Panics::default();
        for (device, state) in &self.states {
            panics.catch(|| {
                let _inside = space.enter_device();
                device.restore(state);
            });
        }
        panics.go_on();
    }
}
