//! Two more forms of a file's calls: `try_`, which never waits, and `defer`, which runs a call in
//! the background.
//!
//! A `try_` form is the call itself with [`Wait::No`]: if it would have to wait for a cut, a locked
//! entry, memory, a grace period or the host, it fails instead ([`DaxError::would_block`]). Unless
//! the form's documentation says otherwise, nothing has changed then.

use std::ops::RangeBounds;

use super::error::DaxError;
use super::file::{DaxFile, DaxPin};
use crate::cache::{Task, Wait, call_and_drop};
use crate::exec::Turn;
use crate::exec::reentry::Inside;
use crate::group::{LimitError, MayReclaim};

/// Calls in the background.
impl DaxFile {
    /// Runs `call` in the background, once, with this handle: see [`Task`].
    ///
    /// Calls on one file are run one at a time, in the order in which their tasks were first
    /// polled. An open end of a range means the end of the file at the time when the call is run.
    ///
    /// Three calls behave differently in a task. [`DaxFile::set_len`] and [`DaxFile::punch`] do not
    /// wait for pins, because the holder of a pin may itself be waiting for the task: they fail
    /// with [`DaxError::Busy`] instead. A pin that is made in a task belongs to no thread, so a
    /// later cut cannot tell that it would wait for its own caller. Most calls wait for accesses
    /// under way, and so for a [`Session`](crate::space::Session) until its next safepoint: do not
    /// wait for a task on the thread of a session.
    ///
    /// ```
    /// # use innerspace::{DaxFile, dax::DaxError};
    /// async fn put(file: &DaxFile, bytes: Vec<u8>, at: u64) -> Result<(), DaxError> {
    ///     match file.try_write_at(&bytes, at) {
    ///         Err(error) if error.would_block() => {
    ///             file.defer(move |file| file.write_at(&bytes, at)).await?;
    ///         }
    ///         written => written?,
    ///     }
    ///     file.defer(DaxFile::sync_all).await
    /// }
    /// ```
    pub fn defer<T: Send + 'static, E: From<LimitError> + Send + 'static>(
        &self,
        call: impl FnOnce(&DaxFile) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let file = self.clone();
        let address = std::ptr::from_ref(self.core()) as usize;
        let about = (address, self.core().group());
        let turn = (Turn::Alone, 1);
        let call = move || {
            let _inside = Inside::task();
            call_and_drop(file, call)
        };
        Task::new(&self.core().cache, about, turn, call)
    }
}

/// Forms that never wait. If the call would wait, they fail with an error for which
/// [`DaxError::would_block`] returns true, and [`DaxFile::defer`] can make the call in the
/// background.
///
/// Over a host file, the system may still have to fetch a page that is read or written, as with any
/// mapping. A system call counts as waiting, so these forms read and write nothing of a file with
/// [`OnShrink::Error`](crate::dax::OnShrink::Error).
impl DaxFile {
    /// Reads like [`DaxFile::read_at`], but never waits. It would block during a
    /// [`DaxFile::set_len`] or [`DaxFile::punch`], and if the host has to be asked which pages are
    /// holes; some of its answers are remembered.
    ///
    /// # Errors
    /// The errors of [`DaxFile::read_at`], and [`DaxError::WouldBlock`]; `buf` may be partly filled
    /// then.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DaxError> {
        self.core().read_at(buf, offset, Wait::No)
    }

    /// Reads like [`DaxFile::read_exact_at`], but never waits, as for [`DaxFile::try_read_at`].
    ///
    /// # Errors
    /// The errors of [`DaxFile::read_exact_at`], and [`DaxError::WouldBlock`]; `buf` may be partly
    /// filled then.
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DaxError> {
        let got = self.try_read_at(buf, offset)?;
        self.core().check_whole(got, buf, offset)
    }

    /// Writes like [`DaxFile::write_at`], but never waits. It would block at the end of the file;
    /// during a [`DaxFile::set_len`] or [`DaxFile::punch`]; at a page that another thread is
    /// writing, mapping or syncing; at a hole that may be mapped; over a host file, at pages that
    /// were not written since the last sync; and if memory has to be evicted first.
    ///
    /// # Errors
    /// The errors of [`DaxFile::write_at`], and [`DaxError::WouldBlock`]; then the bytes before the
    /// offset in the error are written.
    pub fn try_write_at(&self, buf: &[u8], offset: u64) -> Result<(), DaxError> {
        let done = self.core().try_write_at(buf, offset)?;
        match done == buf.len() {
            true => Ok(()),
            false => Err(self.core().would_block(offset + done as u64)),
        }
    }

    /// Pins like [`DaxFile::pin`], but never waits. It would block if [`DaxFile::try_write_at`]
    /// would at any of the pages; holes before that page may already have been given blocks.
    ///
    /// # Errors
    /// The errors of [`DaxFile::pin`], and [`DaxError::WouldBlock`].
    pub fn try_pin(&self, bytes: impl RangeBounds<u64>) -> Result<DaxPin, DaxError> {
        let bytes = self.bytes(&bytes)?;
        self.core().check_writable(bytes.start)?;
        self.pin_charged(MayReclaim::Clean, || self.pin_pages(bytes, Wait::No))
    }
}
