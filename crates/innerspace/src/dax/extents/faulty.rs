//! An extent map that fails and misplaces blocks on demand, and counts its calls.

use std::io;
use std::ops::Range;

use super::super::device::DaxDevice;
use super::{Extent, ExtentMap, LARGE_PAGES, ScatteredMap};
use crate::sync::Mutex;
use crate::units::PAGE_SIZE;

/// The calls that go wrong; by default none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// The allocation with this number (the first is 0) fails with this kind.
    pub(crate) fail_allocate: Option<(u64, io::ErrorKind)>,
    /// The lookup with this number fails with this kind.
    pub(crate) fail_lookup: Option<(u64, io::ErrorKind)>,
    /// Lookups answer with at most this many pages.
    pub(crate) short: Option<u64>,
    /// Large allocations do not start at a multiple of their size on the device, against the rules.
    pub(crate) misplace_large: Misplace,
    /// Freeing fails with this kind, and frees nothing.
    pub(crate) fail_free: Option<io::ErrorKind>,
    /// Syncs fail with this kind, and the device's host forgets its pending writes.
    pub(crate) fail_sync: Option<io::ErrorKind>,
}

/// Where a large allocation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Misplace {
    #[default]
    Not,
    Unaligned,
}

/// The numbers of calls so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) lookups: u64,
    pub(crate) allocated: u64,
    pub(crate) failed: u64,
    pub(crate) freed: u64,
}

/// A scattered map with a [`Plan`]. Tests that need short, unaligned or separate extents from the
/// start lay them out with [`ScatteredMap::place_at`].
pub(crate) struct Faulty {
    pub(crate) map: ScatteredMap,
    device: DaxDevice,
    state: Mutex<(Plan, Calls)>,
}

impl Faulty {
    /// Creates an empty map on `device` that does everything right until its plan is changed.
    pub(crate) fn new(device: &DaxDevice) -> Faulty {
        Faulty {
            map: ScatteredMap::new(device),
            device: device.clone(),
            state: Mutex::default(),
        }
    }

    /// Changes the plan. The counts of calls go on.
    pub(crate) fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.state.lock().0);
    }

    /// Returns the numbers of calls so far.
    pub(crate) fn calls(&self) -> Calls {
        self.state.lock().1
    }

    fn allocate_unaligned(&self, page: u64) -> io::Result<u64> {
        let blocks = self.device.blocks().expect("looked at by the map");
        let Some(pages) = blocks.find_unaligned(LARGE_PAGES) else {
            return Err(io::ErrorKind::StorageFull.into());
        };
        Ok(self.map.place(page, LARGE_PAGES, blocks.take_at(pages)))
    }
}

/// Fails if the plan says that this call fails.
fn due(plan: Option<(u64, io::ErrorKind)>, number: u64) -> io::Result<()> {
    match plan {
        Some((at, kind)) if at == number => Err(kind.into()),
        _ => Ok(()),
    }
}

impl ExtentMap for Faulty {
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent> {
        let most = {
            let (plan, calls) = &mut *self.state.lock();
            calls.lookups += 1;
            due(plan.fail_lookup, calls.lookups - 1)?;
            plan.short.map_or(most, |short| short.min(most))
        };
        self.map.lookup(page, most)
    }

    fn allocate(&self, page: u64, pages: u64) -> io::Result<u64> {
        let misplace = {
            let (plan, calls) = &mut *self.state.lock();
            let number = calls.allocated + calls.failed;
            if let Err(error) = due(plan.fail_allocate, number) {
                calls.failed += 1;
                return Err(error);
            }
            plan.misplace_large
        };
        let at = if pages == LARGE_PAGES && misplace == Misplace::Unaligned {
            self.allocate_unaligned(page)
        } else {
            self.map.allocate(page, pages)
        };
        let calls = &mut self.state.lock().1;
        match at {
            Ok(_) => calls.allocated += 1,
            Err(_) => calls.failed += 1,
        }
        at
    }

    fn free(&self, pages: Range<u64>) -> io::Result<()> {
        let (plan, calls) = &mut *self.state.lock();
        calls.freed += 1;
        if let Some(kind) = plan.fail_free {
            return Err(kind.into());
        }
        self.map.free(pages)
    }

    fn heap_bytes(&self) -> u64 {
        self.map.heap_bytes()
    }

    fn is_parted_by(&self, pages: &Range<u64>) -> bool {
        self.map.is_parted_by(pages)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.map.set_len(bytes)
    }

    fn sync_metadata(&self) -> io::Result<()> {
        if let Some(kind) = self.state.lock().0.fail_sync {
            self.device.fail_syncs(1);
            self.device.flush(0, PAGE_SIZE as u64).unwrap_err();
            return Err(kind.into());
        }
        self.map.sync_metadata()
    }
}
