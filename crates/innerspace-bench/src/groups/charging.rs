//! Charges alone, with and without a stock of charged pages: prototypes that do not use the
//! library.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// The number of pages charged together to fill a stock.
const BATCH: u64 = 64;
/// The number of frames that take turns.
const FRAMES: u32 = 256;
/// The flag of a frame whose content is complete.
const UPTODATE: u8 = 2;

/// A group, whose usage is on cache lines of its own.
#[repr(align(128))]
struct Level {
    usage: AtomicU64,
    max: u64,
}

/// A group some levels below the root, and the groups above it, each with a limit of its own.
pub(super) struct Charging {
    levels: Vec<Level>,
}

impl Charging {
    pub(super) fn new(depth: usize, max: u64) -> Charging {
        let level = |depth| Level {
            usage: AtomicU64::new(0),
            max: max - depth as u64,
        };
        Charging {
            levels: (0..=depth).rev().map(level).collect(),
        }
    }

    /// Charges every level, the lowest first, or none if one of them is full.
    fn charge(&self, pages: u64) -> Option<()> {
        for (done, level) in self.levels.iter().enumerate() {
            let before = level.usage.fetch_add(pages, Ordering::AcqRel);
            if before + pages > level.max {
                for level in &self.levels[..=done] {
                    level.usage.fetch_sub(pages, Ordering::AcqRel);
                }
                return None;
            }
        }
        Some(())
    }

    pub(super) fn uncharge(&self, pages: u64) {
        for level in &self.levels {
            level.usage.fetch_sub(pages, Ordering::AcqRel);
        }
    }

    /// Charges in the old way: one page at every level, `times` times. Then gives all of them back
    /// together.
    pub(super) fn charge_every_level(&self, times: u64) -> Option<()> {
        for _ in 0..times {
            self.charge(1)?;
        }
        self.uncharge(times);
        Some(())
    }

    /// Creates a stock of this group for one thread.
    pub(super) fn stock(&self) -> Stock<'_> {
        Stock {
            charging: self,
            pages: AtomicU64::new(0),
        }
    }
}

/// The pages that are charged and not used yet. Only one thread takes from them; others may read
/// the count.
#[repr(align(128))]
pub(super) struct Stock<'a> {
    charging: &'a Charging,
    pages: AtomicU64,
}

impl Stock<'_> {
    #[inline(always)]
    fn take(&self) -> Option<()> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages == 0 {
            return self.refill();
        }
        self.pages.store(pages - 1, Ordering::Relaxed);
        Some(())
    }

    #[cold]
    fn refill(&self) -> Option<()> {
        self.charging.charge(BATCH)?;
        self.pages.store(BATCH - 1, Ordering::Relaxed);
        Some(())
    }

    #[inline(always)]
    fn put(&self) {
        let pages = self.pages.load(Ordering::Relaxed);
        self.pages.store(pages + 1, Ordering::Relaxed);
    }

    /// Charges in the new way: one page to the stock, `times` times. Then gives all of them back
    /// together.
    pub(super) fn charge(&self, times: u64) -> Option<()> {
        for _ in 0..times {
            self.take()?;
        }
        self.charging.uncharge(times);
        Some(())
    }
}

/// Frames to take, and a stock to charge them to.
pub(super) struct Frames<'a> {
    stock: Stock<'a>,
    free: RefCell<Vec<u32>>,
    flags: Vec<AtomicU8>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(stock: Stock<'a>) -> Frames<'a> {
        Frames {
            stock,
            free: RefCell::new((0..FRAMES).collect()),
            flags: (0..FRAMES).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Works in the new way: charges a page, then takes a frame, and gives both back.
    pub(super) fn charge_first(&self, times: u64) -> Option<()> {
        for _ in 0..times {
            self.stock.take()?;
            let frame = self.free.borrow_mut().pop()?;
            self.put(frame);
        }
        Some(())
    }

    /// Works in the old way: takes a frame and marks it up to date, with a fence, before it
    /// charges.
    pub(super) fn charge_last(&self, times: u64) -> Option<()> {
        for _ in 0..times {
            let frame = self.free.borrow_mut().pop()?;
            self.flags[frame as usize].fetch_or(UPTODATE, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            self.stock.take()?;
            self.put(frame);
        }
        Some(())
    }

    fn put(&self, frame: u32) {
        let frame = std::hint::black_box(frame);
        self.flags[frame as usize].store(0, Ordering::Relaxed);
        self.free.borrow_mut().push(frame);
        self.stock.put();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usages(charging: &Charging) -> Vec<u64> {
        let levels = charging.levels.iter();
        levels
            .map(|level| level.usage.load(Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn every_way_gives_back_what_it_charged() {
        let charging = Charging::new(2, 1000);
        charging.charge_every_level(500).unwrap();
        assert_eq!(usages(&charging), [0; 3]);
        let stock = charging.stock();
        stock.charge(100).unwrap();
        assert_eq!(usages(&charging), [28; 3], "in stock");
        let frames = Frames::new(stock);
        frames.charge_first(1000).unwrap();
        frames.charge_last(1000).unwrap();
        assert_eq!(usages(&charging), [28; 3], "in stock");
    }

    #[test]
    fn a_charge_that_one_level_refuses_charges_none() {
        let charging = Charging::new(2, 100);
        assert!(charging.charge_every_level(101).is_none());
        assert_eq!(usages(&charging), [98; 3]);
    }
}
