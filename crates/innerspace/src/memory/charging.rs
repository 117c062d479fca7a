//! Charging by itself, new way and old, for the benchmarks. Behind the feature `tables`; see
//! [`tables`](crate::tables).

use super::Memory;
use crate::group::{Group, GroupId};
use crate::reclaim::{AllocMode, Pool};
use crate::sync::Arc;
use crate::units::PageCount;

/// Charging alone, to a group so many levels below the root.
#[derive(Debug)]
pub struct Charging {
    pool: Arc<Pool>,
    /// The chain down to the one that is charged; keeps them all.
    groups: Vec<Group>,
}

impl Charging {
    /// In a group of `memory` that is `depth` levels below the root, each with a limit of its own.
    ///
    /// # Panics
    /// If there is no such depth, or the memory has those groups already.
    pub fn new(memory: &Memory, depth: usize) -> Charging {
        let mut groups = vec![memory.root_group().clone()];
        for level in 0..depth {
            let above = &groups[level];
            let name = format!("level-{depth}-{level}");
            let max = memory.limit() - (level as u64) * crate::KIB;
            let group = above.child(&name, max).expect("a group");
            groups.push(group);
        }
        Charging {
            pool: memory.0.pool.clone(),
            groups,
        }
    }

    fn group(&self) -> GroupId {
        self.groups[self.groups.len() - 1].id()
    }

    /// Charges one page, `times` times, as a fault does, and gives all of them back at once.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn charge(&self, times: u64) {
        let group = self.group();
        for _ in 0..times {
            let charge = self.pool.groups.try_charge(group, PageCount(1));
            charge.expect("room").commit();
        }
        self.pool.groups.uncharge(group, PageCount(times));
    }

    /// The same without stock: every level, every time.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn charge_every_level(&self, times: u64) {
        let group = self.group();
        for _ in 0..times {
            let charge = self.pool.groups.try_charge_levels(group, PageCount(1));
            charge.expect("room").commit();
        }
        self.pool.groups.uncharge(group, PageCount(times));
    }

    /// Takes a page and gives it back, `times` times: charged first, then allocated.
    ///
    /// # Panics
    /// If there is no room.
    pub fn allocate(&self, times: u64) {
        for _ in 0..times {
            let frame = self.pool.alloc(self.group(), 0, AllocMode::NoWait);
            drop(std::hint::black_box(frame.expect("room")));
        }
    }

    /// The old way: allocated and marked up to date, with a fence, then charged.
    ///
    /// # Panics
    /// If there is no room.
    pub fn allocate_charging_last(&self, times: u64) {
        for _ in 0..times {
            let frame = self.pool.alloc_charging_last(self.group());
            drop(std::hint::black_box(frame.expect("room")));
        }
    }
}
