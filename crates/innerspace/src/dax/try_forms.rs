//! The `try_` forms of a file's calls: what would have to wait is an error instead ([`DaxError::would_block`]).
//!
//! They are the calls themselves, told not to wait ([`Wait`]): neither for a cut or another's entry, nor for memory, a grace period
//! or the host. Where nothing else is said, a form that would block has changed nothing.

use super::error::DaxError;
use super::file::DaxFile;
use crate::cache::Wait;

/// Forms that never wait. What would have to is an error for which [`DaxError::would_block`] holds.
///
/// Over a host file, the system may still have to fetch a page that is read or written, as with any mapping. Whatever the system is
/// asked by a call counts as waiting: so of a file with [`OnShrink::Error`](crate::OnShrink::Error) nothing is had.
impl DaxFile {
    /// Like [`DaxFile::read_at`], but never waits. It would block beside a [`DaxFile::set_len`] or [`DaxFile::punch`], and where the
    /// host has to be asked for its holes: of that, some answers are remembered.
    ///
    /// # Errors
    /// As [`DaxFile::read_at`], and [`DaxError::WouldBlock`]; `buf` may be partly filled then.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DaxError> {
        self.core().read_at(buf, offset, Wait::No)
    }

    /// Like [`DaxFile::read_exact_at`], but never waits, as [`DaxFile::try_read_at`].
    ///
    /// # Errors
    /// As [`DaxFile::read_exact_at`], and [`DaxError::WouldBlock`]; `buf` may be partly filled then.
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DaxError> {
        let got = self.try_read_at(buf, offset)?;
        self.core().check_whole(got, buf, offset)
    }
}
