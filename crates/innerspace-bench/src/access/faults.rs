//! First touches of pages, and unmapping.
//!
//! The kernel's mappings have pages of 4 KiB, which a program gets by default. Where the kernel
//! does less work with huge pages, a mapping with huge pages is a contender of its own. The figures
//! of the faults do not include mapping and unmapping.
//!
//! Recycled frames are taken a mebibyte at a time, so that on both sides a frame comes back while
//! its bytes are in the processor's cache, as the frames of short-lived mappings do. With 64 MiB at
//! a time, zeroing would run at the speed of memory.

use std::cell::RefCell;
use std::error::Error;

use innerspace::store::MemoryStore;
use innerspace::{Accessor, MIB, Map, PagedFile, Space, VirtAddr};

use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, summed, thread_time,
};
use crate::host::{PAGE, Region, memory_file};
use crate::translation::HostPages;

/// The number of pages touched in one round: 64 MiB.
const PAGES: u64 = 16_384;
/// How many of them are mapped at a time in the rows whose frames come back warm.
const WARM: u64 = 256;

const CACHED: &str = "read fault of a cached page of a file";

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let faults = Faults::new(plan)?;
    rows.add(faults.warm_writes())?;
    rows.add(faults.recycled_writes())?;
    rows.add(faults.cold_writes())?;
    rows.add(faults.reads())?;
    rows.add(faults.holes())?;
    rows.add_with(CACHED, || faults.cached())?;
    rows.add(faults.unmaps())?;
    Ok(())
}

struct Faults {
    pages: u64,
    space: Space,
    accessor: RefCell<Accessor>,
    /// A file as long as the mapping that is a single hole.
    hole: PagedFile,
}

fn load_each(accessor: &mut Accessor, at: VirtAddr, pages: u64) -> Result<u64, Box<dyn Error>> {
    let mut sum = 0u64;
    for page in 0..pages {
        sum = sum.wrapping_add(accessor.load::<u64>(at + page * PAGE as u64)?);
    }
    Ok(sum)
}

fn store_each(accessor: &mut Accessor, at: VirtAddr, pages: u64) -> Result<(), Box<dyn Error>> {
    for page in 0..pages {
        accessor.store(at + page * PAGE as u64, page)?;
    }
    Ok(())
}

impl Faults {
    fn new(plan: Plan) -> Result<Faults, Box<dyn Error>> {
        let pages = plan.pages(PAGES);
        let bytes = pages * PAGE as u64;
        let memory = memory(bytes + bytes / 16 + 8 * MIB)?;
        let space = memory.create_space()?;
        let accessor = RefCell::new(space.accessor().unwrap());
        let hole = memory
            .file_options()
            .open_store(MemoryStore::with_len(bytes))?;
        Ok(Faults {
            pages,
            space,
            accessor,
            hole,
        })
    }

    fn bytes(&self) -> u64 {
        self.pages * PAGE as u64
    }

