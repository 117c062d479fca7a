//! The contenders of station 2: four ways to read a file from end to end, each in a process of its
//! own, so that its memory can be measured. All but the last are given the same budget.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use innerspace::store::kernel_cached_pages;
use innerspace::{MIB, Memory, PAGE_SIZE};

use super::{Child, Result, Tour, same_bytes};
use crate::data::Checksum;
use crate::kernel::{self, Mapping};

/// The most bytes of the file that the contenders read.
pub(super) const MOST_BYTES: u64 = 512 * MIB;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Contender {
    /// A mapping in a space of this library.
    Innerspace,
    /// Plain reads to a buffer as large as the budget.
    Read,
    /// mmap, which gives the pages back after every `limit` bytes.
    WindowedMmap,
    /// mmap without further measures.
    Mmap,
}

#[derive(Debug, Args)]
pub(crate) struct ContenderArguments {
    contender: Contender,
    /// The budget in bytes
    limit: u64,
    /// How much of the file to read
    len: u64,
    file: PathBuf,
}

/// The result of a contender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) checksum: Checksum,
    pub(super) took: Duration,
    /// Growth of the process's peak memory, in bytes; `None` if the system does not report it.
    pub(super) grown: Option<u64>,
    /// Growth of the kernel's cache of the file, in bytes; `None` if the system does not report it.
    pub(super) left: Option<u64>,
    /// The greatest usage that the library counted, in bytes; 0 for the others.
    pub(super) counted: u64,
    /// Whether no page of the file was in the kernel's cache at the beginning, as far as the system
    /// reports it.
    pub(super) cold: bool,
}

impl Contender {
    /// Runs the contender on the first `len` bytes of the tour's file, in a new process.
    pub(super) fn run(self, tour: &Tour, len: u64) -> Result<Run> {
        let contender = self.to_possible_value().expect("none is skipped");
        let mut command = Child::command("contender")?;
        let (limit, len) = (tour.limit.to_string(), len.to_string());
        command.args([contender.get_name(), &limit, &len, "--"]);
        command.arg(&tour.file);
        let output = Child::output(command)?;
        if !output.status.success() {
            let name = contender.get_name();
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name} failed ({}): {}", output.status, text.trim()).into());
        }
        Run::parse(&String::from_utf8(output.stdout)?)
            .ok_or_else(|| "a contender did not say how it did".into())
    }
}

impl Run {
    /// Combines two runs of the same contender: the shorter time, and the worse of everything else.
    pub(super) fn with_better_time(self, other: Run) -> Run {
        Run {
            // A checksum that differs between the runs must not be lost.
            checksum: if self.checksum == other.checksum {
                self.checksum
            } else {
                Checksum(0)
            },
            took: self.took.min(other.took),
            grown: self.grown.max(other.grown),
            left: self.left.max(other.left),
            counted: self.counted.max(other.counted),
            cold: self.cold && other.cold,
        }
    }

    /// Returns the line that the process prints.
    fn to_line(self) -> String {
        let [grown, left] = [self.grown, self.left].map(|bytes| bytes.map_or(-1, u64::cast_signed));
        let (sum, micros) = (self.checksum.0, self.took.as_micros());
        let cold = u8::from(self.cold);
        format!("{sum} {micros} {grown} {left} {} {cold}", self.counted)
    }

    fn parse(line: &str) -> Option<Run> {
        let fields: Vec<i128> = line
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let [checksum, micros, grown, left, counted, cold] = fields[..] else {
            return None;
        };
        Some(Run {
            checksum: Checksum(checksum.try_into().ok()?),
            took: Duration::from_micros(micros.try_into().ok()?),
            grown: grown.try_into().ok(),
            left: left.try_into().ok(),
            counted: counted.try_into().ok()?,
            cold: cold == 1,
        })
    }
}

/// Runs in a process of its own: reads the file in one of the ways and prints the result.
pub(crate) fn contend(arguments: &ContenderArguments) -> Result<()> {
    let ContenderArguments {
        contender,
        file: path,
        limit,
        len,
    } = arguments;
    let (limit, len) = (*limit, *len);
    let file = File::open(path).map_err(|error| format!("{path:?}: {error}"))?;
    kernel::drop_cache(&file)?;
    let cached = || cached_bytes(path);
    let (cached_before, peak_before) = (cached(), kernel::peak_resident());
    let start = Instant::now();
    let mut counted = 0;
    let checksum = match contender {
        Contender::Innerspace => {
            let memory = Memory::with_limit(limit)?;
            let blocks = same_bytes::block_size(limit);
            let file = memory.file_options().block_size(blocks).open(path)?;
            let checksum = same_bytes::checksum_by_mapping(&memory, &file, len, |_| ())?;
            counted = memory.stats().peak;
            checksum
        }
        Contender::Read => read(&file, limit, len)?,
        Contender::WindowedMmap => map(&file, limit, len)?,
        Contender::Mmap => map(&file, len, len)?,
    };
    let run = Run {
        checksum,
        took: start.elapsed(),
        grown: growth(peak_before, kernel::peak_resident()),
        left: growth(cached_before, cached()),
        counted,
        cold: cached_before == Some(0),
    };
    println!("{}", run.to_line());
    Ok(())
}

fn growth(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

/// Returns how many bytes of a file the kernel has cached, or `None` if the system does not report
/// it.
fn cached_bytes(path: &Path) -> Option<u64> {
    kernel_cached_pages(path).ok().map(|pages| pages.bytes())
}

/// Reads with a buffer of `budget` bytes, or slightly more, so that it has whole words for the
/// checksum.
fn read(mut file: &File, budget: u64, len: u64) -> Result<Checksum> {
    let mut checksum = Checksum::new();
    let budget = budget.next_multiple_of(8);
    let mut buffer = Vec::with_capacity(budget.min(len) as usize);
    file.rewind()?;
    let mut left = len;
    while left > 0 {
        buffer.clear();
        file.by_ref()
            .take(budget.min(left))
            .read_to_end(&mut buffer)?;
        if buffer.is_empty() {
            return Err("the file was cut short".into());
        }
        checksum.add(&buffer);
        left -= buffer.len() as u64;
    }
    Ok(checksum)
}

/// Maps the file and gives the pages back after every `budget` bytes.
fn map(file: &File, budget: u64, len: u64) -> Result<Checksum> {
    let mut checksum = Checksum::new();
    if len == 0 {
        return Ok(checksum); // mmap(2) refuses to map nothing
    }
    let mapping = Mapping::new(file, len)?;
    let window = (budget as usize).next_multiple_of(PAGE_SIZE);
    for start in (0..len as usize).step_by(window) {
        let range = start..(start + window).min(len as usize);
        checksum.add(mapping.bytes(range.clone()));
        if range.len() < len as usize {
            mapping.drop_pages(range)?;
        }
    }
    Ok(checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_comes_back_from_its_line() {
        let run = Run {
            checksum: Checksum(u64::MAX),
            took: Duration::from_micros(12_345),
            grown: Some(1 << 40),
            left: None,
            counted: 7,
            cold: true,
        };
        let back = Run::parse(&run.to_line()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{run:?}"));
        assert!(Run::parse("1 2 three").is_none());
    }
}
