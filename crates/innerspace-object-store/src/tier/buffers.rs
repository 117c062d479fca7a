//! Memory for chunks on their way between a disk and a reader: bounded, and aligned for direct I/O.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};

/// The alignment that direct I/O asks for.
const ALIGNMENT: usize = 4096;

#[derive(Debug)]
pub(super) struct Buffers {
    total: usize,
    free: Mutex<Free>,
    freed: Condvar,
}

#[derive(Debug)]
struct Free {
    /// The bytes that may be taken.
    bytes: usize,
    /// Memory of buffers that were given back, the last one last: clearing new memory takes longer
    /// than reading a chunk into it. It is part of the bytes that may be taken.
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
}

/// Some of the memory, with whatever was in it before.
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
            free: Mutex::new(Free {
                bytes: total,
                kept: Vec::new(),
                kept_bytes: 0,
            }),
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
        while free.bytes < wanted {
            free = self
                .freed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        free.bytes -= wanted;
        let needed = len + ALIGNMENT;
        // Memory that is much larger than what it counts as is not taken.
        let fits = |bytes: &Vec<u8>| (needed..=needed + needed / 4).contains(&bytes.len());
        let at = free.kept.iter().rposition(fits);
        let kept = at.map(|at| free.kept.remove(at));
        free.kept_bytes -= kept.as_ref().map_or(0, Vec::len);
        let dropped = free.shrink();
        drop(free);
        drop(dropped);
        let bytes = kept.unwrap_or_else(|| vec![0; needed]);
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Buffer {
            stock: self,
            bytes,
            start,
            len,
        }
    }
}

impl Free {
    /// Returns the memory that is kept beyond what may be taken, the one that was used longest ago
    /// first. It is to be dropped without the lock.
    fn shrink(&mut self) -> Vec<Vec<u8>> {
        let mut dropped = Vec::new();
        while self.kept_bytes > self.bytes {
            let oldest = self.kept.remove(0);
            self.kept_bytes -= oldest.len();
            dropped.push(oldest);
        }
        dropped
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
        let bytes = std::mem::take(&mut self.bytes);
        let stock = self.stock;
        let mut free = stock.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.bytes += wanted;
        free.kept_bytes += bytes.len();
        free.kept.push(bytes);
        let dropped = free.shrink();
        drop(free);
        stock.freed.notify_all();
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_never_more_of_it_is_kept_than_the_total() {
        let stock = Buffers::new(1 << 20);
        let first = stock.take(100_000).as_ptr();
        assert_eq!(stock.take(90_000).as_ptr(), first);
        let small = stock.take(4096);
        assert_ne!(small.as_ptr(), first, "a small buffer takes no large one");
        drop(small);
        for len in (1..200).map(|n| n * 4096) {
            let mut buffer = stock.take(len);
            buffer.fill(7);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().align_offset(ALIGNMENT), 0);
        }
        let free = stock.free.lock().unwrap();
        assert_eq!(free.bytes, 1 << 20);
        assert_eq!(
            free.kept_bytes,
            free.kept.iter().map(Vec::len).sum::<usize>()
        );
        assert!(free.kept_bytes <= 1 << 20);
    }
}
