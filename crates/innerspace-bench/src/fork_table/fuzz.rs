//! The loop of a snapshot fuzzer: store to 64 of the pages, go back, and repeat.

use std::cell::Cell;
use std::error::Error;

use innerspace::{Accessor, Space, VirtAddr, space::Snapshot};

use super::{Resident, new_space};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Unit, thread_time};
use crate::host::{Child, PAGE};

/// The number of pages stored to between two restores.
const STORES: u64 = 64;
/// The number of pages of a leaf.
const LEAF_PAGES: u64 = 512;

/// The choice of the pages that are stored to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Where {
    /// The same pages of one leaf.
    OneLeaf,
    /// One page in each of 64 leaves, the same each time.
    ManyLeaves,
    /// One page in each of 64 leaves, others each time.
    Elsewhere,
}

impl Where {
    /// Returns the offset of the page for store `store` of loop `turn`.
    fn offset(self, turn: u64, store: u64, pages: u64) -> u64 {
        let page = match self {
            Where::OneLeaf => store * 7,
            Where::ManyLeaves => store * LEAF_PAGES + store * 5,
            Where::Elsewhere => store * LEAF_PAGES + (store * 5 + turn * 37) % LEAF_PAGES,
        };
        page % pages * PAGE as u64
    }
}

struct Fuzzed {
    space: Space,
    snapshot: Snapshot,
    accessor: Accessor,
    at: VirtAddr,
}

impl Fuzzed {
    fn new(resident: &Resident) -> Result<Fuzzed, Box<dyn Error>> {
        let (space, at, accessor) = new_space(&resident.memory, resident.bytes())?;
        let snapshot = space.freeze()?;
        Ok(Fuzzed {
            space,
            snapshot,
            accessor,
            at,
        })
    }

    fn turn(&mut self, stores: Where, turn: u64, pages: u64) -> Result<(), Box<dyn Error>> {
        for store in 0..STORES {
            let at = self.at + stores.offset(turn, store, pages);
            self.accessor.store(at, turn)?;
        }
        Ok(self.space.restore(&self.snapshot)?)
    }
}

/// Measures the least work for going back page by page: each page that is stored to is copied aside
/// (once, if it is always the same page), and copied back.
fn copied_back<'a>(
    resident: &'a Resident,
    stores: Where,
    turns: u64,
) -> impl FnMut() -> Outcome + use<'a> {
    let mut saved = vec![0; STORES as usize * PAGE];
    let mut count = 0;
    move || {
        let region = &mut *resident.region.borrow_mut();
        let bytes = region.bytes_mut();
        let save = |bytes: &[u8], saved: &mut [u8], turn: u64| {
            let places: [usize; STORES as usize] = std::array::from_fn(|store| {
                stores.offset(turn, store as u64, resident.pages) as usize
            });
            for (place, saved) in places.iter().zip(saved.chunks_exact_mut(PAGE)) {
                saved.copy_from_slice(&bytes[*place..place + PAGE]);
            }
            places
        };
        let mut places = save(bytes, &mut saved, count);
        thread_time(turns, || {
            for turn in 0..turns {
                if stores == Where::Elsewhere {
                    count += 1;
                    places = save(bytes, &mut saved, count);
                }
                for place in &places {
                    bytes[*place..place + 8].copy_from_slice(&turn.to_ne_bytes());
                }
                for (place, saved) in places.iter().zip(saved.chunks_exact(PAGE)) {
                    bytes[*place..place + PAGE].copy_from_slice(std::hint::black_box(saved));
                }
            }
            Ok(())
        })
    }
}

/// Measures whole turns: 64 stores and the way back are one figure.
pub(super) fn turn<'a>(
    plan: Plan,
    resident: &'a Resident,
    stores: Where,
) -> Result<Row<'a>, Box<dyn Error>> {
    let pages = resident.pages;
    let turns = plan.operations(4_000);
    let forks = plan.operations(20);
    let mut fuzzed = Fuzzed::new(resident)?;
    let count = Cell::new(0);
    let next = move || count.replace(count.get() + 1);
    let innerspace = move || -> Outcome {
        thread_time(turns, || {
            (0..turns).try_for_each(|_| fuzzed.turn(stores, next(), pages))
        })
    };
    let copied_back = copied_back(resident, stores, turns);
    let kernel = move || -> Outcome {
        let region = &mut *resident.region.borrow_mut();
        thread_time(forks, || {
            for turn in 0..forks {
                let places = (0..STORES).map(|store| stores.offset(turn, store, pages));
                drop(Child::that_stores(region, places, turn)?);
            }
            Ok(())
        })
    };
    let name = match stores {
        Where::OneLeaf => "64 pages of one leaf",
        Where::ManyLeaves => "64 pages in 64 leaves",
        Where::Elsewhere => "64 pages in 64 leaves, others each time",
    };
    Ok(Row {
        name: format!("fuzz loop, {name}"),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("innerspace", innerspace),
            Contender::new("memcpy back", copied_back),
            Contender::new("fork(2)", kernel),
        ],
        subject: "innerspace",
        baseline: "memcpy back",
        budget: Budget::Absolute(15_000.0),
    })
}
