//! A file without holes: loads and stores through a mapping, compared with the same on cached
//! memory; writes and a sync, compared with copying and flushing the same cache lines.

use std::cell::RefCell;
use std::error::Error;

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, DaxFile, MIB, Map, Memory, PagedFile, VirtAddr,
    dax::{DaxDevice, HoleWrites},
    file::FileAccess,
    space::Session,
};

use super::flush::flush_lines;
use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Seeds, Unit, below, memory, thread_time, xorshift,
};
use crate::host::{PAGE, Region};
use crate::translation::HostPages;

/// The number of pages of the file: 64 MiB.
const PAGES: u64 = 16_384;
/// The bytes of one write by call.
const CALL: usize = 64 << 10;

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let content = Content::new(plan)?;
    for access in [Access::Load, Access::Store] {
        for order in [Order::Random, Order::Sequential] {
            rows.add(content.accesses(plan, access, order))?;
        }
    }
    for by in [By::Call, By::Mapping] {
        for blocks in [HoleWrites::OnePage, HoleWrites::Large] {
            rows.add(content.synced_writes(by, blocks)?)?;
        }
    }
    for blocks in [HoleWrites::OnePage, HoleWrites::Large] {
        rows.add(content.synced_stores(blocks)?)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Load,
    Store,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Random,
    Sequential,
}

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Call,
    Mapping,
}

/// The same bytes in a direct access file and in a cached one, both mapped.
struct Content {
    bytes: u64,
    seeds: RefCell<Seeds>,
    _files: (DaxFile, PagedFile),
    _memory: Memory,
    /// The address at which the direct mapping begins, and that of the cached one.
    at: [VirtAddr; 2],
    accessors: [RefCell<Accessor>; 2],
}

impl Content {
    fn new(plan: Plan) -> Result<Content, Box<dyn Error>> {
        let bytes = plan.pages(PAGES) * PAGE as u64;
        // The memory is so large that no dirty block has to be written during the measurement.
        let memory = memory(8 * bytes + 16 * MIB)?;
        let direct = super::hole(&memory, bytes, bytes + 2 * MIB)?;
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let cached = options.open_store(MemoryStore::with_len(bytes))?;
        let space = memory.create_space()?;
        let maps = [Map::dax(&direct), Map::file(&cached)];
        let at = maps.map(|map| space.map(map.shared().writable()));
        let [direct_at, cached_at] = at;
        let at = [direct_at?, cached_at?];
        let accessors = at.map(|at| {
            let mut accessor = space.accessor().unwrap();
            let stores = (0..bytes).step_by(PAGE);
            let stored = stores.map(|offset| accessor.store(at + offset, offset));
            stored.collect::<Result<(), _>>().map(|()| accessor)
        });
        let [first, second] = accessors;
        Ok(Content {
            bytes,
            seeds: RefCell::default(),
            _files: (direct, cached),
            _memory: memory,
            at,
            accessors: [RefCell::new(first?), RefCell::new(second?)],
        })
    }

    fn accesses(&self, plan: Plan, access: Access, order: Order) -> Row<'_> {
        let count = plan.operations(4_000_000);
        let contender = |name, which: usize| {
            Contender::new(name, move || {
                let seed = self.seeds.borrow_mut().next();
                let accessor = &mut *self.accessors[which].borrow_mut();
                let at = self.at[which];
                accessor.session(|session| {
                    thread_time(count, || {
                        let places = Places::new(order, self.bytes, seed);
                        Ok(run(session, at, access, places.take(count as usize))?)
                    })
                })
            })
        };
        let verb = match access {
            Access::Load => "loads",
            Access::Store => "stores",
        };
        Row {
            name: format!("{order:?} {verb} of 8 bytes in a session").to_lowercase(),
            unit: Unit::Nanoseconds,
            contenders: vec![contender(CACHED, 1), contender("innerspace", 0)],
            subject: "innerspace",
            baseline: CACHED,
            budget: Budget::Ratio(1.3),
        }
    }

    /// Copies and flushes all of the file's bytes, in ordinary memory.
    fn copied_and_flushed(&self) -> Result<Contender<'_>, Box<dyn Error>> {
        let mut region = Region::anonymous(self.bytes as usize, HostPages::Huge)?;
        let source = vec![5_u8; CALL];
        Ok(Contender::new(FLUSHED, move || {
            thread_time(self.bytes / PAGE as u64, || {
                for part in region.bytes_mut().chunks_mut(CALL) {
                    part.copy_from_slice(&source[..part.len()]);
                }
                match flush_lines(region.bytes()) {
                    true => Ok(()),
                    false => Err("this processor cannot flush lines".into()),
                }
            })
        }))
    }

    /// Writes the file in calls of 64 KiB, and syncs it.
    fn synced_writes(&self, by: By, blocks: HoleWrites) -> Result<Row<'_>, Box<dyn Error>> {
        let bytes = self.bytes;
        let memory = memory(16 * MIB)?;
        let device = DaxDevice::huge_pages(bytes.next_multiple_of(2 * MIB) + 2 * MIB)?;
        let options = memory.dax_options().hole_writes(blocks);
        let file = options.create_on(&device, "written")?;
        file.set_len(bytes)?;
        have_blocks(&memory, &file)?;
        let source = vec![6_u8; CALL];
        let ours = Contender::new("innerspace", move || match by {
            By::Call => thread_time(bytes / PAGE as u64, || {
                for offset in (0..bytes).step_by(CALL) {
                    let len = CALL.min((bytes - offset) as usize);
                    file.write_at(&source[..len], offset)?;
                }
                Ok(file.sync_all()?)
            }),
            By::Mapping => synced_mapping(&memory, &file, bytes, &source),
        });
        let size = size(blocks);
        Ok(Row {
            name: format!("sequential writes by {by:?} and a sync, blocks of {size}, each page")
                .to_lowercase(),
            unit: Unit::Nanoseconds,
            contenders: vec![self.copied_and_flushed()?, ours],
            subject: "innerspace",
            baseline: FLUSHED,
            budget: Budget::Ratio(1.3),
        })
    }
}

