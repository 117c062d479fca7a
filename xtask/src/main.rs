//! The project's own commands, `cargo xtask NAME`.
//!
//! What each command runs, in which build mode and in which target directory, is written here once;
//! the CI script, CONTRIBUTING.md and README.md name these commands and nothing else.
//!
//! - [`check`]: the plain suite, lints, documentation, and the other platforms.
//! - [`models`]: loom, shuttle, ThreadSanitizer, Miri.
//! - [`mutants`]: puts known bugs back and requires that their tests notice.
//! - [`harness`], [`process`]: building test binaries and running commands, shared by the rest.

mod check;
mod harness;
mod models;
mod mutants;
mod process;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use lexopt::prelude::*;

const HELP: &str = "\
cargo xtask COMMAND

  check              everything a developer checks before a commit: lint, test, cross
  lint               compiler version, format, clippy and documentation, warnings denied
  test               the test suite: unit, integration and documentation tests, the first two once
                     more without membarrier, then every example
  cross              cargo check of the library for the other platforms
  loom [FILTER]      the loom models whose names contain FILTER (default: all)
  shuttle [FILTER]   the shuttle models whose names contain FILTER (default: all)
  tsan [FILTER]      the suite under ThreadSanitizer (needs the component rust-src)
  miri [FILTER]      the parts that can go under Miri (needs a nightly toolchain)
  mutants [ID ...]   puts each known bug back and requires that its test fails
      --list         only lists the mutants and their tests
      --also-pass    requires as well that the same tests pass without the bug
      --budget SECS  starts no further mutant after this time
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut parser = lexopt::Parser::from_env();
    let mut words: Vec<String> = Vec::new();
    let mut options = mutants::Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Value(word) => words.push(word.string()?),
            Long("help") | Short('h') => words.insert(0, "help".to_owned()),
            Long("list") => options.list = mutants::List::Only,
            Long("also-pass") => options.unchanged = mutants::Unchanged::MustPass,
            Long("budget") => {
                options.budget = Some(Duration::from_secs(parser.value()?.parse()?));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    let Some((command, rest)) = words.split_first() else {
        bail!("no command given\n\n{HELP}")
    };
    if options != mutants::Options::default() && command != "mutants" {
        bail!("--list, --also-pass and --budget belong to mutants");
    }
    let filter = || match rest {
        [] => Ok(None),
        [one] => Ok(Some(one.as_str())),
        _ => bail!("{command} takes at most one filter"),
    };
    if ["check", "lint", "test", "cross"].contains(&command.as_str()) && !rest.is_empty() {
        bail!("{command} takes no arguments");
    }
    match command.as_str() {
        "help" => {
            print!("{HELP}");
            Ok(())
        }
        "check" => check::all(),
        "lint" => check::lint(),
        "test" => check::test(),
        "cross" => check::cross(),
        "loom" => models::explore(harness::Mode::Loom, filter()?),
        "shuttle" => models::explore(harness::Mode::Shuttle, filter()?),
        "tsan" => models::tsan(filter()?),
        "miri" => models::miri(filter()?),
        "mutants" => mutants::run(rest, &options),
        other => bail!("no command {other}\n\n{HELP}"),
    }
}
