//! Reads and writes that miss, on a real disk with cold caches: the library's own ways beside the
//! kernel's, and beside a bare io_uring loop with direct I/O, which is the disk's own limit.
//!
//! | file | what |
//! |---|---|
//! | `place` | the folder, the file in it, the kernel's caches, the memory cgroup |
//! | `child` | one run of one contender, in a process of its own |
//! | `uring` | the bare loop |
//!
//! Each run is a process of its own, so that its time, its processor time and the bytes that it had
//! the disk read are its own; contenders take turns, and caches are dropped before each run.
//! Processor time of the kernel's own threads is not seen. The kernel's contenders (pread, mmap) run
//! in a memory cgroup of the limit where one can be made.

pub(crate) mod child;
mod place;
mod uring;

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde::{Deserialize, Serialize};

use child::{Contender, Row};
use place::{Cgroup, Place};

/// A run that takes longer is not repeated.
const LONG: f64 = 10.0;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A folder on a disk, for a file of the size; the default is the folder for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The size of the file, as 2GiB or 512MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// The memory that each contender may use
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "128MiB")]
    limit: u64,
    /// Measure only rows whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// How often each contender is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// One round on a file of 256 MiB
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A number of bytes with a unit: B, KiB, MiB or GiB.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err("a size is a number with KiB, MiB or GiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    let bytes = number.checked_mul(unit).ok_or("too large")?;
    match bytes > 0 && bytes % 4096 == 0 {
        true => Ok(bytes),
        false => Err("a size is a multiple of 4 KiB, and not 0".to_owned()),
    }
}

/// What one run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Seconds on the clock.
    seconds: f64,
    /// Seconds of the process's processor time, user and system.
    cpu: f64,
    /// Bytes that the disk read for it.
    read_bytes: u64,
    /// What was done: bytes, or operations.
    work: u64,
    /// Pages of the file in the kernel's page cache afterwards.
    #[serde(default)]
    cached_pages: u64,
}

/// The figures of one contender of a row: the run of the median time.
#[derive(Debug, Serialize)]
struct Figures {
    contender: &'static str,
    runs: Vec<Run>,
    /// It is held to the limit.
    limited: bool,
}

impl Figures {
    fn median(&self) -> &Run {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        runs[runs.len() / 2]
    }

    fn rate(&self) -> f64 {
        self.median().work as f64 / self.median().seconds
    }

    /// Processor time of one piece of work, in microseconds.
    fn cpu_each(&self) -> f64 {
        self.median().cpu * 1e6 / self.median().work as f64
    }
}

#[derive(Debug, Serialize)]
struct RowFigures {
    row: &'static str,
    contenders: Vec<Figures>,
    aims: Vec<(String, bool)>,
}

/// Measures, prints, and writes the figures.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let rows: Vec<&Row> = (child::ROWS.iter())
        .filter(|row| row.name.contains(&arguments.only))
        .collect();
    if rows.is_empty() {
        let only = &arguments.only;
        return Err(format!("no row has a name that contains {only:?}").into());
    }
    if arguments.limit < innerspace::MINIMUM_LIMIT {
        return Err(format!("a limit is at least {} bytes", innerspace::MINIMUM_LIMIT).into());
    }
    let default = if arguments.quick { 256 << 20 } else { 2 << 30 };
    let size = arguments.size.unwrap_or(default);
    let rounds = if arguments.quick { 1 } else { arguments.rounds };
    let folder = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    place::on_interrupt(&INTERRUPTED)?;
    let place = Place::make(&folder, size)?;
    let cgroup = Cgroup::make(arguments.limit);
    println!(
        "{}: {} MiB, limit {} MiB, median of {rounds}; {}; {}",
        folder.display(),
        size >> 20,
        arguments.limit >> 20,
        place.caches(),
        match &cgroup {
            Ok(_) => "pread and mmap are in a memory cgroup of the limit".to_owned(),
            Err(why) => format!("pread and mmap are not held to the limit ({why})"),
        }
    );
    let mut figures = Vec::new();
    for row in rows {
        let measured = measure(row, arguments, &place, cgroup.as_ref().ok(), rounds)?;
        print!("{}", table(row, &measured));
        figures.push(measured);
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_vec_pretty(&figures)?;
        std::fs::write(path, text).map_err(|error| format!("{path:?}: {error}"))?;
    }
    Ok(())
}

