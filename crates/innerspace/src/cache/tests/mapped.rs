//! A mapper with a table of its own, which stands in for a space.

use std::collections::BTreeMap;
use std::ops::Range;

use super::*;
use crate::cache::map::fault::{fault_block, hole_still};
use crate::cache::{FaultKind, FaultPage, LockedBlock, Mappers, Reading, Revoke, Wait};
use crate::frame::Dropped;
use crate::sync::{Mutex, Weak};
use crate::units::FrameId;

/// The space that the table stands for.
pub(super) const OWNER: u64 = 9;

/// The page table: for each mapped page of the file, its entry.
pub(super) struct Table {
    pub(super) pool: Arc<Pool>,
    pub(super) pages: Mutex<BTreeMap<u64, Entry>>,
}

pub(super) struct Entry {
    /// The first frame of the page's block; `None` for the zero frame.
    pub(super) head: Option<FrameId>,
    pub(super) host: u64,
    pub(super) writable: bool,
    pub(super) accessed: bool,
}

impl Mappers for Table {
    fn owner(&self) -> u64 {
        OWNER
    }

    fn revoke(&self, pages: Range<u64>, how: Revoke) {
        let mut table = self.pages.lock();
        let touched: Vec<u64> = table.range(pages).map(|(page, _)| *page).collect();
        for page in touched {
            let entry = table.get_mut(&page).unwrap();
            match how {
                Revoke::Write => entry.writable = false,
                Revoke::Holes if entry.head.is_some() => {}
                Revoke::All | Revoke::Tables | Revoke::Holes => {
                    if let Some(head) = table.remove(&page).unwrap().head {
                        assert_eq!(self.pool.frames.meta(head).hold.unmap(), Dropped::Held);
                    }
                }
            }
        }
    }

    fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64)) {
        for (page, entry) in self.pages.lock().range_mut(pages) {
            if std::mem::take(&mut entry.accessed) {
                used(*page);
            }
        }
    }
}

pub(super) struct Mapped {
    pub(super) table: Arc<Table>,
    pub(super) file: PagedFile,
}

impl Mapped {
    pub(super) fn new(cache: &Arc<Cache>, file: &PagedFile) -> Mapped {
        let table = Arc::new(Table {
            pool: cache.pool.clone(),
            pages: Mutex::default(),
        });
        let weak: Weak<dyn Mappers> = Arc::downgrade(&(table.clone() as Arc<dyn Mappers>));
        core(file).add_mapper(weak);
        Mapped {
            table,
            file: file.clone(),
        }
    }

    pub(super) fn fault(&self, page: u64, kind: FaultKind) -> FaultPage {
        self.fault_around(page, kind, &(page..page + 1))
    }

    pub(super) fn fault_around(
        &self,
        page: u64,
        kind: FaultKind,
        around: &Range<u64>,
    ) -> FaultPage {
        fault_block(
            core(&self.file),
            page,
            kind,
            around,
            Reading::Normal,
            Wait::Yes,
        )
        .unwrap()
    }

    pub(super) fn map(&self, page: u64, kind: FaultKind) {
        match self.fault(page, kind) {
            FaultPage::Block(block) => self.install(&block, page, kind),
            FaultPage::Hole(token) => {
                assert!(hole_still(core(&self.file), &token));
                let entry = Entry {
                    head: None,
                    host: 0,
                    writable: false,
                    accessed: true,
                };
                self.table.pages.lock().insert(page, entry);
            }
        }
    }

    pub(super) fn install(&self, block: &LockedBlock, page: u64, kind: FaultKind) {
        assert!(block.is_of(self.file.inner()));
        let entry = Entry {
            head: Some(block.frame),
            host: block.host_of_page(page),
            writable: kind == FaultKind::Write,
            accessed: true,
        };
        let mut table = self.table.pages.lock();
        let before = table.insert(page, entry).and_then(|entry| entry.head);
        match before {
            Some(head) => assert_eq!(head, block.frame, "a page is in one frame at a time"),
            None => assert!(block.meta().hold.try_map()),
        }
    }

    pub(super) fn rights(&self, page: u64) -> Option<bool> {
        self.table
            .pages
            .lock()
            .get(&page)
            .map(|entry| entry.writable)
    }

    /// Stores through the translation, as an accessor does.
    pub(super) fn store(&self, page: u64, byte: u8) {
        let table = self.table.pages.lock();
        let entry = &table[&page];
        assert!(entry.writable, "no right to store");
        let frames = &self.table.pool.frames;
        let frame = frames.frame_of(entry.host as usize);
        let head = entry.head.unwrap();
        let inside = (frame.0 - head.0) as usize * PAGE;
        frames.store_for_test(head, inside, &[byte; 8]);
    }
}
