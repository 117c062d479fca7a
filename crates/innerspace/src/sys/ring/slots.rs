//! The payloads of transfers in flight.

use std::collections::HashMap;

/// Payloads by key, each with the list of buffers that the kernel may read until the transfer
/// completes. A key is never used again, so the key of an earlier payload finds nothing.
pub(super) struct Slots<T> {
    held: HashMap<u64, Held<T>>,
    depth: usize,
    /// The next key.
    next: u64,
    /// The number of completions whose key has no transfer in flight.
    refused: u64,
}

struct Held<T> {
    iovecs: Vec<libc::iovec>,
    payload: T,
}

// SAFETY: the addresses in `iovecs` are passed to the kernel and never used here.
unsafe impl<T: Send> Send for Held<T> {}

impl<T> Slots<T> {
    pub(super) fn new(depth: u32) -> Slots<T> {
        let depth = depth as usize;
        Slots {
            held: HashMap::with_capacity(depth),
            depth,
            next: 0,
            refused: 0,
        }
    }

    /// Keeps a payload. Returns its key and the buffers, which stay where they are until the
    /// payload is taken. If no slot is free, returns the payload as an error.
    pub(super) fn put(
        &mut self,
        iovecs: Vec<libc::iovec>,
        payload: T,
    ) -> Result<(u64, &[libc::iovec]), T> {
        if self.held.len() == self.depth {
            return Err(payload);
        }
        let key = self.next;
        self.next += 1;
        let held = self.held.entry(key).or_insert(Held { iovecs, payload });
        Ok((key, &held.iovecs))
    }

    /// Removes and returns a payload. If the key has no transfer in flight, counts it as refused.
    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        let held = self.held.remove(&key);
        self.refused += u64::from(held.is_none());
        held.map(|held| held.payload)
    }

    /// Returns the keys of all transfers in flight.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.held.keys().copied().collect()
    }

    /// Returns the number of transfers in flight.
    pub(super) fn len(&self) -> usize {
        self.held.len()
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
