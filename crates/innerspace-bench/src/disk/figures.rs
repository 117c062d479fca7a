//! Medians, ratios and aims of a row, as text and for JSON.

use std::fmt;

use serde::Serialize;

use super::child::Taken;
use super::rows::{Aims, Contender, Row};

/// One run of a contender.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    #[serde(flatten)]
    pub(super) taken: Taken,
    /// The number of pages of the file in the kernel's page cache after the run; `None` if the
    /// kernel does not report it.
    pub(super) kernel_cached_pages: Option<u64>,
}

/// All runs of one contender.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) contender: Contender,
    pub(super) runs: Vec<Run>,
    pub(super) failure: Option<String>,
    /// The reason why the contender was not held to the limit.
    pub(super) unlimited: Option<String>,
}

/// A contender's figures in a row, as the JSON has them: medians, unless the name says otherwise.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    contender: &'static str,
    wall_seconds: Option<f64>,
    wall_seconds_min: Option<f64>,
    wall_seconds_max: Option<f64>,
    rate: Option<f64>,
    cpu_seconds: Option<f64>,
    cpu_microseconds_an_operation: Option<f64>,
    of_best_other: Option<f64>,
    of_io_uring: Option<f64>,
    read_bytes: Option<f64>,
    written_bytes: Option<f64>,
    kernel_cached_pages: Option<f64>,
    failure: Option<String>,
    not_held_to_the_limit: Option<String>,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Aim {
    text: String,
    value: f64,
    met: bool,
}

/// A row as it is printed and written to the JSON.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    name: String,
    rate_unit: &'static str,
    operations: Option<u64>,
    bytes: u64,
    contenders: Vec<Figures>,
    aims: Vec<Aim>,
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl Measured {
    pub(super) fn new(row: &Row, all: Vec<Runs>) -> Measured {
        let operations = row.work.operations();
        let amount = operations.map_or(row.bytes as f64 / 1e6, |count| count as f64);
        let wall = |of: &Runs| median(of.runs.iter().map(|run| run.taken.wall_seconds));
        let rates: Vec<_> = all
            .iter()
            .map(|of| (of.contender, wall(of).map(|wall| amount / wall)))
            .collect();
        let best_other = |of: Contender| {
            let others = rates
                .iter()
                .filter(|(other, _)| *other != of && !(of.is_ours() && other.is_ours()));
            others.filter_map(|(_, rate)| *rate).max_by(f64::total_cmp)
        };
        let io_uring = rates
            .iter()
            .find(|(contender, _)| *contender == Contender::IoUring)
            .and_then(|(_, rate)| *rate);
        let mut contenders = Vec::new();
        for (of, (contender, rate)) in all.into_iter().zip(&rates) {
            let of_all = |figure: fn(&Run) -> Option<u64>| {
                median(of.runs.iter().filter_map(figure).map(|value| value as f64))
            };
            let walls = || of.runs.iter().map(|run| run.taken.wall_seconds);
            let cpu = median(of.runs.iter().map(|run| run.taken.cpu_seconds));
            contenders.push(Figures {
                contender: contender.name(),
                wall_seconds: wall(&of),
                wall_seconds_min: walls().min_by(f64::total_cmp),
                wall_seconds_max: walls().max_by(f64::total_cmp),
                rate: *rate,
                cpu_seconds: cpu,
                cpu_microseconds_an_operation: operations
                    .and_then(|count| Some(cpu? * 1e6 / count as f64)),
                of_best_other: best_other(*contender).and_then(|best| Some((*rate)? / best)),
                of_io_uring: io_uring.and_then(|best| Some((*rate)? / best)),
                read_bytes: of_all(|run| run.taken.read_bytes),
                written_bytes: of_all(|run| run.taken.written_bytes),
                kernel_cached_pages: of_all(|run| run.kernel_cached_pages),
                failure: of.failure,
                not_held_to_the_limit: of.unlimited,
                runs: of.runs,
            });
        }
        let mut measured = Measured {
            name: row.name.clone(),
            rate_unit: match operations {
                Some(_) => "operations/s",
                None => "MB/s",
            },
            operations,
            bytes: row.bytes,
            contenders,
            aims: Vec::new(),
        };
        for contender in row.contenders.iter().filter(|of| of.is_ours()) {
            let aims = measured.aims_of(row.aims, contender.name());
            measured.aims.extend(aims);
        }
        measured
    }

    pub(super) fn failures(&self) -> usize {
        let failed = self.contenders.iter().filter(|of| of.failure.is_some());
        failed.count()
    }

    fn of(&self, contender: Contender) -> Option<&Figures> {
        let name = contender.name();
        self.contenders.iter().find(|of| of.contender == name)
    }

    /// Returns the aims for a contender of the library, as far as there are figures for them.
    fn aims_of(&self, aims: Aims, name: &str) -> Vec<Aim> {
        let Some(ours) = self.contenders.iter().find(|of| of.contender == name) else {
            return Vec::new();
        };
        let pread_cpu = self.of(Contender::Pread).and_then(|of| of.cpu_seconds);
        let cpu = ours.cpu_seconds.and_then(|cpu| Some(cpu / pread_cpu?));
        let mmap = self.of(Contender::Mmap).and_then(|of| of.rate);
        let of_mmap = ours.rate.and_then(|rate| Some(rate / mmap?));
        let at_least = |least: f64, value: Option<f64>, of: &str| {
            value.map(|value| Aim {
                text: format!("{name}: at least {least:.2} {of}"),
                value,
                met: value >= least,
            })
        };
        let at_most = |most: f64| {
            cpu.map(|value| Aim {
                text: format!("{name}: at most {most:.2} of the CPU time of pread"),
                value,
                met: value <= most,
            })
        };
        let aims = match aims {
            Aims::Scan => [
                at_least(0.9, ours.of_best_other, "of the best other"),
                at_most(1.2),
            ],
            Aims::Random => [
                at_least(0.95, ours.of_io_uring, "of io_uring"),
                at_most(1.0),
            ],
            Aims::Skewed => [at_least(1.3, of_mmap, "times mmap"), None],
            Aims::None => [None, None],
        };
        aims.into_iter().flatten().collect()
    }
}

