//! A device whose power can be cut. It keeps the bytes that would be left after a cut.
//!
//! The fault model: a store reaches only the processor's caches. A line reaches the medium once it
//! has been flushed *and* the thread that flushed it has passed a fence; it then has the bytes from
//! the time of the flush. Beyond that, the processor may or may not write any line at any time:
//! [`DaxDevice::torn_image`] decides at random for each. A line is written wholly or not at all.

use std::collections::{BTreeMap, HashMap};

use super::{Bytes, DaxDevice, DaxError, memory};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Arc, Mutex};
use crate::sys::flush::{LINE, line_range};

/// The medium of a device, without the caches.
pub(super) struct PowerCut(Mutex<Medium>);

struct Medium {
    /// The durable bytes.
    bytes: Vec<u8>,
    /// For each thread, by offset, the lines that it has flushed and not yet fenced.
    flushed: HashMap<ThreadId, BTreeMap<u64, [u8; LINE]>>,
    /// The number of flushed lines and of fences so far.
    steps: u64,
    /// The number of steps after which nothing becomes durable any more.
    cut_at: u64,
}

impl Medium {
    /// Counts a step. Returns whether the power is still on.
    fn step(&mut self) -> bool {
        self.steps += 1;
        self.steps <= self.cut_at
    }
}

impl PowerCut {
    pub(super) fn flush(&self, device: &DaxDevice, offset: u64, len: u64) {
        let mut medium = self.0.lock();
        for line in line_range(offset, len).step_by(LINE) {
            if medium.step() {
                let mut bytes = [0; LINE];
                device.read(line, &mut bytes);
                let flushed = medium.flushed.entry(thread::current().id());
                flushed.or_default().insert(line, bytes);
            }
        }
    }

    pub(super) fn fence(&self) {
        let medium = &mut *self.0.lock();
        if medium.step() {
            let flushed = medium.flushed.remove(&thread::current().id());
            for (line, bytes) in flushed.into_iter().flatten() {
                medium.bytes[line as usize..][..LINE].copy_from_slice(&bytes);
            }
        }
    }
}

impl DaxDevice {
    /// Creates a memory device whose power can be cut.
    pub(crate) fn with_power_cut(len: u64) -> Result<DaxDevice, DaxError> {
        let device = DaxDevice::new("power-cut device", Bytes::Memory(memory(len)?));
        let mut inner = Arc::into_inner(device.0).expect("nobody else has it yet");
        inner.power = Some(PowerCut(Mutex::new(Medium {
            bytes: vec![0; len as usize],
            flushed: HashMap::new(),
            steps: 0,
            cut_at: u64::MAX,
        })));
        Ok(DaxDevice(Arc::new(inner)))
    }

    fn medium(&self) -> &Mutex<Medium> {
        &self.0.power.as_ref().expect("made by `with_power_cut`").0
    }

    /// Returns the number of flushed lines and of fences so far: the points at which power can be
    /// cut.
    pub(crate) fn steps(&self) -> u64 {
        self.medium().lock().steps
    }

    /// Cuts the power after this many steps since the device was created. The program does not
    /// notice.
    pub(crate) fn cut_power_after(&self, steps: u64) {
        self.medium().lock().cut_at = steps;
    }

    /// Returns the bytes that are certain to be left after a power cut: those flushed and fenced.
    pub(crate) fn durable_image(&self) -> Vec<u8> {
        self.medium().lock().bytes.clone()
    }

    /// Returns bytes that may be left after a power cut: each line as it is durable or as it is in
    /// the caches, chosen at random.
    pub(crate) fn torn_image(&self, seed: u64) -> Vec<u8> {
        let mut image = self.durable_image();
        let mut lot = seed.wrapping_mul(2).wrapping_add(1);
        for (number, line) in image.chunks_mut(LINE).enumerate() {
            // The first steps of SplitMix64, which suffice for one random bit.
            lot = lot.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (lot ^ (lot >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            if mixed >> 63 == 1 {
                self.read((number * LINE) as u64, line);
            }
        }
        image
    }
}
