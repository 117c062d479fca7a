//! Station 2: the whole file is read through a memory of the given limit, and both the process and
//! the kernel's cache stay small.

use innerspace::{ByteSize, KIB, MIB};

use super::rivals::{Contender, MOST_BYTES, Run};
use super::{Findings, Result, Tour};

/// The most by which a process grows in addition to the counted memory: code that is read in,
/// stacks, buffers.
const PROCESS: u64 = 4 * MIB;

/// Bytes of the file that may enter the kernel's cache during the run because other programs read
/// it (a backup, an indexer).
const STRAY: u64 = 256 * KIB;

/// The number of runs of each contender. The better run counts, because the first one also wakes
/// the disk up.
const ROUNDS: usize = 2;

pub(super) fn show(tour: &Tour) -> Result<Findings> {
    let mut findings = Findings::default();
    let len = tour.size.min(MOST_BYTES);
    let budget = ByteSize(tour.limit.min(len));
    let contenders = [
        ("mapping in Innerspace".to_owned(), Contender::Innerspace),
        (format!("read(2), buffer of {budget}"), Contender::Read),
        (
            format!("mmap, MADV_DONTNEED every {budget}"),
            Contender::WindowedMmap,
        ),
        ("mmap, no limit".to_owned(), Contender::Mmap),
    ];
    let bar = tour.report.spinner("reading the file in other processes");
    let mut runs: Vec<Run> = Vec::new();
    for round in 0..ROUNDS {
        for (i, (_, contender)) in contenders.iter().enumerate() {
            let run = contender.run(tour, len)?;
            match round {
                0 => runs.push(run),
                _ => runs[i] = runs[i].with_better_time(run),
            }
        }
    }
    bar.finish_and_clear();
    print(&mut findings, len, &contenders, &runs);
    judge(tour, &runs, &mut findings);
    Ok(findings)
}

/// Prints a row for each contender, with a title above the library's.
fn print(findings: &mut Findings, len: u64, contenders: &[(String, Contender)], runs: &[Run]) {
    let cold = match runs.iter().all(|run| run.cold) {
        true => ", cold",
        false => "",
    };
    let title = format!("{}{cold}, in processes of their own", ByteSize(len));
    findings.here(format!(
        "{title:<42}{:>8}{:>11}{:>14}",
        "time", "memory", "kernel cache"
    ));
    for ((name, contender), run) in contenders.iter().zip(runs) {
        let size = |bytes: Option<u64>| match bytes {
            Some(bytes) => ByteSize(bytes).to_string(),
            None => "not told".to_owned(),
        };
        let (seconds, grown, left) = (run.took.as_secs_f64(), size(run.grown), size(run.left));
        let row = format!("{name:<42}{seconds:>6.2} s{grown:>11}{left:>14}");
        match contender {
            Contender::Innerspace => findings.here(row),
            _ => findings.kernel(row),
        }
    }
}

fn judge(tour: &Tour, runs: &[Run], findings: &mut Findings) {
    let (ours, limit) = (&runs[0], ByteSize(tour.limit));
    let counted = ByteSize(ours.counted);
    findings.here(format!(
        "counted by the library: {counted} at the peak, of {limit}"
    ));
    if ours.counted > tour.limit {
        findings.fail(format!("counted {counted} with a limit of {limit}"));
    }
    if runs.iter().any(|run| run.checksum != ours.checksum) {
        findings.fail("the contenders have different checksums");
    }
    if let Some(grown) = ours.grown.filter(|&grown| grown > tour.limit + PROCESS) {
        findings.fail(format!(
            "the process grew by {} with a limit of {limit}",
            ByteSize(grown)
        ));
    }
    if let Some(left) = ours.left.filter(|&left| left > STRAY) {
        findings.fail(format!(
            "{} were left in the kernel's cache",
            ByteSize(left)
        ));
    }
}