fn measure(
    row: &Row,
    arguments: &Arguments,
    place: &Place,
    cgroup: Option<&Cgroup>,
    rounds: u32,
) -> Result<RowFigures, Box<dyn Error>> {
    let mut contenders: Vec<Figures> = (row.contenders.iter())
        .map(|contender| Figures {
            contender: contender.name(),
            runs: Vec::new(),
            limited: !contender.is_kernels() || cgroup.is_some(),
        })
        .collect();
    for _ in 0..rounds {
        for (contender, figures) in row.contenders.iter().zip(&mut contenders) {
            if figures.runs.iter().any(|run| run.seconds > LONG) {
                continue;
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            place.drop_caches();
            let mut run = one_run(row, *contender, arguments, place, cgroup)?;
            run.cached_pages = place.cached_pages();
            figures.runs.push(run);
        }
    }
    let aims = row.aims(&contenders);
    Ok(RowFigures {
        row: row.name,
        contenders,
        aims,
    })
}

fn one_run(
    row: &Row,
    contender: Contender,
    arguments: &Arguments,
    place: &Place,
    cgroup: Option<&Cgroup>,
) -> Result<Run, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("disk-child").args(["--row", row.name]);
    command.args(["--contender", contender.name()]);
    command.arg("--path").arg(place.path());
    command.args(["--limit", &arguments.limit.to_string()]);
    if arguments.quick {
        command.arg("--quick");
    }
    if let (true, Some(cgroup)) = (contender.is_kernels(), cgroup) {
        command.arg("--cgroup").arg(cgroup.procs());
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{} of {:?}: {}", contender.name(), row.name, output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl Row {
    /// What the library's contenders are to reach, and whether they do.
    fn aims(&self, contenders: &[Figures]) -> Vec<(String, bool)> {
        let of = |name| contenders.iter().find(|figures| figures.contender == name);
        let mut aims = Vec::new();
        for ours in contenders
            .iter()
            .filter(|one| Contender::is_ours_by_name(one.contender))
        {
            let theirs = (contenders.iter())
                .filter(|one| !Contender::is_ours_by_name(one.contender))
                .map(Figures::rate)
                .fold(0.0, f64::max);
            let name = ours.contender;
            if self.name.starts_with("scan") {
                let share = ours.rate() / theirs;
                aims.push((
                    format!("{name}: {share:.2} of the best (0.9)"),
                    share >= 0.9,
                ));
                if let Some(pread) = of("pread") {
                    let share = ours.cpu_each() / pread.cpu_each();
                    aims.push((
                        format!("{name}: {share:.2} of pread's CPU (1.2)"),
                        share <= 1.2,
                    ));
                }
            } else if self.name.starts_with("random")
                && let Some(bare) = of("io_uring")
            {
                let share = ours.rate() / bare.rate();
                aims.push((
                    format!("{name}: {share:.2} of io_uring (0.95)"),
                    share >= 0.95,
                ));
                if let Some(pread) = of("pread") {
                    let share = ours.cpu_each() / pread.cpu_each();
                    aims.push((
                        format!("{name}: {share:.2} of pread's CPU (1)"),
                        share <= 1.0,
                    ));
                }
            } else if self.name.contains("skewed")
                && let Some(mmap) = of("mmap")
            {
                let times = ours.rate() / mmap.rate();
                aims.push((format!("{name}: {times:.2} times mmap (1.3)"), times >= 1.3));
            }
        }
        aims
    }
}

fn table(row: &Row, figures: &RowFigures) -> String {
    let mut text = format!("\n{}\n", row.name);
    for one in &figures.contenders {
        let run = one.median();
        let rate = match row.is_bytes {
            true => format!("{:>7.0} MB/s", one.rate() / 1e6),
            false => format!("{:>7.0} /s", one.rate()),
        };
        let cpu = match row.is_bytes {
            true => format!("{:.2} s CPU", run.cpu),
            false => format!("{:.1} us CPU each", one.cpu_each()),
        };
        let _ = writeln!(
            text,
            "  {:<9} {:>7.2} s {rate} {cpu:>18}  {:>6} MiB read, {} pages cached{}",
            one.contender,
            run.seconds,
            run.read_bytes >> 20,
            run.cached_pages,
            if one.limited {
                ""
            } else {
                ", not held to the limit"
            },
        );
    }
    for (aim, met) in &figures.aims {
        let met = if *met { "met" } else { "missed" };
        let _ = writeln!(text, "  {met}: {aim}");
    }
    text
}
