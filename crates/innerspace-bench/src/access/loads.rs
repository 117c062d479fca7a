//! Loads of 8 bytes from resident pages. The loops are the same for every contender; only the
//! access differs.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use innerspace::{
    Accessor, VirtAddr,
    space::{Fault, Session},
};
use quick_cache::sync::Cache;

use super::{Resident, WhenWanted};
use crate::harness::{Budget, Contender, Plan, Row, Rows, Unit, below, thread_time, xorshift};
use crate::host::{PAGE, Region};

/// Loads by offset from the resident bytes. Offsets are multiples of 8.
pub(super) trait Load {
    type Error: Error + 'static;
    fn load(&mut self, offset: u64) -> Result<u64, Self::Error>;
}

#[derive(Clone, Copy)]
struct Raw<'a>(&'a Region);
pub(super) struct Single<'a>(&'a mut Accessor, VirtAddr);
pub(super) struct InSession<'a, 's>(pub(super) &'a mut Session<'s>, pub(super) VirtAddr);
struct Pread<'a>(&'a File);
struct Cached<'a>(&'a Cache<u64, Arc<[u8]>>);

impl Load for Raw<'_> {
    type Error = io::Error;

    #[inline(always)]
    fn load(&mut self, offset: u64) -> io::Result<u64> {
        // SAFETY: the loops ask for multiples of 8 below the end.
        Ok(unsafe { self.0.load(offset) })
    }
}

impl Load for Single<'_> {
    type Error = Fault;

    #[inline(always)]
    fn load(&mut self, offset: u64) -> Result<u64, Fault> {
        self.0.load(self.1 + offset)
    }
}

impl Load for InSession<'_, '_> {
    type Error = Fault;

    #[inline(always)]
    fn load(&mut self, offset: u64) -> Result<u64, Fault> {
        self.0.load(self.1 + offset)
    }
}

impl Load for Pread<'_> {
    type Error = io::Error;

    fn load(&mut self, offset: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl Load for Cached<'_> {
    type Error = io::Error;

    fn load(&mut self, offset: u64) -> io::Result<u64> {
        let page = self.0.get(&(offset / PAGE as u64));
        let page = page.ok_or(io::ErrorKind::NotFound)?;
        let at = offset as usize % PAGE;
        let bytes = page[at..at + 8].try_into();
        Ok(u64::from_le_bytes(bytes.expect("eight of them")))
    }
}

/// The name of the contender whose frames are not consecutive, so that each page needs a
/// translation of its own.
const SCATTERED: &str = "innerspace, scattered pages";

/// The order of the offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Uniform over all pages; the loads may overlap each other.
    Independent,
    /// Uniform over all pages; each load waits for the last one.
    Dependent,
    Sequential,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Independent => "random loads of 8 bytes",
            Order::Dependent => "dependent random loads",
            Order::Sequential => "sequential loads",
        }
    }

    fn operations(self, plan: Plan, bytes: u64) -> u64 {
        match self {
            Order::Independent => plan.operations(800_000),
            Order::Dependent => plan.operations(200_000),
            // The run starts in the first half of the bytes, and stays inside.
            Order::Sequential => plan.operations(8_000_000).min(bytes / 16),
        }
    }
}

fn run<L: Load>(order: Order, load: L, bytes: u64, count: u64, seed: u64) -> Result<u64, L::Error> {
    match order {
        Order::Independent => independent(load, bytes, count, seed),
        Order::Dependent => dependent(load, bytes, count, seed),
        Order::Sequential => sequential(load, bytes, count, seed),
    }
}

#[inline(never)]
pub(super) fn independent<L: Load>(
    mut load: L,
    bytes: u64,
    count: u64,
    mut seed: u64,
) -> Result<u64, L::Error> {
    let mut sum = 0u64;
    for _ in 0..count {
        sum = sum.wrapping_add(load.load(below(bytes, xorshift(&mut seed)) & !7)?);
    }
    Ok(sum)
}

/// Makes loads that each wait for the last one. The step is mixed in, because otherwise the walk
/// would soon enter a cycle short enough to be cached.
#[inline(never)]
fn dependent<L: Load>(mut load: L, bytes: u64, count: u64, seed: u64) -> Result<u64, L::Error> {
    let mut value = seed;
    for step in 0..count {
        let mixed = value ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value = load.load(below(bytes, mixed) & !7)?;
    }
    Ok(value)
}

#[inline(never)]
fn sequential<L: Load>(mut load: L, bytes: u64, count: u64, seed: u64) -> Result<u64, L::Error> {
    assert!(count * 8 <= bytes / 2);
    let start = below(bytes / 2, seed) & !(PAGE as u64 - 1);
    let mut sum = 0u64;
    for number in 0..count {
        sum = sum.wrapping_add(load.load(start + number * 8)?);
    }
    Ok(sum)
}

