//! Station 1: a checksum through a mapping equals that of plain reads, and a private mapping keeps
//! its stores to itself.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::Instant;

use innerspace::{ByteSize, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile};

use super::{Findings, Result, Tour};
use crate::data::Checksum;

/// The number of bytes read at a time.
const PIECE: usize = 64 * KIB as usize;

/// The most bytes that are changed through a private mapping.
const MOST_STORES: u64 = 64;

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let memory = Memory::with_limit(tour.limit)?;
    let blocks = block_size(tour.limit);
    let file = memory.file_options().block_size(blocks).open(&tour.file)?;
    let size = ByteSize(file.len());

    let bar = tour.report.bytes_bar("through a mapping", file.len());
    let start = Instant::now();
    let mapped = checksum_by_mapping(&memory, &file, file.len(), |bytes| bar.inc(bytes))?;
    let took = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    findings.here(format!(
        "checksum {mapped} of {size} through a mapping, in {took:.2} s"
    ));

    let stores = store_privately(&memory, &file, &tour.plain_file()?, &mut findings)?;
    findings.here(format!(
        "{stores} stores to a private mapping, seen there and not in the file"
    ));

    let bar = tour.report.bytes_bar("by plain reads", file.len());
    let start = Instant::now();
    let (plain, read) = checksum_by_reading(&tour.plain_file()?, |bytes| bar.inc(bytes))
        .map_err(|error| format!("{}: read(2) failed: {error}", tour.name))?;
    let took = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    findings.kernel(format!("checksum {plain} by read(2), in {took:.2} s"));
    if read != file.len() {
        let read = ByteSize(read);
        findings.fail(format!(
            "read(2) gave {read}, and the file system says that the file has {size}"
        ));
    } else if mapped != plain {
        findings.fail("the checksums differ");
    }
    Ok(findings)
}

/// Returns the block size for a file that is read from end to end within `limit` bytes. Larger
/// blocks mean fewer and larger reads of the store; a memory should have room for a few hundred of
/// them.
pub(super) fn block_size(limit: u64) -> u64 {
    (limit / 256).clamp(4 * KIB, 64 * KIB).next_power_of_two()
}

/// Maps the first `len` bytes of the file window by window and reads them all.
///
/// A single mapping of everything also works, as long as its page tables fit in the limit: they
/// take a 512th of the range used. Windows of 16 times the limit keep them below a 32nd of the
/// limit, however large the file is.
pub(super) fn checksum_by_mapping(
    memory: &Memory,
    file: &PagedFile,
    len: u64,
    progress: impl Fn(u64),
) -> Result<Checksum> {
    let space = memory.create_space()?;
    let mut accessor = space.accessor()?;
    let mut checksum = Checksum::new();
    let mut buffer = vec![0; PIECE];
    let window = (16 * memory.limit()).next_multiple_of(2 * MIB);
    let mut start = 0;
    while start < len {
        let end = len.min(start.saturating_add(window));
        let at = space.map(Map::file(file).range(start..end))?;
        for offset in (0..end - start).step_by(PIECE) {
            let piece = &mut buffer[..(PIECE as u64).min(end - start - offset) as usize];
            // A fault is a small value; the space can explain it.
            accessor
                .read(at + offset, piece)
                .map_err(|fault| space.explain(fault))?;
            checksum.add(piece);
            progress(piece.len() as u64);
        }
        space.unmap(at, end - start)?;
        start = end;
    }
    Ok(checksum)
}

/// Reads the file to its end. Returns the checksum and the number of bytes.
fn checksum_by_reading(mut file: &File, progress: impl Fn(u64)) -> io::Result<(Checksum, u64)> {
    let mut checksum = Checksum::new();
    let mut read = 0;
    let mut buffer = Vec::with_capacity(PIECE);
    loop {
        buffer.clear();
        file.by_ref().take(PIECE as u64).read_to_end(&mut buffer)?;
        checksum.add(&buffer);
        read += buffer.len() as u64;
        progress(buffer.len() as u64);
        if buffer.len() < PIECE {
            return Ok((checksum, read));
        }
    }
}

/// Changes single bytes all over the file in a private mapping, and checks both afterwards. Returns
/// how many it changed.
fn store_privately(
    memory: &Memory,
    file: &PagedFile,
    mut plain: &File,
    findings: &mut Findings,
) -> Result<u64> {
    if file.is_empty() {
        return Ok(0);
    }
    let space = memory.create_space()?;
    let at = space.map(Map::file(file).private().writable())?;
    let mut accessor = space.accessor()?;
    // Until it is unmapped, each store takes a page of its own, and one for the table that leads to
    // it.
    let room = memory.limit() / (16 * PAGE_SIZE as u64);
    let stores = MOST_STORES.min(file.len()).min(room);
    let step = file.len() / stores;
    let mut old = Vec::new();
    for offset in (0..stores).map(|i| i * step) {
        let byte: u8 = accessor
            .load(at + offset)
            .map_err(|fault| space.explain(fault))?;
        accessor
            .store(at + offset, !byte)
            .map_err(|fault| space.explain(fault))?;
        old.push((offset, byte));
    }
    for (offset, byte) in old {
        let mapped: u8 = accessor
            .load(at + offset)
            .map_err(|fault| space.explain(fault))?;
        let mut in_file = [0];
        plain.seek(SeekFrom::Start(offset))?;
        plain.read_exact(&mut in_file)?;
        if mapped != !byte {
            findings.fail(format!("a private store at {offset} is gone"));
        }
        if in_file != [byte] {
            findings.fail(format!("a private store at {offset} reached the file"));
        }
    }
    Ok(stores)
}
