//! Many small databases under one limit, and one noisy tenant in a group of its own: three
//! stations, each with ordinary SQLite in the same case.

use std::path::PathBuf;

use clap::Args;
use innerspace::{ByteSize, Grouped, MIB, Memory, MemoryError};

use super::allow_files_for;
use super::contender::{Run, Side};
use super::database::{self, PAGE};
use crate::interrupt::temporary_folder;
use crate::report::{Findings, Report};
use crate::size;
use crate::stations::{Failure, Result, Station, run_all, sum};

#[derive(Debug, Args)]
pub(crate) struct TenantsArguments {
    /// The number of small databases
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    databases: u64,
    /// How much memory the library may use for all of them together
    #[arg(long, default_value = "32MiB", value_parser = size::parse)]
    limit: u64,
}

/// The accounts of a small database, a page each.
pub(super) const ROWS: u64 = 62;

/// The pages of a small database that stay: the first one, the root of the table, and the account
/// in use; and two for the library's own records of the file.
const HOT_PAGES: u64 = 5;

/// The most by which a process grows besides caches and connections.
const PROCESS: u64 = 8 * MIB;

/// The most memory of a connection of SQLite besides its page cache.
const CONNECTION: u64 = 192 * 1024;

/// The state that the stations share.
struct Demo {
    limit: u64,
    databases: u64,
    noisy_bytes: u64,
    here: Run,
    sqlite: Run,
}

const STATIONS: [Station<Demo>; 3] = [
    Station {
        name: "one limit",
        claim: "All databases share one limit, however many there are.",
        show: show_limit,
    },
    Station {
        name: "noisy tenant",
        claim: "A tenant that scans evicts nothing of the others.",
        show: show_noise,
    },
    Station {
        name: "right answers",
        claim: "Every tenant reads its own data.",
        show: show_answers,
    },
];

/// The account of a tenant that is in use all the time.
pub(super) fn hot_row(number: u64) -> u64 {
    1 + number * 7 % ROWS
}

/// The database of a tenant, or, for number 0, of the noisy one.
pub(super) fn path(folder: &std::path::Path, number: u64) -> PathBuf {
    folder.join(format!("t{number}.db"))
}

/// Runs all stations. Returns an error unless all are verified.
pub(super) fn run(arguments: &TenantsArguments) -> Result<(), Failure> {
    let (databases, limit) = (arguments.databases, arguments.limit);
    let memory = Memory::with_limit(limit).map_err(|error| match error {
        MemoryError::System { .. } => Failure::Run(error.into()),
        wrong => Failure::Arguments(wrong.to_string()),
    })?;
    drop(memory);
    let needed = (databases * HOT_PAGES * PAGE * 3 / 2).max(MIB);
    if limit < needed {
        return Err(Failure::Arguments(format!(
            "{} databases whose {HOT_PAGES} pages in use are to stay need --limit {} or more",
            Grouped(databases),
            ByteSize(needed)
        )));
    }
    allow_files_for(databases + 1, "databases")?;
    let folder = temporary_folder("innerspace-demo-").map_err(Failure::Run)?;
    let report = Report::new();
    let noisy_bytes = 4 * limit;
    report.title(format_args!(
        "{} databases of {}, one of {}, with a limit of {}",
        Grouped(databases),
        ByteSize((ROWS + 2) * PAGE),
        ByteSize(noisy_bytes),
        ByteSize(limit)
    ))?;
    let prepared = (|| -> Result<()> {
        let bar = report.count_bar("ordinary SQLite writes", databases + 1);
        database::make(
            &path(folder.path(), 0),
            noisy_bytes / PAGE,
            0,
            "DELETE",
            |_| (),
        )?;
        for number in 1..=databases {
            bar.inc(1);
            database::make(&path(folder.path(), number), ROWS, number, "DELETE", |_| ())?;
        }
        bar.finish_and_clear();
        Ok(())
    })();
    prepared.map_err(|error| {
        Failure::Run(format!("cannot make the databases in {:?}: {error}", folder.path()).into())
    })?;
    let measure = |side: Side, doing| {
        let spinner = report.spinner(doing);
        let run = side.run(folder.path(), limit, databases);
        spinner.finish_and_clear();
        run.map_err(Failure::Run)
    };
    let mut demo = Demo {
        limit,
        databases,
        noisy_bytes,
        here: measure(Side::Innerspace, "tenants in Innerspace")?,
        sqlite: measure(Side::Sqlite, "tenants in ordinary SQLite")?,
    };
    let verified = run_all(report, &STATIONS, &mut demo)?;
    sum(report, verified, STATIONS.len())
}

/// A size that the system may not report.
fn size_or_unknown(bytes: Option<u64>) -> String {
    bytes.map_or("not told".to_owned(), |bytes| ByteSize(bytes).to_string())
}

fn show_limit(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let (here, sqlite, limit) = (&demo.here, &demo.sqlite, ByteSize(demo.limit));
    findings.here(format!(
        "counted by the library: {} at the peak, of {limit}",
        ByteSize(here.counted)
    ));
    let memory = |run: &Run| {
        format!(
            "the process grew by {} for {} connections, and the kernel's cache by {}",
            size_or_unknown(run.grown),
            Grouped(demo.databases + 1),
            size_or_unknown(run.kernel_cached)
        )
    };
    findings.here(memory(here));
    findings.sqlite(memory(sqlite));
    findings.sqlite(format!(
        "its page caches may grow to 2.0 MiB each, {} in all",
        ByteSize((demo.databases + 1) * 2 * MIB)
    ));
    if here.counted > demo.limit {
        findings.fail(format!("the count is over the limit of {limit}"));
    }
    let most = here.counted + (demo.databases + 1) * CONNECTION + PROCESS;
    if here.grown.is_some_and(|grown| grown > most) {
        findings.fail("the process grew by more than the limit and its connections");
    }
    findings.here(
        "the first page of a database stays there: it shows what other processes have changed",
    );
    if here
        .kernel_cached
        .is_some_and(|left| left > (demo.databases + 1) * PAGE + MIB)
    {
        findings.fail("the kernel's cache has kept more of the databases than their first pages");
    }
    Ok(findings)
}

fn show_noise(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let (here, sqlite) = (&demo.here, &demo.sqlite);
    let latency = |run: &Run| {
        format!(
            "a query of the others: {} before, {} beside a scan of {} (median, 99 of 100)",
            run.before,
            run.beside,
            ByteSize(demo.noisy_bytes)
        )
    };
    findings.here(latency(here));
    findings.here(format!(
        "the noisy tenant has a group of {}: {} at its peak; it evicted {} of its own and {} of \
         the others",
        ByteSize(here.noisy_max),
        ByteSize(here.noisy_peak),
        ByteSize(here.noisy_evicted),
        ByteSize(here.others_evicted)
    ));
    findings.sqlite(latency(sqlite));
    findings.sqlite("the scan and the others share the kernel's cache, which has no limit");
    if here.others_evicted > 0 {
        findings.fail("the scan has evicted pages of the others");
    }
    if here.noisy_peak > here.noisy_max {
        findings.fail("the noisy tenant was over its limit");
    }
    if here.noisy_evicted == 0 {
        findings.fail("the noisy tenant was not noisy");
    }
    Ok(findings)
}

fn show_answers(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let answers = |run: &Run| {
        format!(
            "{} queries, {} wrong answers",
            Grouped(run.queries),
            Grouped(run.wrong)
        )
    };
    findings.here(answers(&demo.here));
    findings.sqlite(answers(&demo.sqlite));
    if demo.here.wrong > 0 {
        findings.fail("wrong answers");
    }
    Ok(findings)
}
