//! The processes that the tool starts of itself, so that what they measure has a process of its own.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use clap::Subcommand;

#[cfg(all(feature = "sqlite", unix))]
use crate::demo;
use crate::stations::Result;
use crate::tour::{fork, no_signal, rivals};

/// A process that the tool starts of itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// Tour, station 2: one contender
    Contender(rivals::ContenderArguments),
    /// Tour, station 3: mmap of a file that is cut short
    CutShort { file: PathBuf },
    /// fork(2) of a process with so much in memory
    Forks { resident: usize, count: u32 },
    /// Demonstration of branches: SQLite's own mmap of a file that can no longer be read
    #[cfg(all(feature = "sqlite", unix))]
    SqliteMmap { file: PathBuf },
    /// Demonstration of tenants: one contender
    #[cfg(all(feature = "sqlite", unix))]
    Tenants(demo::ContenderArguments),
}

impl Child {
    pub(crate) fn run(&self) -> Result<()> {
        std::thread::spawn(end_with_parent);
        match self {
            Child::Contender(arguments) => rivals::contend(arguments),
            Child::CutShort { file } => no_signal::map_and_cut_short(file),
            Child::Forks { resident, count } => fork::fork_processes(*resident, *count),
            #[cfg(all(feature = "sqlite", unix))]
            Child::SqliteMmap { file } => demo::map_and_cut_short(file),
            #[cfg(all(feature = "sqlite", unix))]
            Child::Tenants(arguments) => demo::contend(arguments),
        }
    }

    /// Creates a command that runs this program again.
    pub(crate) fn command(name: &str) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["child", name]);
        Ok(command)
    }

    /// Runs such a command until it ends or this process does. The command's input is open as long
    /// as this process lives.
    pub(crate) fn output(mut command: Command) -> io::Result<Output> {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let _open = child.stdin.take();
        child.wait_with_output()
    }
}

/// Makes this process end as soon as the one that started it has ended, in whatever way.
fn end_with_parent() {
    let _nothing = io::copy(&mut io::stdin(), &mut io::sink());
    std::process::exit(1);
}
