//! The flat mapping through a pointer, the baseline of translation.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::table::PageTable;
use super::{Access, Accessor, Fault};

/// An accessor that uses host addresses as they are, without a check: only the workloads may call
/// it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    base: u64,
}

impl Raw {
    pub(super) fn new(space: &PageTable) -> Raw {
        Raw { base: space.flat() }
    }
}

impl Access for Raw {
    #[inline(always)]
    fn load(&mut self, at: u64) -> Result<u64, Fault> {
        let word = ptr::with_exposed_provenance::<AtomicU64>(at as usize);
        // SAFETY: the workloads ask for aligned addresses in the mapping, which outlives the
        // contenders.
        Ok(unsafe { (*word).load(Ordering::Relaxed) })
    }

    #[inline(always)]
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault> {
        let word = ptr::with_exposed_provenance::<AtomicU64>(at as usize);
        // SAFETY: as for load. The words are atomics, so that there is no reference to plain bytes.
        unsafe { (*word).store(value, Ordering::Relaxed) };
        Ok(())
    }
}

impl Accessor for Raw {
    type Session<'a> = Raw;

    #[inline(always)]
    fn session(&mut self) -> Raw {
        *self
    }

    fn base(&self) -> u64 {
        self.base
    }
}
