//! A device that is written out by a host, which forgets a write that has failed.
//!
//! The fault model: some systems consider a page clean once its write has failed. When a sync
//! fails, none of its pages reach the medium, and the host writes no page of the device until that
//! page is stored to again. The host knows that a page was changed if its bytes differ from those
//! it has seen, or if it was touched.

use std::collections::BTreeSet;
use std::io;

use super::{Bytes, DaxDevice, DaxError, Durability, memory};
use crate::sync::{Arc, Mutex};
use crate::units::PAGE_SIZE;

/// The host's knowledge of a device, and its medium.
pub(super) struct Host(Mutex<State>);

struct State {
    /// The durable bytes.
    medium: Vec<u8>,
    /// The bytes that the host believes it has written.
    seen: Vec<u8>,
    /// The offsets of pages that were touched since the host last believed them to be written.
    touched: BTreeSet<usize>,
    /// The number of syncs so far.
    syncs: u64,
    /// The number of coming syncs that fail.
    failures: u64,
}

impl Host {
    pub(super) fn sync(&self, device: &DaxDevice, offset: u64, len: u64) -> io::Result<()> {
        let state = &mut *self.0.lock();
        state.syncs += 1;
        let fails = state.failures > 0;
        state.failures -= u64::from(fails);
        for at in (0..state.medium.len()).step_by(PAGE_SIZE) {
            let mut now = [0; PAGE_SIZE];
            device.read(at as u64, &mut now);
            let page = at..at + PAGE_SIZE;
            let asked = (offset..offset + len).contains(&(at as u64));
            let changed = state.seen[page.clone()] != now || state.touched.contains(&at);
            if asked && changed && !fails {
                state.medium[page.clone()].copy_from_slice(&now);
            }
            if asked || fails {
                state.touched.remove(&at);
                state.seen[page].copy_from_slice(&now);
            }
        }
        match fails {
            true => Err(io::Error::other("a write was lost")),
            false => Ok(()),
        }
    }

    pub(super) fn touched(&self, offset: u64) {
        let page = offset as usize / PAGE_SIZE * PAGE_SIZE;
        self.0.lock().touched.insert(page);
    }
}

impl DaxDevice {
    /// Creates a memory device that a forgetful host writes out.
    pub(crate) fn with_forgetful_host(len: u64) -> Result<DaxDevice, DaxError> {
        let device = DaxDevice::new("forgetful device", Bytes::Memory(memory(len)?));
        let mut inner = Arc::into_inner(device.0).expect("nobody else has it yet");
        inner.durability = Durability::HostSync;
        inner.host = Some(Host(Mutex::new(State {
            medium: vec![0; len as usize],
            seen: vec![0; len as usize],
            touched: BTreeSet::new(),
            syncs: 0,
            failures: 0,
        })));
        Ok(DaxDevice(Arc::new(inner)))
    }

    fn host_state(&self) -> &Mutex<State> {
        let host = self.0.host.as_ref();
        &host.expect("made by `with_forgetful_host`").0
    }

    /// Makes the next `count` syncs fail.
    pub(crate) fn fail_syncs(&self, count: u64) {
        self.host_state().lock().failures = count;
    }

    /// Returns the number of times that the host was asked to sync.
    pub(crate) fn host_syncs(&self) -> u64 {
        self.host_state().lock().syncs
    }

    /// Returns the bytes that the host has written.
    pub(crate) fn medium_image(&self) -> Vec<u8> {
        self.host_state().lock().medium.clone()
    }
}
