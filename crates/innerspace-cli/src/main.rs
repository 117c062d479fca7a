//! `innerspace`: a tour of the library, and demonstrations of SQLite on it, that show each claim
//! with its evidence.
//!
//! | file | content |
//! |---|---|
//! | `tour` | the six stations, a file each: read these to learn the API |
//! | `demo` | SQLite on the library: branches, tenants (feature `sqlite`) |
//! | `stations`, `report` | claims that are shown one after the other, and how they are printed |
//! | `child` | the processes that the tool starts of itself |
//! | `interrupt` | the temporary folder, gone at the end and on Ctrl-C |
//! | `data` | numbers that look random, and checksums |
//! | `kernel` | the kernel's means for the same tasks; all of the tool's `unsafe` |
//! | `size` | sizes in the form `16MiB` |
//! | `remote` | `cat` and `stat` of objects in object storage (feature `remote`) |
//!
//! Exit code 0: everything was verified. 1: a claim was not verified, or a step failed. 2: wrong
//! arguments. 130: interrupted.

mod child;
mod data;
#[cfg(all(feature = "sqlite", unix))]
mod demo;
mod interrupt;
mod kernel;
#[cfg(feature = "remote")]
mod remote;
mod report;
mod size;
mod stations;
mod tour;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::child::Child;
use crate::stations::Failure;
use crate::tour::TourArguments;

const EXIT_CODES: &str = "\
Exit code: 0 everything was verified, 1 something was not or could not be done, 2 wrong arguments,
130 interrupted";

#[derive(Debug, Parser)]
#[command(name = "innerspace", version, arg_required_else_help = false)]
#[command(about = "mmap with a hard limit, errors instead of SIGBUS, and a fork in microseconds")]
#[command(after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows six claims on a file, each with its evidence and what the kernel does in the same
    /// place
    #[command(after_help = EXIT_CODES)]
    Tour(TourArguments),
    /// Shows what SQLite can do on the library
    #[cfg(all(feature = "sqlite", unix))]
    #[command(subcommand, after_help = EXIT_CODES)]
    Demo(demo::Demo),
    /// Prints an object of S3, Google Cloud Storage, Azure, an HTTP server or a local disk, under a
    /// limit
    #[cfg(feature = "remote")]
    #[command(after_help = remote::URLS)]
    Cat(remote::CatArguments),
    /// Prints the size, the time and the version of an object
    #[cfg(feature = "remote")]
    #[command(after_help = remote::URLS)]
    Stat(remote::StatArguments),
    /// The processes that the tool starts of itself, so that the others' side has one of its own
    #[command(hide = true, subcommand)]
    Child(Child),
}

fn main() -> ExitCode {
    kernel::have_large_files_refused();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    let outcome = match &arguments.command {
        Command::Tour(arguments) => tour::run(arguments),
        #[cfg(all(feature = "sqlite", unix))]
        Command::Demo(demo) => demo.run(),
        #[cfg(feature = "remote")]
        Command::Cat(arguments) => remote::cat(arguments),
        #[cfg(feature = "remote")]
        Command::Stat(arguments) => remote::stat(arguments),
        Command::Child(child) => child.run().map_err(Failure::Run),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Arguments(text)) => complain(&text, 2),
        Err(Failure::Run(error)) => complain(&error.to_string(), 1),
        // The report says what is wrong, or nobody reads it any more.
        Err(Failure::NotVerified | Failure::OutputClosed) => ExitCode::from(1),
    }
}

/// Prints help and version as they are, and the first line of an error.
fn explain(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if !error.use_stderr() {
        return match write!(io::stdout(), "{text}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(1),
        };
    }
    let first = text.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let command = match std::env::args_os().nth(1) {
        Some(name) if name == "tour" => "innerspace tour",
        Some(name) if cfg!(all(feature = "sqlite", unix)) && name == "demo" => "innerspace demo",
        Some(name) if cfg!(feature = "remote") && name == "cat" => "innerspace cat",
        Some(name) if cfg!(feature = "remote") && name == "stat" => "innerspace stat",
        _ => "innerspace",
    };
    complain(&format!("{first}; see {command} --help"), 2)
}

/// Prints one line to standard error. If that is closed, only the exit code reports the failure.
fn complain(text: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {text}");
    ExitCode::from(code)
}