pub(super) fn measure(
    plan: Plan,
    resident: &WhenWanted,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    let budgets = [
        (Order::Independent, Budget::Ratio(2.5), Budget::Ratio(1.8)),
        (Order::Dependent, Budget::Ratio(1.3), Budget::Ratio(1.3)),
        (
            Order::Sequential,
            Budget::Absolute(2.1),
            Budget::Absolute(1.6),
        ),
    ];
    for (order, single, session) in budgets {
        let loads = || Loads::new(plan, order, resident);
        let name = format!("{}, single", order.name());
        rows.add_with(&name, || Ok(row(&name, loads()?.singles(), single)))?;
        let name = format!("{}, in a session", order.name());
        rows.add_with(&name, || {
            let loads = loads()?;
            let contenders = vec![loads.raw(), loads.session(), loads.scattered_session()];
            Ok(row(&name, contenders, session))
        })?;
    }
    Ok(())
}

fn row<'a>(name: &str, contenders: Vec<Contender<'a>>, budget: Budget) -> Row<'a> {
    Row {
        name: name.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "raw pointer",
        budget,
    }
}

/// The state that the contenders of one order share.
#[derive(Clone, Copy)]
struct Loads<'a> {
    order: Order,
    resident: &'a Resident,
    count: u64,
    /// The number of loads for contenders that take a microsecond for each.
    few: u64,
}

impl<'a> Loads<'a> {
    fn new(
        plan: Plan,
        order: Order,
        resident: &'a WhenWanted,
    ) -> Result<Loads<'a>, Box<dyn Error>> {
        let count = order.operations(plan, resident.bytes());
        Ok(Loads {
            order,
            resident: resident.get()?,
            count,
            few: count.div_ceil(16),
        })
    }

    fn singles(self) -> Vec<Contender<'a>> {
        let mut contenders = vec![
            self.raw(),
            self.raw_small(),
            self.single(),
            self.scattered_single(),
        ];
        if self.order == Order::Independent {
            contenders.extend([self.pread(), self.cached()]);
        }
        contenders
    }

    fn timed<L: Load>(self, load: L, count: u64) -> crate::harness::Outcome {
        let seed = self.resident.seed();
        thread_time(count, || {
            Ok(run(self.order, load, self.resident.bytes, count, seed)?)
        })
    }

    fn raw(self) -> Contender<'a> {
        Contender::new("raw pointer", move || {
            self.timed(Raw(&self.resident.raw), self.count)
        })
    }

    fn raw_small(self) -> Contender<'a> {
        Contender::new("raw, 4 KiB pages", move || {
            self.timed(Raw(&self.resident.raw_small), self.count)
        })
    }

    fn single(self) -> Contender<'a> {
        Contender::new("innerspace", move || {
            let accessor = &mut *self.resident.accessor.borrow_mut();
            self.timed(Single(accessor, self.resident.at), self.count)
        })
    }

    fn session(self) -> Contender<'a> {
        Contender::new("innerspace", move || {
            let accessor = &mut *self.resident.accessor.borrow_mut();
            accessor.session(|session| self.timed(InSession(session, self.resident.at), self.count))
        })
    }

    fn scattered_single(self) -> Contender<'a> {
        Contender::new(SCATTERED, move || {
            let accessor = &mut *self.resident.scattered.borrow_mut();
            self.timed(Single(accessor, self.resident.scattered_at), self.count)
        })
    }

    fn scattered_session(self) -> Contender<'a> {
        Contender::new(SCATTERED, move || {
            let accessor = &mut *self.resident.scattered.borrow_mut();
            let at = self.resident.scattered_at;
            accessor.session(|session| self.timed(InSession(session, at), self.count))
        })
    }

    fn pread(self) -> Contender<'a> {
        Contender::new("pread of a memfd", move || {
            self.timed(Pread(&self.resident.kernel_file), self.few)
        })
    }

    fn cached(self) -> Contender<'a> {
        Contender::new("quick_cache", move || {
            self.timed(Cached(&self.resident.cache), self.count)
        })
    }
}

/// Returns the sum that each contender loads from the same places.
#[cfg(test)]
pub(super) fn sums(resident: &Resident, count: u64, seed: u64) -> Result<Vec<u64>, Box<dyn Error>> {
    let bytes = resident.bytes;
    let accessor = &mut *resident.accessor.borrow_mut();
    let mut sums = vec![
        independent(Raw(&resident.raw), bytes, count, seed)?,
        independent(Raw(&resident.raw_small), bytes, count, seed)?,
        independent(Pread(&resident.kernel_file), bytes, count, seed)?,
        independent(Cached(&resident.cache), bytes, count, seed)?,
        independent(Single(accessor, resident.at), bytes, count, seed)?,
    ];
    sums.push(
        accessor
            .session(|session| independent(InSession(session, resident.at), bytes, count, seed))?,
    );
    let accessor = &mut *resident.scattered.borrow_mut();
    let at = resident.scattered_at;
    sums.push(independent(Single(accessor, at), bytes, count, seed)?);
    sums.push(accessor.session(|session| independent(InSession(session, at), bytes, count, seed))?);
    Ok(sums)
}
