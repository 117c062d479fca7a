//! Station 4: two groups of one memory. While one group scans the whole file, the other keeps its
//! pages.

use innerspace::{ByteSize, Grouped, Memory, PAGE_SIZE, PagedFile};

use super::rivals::{self, Contender};
use super::{Findings, Result, Tour, same_bytes};

const PAGE: u64 = PAGE_SIZE as u64;

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let max = tour.limit / 4;
    // The working set is half of its group's limit, so that its index has room, too.
    let working_set = max / 2 / PAGE * PAGE;
    let path = tour.folder.join("tenant-a.bin");
    tour.write(&path, &vec![1; working_set as usize])?;

    let memory = Memory::with_limit(tour.limit)?;
    let a = memory.create_group("tenant-a", max)?;
    let b = memory.create_group("tenant-b", max)?;
    let set = memory.file_options().group(&a).open(&path)?;
    let options = memory
        .file_options()
        .group(&b)
        .block_size(same_bytes::block_size(max));
    let file = options.open(&tour.file)?;
    let evicted = scan_between_reads(tour, &set, &file)?;

    let scanned = ByteSize(file.len());
    let (pages, evicted_b) = (Grouped(working_set / PAGE), Grouped(file.stats().evicted));
    findings.here(format!(
        "tenant-b scanned {scanned} in {} and evicted {evicted_b} blocks of its own",
        ByteSize(b.stats().peak.bytes())
    ));
    findings.here(format!(
        "tenant-a has {pages} pages and a limit of {}: {} evicted, {} read again",
        ByteSize(max),
        evicted.blocks,
        evicted.reads
    ));
    if evicted.blocks + evicted.reads > 0 {
        findings.fail("the scan of tenant-b took pages of tenant-a");
    }
    for group in [&a, &b] {
        let stats = group.stats();
        if stats.peak.bytes() > max {
            findings.fail(format!("{} is over its limit: {stats}", stats.name));
        }
    }
    drop((file, set, memory));

    findings.kernel(scan_by_kernel(tour)?);
    Ok(findings)
}

/// Measures the effect of the same scan on the kernel's cache, which the whole process shares.
fn scan_by_kernel(tour: &Tour) -> Result<String> {
    let spinner = tour.report.spinner("reading the file in another process");
    let len = tour.size.min(rivals::MOST_BYTES);
    let run = Contender::Read.run(tour, len);
    spinner.finish_and_clear();
    let left = run?.left.map_or("what it read".to_owned(), |bytes| {
        ByteSize(bytes).to_string()
    });
    let scanned = ByteSize(len);
    Ok(format!(
        "a scan of {scanned} by read(2) left {left} in the one cache that all share"
    ))
}

/// How much of the working set was evicted.
struct Evicted {
    blocks: u64,
    reads: u64,
}

/// Reads the working set, scans the file, and reads the working set again.
fn scan_between_reads(tour: &Tour, set: &PagedFile, file: &PagedFile) -> Result<Evicted> {
    set.scan(.., |_| ())?;
    let before = set.stats();
    let bar = tour.report.bytes_bar("tenant-b scans", file.len());
    file.scan(.., |piece| bar.inc(piece.len() as u64))?;
    bar.finish_and_clear();
    set.scan(.., |_| ())?;
    let after = set.stats();
    Ok(Evicted {
        blocks: after.evicted - before.evicted,
        reads: after.store_reads - before.store_reads,
    })
}