    fn row<'a>(name: &str, contenders: Vec<Contender<'a>>, budget: Budget) -> Row<'a> {
        Row {
            name: name.into(),
            unit: Unit::Nanoseconds,
            contenders,
            subject: "innerspace",
            baseline: "kernel",
            budget,
        }
    }

    /// Maps a file, times `touch`, and unmaps it.
    fn ours(&self, map: Map, touch: impl FnOnce(&mut Accessor, VirtAddr) -> Outcome) -> Outcome {
        let at = self.space.map(map)?;
        let sample = touch(&mut self.accessor.borrow_mut(), at);
        self.space.unmap(at, self.bytes())?;
        sample
    }

    fn kernel_writes(&self, host: HostPages) -> Outcome {
        let mut region = Region::anonymous(self.bytes() as usize, host)?;
        thread_time(self.pages, || {
            region.write_every(PAGE, 1);
            Ok(())
        })
    }

    /// Maps, touches and unmaps a mebibyte again and again. Only the touches are timed.
    fn warm_writes(&self) -> Row<'_> {
        let pages = WARM.min(self.pages);
        let bytes = pages * PAGE as u64;
        let times = self.pages.div_ceil(pages);
        let ours = move || {
            let accessor = &mut *self.accessor.borrow_mut();
            summed(times, || {
                let at = self.space.map(Map::anonymous(bytes))?;
                let sample = thread_time(pages, || store_each(accessor, at, pages));
                self.space.unmap(at, bytes)?;
                sample
            })
        };
        let kernel = move || {
            summed(times, || {
                let mut region = Region::anonymous(bytes as usize, HostPages::Base)?;
                thread_time(pages, || {
                    region.write_every(PAGE, 1);
                    Ok(())
                })
            })
        };
        let contenders = vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", ours),
        ];
        let name = "anonymous write fault, recycled frames";
        Faults::row(name, contenders, Budget::Faster(8.0))
    }

    fn recycled_writes(&self) -> Row<'_> {
        let ours = || {
            self.ours(Map::anonymous(self.bytes()), |accessor, at| {
                thread_time(self.pages, || store_each(accessor, at, self.pages))
            })
        };
        let contenders = vec![
            Contender::new("kernel", || self.kernel_writes(HostPages::Base)),
            Contender::new("innerspace", ours),
            Contender::new("kernel, huge pages", || self.kernel_writes(HostPages::Huge)),
        ];
        let name = "anonymous write fault, recycled frames, 64 MiB at a time";
        // The frames are cold in the processor's caches, so zeroing them takes as long as memory
        // needs. Frames that the kernel has yet to supply are in the next row.
        Faults::row(name, contenders, Budget::Faster(4.0))
    }

    /// Times first stores in a new memory each round, whose frames the kernel has to supply.
    fn cold_writes(&self) -> Row<'_> {
        let ours = || {
            let memory = memory(self.bytes() + self.bytes() / 16 + 8 * MIB)?;
            let space = memory.create_space()?;
            let at = space.map(Map::anonymous(self.bytes()))?;
            let mut accessor = space.accessor().unwrap();
            thread_time(self.pages, || store_each(&mut accessor, at, self.pages))
        };
        let contenders = vec![
            Contender::new("kernel", || self.kernel_writes(HostPages::Base)),
            Contender::new("innerspace", ours),
            Contender::new("kernel, huge pages", || self.kernel_writes(HostPages::Huge)),
        ];
        let name = "anonymous write fault, cold frames";
        Faults::row(name, contenders, Budget::Faster(4.0))
    }

    fn reads(&self) -> Row<'_> {
        let ours = || {
            self.ours(Map::anonymous(self.bytes()), |accessor, at| {
                thread_time(self.pages, || load_each(accessor, at, self.pages))
            })
        };
        let kernel = || {
            let region = Region::anonymous(self.bytes() as usize, HostPages::Base)?;
            thread_time(self.pages, || Ok(region.read_every(PAGE)))
        };
        let contenders = vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", ours),
        ];
        let name = "anonymous read fault (zero page)";
        Faults::row(name, contenders, Budget::Faster(10.0))
    }

    /// Times loads of holes. The kernel allocates a page for each hole that is read through a
    /// mapping of tmpfs.
    fn holes(&self) -> Row<'_> {
        let ours = || {
            self.ours(Map::file(&self.hole).shared(), |accessor, at| {
                thread_time(self.pages, || load_each(accessor, at, self.pages))
            })
        };
        let kernel = || {
            let file = memory_file()?;
            file.set_len(self.bytes())?;
            let region = Region::shared(&file, self.bytes() as usize)?;
            thread_time(self.pages, || Ok(region.read_every(PAGE)))
        };
        let contenders = vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", ours),
        ];
        Faults::row(
            "hole read fault of a file",
            contenders,
            Budget::Faster(40.0),
        )
    }

    /// Touches pages that are in the cache, in order. Both sides also map some pages around each
    /// one.
    fn cached(&self) -> Result<Row<'_>, Box<dyn Error>> {
        let (pages, bytes) = (self.pages, self.bytes());
        let memory = memory(bytes + bytes / 16 + 8 * MIB)?;
        let store = MemoryStore::from_bytes(&vec![1; bytes as usize]);
        let file = memory.file_options().open_store(store)?;
        file.prefetch(..)?;
        let cached = file.stats().cached.bytes();
        if cached != bytes {
            return Err(format!("{cached} of {bytes} bytes are in the cache").into());
        }
        let space = memory.create_space()?;
        let mut accessor = space.accessor().unwrap();
        let ours = move || {
            let at = space.map(Map::file(&file).shared())?;
            let sample = thread_time(pages, || load_each(&mut accessor, at, pages));
            space.unmap(at, bytes)?;
            sample
        };
        let kernels = memory_file()?;
        kernels.set_len(bytes)?;
        Region::shared(&kernels, bytes as usize)?.write_every(PAGE, 1);
        let kernel = move || {
            let region = Region::shared(&kernels, bytes as usize)?;
            thread_time(pages, || Ok(region.read_every(PAGE)))
        };
        let contenders = vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", ours),
        ];
        Ok(Faults::row(CACHED, contenders, Budget::None))
    }

    fn unmaps(&self) -> Row<'_> {
        let ours = || {
            let at = self.space.map(Map::anonymous(self.bytes()))?;
            store_each(&mut self.accessor.borrow_mut(), at, self.pages)?;
            thread_time(self.pages, || Ok(self.space.unmap(at, self.bytes())?))
        };
        let kernel = || {
            let mut region = Region::anonymous(self.bytes() as usize, HostPages::Base)?;
            region.write_every(PAGE, 1);
            thread_time(self.pages, || {
                drop(region);
                Ok(())
            })
        };
        let contenders = vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", ours),
        ];
        let name = "unmap, a resident anonymous page";
        Faults::row(name, contenders, Budget::Absolute(40.0))
    }
}
