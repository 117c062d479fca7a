//! Station 5: a thousand forks of a space, each of which writes and keeps its own bytes; compared
//! with fork(2).

use std::time::{Duration, Instant};

use innerspace::{ByteSize, Grouped, MIB, Map, Memory, PAGE_SIZE, PageCount, Space, VirtAddr};

use super::{Child, Findings, Result, Tour};
use crate::kernel;

const PAGE: u64 = PAGE_SIZE as u64;

/// The number of forks of the space.
const FORKS: u64 = 1_000;

/// The number of forks of a process: fewer, because each takes so long.
const PROCESSES: u32 = 100;

/// The pages that a fork takes once it has written: four tables, the page itself, and one for what
/// it has on the heap.
const PAGES_A_FORK: u64 = 6;

/// The most memory of the parent.
const MOST_RESIDENT: u64 = 64 * MIB;

/// The byte with which the parent's memory is filled.
const FILLED: u8 = 0x11;

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let memory = Memory::with_limit(tour.limit)?;
    let parent = memory.create_space()?;
    let usable = memory
        .root_group()
        .stats()
        .max
        .map_or(tour.limit, PageCount::bytes);
    let resident = (usable / 4).min(MOST_RESIDENT) / PAGE * PAGE;
    let at = parent.map(Map::anonymous(resident))?;
    let mut accessor = parent.accessor()?;
    accessor
        .fill(at, FILLED, resident as usize)
        .map_err(|fault| parent.explain(fault))?;
    drop(accessor);

    // As many forks at a time as there is room for besides the parent's tables and the accessors.
    let tables = resident / 256 + 16 * PAGE;
    let room = usable.saturating_sub(resident + tables);
    let alive = (room / (PAGES_A_FORK * PAGE)).clamp(1, FORKS);
    let mut herd = Herd {
        parent,
        at,
        resident,
        forking: Vec::new(),
        writing: Vec::new(),
    };
    let bar = tour.report.spinner("forking");
    for first in (0..FORKS).step_by(alive as usize) {
        herd.fork_and_check(first..FORKS.min(first + alive), &mut findings)?;
    }
    bar.finish_and_clear();
    findings.here(format!(
        "{} forks of {}, {} alive at a time: {} to fork, {} for a first write",
        Grouped(FORKS),
        ByteSize(resident),
        Grouped(alive),
        median(&mut herd.forking),
        median(&mut herd.writing)
    ));
    findings.here("each found its own bytes, its parent's, and none of another's");

    let spinner = tour.report.spinner("forking processes");
    let mut command = Child::command("forks")?;
    command.args([resident.to_string(), PROCESSES.to_string()]);
    let output = Child::output(command)?;
    spinner.finish_and_clear();
    let text = String::from_utf8_lossy(if output.status.success() {
        &output.stdout
    } else {
        &output.stderr
    });
    findings.kernel(text.trim());
    Ok(findings)
}

/// Returns the median, because a few times may include delays by other programs.
fn median(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    format!("{:.1} us", median.as_secs_f64() * 1e6)
}

/// The forks of one space.
struct Herd {
    parent: Space,
    at: VirtAddr,
    resident: u64,
    /// The time that each fork took.
    forking: Vec<Duration>,
    writing: Vec<Duration>,
}

impl Herd {
    /// Returns the address that fork `number` writes to. Many forks write to the same page, so only
    /// real separation keeps them apart.
    fn place(&self, number: u64) -> VirtAddr {
        self.at + (number * 8 + number % 7 * PAGE) % self.resident
    }

    /// Makes the forks of these numbers, lets each write, and then checks that each holds its own
    /// bytes.
    fn fork_and_check(
        &mut self,
        numbers: std::ops::Range<u64>,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut forks = Vec::new();
        for number in numbers {
            let start = Instant::now();
            let fork = self.parent.fork()?;
            let forked = Instant::now();
            fork.accessor()?
                .store(self.place(number), number)
                .map_err(|fault| fork.explain(fault))?;
            self.writing.push(forked.elapsed());
            self.forking.push(forked - start);
            forks.push((number, fork));
        }
        let untouched = u64::from_le_bytes([FILLED; 8]);
        let mut seen_by_parent = self.parent.accessor()?;
        for (number, fork) in &forks {
            let mut accessor = fork.accessor()?;
            let explain = |fault| fork.explain(fault);
            let own: u64 = accessor.load(self.place(*number)).map_err(explain)?;
            let neighbours: u64 = accessor.load(self.place(number + 1)).map_err(explain)?;
            let parents: u64 = seen_by_parent.load(self.place(*number))?;
            if [own, neighbours, parents] != [*number, untouched, untouched] {
                findings.fail(format!(
                    "fork {number}: {own:#x}, {neighbours:#x}, {parents:#x}"
                ));
            }
        }
        Ok(())
    }
}

/// Runs in a process of its own: forks itself `count` times with `resident` bytes of memory in use,
/// and prints how long each fork took.
pub(crate) fn fork_processes(resident: usize, count: u32) -> Result<()> {
    let mut memory = vec![FILLED; resident];
    let mut times = Vec::new();
    for number in 0..count {
        let at = number as usize * PAGE_SIZE % resident;
        times.push(kernel::fork_and_write(&mut memory, at, !FILLED)?);
    }
    let each = median(&mut times);
    let size = ByteSize(resident as u64);
    println!("fork(2) of a process with {size}: {each} each ({count} forks, one alive at a time)");
    Ok(())
}
