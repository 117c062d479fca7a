//! Two threads that take faults in different ranges of 2 MiB of one file, through one space.

use std::error::Error;

use innerspace::{DaxFile, MIB, Map, Memory, Space, dax::DaxDevice};

use crate::access::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory};
use crate::host::PAGE;

/// The number of pages in a thread's range: 64 MiB.
const PAGES: u64 = 16_384;

/// How the threads touch each page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Touch {
    /// Loads from a hole, in ranges where no mapping of 2 MiB fits.
    Load,
    /// Stores to a hole, which allocates a block for each page.
    Store,
}

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let pages = plan.pages(PAGES);
    let memory = memory(64 * MIB)?;
    let device = DaxDevice::huge_pages(2 * pages * PAGE as u64 + 4 * MIB)?;
    let file = memory.create_dax_on(&device, "threads")?;
    file.set_len((2 * pages + 1) * PAGE as u64)?;
    let space = memory.create_space()?;
    let setting = Setting {
        pages,
        _memory: memory,
        file,
        space,
    };
    for touch in [Touch::Load, Touch::Store] {
        for clock in [Clock::Wall, Clock::Cpu] {
            rows.add(setting.row(touch, clock))?;
        }
    }
    Ok(())
}

struct Setting {
    /// The pages of each thread.
    pages: u64,
    _memory: Memory,
    file: DaxFile,
    space: Space,
}

impl Setting {
    fn row(&self, touch: Touch, clock: Clock) -> Row<'_> {
        let (by, budget) = match clock {
            Clock::Wall => ("wall time", Budget::Faster(1.8)),
            Clock::Cpu => ("CPU time of all threads", Budget::Ratio(2.0 / 1.8)),
        };
        let what = match touch {
            Touch::Load => "small faults of loads from a hole",
            Touch::Store => "faults of stores to a hole",
        };
        let contender =
            |name, threads| Contender::new(name, move || self.run(touch, clock, threads));
        Row {
            name: format!("two threads, {what}, {by}"),
            unit: Unit::Nanoseconds,
            contenders: vec![contender(ONE, 1), contender("innerspace", 2)],
            subject: "innerspace",
            baseline: ONE,
            budget,
        }
    }

    fn run(&self, touch: Touch, clock: Clock, threads: u64) -> Outcome {
        let page = PAGE as u64;
        let map = Map::dax(&self.file).shared().writable();
        // The mapping begins at an odd page, so that no aligned 2 MiB of the file are aligned in
        // the space.
        let at = self.space.map(map.range(page..))?;
        let work = |thread: u64| {
            let mut accessor = self.space.accessor().unwrap();
            move || {
                for number in thread * self.pages..(thread + 1) * self.pages {
                    let place = at + number * page;
                    let touched = match touch {
                        Touch::Load => accessor.load::<u64>(place).map(drop),
                        Touch::Store => accessor.store(place, number),
                    };
                    touched.map_err(|fault| fault.to_string())?;
                }
                Ok(())
            }
        };
        let sample = together(clock, self.pages, (0..threads).map(work).collect());
        self.space.unmap(at, 2 * self.pages * page)?;
        self.file.punch(0..u64::MAX)?;
        sample
    }
}

const ONE: &str = "innerspace, one thread";
