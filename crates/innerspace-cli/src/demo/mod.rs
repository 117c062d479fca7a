//! Demonstrations of SQLite on the library.
//!
//! | file | content |
//! |---|---|
//! | `branches` | a thousand writable branches of one live database |
//! | `tenants` | a thousand databases under one limit, one of them noisy; `contender` is one side |
//! | `database` | databases made by ordinary SQLite, and ways to open them |
//!
//! Nothing outside the temporary folder is written, and no privileges are needed.

mod branches;
mod contender;
mod database;
mod tenants;

use clap::Subcommand;

pub(crate) use self::branches::map_and_cut_short;
pub(crate) use self::contender::{ContenderArguments, contend};
use crate::interrupt::wait_if_interrupted;
use crate::kernel;
use crate::stations::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Demo {
    /// Makes a thousand writable branches of one live database
    #[command(after_help = crate::EXIT_CODES)]
    Branches(branches::BranchesArguments),
    /// Opens a thousand databases under one limit, with a noisy tenant among them
    #[command(after_help = crate::EXIT_CODES)]
    Tenants(tenants::TenantsArguments),
}

impl Demo {
    /// Runs a demonstration. Returns an error unless all is verified.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let outcome = match self {
            Demo::Branches(arguments) => branches::run(arguments),
            Demo::Tenants(arguments) => tenants::run(arguments),
        };
        wait_if_interrupted();
        outcome
    }
}

/// The files that a process has open besides those of the databases.
const OTHER_FILES: u64 = 64;

/// Makes sure that this process may have enough files open: two for each of `count`.
fn allow_files_for(count: u64, what: &str) -> Result<(), Failure> {
    let allowed = kernel::raise_file_limit().map_err(|error| {
        Failure::Run(format!("cannot raise the limit of files: {error}").into())
    })?;
    let needed = count.saturating_mul(2).saturating_add(OTHER_FILES);
    if needed <= allowed {
        return Ok(());
    }
    let fit = allowed.saturating_sub(OTHER_FILES) / 2;
    let text = format!(
        "{count} {what} need {needed} open files and this user may have {allowed}: take at most \
         {fit}, or raise the hard limit (ulimit -Hn)"
    );
    Err(Failure::Run(text.into()))
}
