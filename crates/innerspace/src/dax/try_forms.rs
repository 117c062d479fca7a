//! The other forms of a file's calls: `try_`, which never waits, and `defer`, which has a call made
//! in the background.
//!
//! A `try_` form is the call itself with [`Wait::No`]: it waits neither for a cut or another
//! thread's entry, nor for memory, a grace period or the host, and is an error instead
//! ([`DaxError::would_block`]). Where nothing else is said, a form that would block has changed
//! nothing.

use std::ops::Range;

use super::error::DaxError;
use super::file::{DaxFile, DaxPin};
use crate::cache::{Task, Wait};
use crate::exec::Turn;

/// Calls in the background.
impl DaxFile {
    /// Has `call` made in the background, once, with this handle: see [`Task`].
    ///
    /// Calls of one file are made one at a time, in the order in which their tasks were first
    /// polled. Ranges are what they are when the call is made: an open end is the end of the file
    /// then.
    ///
    /// Two calls are different there. [`DaxFile::set_len`] and [`DaxFile::punch`] wait for no pin,
    /// whose holder may itself wait for the task: they are [`DaxError::Busy`] at once. And a pin
    /// counts as no thread's own, for it is made for another: a later cut cannot tell that it would
    /// wait for its own caller. Most calls wait for accesses that are under way, and so for a
    /// [`Session`](crate::Session) up to its next safepoint: the thread of a session must not wait
    /// for a task in place.
    ///
    /// ```
    /// # use innerspace::{DaxError, DaxFile};
    /// async fn put(file: &DaxFile, mut bytes: &[u8], mut at: u64) -> Result<(), DaxError> {
    ///     while !bytes.is_empty() {
    ///         match file.try_write_at(bytes, at) {
    ///             Err(error) if error.would_block() => {
    ///                 let bytes = bytes.to_vec();
    ///                 file.defer(move |file| file.write_all_at(&bytes, at)).await?;
    ///                 break;
    ///             }
    ///             written => {
    ///                 let written = written?;
    ///                 (bytes, at) = (&bytes[written..], at + written as u64);
    ///             }
    ///         }
    ///     }
    ///     file.defer(DaxFile::sync_all).await
    /// }
    /// ```
    pub fn defer<T: Send + 'static, E: Send + 'static>(
        &self,
        call: impl FnOnce(&DaxFile) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let file = self.clone();
        let address = std::ptr::from_ref(self.core()) as usize;
        let turn = (Turn::Alone, 1);
        Task::new(&self.core().cache, address, turn, move || call(&file))
    }
}

/// Forms that never wait. Where the call would, they fail with an error for which
/// [`DaxError::would_block`] holds, and [`DaxFile::defer`] makes the call in the background.
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
        self.pin_pages(bytes, Wait::No)
    }
}