/// A figure with this many digits after the point, or "-".
struct Shown(Option<f64>, usize);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => f.pad(&format!("{value:.*}", self.1)),
            None => f.pad("-"),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{}\n  {:8} {:>7} {:>15} {:>12} {:>7} {:>9} {:>13} {:>11} {:>7} {:>8} {:>12}",
            self.name,
            "",
            "wall s",
            "from - to",
            self.rate_unit,
            "CPU s",
            "CPU us/op",
            "of best other",
            "of io_uring",
            "read MB",
            "wrote MB",
            "pages cached"
        )?;
        for of in &self.contenders {
            if let Some(failure) = &of.failure {
                writeln!(f, "  {:8} failed: {failure}", of.contender)?;
                continue;
            }
            write!(
                f,
                "  {:8} {:>7} {:>7}-{:>7} {:>12} {:>7} {:>9} {:>13} {:>11} {:>7} {:>8} {:>12}",
                of.contender,
                Shown(of.wall_seconds, 3),
                Shown(of.wall_seconds_min, 3),
                Shown(of.wall_seconds_max, 3),
                Shown(of.rate, 0),
                Shown(of.cpu_seconds, 3),
                Shown(of.cpu_microseconds_an_operation, 1),
                Shown(of.of_best_other, 2),
                Shown(of.of_io_uring, 2),
                Shown(of.read_bytes.map(|bytes| bytes / 1e6), 0),
                Shown(of.written_bytes.map(|bytes| bytes / 1e6), 0),
                Shown(of.kernel_cached_pages, 0),
            )?;
            match of.not_held_to_the_limit {
                Some(_) => writeln!(f, "  not held to the limit")?,
                None => writeln!(f)?,
            }
        }
        for aim in &self.aims {
            let end = match aim.met {
                true => "met",
                false => "MISSED",
            };
            writeln!(f, "  {}: {:.2}, {end}", aim.text, aim.value)?;
        }
        Ok(())
    }
}
