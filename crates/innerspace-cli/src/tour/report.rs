//! What the tour prints, and what a station found.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget};
use innerspace::ByteSize;

use super::{Failure, Station};

/// What a station saw. Nothing is claimed to be verified while `failures` has a line.
#[derive(Debug, Default)]
pub(super) struct Findings {
    here: Vec<String>,
    kernel: Vec<String>,
    failures: Vec<String>,
}

impl Findings {
    /// A line of evidence.
    pub(super) fn here(&mut self, line: impl Into<String>) {
        self.here.push(line.into());
    }

    /// A line about what the kernel did in the same place.
    pub(super) fn kernel(&mut self, line: impl Into<String>) {
        self.kernel.push(line.into());
    }

    /// Something is not as claimed.
    pub(super) fn fail(&mut self, line: impl Into<String>) {
        self.failures.push(line.into());
    }

    pub(super) fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Standard output, which may be closed at any time.
#[derive(Debug)]
pub(super) struct Report {
    terminal: bool,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Run(format!("cannot print: {error}").into()),
        }
    }
}

impl Report {
    pub(super) fn new() -> Report {
        Report {
            terminal: io::stdout().is_terminal() && io::stderr().is_terminal(),
        }
    }

    /// A progress bar, drawn only when a person is looking.
    pub(super) fn bar(&self, len: u64) -> ProgressBar {
        let target = match self.terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        ProgressBar::with_draw_target(Some(len), target)
    }

    fn line(&self, line: impl Display) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    }

    pub(super) fn open(&self, name: &str, size: u64, limit: u64) -> io::Result<()> {
        let (size, limit) = (ByteSize(size), ByteSize(limit));
        self.line(format_args!("{name}: {size}, with a limit of {limit}"))
    }

    pub(super) fn begin(&self, number: usize, of: usize, station: &Station) -> io::Result<()> {
        let Station { name, claim, .. } = station;
        self.line(format_args!("\n{number} of {of}  {name}\n  {claim}"))
    }

    pub(super) fn end(&self, findings: &Findings) -> io::Result<()> {
        for (mark, lines) in [("here", &findings.here), ("kernel", &findings.kernel)] {
            for (i, line) in lines.iter().enumerate() {
                let mark = if i == 0 { mark } else { "" };
                self.line(format_args!("  {mark:<8}{line}"))?;
            }
        }
        for line in &findings.failures {
            self.line(format_args!("  NOT VERIFIED: {line}"))?;
        }
        if findings.holds() {
            self.line("  verified")?;
        }
        Ok(())
    }

    pub(super) fn failed(&self, error: &dyn std::error::Error) -> io::Result<()> {
        self.line(format_args!("  NOT VERIFIED: {error}"))
    }

    pub(super) fn sum(&self, verified: usize, of: usize) -> io::Result<()> {
        self.line(format_args!("\n{verified} of {of} verified"))
    }
}
