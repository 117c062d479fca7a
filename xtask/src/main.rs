//! The project's own commands, `cargo xtask NAME`.
//!
//! Only this crate says what each command runs, in which build mode and in which target directory;
//! the CI script, CONTRIBUTING.md and README.md name these commands and nothing else.
//!
//! - [`check`]: the plain suite, lints, documentation, and the other platforms.
//! - [`models`]: loom, shuttle, ThreadSanitizer, Miri.
//! - [`packages`]: what crates.io would get, and whether the interface is compatible.
//! - [`mutants`]: puts known bugs back and requires that their tests notice.
//! - [`harness`], [`process`]: building test binaries and running commands, shared by the rest.
//!
//! Exit code 0: done. 1: a check failed. 2: wrong arguments.

mod check;
mod harness;
mod models;
mod mutants;
mod packages;
mod process;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use lexopt::prelude::*;

const HELP: &str = "\
cargo xtask COMMAND

  check              everything a developer checks before a commit: lint, test, cross
  lint               mutants that no longer apply, compiler version, format, clippy and
                     documentation, warnings denied
  test               the test suite: unit, integration and documentation tests, those of the
                     library once more without membarrier, then every example
  tenants [SECONDS]  random hostile programs of one tenant beside another, for a minute or so long
  cross              cargo check of the library for the other platforms
  packages           packs the crates as for crates.io and builds them from there; compares the
                     interface with that of the last release, once there is one
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
    let call = match Call::parse(lexopt::Parser::from_env()) {
        Ok(call) => call,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::from(2);
        }
    };
    match call.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command that was given.
enum Call {
    Help,
    Check,
    Lint,
    Test,
    Tenants(u64),
    Cross,
    Packages,
    Models(harness::Mode, Option<String>),
    Tsan(Option<String>),
    Miri(Option<String>),
    Mutants(Vec<String>, mutants::Options),
}

impl Call {
    fn parse(mut parser: lexopt::Parser) -> Result<Call, lexopt::Error> {
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
                other => return Err(other.unexpected()),
            }
        }
        let mut words = words.into_iter();
        let Some(command) = words.next() else {
            return Err(format!("no command given\n\n{HELP}").into());
        };
        if options != mutants::Options::default() && command != "mutants" {
            return Err("--list, --also-pass and --budget belong to mutants".into());
        }
        let rest: Vec<String> = words.collect();
        let alone = |call| match rest.is_empty() {
            true => Ok(call),
            false => Err(format!("{command} takes no arguments")),
        };
        let filter = || match &rest[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            _ => Err(format!("{command} takes at most one filter")),
        };
        Ok(match command.as_str() {
            "help" => Call::Help,
            "check" => alone(Call::Check)?,
            "lint" => alone(Call::Lint)?,
            "test" => alone(Call::Test)?,
            "tenants" => Call::Tenants(match filter()? {
                None => 60,
                Some(text) => match text.parse() {
                    Ok(seconds) => seconds,
                    Err(error) => return Err(format!("seconds, not {text}: {error}").into()),
                },
            }),
            "cross" => alone(Call::Cross)?,
            "packages" => alone(Call::Packages)?,
            "loom" => Call::Models(harness::Mode::Loom, filter()?),
            "shuttle" => Call::Models(harness::Mode::Shuttle, filter()?),
            "tsan" => Call::Tsan(filter()?),
            "miri" => Call::Miri(filter()?),
            "mutants" => Call::Mutants(rest, options),
            other => return Err(format!("no command {other}\n\n{HELP}").into()),
        })
    }

    fn run(self) -> Result<()> {
        match self {
            Call::Help => {
                print!("{HELP}");
                Ok(())
            }
            Call::Check => check::all(),
            Call::Lint => check::lint(),
            Call::Test => check::test(),
            Call::Tenants(seconds) => check::tenants(seconds),
            Call::Cross => check::cross(),
            Call::Packages => packages::check(),
            Call::Models(mode, filter) => models::explore(mode, filter.as_deref()),
            Call::Tsan(filter) => models::tsan(filter.as_deref()),
            Call::Miri(filter) => models::miri(filter.as_deref()),
            Call::Mutants(ids, options) => mutants::run(&ids, &options),
        }
    }
}
