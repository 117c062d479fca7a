//! Pages that are read and written by copy.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;

use innerspace::store::MemoryStore;
use innerspace::{MIB, file::FileAccess};

use super::{Resident, WhenWanted};
use crate::harness::{
    Budget, Contender, Plan, Row, Rows, Unit, below, memory, summed, thread_time, xorshift,
};
use crate::host::{PAGE, Region, memory_file};
use crate::translation::HostPages;

/// Copies `count` random pages into one buffer with `read`. Returns the sum of one word of each.
#[inline(always)]
fn random_reads(
    resident: &Resident,
    count: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Box<dyn Error>>,
) -> crate::harness::Outcome {
    let mut seed = resident.seed();
    let pages = resident.bytes / PAGE as u64;
    let mut buffer = [0; PAGE];
    thread_time(count, || {
        let mut sum = 0u64;
        for _ in 0..count {
            let random = xorshift(&mut seed);
            read(below(pages, random) * PAGE as u64, &mut buffer)?;
            sum = sum.wrapping_add(u64::from(buffer[random as usize % PAGE]));
        }
        Ok(sum)
    })
}

pub(super) fn measure_reads(
    plan: Plan,
    resident: &WhenWanted,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    rows.add_with(RANDOM, || Ok(random_row(plan, resident.get()?)))?;
    rows.add_with(SCAN, || Ok(scan_row(plan, resident.get()?)))
}

const RANDOM: &str = "read a random page by copy";
const SCAN: &str = "scan, each page copied";

fn random_row<'a>(plan: Plan, resident: &'a Resident) -> Row<'a> {
    let count = plan.operations(80_000);
    let raw = move || {
        random_reads(resident, count, |at, buffer| {
            buffer.copy_from_slice(&resident.raw.bytes()[at as usize..][..PAGE]);
            Ok(())
        })
    };
    let file = move || {
        random_reads(resident, count, |at, buffer| {
            Ok(resident.file.read_exact_at(buffer, at)?)
        })
    };
    let space = move || {
        let accessor = &mut *resident.accessor.borrow_mut();
        random_reads(resident, count, |at, buffer| {
            Ok(accessor.read(resident.at + at, buffer)?)
        })
    };
    let pread = move || {
        random_reads(resident, count, |at, buffer| {
            Ok(resident.kernel_file.read_exact_at(buffer, at)?)
        })
    };
    let cached = move || {
        random_reads(resident, count, |at, buffer| {
            let page = resident.cache.get(&(at / PAGE as u64)).ok_or("absent")?;
            buffer.copy_from_slice(&page);
            Ok(())
        })
    };
    Row {
        name: RANDOM.into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("mapped memcpy", raw),
            Contender::new("innerspace", file),
            Contender::new("innerspace, accessor", space),
            Contender::new("pread of a memfd", pread),
            Contender::new("quick_cache", cached),
        ],
        subject: "innerspace",
        baseline: "mapped memcpy",
        budget: Budget::Ratio(1.2),
    }
}

/// Copies every page, in order, into the same buffer, so that all contenders move the same bytes.
fn scan_row<'a>(plan: Plan, resident: &'a Resident) -> Row<'a> {
    let pages = plan.operations(80_000).min(resident.bytes / PAGE as u64);
    let bytes = pages * PAGE as u64;
    let raw = move || {
        let mut buffer = [0; PAGE];
        thread_time(pages, || {
            let mut sum = 0u64;
            for page in resident.raw.bytes()[..bytes as usize].chunks_exact(PAGE) {
                buffer.copy_from_slice(page);
                sum = sum.wrapping_add(u64::from(buffer[sum as usize % PAGE]));
            }
            Ok(sum)
        })
    };
    let scan = move || {
        let mut buffer = [0; PAGE];
        thread_time(pages, || {
            let mut sum = 0u64;
            resident.file.scan(0..bytes, |page| {
                buffer.copy_from_slice(page);
                sum = sum.wrapping_add(u64::from(buffer[sum as usize % PAGE]));
            })?;
            Ok(sum)
        })
    };
    Row {
        name: SCAN.into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("mapped memcpy", raw),
            Contender::new("innerspace", scan),
        ],
        subject: "innerspace",
        baseline: "mapped memcpy",
        budget: Budget::Ratio(1.2),
    }
}

/// Writes pages that neither the cache nor the store has: a mebibyte, page after page. The mebibyte
/// is then cut off outside the figures, so that both sides get their frames back warm.
pub(super) fn measure_writes(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let pages = plan.operations(64_000).min(256);
    let times = plan.operations(64_000).div_ceil(pages);
    let bytes = pages * PAGE as u64;
    let content = [0x5a; PAGE];
    let memory = memory(bytes + bytes / 16 + 8 * MIB)?;
    let tmpfs: File = memory_file()?;
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(MemoryStore::new())?;
    let mut region = Region::anonymous(bytes as usize, HostPages::Huge)?;
    let contenders = vec![
        Contender::new("tmpfs pwrite", || {
            summed(times, || {
                let sample = thread_time(pages, || {
                    for page in 0..pages {
                        tmpfs.write_all_at(&content, page * PAGE as u64)?;
                    }
                    Ok(())
                });
                tmpfs.set_len(0)?;
                sample
            })
        }),
        Contender::new("innerspace", || {
            summed(times, || {
                let sample = thread_time(pages, || {
                    for page in 0..pages {
                        file.write_at(&content, page * PAGE as u64)?;
                    }
                    Ok(())
                });
                file.set_len(0)?;
                sample
            })
        }),
        Contender::new("memcpy", || {
            summed(times, || {
                thread_time(pages, || {
                    for page in region.bytes_mut().chunks_exact_mut(PAGE) {
                        page.copy_from_slice(&content);
                    }
                    Ok(())
                })
            })
        }),
    ];
    let row = Row {
        name: "write a new page of a file".into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "tmpfs pwrite",
        budget: Budget::Faster(5.0),
    };
    rows.add(row)?;
    Ok(())
}
