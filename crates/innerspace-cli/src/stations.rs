//! Stations: claims that are shown one after the other, each with its evidence.
//!
//! A station returns [`Findings`]: the evidence, and everything that was not as claimed. A station
//! that returns an error counts as not verified; the other stations still run.

use std::io;

use crate::report::{Findings, Report};

/// Any error in a station: it becomes one line of the report.
pub(crate) type Error = Box<dyn std::error::Error>;
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why the exit code is not 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument cannot be used.
    Arguments(String),
    /// A cause outside the program prevents it.
    Run(Error),
    /// A claim does not hold; the report says which.
    NotVerified,
    /// Nobody reads the report.
    OutputClosed,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Run(format!("cannot print: {error}").into()),
        }
    }
}

/// A claim and the function that verifies it. `T` is the state that the stations share.
pub(crate) struct Station<T> {
    pub(crate) name: &'static str,
    pub(crate) claim: &'static str,
    pub(crate) show: fn(&mut T) -> Result<Findings>,
}

/// Runs all stations, and returns how many are verified.
pub(crate) fn run_all<T>(
    report: Report,
    stations: &[Station<T>],
    state: &mut T,
) -> Result<usize, Failure> {
    let mut verified = 0;
    for (number, station) in stations.iter().enumerate() {
        report.begin(number + 1, stations.len(), station)?;
        match (station.show)(state) {
            Ok(findings) => {
                report.end(&findings)?;
                verified += usize::from(findings.holds());
            }
            Err(error) => report.failed(&*error)?,
        }
    }
    Ok(verified)
}

/// Prints the last line, and returns an error unless all stations are verified.
pub(crate) fn sum(report: Report, verified: usize, of: usize) -> Result<(), Failure> {
    report.sum(verified, of)?;
    match verified == of {
        true => Ok(()),
        false => Err(Failure::NotVerified),
    }
}
