//! Table T1: `dd`. A file a tenth of the memory is written from its beginning to its end, synced or
//! not, and discarded.
//!
//! The library marks a new page as accessed before others can see it, with a plain store. The old
//! way marked it afterwards, with two atomic operations, which its contender adds to each write:
//! they are on lines of a ring, as warm as a frame's own is at that time. The kernel is compared,
//! too: its tmpfs if the store is in memory (a sync makes the library's own copy, which is then in
//! its time), and the file system of the current folder if the store is a file. In the latter case
//! wall time is measured, because the work waits for a device.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use innerspace::store::MemoryStore;
use innerspace::{KIB, MIB, PagedFile, file::FileAccess};

use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, summed, summed_warm, thread_time,
    wall_time,
};
use crate::host::{PAGE, memory_file};
use crate::report::Table;

/// The bytes of memory. The file has a tenth of that.
const MEMORY: u64 = 160 * MIB;

/// When a new page gets its accessed mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    BeforePublish,
    AfterPublish,
}

/// The flags and references of a page that was written. The old way changes them to mark the page,
/// and to drop the reference that marking takes.
#[repr(align(64))]
#[derive(Default)]
struct Frame(AtomicU32);

impl Frame {
    fn mark(&self) {
        self.0.fetch_or(1 << 31, Ordering::Relaxed);
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Whether the file is made durable before it is discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sync {
    Never,
    AtTheEnd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Memory,
    Disk,
}

/// Writes bytes at an offset, by one contender's means.
type Write<'a> = dyn FnMut(&[u8], u64) -> Result<(), Box<dyn Error>> + 'a;

impl Place {
    /// Measures `work` in this place. On a disk, waiting counts as well.
    fn time(self, pages: u64, work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Outcome {
        match self {
            Place::Memory => thread_time(pages, work),
            Place::Disk => wall_time(pages, work),
        }
    }

    /// Takes `times` samples. In memory, first takes the same number of samples that warm the
    /// caches and do not count.
    fn summed(self, times: u64, sample: impl FnMut() -> Outcome) -> Outcome {
        match self {
            Place::Memory => summed_warm(times, sample),
            Place::Disk => summed(times, sample),
        }
    }
}

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    for place in [Place::Memory, Place::Disk] {
        for sync in [Sync::Never, Sync::AtTheEnd] {
            for block in [4 * KIB, MIB] {
                row(plan, &mut rows, place, sync, block)?;
            }
        }
    }
    Ok(Table {
        name: "dd (T1)".into(),
        rows: rows.measured,
    })
}

/// The path of a file in the current folder, which is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(PathBuf::from(format!(
            ".innerspace-bench-{}-{name}",
            std::process::id()
        )))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The file may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn row(
    plan: Plan,
    rows: &mut Rows<'_>,
    place: Place,
    sync: Sync,
    block: u64,
) -> Result<(), Box<dyn Error>> {
    let bytes = plan.pages(MEMORY / 10 / PAGE as u64).next_multiple_of(256) * PAGE as u64;
    let pages = bytes / PAGE as u64;
    let times = match (place, sync) {
        (Place::Disk, Sync::AtTheEnd) => 1,
        _ => plan.operations(8),
    };
    let content = vec![0x5a; block as usize];
    let write = |each: &mut Write<'_>| {
        (0..bytes)
            .step_by(block as usize)
            .try_for_each(|at| each(&content, at))
    };
    let memory = memory(MEMORY)?;
    let (ours, theirs) = (Scratch::new("ours"), Scratch::new("theirs"));
    let file: PagedFile = match place {
        Place::Memory => {
            let options = memory.file_options().access(FileAccess::ReadWrite);
            options.open_store(MemoryStore::new())?
        }
        Place::Disk => memory.create(&ours.0)?,
    };
    let (kernel, kernel_file): (&'static str, File) = match place {
        Place::Memory => ("tmpfs", memory_file()?),
        Place::Disk => {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            ("kernel, buffered", options.open(&theirs.0)?)
        }
    };
    let innerspace = |mark: Mark| {
        let (file, write) = (&file, &write);
        let frames: [Frame; 64] = std::array::from_fn(|_| Frame::default());
        move || {
            place.summed(times, || {
                let sample = place.time(pages, || {
                    write(&mut |bytes, at| {
                        file.write_at(bytes, at)?;
                        if mark == Mark::AfterPublish {
                            let marked = frames.iter().cycle();
                            marked.take(bytes.len() / PAGE).for_each(Frame::mark);
                        }
                        Ok(())
                    })?;
                    if sync == Sync::AtTheEnd {
                        file.sync_all()?;
                    }
                    Ok(())
                });
                file.set_len(0)?;
                sample
            })
        }
    };
    let contenders = vec![
        Contender::new("innerspace", innerspace(Mark::BeforePublish)),
        Contender::new("publish, then mark", innerspace(Mark::AfterPublish)),
        Contender::new(kernel, || {
            place.summed(times, || {
                let sample = place.time(pages, || {
                    write(&mut |bytes, at| Ok(kernel_file.write_all_at(bytes, at)?))?;
                    if sync == Sync::AtTheEnd {
                        kernel_file.sync_all()?;
                    }
                    Ok(())
                });
                kernel_file.set_len(0)?;
                sample
            })
        }),
    ];
    let budget = match (place, sync, block) {
        (Place::Memory, Sync::Never, MIB) => Budget::Faster(2.0),
        (Place::Memory, Sync::Never, _) => Budget::Faster(5.0),
        (Place::Disk, Sync::AtTheEnd, _) => Budget::Ratio(1.0),
        _ => Budget::None,
    };
    let store = match place {
        Place::Memory => "a store in memory",
        Place::Disk => "a store in a file, wall time",
    };
    let how = match sync {
        Sync::Never => "not synced",
        Sync::AtTheEnd => "synced",
    };
    rows.add(Row {
        name: format!("{store}, writes of {} KiB, {how}: each page", block / KIB),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: kernel,
        budget,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        for row in &table(Plan::smoke(), "").unwrap().rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
    }
}
