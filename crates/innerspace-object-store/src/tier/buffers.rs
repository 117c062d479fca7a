//! Memory for chunks on their way between a disk and a reader: bounded, and aligned for direct I/O.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};

/// The alignment that direct I/O asks for.
const ALIGNMENT: usize = 4096;

#[derive(Debug)]
pub(super) struct Buffers {
    total: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// Some of the memory, all zeros at first.
pub(super) struct Buffer<'a> {
    stock: &'a Buffers,
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffers {
    pub(super) fn new(total: usize) -> Buffers {
        Buffers {
            total,
            free: Mutex::new(total),
            freed: Condvar::new(),
        }
    }

    /// Returns the most bytes that one buffer may have, so that several threads have one.
    pub(super) fn most(&self) -> usize {
        (self.total / 4).max(1)
    }

    /// Waits for memory. A thread takes one buffer at a time, so this ends once others are done.
    pub(super) fn take(&self, len: usize) -> Buffer<'_> {
        let wanted = len.min(self.total);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free < wanted {
            free = self
                .freed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *free -= wanted;
        drop(free);
        let bytes = vec![0; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Buffer {
            stock: self,
            bytes,
            start,
            len,
        }
    }
}

impl Deref for Buffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let wanted = self.len.min(self.stock.total);
        let mut free = self
            .stock
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *free += wanted;
        drop(free);
        self.stock.freed.notify_all();
    }
}
