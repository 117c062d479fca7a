//! The limit of a memory, in bytes or as a share of the machine's memory.

use super::error::MemoryError;

/// The limit of a [`Memory`](crate::Memory): bytes, or a share of the machine's memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limit(Kind);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Bytes(u64),
    Fraction(f64),
}

impl Limit {
    /// Creates a limit of this many bytes.
    pub const fn bytes(bytes: u64) -> Limit {
        Limit(Kind::Bytes(bytes))
    }

    /// Creates a limit that is a share, above 0 and up to 1, of the container's memory limit (the
    /// lowest of its control groups). If there is no such limit, or the machine has less memory, it
    /// is a share of the machine's memory.
    ///
    /// ```
    /// use innerspace::{Limit, Memory};
    ///
    /// let memory = Memory::with_limit(Limit::fraction(0.01))?;
    /// assert!(memory.limit() > 0);
    /// # Ok::<(), innerspace::MemoryError>(())
    /// ```
    pub const fn fraction(of_machine: f64) -> Limit {
        Limit(Kind::Fraction(of_machine))
    }

    /// Returns the limit in bytes, on a machine with this much memory (`None` if the system does
    /// not say). A share is rounded down to whole pages. Fails if the share is not above 0, if it
    /// is above 1, or if it is a share of an unknown amount.
    pub(super) fn resolve(self, machine: Option<u64>) -> Result<u64, MemoryError> {
        let fraction = match self.0 {
            Kind::Bytes(bytes) => return Ok(bytes),
            Kind::Fraction(fraction) => fraction,
        };
        let refuse = |reason| Err(MemoryError::Fraction { fraction, reason });
        if !(fraction > 0.0 && fraction <= 1.0) {
            return refuse("a share is above 0 and at most 1");
        }
        match machine {
            None => refuse("the system does not say how much memory there is"),
            Some(machine) => {
                Ok(crate::PageCount::floor((machine as f64 * fraction) as u64).bytes())
            }
        }
    }
}

impl From<u64> for Limit {
    fn from(bytes: u64) -> Limit {
        Limit::bytes(bytes)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{MIB, Memory, Threads};

    // spec: M20
    #[test]
    fn a_fraction_is_of_the_container_or_of_the_machine() {
        let of = |fraction, machine| Limit::fraction(fraction).resolve(machine);
        assert_eq!(of(0.5, Some(64 * MIB)).unwrap(), 32 * MIB);
        assert_eq!(of(1.0, Some(64 * MIB)).unwrap(), 64 * MIB);
        assert_eq!(of(0.3, Some(10_000)).unwrap(), 0, "whole pages");
        for fraction in [0.0, -0.5, 1.01, f64::NAN] {
            let error = of(fraction, Some(64 * MIB)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a limit of {fraction} of the machine: a share is above 0 and at most 1")
            );
        }
        assert!(of(0.5, None).is_err());
        // `sys::memory`, which is called here, returns the container's limit if it is lower than
        // the machine's memory.
        let there_is = crate::sys::memory::memory_of_machine().unwrap();
        let memory = Memory::builder(Limit::fraction(0.01)).threads(Threads::None);
        let limit = memory.build().unwrap().limit();
        assert!(limit <= there_is / 100 && limit + 8192 > there_is / 100);
        assert!(Memory::with_limit(Limit::fraction(2.0)).is_err());
    }
}
