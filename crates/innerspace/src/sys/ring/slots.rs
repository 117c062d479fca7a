//! The payloads of transfers in flight.

/// A slab of payloads, each with the list of buffers that the kernel may read until the transfer
/// completes.
///
/// A key consists of the index of a slot and the number of times that the slot was filled. The key
/// of an earlier payload therefore finds nothing.
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// The number of completions whose key has no transfer in flight.
    refused: u64,
}

struct Slot<T> {
    generation: u32,
    held: Option<Held<T>>,
}

struct Held<T> {
    iovecs: Vec<libc::iovec>,
    payload: T,
}

// SAFETY: the addresses in `iovecs` are passed to the kernel and never used here.
unsafe impl<T: Send> Send for Held<T> {}

impl<T> Slots<T> {
    pub(super) fn new(depth: u32) -> Slots<T> {
        let slot = |_| Slot {
            generation: 0,
            held: None,
        };
        Slots {
            slots: (0..depth).map(slot).collect(),
            free: (0..depth).rev().collect(),
            refused: 0,
        }
    }

    /// Fills a slot. Returns its key and the buffers, which stay where they are until the slot is
    /// emptied. If no slot is free, returns the payload as an error.
    pub(super) fn put(
        &mut self,
        iovecs: Vec<libc::iovec>,
        payload: T,
    ) -> Result<(u64, &[libc::iovec]), T> {
        let Some(index) = self.free.pop() else {
            return Err(payload);
        };
        let slot = &mut self.slots[index as usize];
        let key = u64::from(slot.generation) << 32 | u64::from(index);
        let held = slot.held.insert(Held { iovecs, payload });
        Ok((key, &held.iovecs))
    }

    /// Empties a slot. Counts a key that has no transfer in flight.
    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        let (index, generation) = (key as u32, (key >> 32) as u32);
        let slot = self.slots.get_mut(index as usize);
        let taken = slot
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| {
                let held = slot.held.take()?;
                slot.generation = slot.generation.wrapping_add(1);
                Some(held.payload)
            });
        match taken {
            Some(_) => self.free.push(index),
            None => self.refused += 1,
        }
        taken
    }

    /// Returns the keys of all transfers in flight.
    pub(super) fn keys(&self) -> Vec<u64> {
        let slots = self.slots.iter().zip(0u64..);
        let held = slots.filter(|(slot, _)| slot.held.is_some());
        held.map(|(slot, index)| u64::from(slot.generation) << 32 | index)
            .collect()
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl<T> Slots<T> {
        /// Returns the number of refused completions.
        pub(crate) fn refused(&self) -> u64 {
            self.refused
        }
    }
}
