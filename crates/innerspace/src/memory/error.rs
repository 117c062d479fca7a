//! The error of creating a memory.

use std::io;

use thiserror::Error;

use crate::texts::into_io_error;
use crate::units::{ByteSize, KIB};

/// Why a memory could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The limit leaves no room to work in.
    #[error("limit {} is below the minimum of {}", Short(*limit), Short(*minimum))]
    TooSmall {
        /// The limit that was asked for, in bytes.
        limit: u64,
        /// The smallest limit with these options, in bytes.
        minimum: u64,
    },
    /// The limit is more than the machine, or the container, has.
    #[error("limit {} is above the {} that this machine has", ByteSize(*limit), ByteSize(*machine))]
    AboveMachine {
        /// The limit that was asked for, in bytes.
        limit: u64,
        /// The machine's or the container's memory, in bytes.
        machine: u64,
    },
    /// The limit was given as a share outside the range from 0 (exclusive) to 1, or the system does
    /// not say how much memory the machine has.
    #[error("a limit of {fraction} of the machine: {reason}")]
    Fraction {
        /// The share that was asked for.
        fraction: f64,
        /// The reason.
        reason: &'static str,
    },
    /// The system refused address space or a thread, or the limit has more pages than a memory can
    /// number.
    #[error("cannot create a memory of {}: {source}", ByteSize(*limit))]
    System {
        /// The limit that was asked for, in bytes.
        limit: u64,
        /// The system's error.
        r#source: io::Error,
    },
}

impl MemoryError {
    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            MemoryError::TooSmall { .. } | MemoryError::Fraction { .. } => {
                io::ErrorKind::InvalidInput
            }
            MemoryError::AboveMachine { .. } => io::ErrorKind::OutOfMemory,
            MemoryError::System { source, .. } => source.kind(),
        }
    }
}

into_io_error!(MemoryError);

/// Prints a size without a needless fraction: `32 KiB`.
struct Short(u64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes.is_multiple_of(KIB) => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