impl Content {
    /// Stores 8 bytes at random places, and syncs. The baseline does the same in ordinary memory,
    /// and flushes only the lines that were stored to.
    fn synced_stores(&self, blocks: HoleWrites) -> Result<Row<'_>, Box<dyn Error>> {
        let bytes = self.bytes;
        let count = bytes / PAGE as u64 / 4;
        let memory = memory(16 * MIB)?;
        let device = DaxDevice::huge_pages(bytes.next_multiple_of(2 * MIB) + 2 * MIB)?;
        let options = memory.dax_options().hole_writes(blocks);
        let file = options.create_on(&device, "stored")?;
        file.set_len(bytes)?;
        have_blocks(&memory, &file)?;
        file.sync_all()?;
        let space = memory.create_space()?;
        let at = space.map(Map::dax(&file).shared().writable())?;
        let accessor = RefCell::new(space.accessor().unwrap());
        let ours = Contender::new("innerspace", move || {
            let seed = self.seeds.borrow_mut().next();
            let places = Places::new(Order::Random, bytes, seed).take(count as usize);
            let accessor = &mut *accessor.borrow_mut();
            let _kept = (&space, &memory);
            thread_time(count, || {
                for place in places {
                    accessor.store(at + place, place)?;
                }
                Ok(file.sync_all()?)
            })
        });
        let mut region = Region::anonymous(bytes as usize, HostPages::Huge)?;
        let flushed = Contender::new(STORED, move || {
            let seed = self.seeds.borrow_mut().next();
            let places = Places::new(Order::Random, bytes, seed).take(count as usize);
            thread_time(count, || {
                for place in places {
                    let word = &mut region.bytes_mut()[place as usize..][..8];
                    word.copy_from_slice(&place.to_ne_bytes());
                    if !flush_lines(word) {
                        return Err("this processor cannot flush lines".into());
                    }
                }
                Ok(())
            })
        });
        Ok(Row {
            name: format!(
                "random stores to a quarter of the pages and a sync, blocks of {}, each store",
                size(blocks)
            ),
            unit: Unit::Nanoseconds,
            contenders: vec![flushed, ours],
            subject: "innerspace",
            baseline: STORED,
            budget: Budget::None,
        })
    }
}

/// Stores to each page of a hole through a mapping, which allocates blocks of the chosen size.
fn have_blocks(memory: &Memory, file: &DaxFile) -> Result<(), Box<dyn Error>> {
    let space = memory.create_space()?;
    let at = space.map(Map::dax(file).shared().writable())?;
    let mut accessor = space.accessor().unwrap();
    for offset in (0..file.len()).step_by(PAGE) {
        accessor.store(at + offset, 1_u64)?;
    }
    Ok(())
}

fn size(blocks: HoleWrites) -> &'static str {
    match blocks {
        HoleWrites::Large => "2 MiB",
        _ => "4 KiB",
    }
}

/// Stores through the mapping, and syncs. The faults of the stores are in the figure, because a
/// sync takes the right to store away.
fn synced_mapping(memory: &Memory, file: &DaxFile, bytes: u64, source: &[u8]) -> Outcome {
    let space = memory.create_space()?;
    let at = space.map(Map::dax(file).shared().writable())?;
    let mut accessor = space.accessor().unwrap();
    thread_time(bytes / PAGE as u64, || {
        for offset in (0..bytes).step_by(source.len()) {
            let len = source.len().min((bytes - offset) as usize);
            accessor.write(at + offset, &source[..len])?;
        }
        Ok(file.sync_all()?)
    })
}

const CACHED: &str = "cached file";
const FLUSHED: &str = "copy and flush";
const STORED: &str = "store and flush of a line";

/// Random multiples of 8 below a length.
struct Places {
    order: Order,
    bytes: u64,
    state: u64,
}

impl Places {
    fn new(order: Order, bytes: u64, seed: u64) -> Places {
        let state = match order {
            Order::Random => seed,
            Order::Sequential => 0,
        };
        Places {
            order,
            bytes,
            state,
        }
    }
}

impl Iterator for Places {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        match self.order {
            Order::Random => Some(below(self.bytes, xorshift(&mut self.state)) & !7),
            Order::Sequential => {
                let place = self.state;
                self.state = if place + 8 < self.bytes { place + 8 } else { 0 };
                Some(place)
            }
        }
    }
}

#[inline(never)]
fn run(
    session: &mut Session<'_>,
    at: VirtAddr,
    access: Access,
    places: impl Iterator<Item = u64>,
) -> Result<u64, innerspace::space::Fault> {
    let mut sum = 0_u64;
    match access {
        Access::Load => {
            for place in places {
                sum = sum.wrapping_add(session.load::<u64>(at + place)?);
            }
        }
        Access::Store => {
            for place in places {
                session.store(at + place, place)?;
            }
        }
    }
    Ok(sum)
}
