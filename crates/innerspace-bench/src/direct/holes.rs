//! A hole of 1 GiB, read through a mapping: 8 bytes of each page, in order.

use std::error::Error;
use std::io;

use innerspace::store::{MemoryStore, Store};
use innerspace::{DaxFile, MIB, Map, Memory, PagedFile, Space, VirtAddr};

use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Sample, Unit, memory, thread_time,
};
use crate::host::{PAGE, Region, memory_file};

/// The number of pages of the hole: 1 GiB.
const PAGES: u64 = 262_144;

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let holes = Holes::new(plan.pages(PAGES))?;
    rows.add(holes.faults(KERNEL, Budget::Faster(40.0)))?;
    rows.add(holes.faults(OLD_WAY, Budget::Faster(4.0)))?;
    rows.add(holes.small_faults())?;
    rows.add(holes.resident())?;
    rows.add(holes.tables())?;
    Ok(())
}

const KERNEL: &str = "kernel, tmpfs";
const OLD_WAY: &str = "a cached page a hole";

/// The same hole as a direct access file and as a cached one.
struct Holes {
    pages: u64,
    _memory: Memory,
    space: Space,
    direct: DaxFile,
    cached: PagedFile,
    zeros: PagedFile,
}

/// A store of zeros that reports no holes.
struct Zeros(u64);

impl Store for Zeros {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = (self.0.saturating_sub(offset)).min(buf.len() as u64) as usize;
        buf[..len].fill(0);
        Ok(len)
    }
}

/// The file that a contender maps.
#[derive(Clone, Copy)]
enum File {
    Direct,
    Cached,
    /// The file of the old way.
    Zeros,
}

impl Holes {
    fn new(pages: u64) -> Result<Holes, Box<dyn Error>> {
        let bytes = pages * PAGE as u64;
        // The memory has room for the pages of the old way.
        let memory = memory(bytes + bytes / 16 + 16 * MIB)?;
        let space = memory.create_space()?;
        let direct = super::hole(&memory, bytes, MIB)?;
        let cached = memory
            .file_options()
            .open_store(MemoryStore::with_len(bytes))?;
        let zeros = memory.file_options().open_store(Zeros(bytes))?;
        Ok(Holes {
            pages,
            _memory: memory,
            space,
            direct,
            cached,
            zeros,
        })
    }

    fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }

    fn map(&self, file: File) -> Map {
        match file {
            File::Direct => Map::dax(&self.direct).shared(),
            File::Cached => Map::file(&self.cached).shared(),
            File::Zeros => Map::file(&self.zeros).shared(),
        }
    }

    /// Maps a file, loads from each page, passes the mapping to `look`, and unmaps it.
    fn read<T>(
        &self,
        map: Map,
        skipped: u64,
        look: impl FnOnce(VirtAddr) -> Result<T, Box<dyn Error>>,
    ) -> Result<(Sample, T), Box<dyn Error>> {
        let at = self.space.map(map)?;
        let mut accessor = self.space.accessor().unwrap();
        let pages = self.pages - skipped;
        let sample = thread_time(pages, || {
            let mut sum = 0_u64;
            for page in 0..pages {
                sum = sum.wrapping_add(accessor.load::<u64>(at + page * PAGE as u64)?);
            }
            match sum {
                0 => Ok(sum),
                _ => Err("a hole is not zeros".into()),
            }
        })?;
        let seen = look(at)?;
        self.space.unmap(at, pages * PAGE as u64)?;
        Ok((sample, seen))
    }

    fn ours(&self, file: File) -> Outcome {
        Ok(self.read(self.map(file), 0, |_| Ok(()))?.0)
    }

    /// Reads the hole in the old way; no page of it is cached before or afterwards.
    fn old_way<T>(
        &self,
        look: impl FnOnce(VirtAddr) -> Result<T, Box<dyn Error>>,
    ) -> Result<(Sample, T), Box<dyn Error>> {
        let sample = self.read(self.map(File::Zeros), 0, look);
        self.zeros.invalidate(..)?;
        sample
    }

    fn kernel(&self) -> Result<(Sample, u64), Box<dyn Error>> {
        let file = memory_file()?;
        file.set_len(self.bytes())?;
        let region = Region::shared(&file, self.bytes() as usize)?;
        let sample = thread_time(self.pages, || Ok(region.read_every(PAGE)))?;
        Ok((sample, resident(&region)?))
    }

    /// Measures the direct access file and the cached one, compared with `baseline`.
    fn faults(&self, baseline: &'static str, budget: Budget) -> Row<'_> {
        let other = Contender::new(baseline, move || match baseline {
            OLD_WAY => Ok(self.old_way(|_| Ok(()))?.0),
            _ => Ok(self.kernel()?.0),
        });
        Row {
            name: format!("hole read through a mapping, each 4 KiB page, beside {baseline}"),
            unit: Unit::Nanoseconds,
            contenders: vec![
                other,
                Contender::new("innerspace", || self.ours(File::Direct)),
                Contender::new("innerspace, cached file", || self.ours(File::Cached)),
            ],
            subject: "innerspace",
            baseline,
            budget,
        }
    }

    /// Measures a mapping that begins at an odd page, so that no range of 2 MiB fits. Each page
    /// takes a fault, or a share of one that maps several.
    fn small_faults(&self) -> Row<'_> {
        let from = PAGE as u64;
        let odd = move || {
            let map = self.map(File::Direct).range(from..self.bytes());
            Ok(self.read(map, 1, |_| Ok(()))?.0)
        };
        Row {
            name: "the same, mapped from an odd page on, where nothing of 2 MiB fits".into(),
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new(KERNEL, || Ok(self.kernel()?.0)),
                Contender::new("innerspace", odd),
            ],
            subject: "innerspace",
            baseline: KERNEL,
            budget: Budget::Faster(40.0),
        }
    }

    /// Returns the resident bytes of the mapping at `at`, from its line in the style of smaps.
    fn resident_at(&self, at: VirtAddr) -> Result<u64, Box<dyn Error>> {
        let stats = self.space.stats();
        let of = stats.mappings.iter().find(|mapping| mapping.start == at);
        Ok(of.ok_or("the mapping is gone")?.pages.resident.0 * PAGE as u64)
    }

    fn resident(&self) -> Row<'_> {
        let total = |total| {
            Ok(Sample {
                operations: 1,
                total,
            })
        };
        let ours = move |file| {
            let look = |at| self.resident_at(at);
            total(self.read(self.map(file), 0, look)?.1)
        };
        Row {
            name: "Rss of the mapping when all of the hole was read".into(),
            unit: Unit::Bytes,
            contenders: vec![
                Contender::new(KERNEL, move || total(self.kernel()?.1)),
                Contender::new(OLD_WAY, move || {
                    total(self.old_way(|at| self.resident_at(at))?.1)
                }),
                Contender::new("innerspace", move || ours(File::Direct)),
                Contender::new("innerspace, cached file", move || ours(File::Cached)),
            ],
            subject: "innerspace",
            baseline: KERNEL,
            budget: Budget::Absolute(0.0),
        }
    }

    fn tables(&self) -> Row<'_> {
        let ours = |file| {
            let before = self.space.stats().tables;
            let look = |_| Ok(self.space.stats().tables - before);
            let mut pages = self.read(self.map(file), 0, look)?.1;
            if matches!(file, File::Direct) {
                pages += self.direct.stats().tables;
            }
            Ok(Sample {
                operations: self.pages,
                total: pages.bytes(),
            })
        };
        Row {
            name: "page tables and entries, each page of the hole".into(),
            unit: Unit::Bytes,
            contenders: vec![
                Contender::new("innerspace", move || ours(File::Direct)),
                Contender::new("innerspace, cached file", move || ours(File::Cached)),
            ],
            subject: "innerspace",
            baseline: "innerspace, cached file",
            budget: Budget::Absolute(20.0),
        }
    }
}

/// Returns the Rss that the kernel reports for a mapping of its own, in bytes.
fn resident(region: &Region) -> Result<u64, Box<dyn Error>> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let start = format!("{:x}-", region.bytes().as_ptr().addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let size = lines.find_map(|line| line.strip_prefix("Rss:"));
    let size = size.and_then(|size| size.trim().strip_suffix(" kB"));
    Ok(size
        .ok_or("smaps has no such mapping")?
        .trim()
        .parse::<u64>()?
        * 1024)
}
