//! A memory with two tenants, and the means that all tests here share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use innerspace::{Group, Memory, MemoryOptions, Threads};

/// A memory with two groups: A, hostile, and B, which stays inside its `min`.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) a: Group,
    pub(crate) b: Group,
}

impl World {
    /// A memory of `limit` bytes. A may use a quarter of it; B may use half, and all of that is
    /// its `min`.
    pub(crate) fn new(limit: u64, threads: Threads) -> World {
        let options = MemoryOptions::new(limit).threads(threads);
        let memory = options.build().unwrap();
        let a = memory.group("a", limit / 4).unwrap();
        let b = memory.group("b", limit / 2).unwrap();
        b.set_min(Some(limit / 2)).unwrap();
        World { memory, a, b }
    }
}

/// Keeps other tests that use this out, for one that reads what the whole process uses.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes on the heap of the process.
pub(crate) fn heap() -> u64 {
    crate::HEAP.current_usage() as u64
}
