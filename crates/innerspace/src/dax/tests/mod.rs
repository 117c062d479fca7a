//! Tests of files on devices, without a space: entries, calls, cuts, sync.

mod calls;
mod cutting;
mod entries;
mod holes;
mod nonblocking;
#[cfg(all(target_os = "linux", not(miri)))]
mod reminding;
#[cfg(all(target_os = "linux", not(miri)))]
mod room;
mod syncing;
mod try_forms;

use std::ops::Range;

use super::core::{DaxCore, DaxSetup, MAX_SIZE, Parts};
use super::extents::{Extent, ExtentMap, ScatteredMap};
use super::{DaxDevice, DaxError, DaxFile, DaxPages, DaxRef, Reach};
use crate::cache::{Cache, FaultKind, FileAccess, Wait};
use crate::group::GroupId;
use crate::reclaim::{Pool, PoolOptions};
use crate::sync::Arc;
use crate::units::{PAGE_SIZE, PageCount};

const PAGE: u64 = PAGE_SIZE as u64;
const LARGE: u64 = 512;

fn pool(frames: u32) -> Arc<Pool> {
    Pool::new(&PoolOptions::new(frames)).unwrap()
}

fn device(pages: u64) -> DaxDevice {
    DaxDevice::memory(pages * PAGE).unwrap()
}

/// Creates a file of this many pages that is one hole.
fn file(pool: &Arc<Pool>, device: &DaxDevice, pages: u64) -> DaxFile {
    let root = pool.root_group();
    let setup = DaxSetup::default();
    let file = DaxFile::on_device(&Cache::new(pool), &root, device, "data.bin", setup).unwrap();
    file.set_len(pages * PAGE).unwrap();
    file
}

/// Creates a file over an extent map that the test provides.
fn file_over(
    pool: &Arc<Pool>,
    device: &DaxDevice,
    extents: impl ExtentMap + 'static,
    pages: u64,
    setup: DaxSetup,
) -> DaxFile {
    let parts = Parts {
        name: "data.bin".into(),
        device: device.clone(),
        extents: Box::new(extents),
        size: pages * PAGE,
        most: MAX_SIZE,
        host: None,
    };
    let setup = DaxSetup {
        access: FileAccess::ReadWrite,
        ..setup
    };
    DaxFile::new(DaxCore::new(
        &Cache::new(pool),
        &pool.root_group(),
        parts,
        setup,
    ))
}

impl<T: ExtentMap> ExtentMap for Arc<T> {
    fn lookup(&self, page: u64, most: u64) -> std::io::Result<Extent> {
        (**self).lookup(page, most)
    }

    fn allocate(&self, page: u64, pages: u64) -> std::io::Result<u64> {
        (**self).allocate(page, pages)
    }

    fn free(&self, pages: Range<u64>) -> std::io::Result<()> {
        (**self).free(pages)
    }

    fn forget(&self, pages: Range<u64>) {
        (**self).forget(pages);
    }

    fn heap_bytes(&self) -> u64 {
        (**self).heap_bytes()
    }

    fn is_parted_by(&self, pages: &Range<u64>) -> bool {
        (**self).is_parted_by(pages)
    }

    fn set_len(&self, bytes: u64) -> std::io::Result<()> {
        (**self).set_len(bytes)
    }

    fn sync_metadata(&self) -> std::io::Result<()> {
        (**self).sync_metadata()
    }
}

impl DaxCore {
    /// Calls [`DaxRef::fault`] for a caller that has the file.
    fn fault(
        self: &Arc<DaxCore>,
        page: u64,
        kind: FaultKind,
        reach: Reach,
        more: u64,
    ) -> Result<DaxPages, DaxError> {
        DaxRef::new(self.clone()).fault(page, kind, reach, more)
    }
}

/// Checks that the zero frame is unchanged and that all memory is given back.
fn assert_nothing_left(pool: &Arc<Pool>) {
    pool.flush_retired();
    pool.flush_retired();
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
    pool.validate();
}

/// Spins until `ready` returns true; only for conditions that are certain to come true.
fn until(mut ready: impl FnMut() -> bool) {
    while !ready() {
        std::thread::yield_now();
    }
}
