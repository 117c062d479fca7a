//! Reads random pages of a file twice as large as the memory, from tmpfs with O_DIRECT, so that
//! neither side has help from the kernel's page cache. Half of the reads are hits; the figures are
//! per miss, and include the hits.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use innerspace::MIB;
use innerspace::store::{CacheMode, FileOptions};

use crate::harness::{
    Budget, Contender, Plan, Row, Rows, Sample, Seeds, Unit, below, memory, thread_time, xorshift,
};
use crate::host::{PAGE, Region};
use crate::translation::HostPages;

const MEMORY: u64 = 32 * MIB;

/// A file of random words, removed on drop.
struct OnTmpfs(PathBuf);

impl OnTmpfs {
    fn new(bytes: u64) -> Result<OnTmpfs, Box<dyn Error>> {
        let name = format!("/dev/shm/innerspace-bench-{}", std::process::id());
        let file = OnTmpfs(PathBuf::from(name));
        let mut seed = 1;
        let words = (0..bytes / 8).flat_map(|_| xorshift(&mut seed).to_le_bytes());
        std::fs::write(&file.0, words.collect::<Vec<u8>>())?;
        Ok(file)
    }

    fn direct(&self) -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        options.open(&self.0)
    }
}

impl Drop for OnTmpfs {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const NAME: &str = "random pages over twice the memory, a miss";

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    if !rows.wants(NAME) {
        return Ok(());
    }
    let pages = 2 * MEMORY / PAGE as u64;
    let path = OnTmpfs::new(pages * PAGE as u64)?;
    let memory = memory(MEMORY)?;
    let options = FileOptions::new().cache_mode(CacheMode::Direct);
    let file = memory.file_options().open_store(options.open(&path.0)?)?;
    let direct = path.direct()?;
    // Direct transfers need aligned memory.
    let mut buffer = Region::anonymous(PAGE, HostPages::Base)?;
    let mut seeds = Seeds::default();
    let count = plan.operations(120_000);
    let mut page = [0; PAGE];
    // Fills the memory and lets its lists settle before the first figure counts.
    for number in 0..pages {
        file.read_exact_at(&mut page, number * PAGE as u64)?;
    }
    let seeds = std::cell::RefCell::new(&mut seeds);
    let contenders = vec![
        Contender::new("innerspace", || {
            let mut seed = seeds.borrow_mut().next();
            let filled = file.stats().filled;
            let sample = thread_time(count, || {
                for _ in 0..count {
                    let at = below(pages, xorshift(&mut seed)) * PAGE as u64;
                    file.read_exact_at(&mut page, at)?;
                }
                Ok(page[0])
            })?;
            Ok(Sample {
                operations: (file.stats().filled - filled).max(1),
                ..sample
            })
        }),
        Contender::new("pread, O_DIRECT", || {
            let mut seed = seeds.borrow_mut().next();
            thread_time(count / 2 + 1, || {
                for _ in 0..count / 2 + 1 {
                    let at = below(pages, xorshift(&mut seed)) * PAGE as u64;
                    direct.read_exact_at(buffer.bytes_mut(), at)?;
                }
                Ok(())
            })
        }),
    ];
    let row = Row {
        name: NAME.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "pread, O_DIRECT",
        budget: Budget::Absolute(6900.0),
    };
    rows.add(row)?;
    Ok(())
}
