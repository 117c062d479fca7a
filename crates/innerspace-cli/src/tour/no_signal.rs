//! Station 3: a file is cut short while it is mapped. Here that is an error; with mmap the process
//! dies by SIGBUS.

use std::fs::File;
use std::path::Path;

use innerspace::{GIB, KIB, MIB, Map, Memory, space::FaultKind};

use super::{Child, Findings, Result, Tour};
use crate::kernel::{self, Mapping};

/// The file's first length: more than the smallest memory holds.
const LEN: u64 = 4 * MIB;
/// The file's length after the cut.
const SHORT: u64 = 512 * KIB;
/// The offset that is read after the cut.
const PAST: u64 = 3 * MIB;

const _: () = assert!(SHORT < PAST && PAST < LEN && LEN < GIB);

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let path = tour.folder.join("data.bin");
    tour.write(&path, &vec![7; LEN as usize])?;
    here(tour, &path, &mut findings)?;

    tour.write(&path, &vec![7; LEN as usize])?;
    let mut command = Child::command("cut-short")?;
    command.arg("--").arg(&path);
    let status = Child::output(command)?.status;
    match kernel::signal_of(status) {
        Some(signal) => findings.kernel(format!("a process that did the same with mmap: {signal}")),
        None => findings.kernel(format!("a process that did the same with mmap: {status}")),
    }
    Ok(findings)
}

fn here(tour: &Tour, path: &Path, findings: &mut Findings) -> Result<()> {
    let memory = Memory::with_limit(tour.limit)?;
    let file = memory.file_options().name("data.bin").open(path)?;
    let space = memory.create_space()?;
    let at = space.map(Map::file(&file))?;
    let mut accessor = space.accessor()?;
    let first: u64 = accessor.load(at)?;

    File::options().write(true).open(path)?.set_len(SHORT)?;

    match accessor.load::<u64>(at + PAST) {
        Ok(_) => findings.fail("bytes past the end could be loaded"),
        Err(fault) => {
            findings.here(space.explain(fault).to_string());
            if fault.kind() != FaultKind::PastEnd {
                findings.fail(format!(
                    "the error is of kind {:?}, not PastEnd",
                    fault.kind()
                ));
            }
        }
    }
    // The space continues to work: the rest of the file can be read.
    if accessor.load::<u64>(at)? != first {
        findings.fail("the first bytes of the file changed");
    }
    Ok(())
}

/// Runs in a process of its own: does the same as [`here`] with mmap, and does not survive it.
pub(crate) fn map_and_cut_short(path: &Path) -> Result<()> {
    kernel::leave_no_core();
    let file = File::options().read(true).write(true).open(path)?;
    let mapping = Mapping::new(&file, LEN)?;
    file.set_len(SHORT)?;
    let byte = mapping.bytes(0..LEN as usize)[PAST as usize];
    Err(format!("read {byte} past the end of the file").into())
}
