//! The `try_` forms of a file's calls: what would have to wait is an error instead
//! ([`DaxError::would_block`]).
//!
//! They are the calls themselves, told not to wait ([`Wait`]): neither for a cut or another's
//! entry, nor for memory, a grace period or the host. Where nothing else is said, a form that would
//! block has changed nothing.

use std::ops::Range;

use super::error::DaxError;
use super::file::{DaxFile, DaxPin};
use super::pins::Owner;
use crate::cache::Wait;

/// Forms that never wait. What would have to is an error for which [`DaxError::would_block`] holds,
/// and is for [`DaxFile::later`].
///
/// Over a host file, the system may still have to fetch a page that is read or written, as with any
/// mapping. Whatever the system is asked by a call counts as waiting: so of a file with
/// [`OnShrink::Error`](crate::OnShrink::Error) nothing is read or written.
impl DaxFile {
    /// Like [`DaxFile::read_at`], but never waits. It would block beside a [`DaxFile::set_len`] or
    /// [`DaxFile::punch`], and where the host has to be asked for its holes: of that, some answers
    /// are remembered.
    ///
    /// # Errors
    /// As [`DaxFile::read_at`], and [`DaxError::WouldBlock`]; `buf` may be partly filled then.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DaxError> {
        self.core().read_at(buf, offset, Wait::No)
    }

    /// Like [`DaxFile::read_exact_at`], but never waits, as [`DaxFile::try_read_at`].
    ///
    /// # Errors
    /// As [`DaxFile::read_exact_at`], and [`DaxError::WouldBlock`]; `buf` may be partly filled
    /// then.
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DaxError> {
        let got = self.try_read_at(buf, offset)?;
        self.core().check_whole(got, buf, offset)
    }

    /// Like [`DaxFile::write_at`], but never waits: writes pages from the beginning on, up to the
    /// first that would have to wait, and the end of the file, and says how much that was. It would
    /// block where none is: at the end of the file; beside a [`DaxFile::set_len`] or
    /// [`DaxFile::punch`]; at a page that somebody else writes, maps or syncs at the moment; at a
    /// hole that a mapping may show; over a host file, at pages that were not written since the
    /// last sync; and where memory has to be evicted first.
    ///
    /// There is no such form of [`DaxFile::write_all_at`], which could not say how far it came.
    ///
    /// # Errors
    /// As [`DaxFile::write_at`], and [`DaxError::WouldBlock`] when nothing was written.
    pub fn try_write_at(&self, buf: &[u8], offset: u64) -> Result<usize, DaxError> {
        self.core().try_write_at(buf, offset)
    }

    /// Like [`DaxFile::pin_raw`], but never waits. It would block where [`DaxFile::try_write_at`]
    /// would, at any of the pages; holes before that one may have blocks then.
    ///
    /// # Errors
    /// As [`DaxFile::pin_raw`], and [`DaxError::WouldBlock`].
    pub fn try_pin_raw(&self, bytes: Range<u64>) -> Result<DaxPin, DaxError> {
        self.core().check_writable(bytes.start)?;
        self.pin_pages(bytes, Owner::ThisThread, Wait::No)
    }
}
