//! The calls of a direct access file that may wait, as futures: [`LaterDaxCalls`], each as a
//! [`Later`] of the cache below.

use std::io::ErrorKind;
use std::ops::{Range, RangeBounds};
use std::time::Duration;

use super::error::{DaxAction, DaxError};
use super::file::{DaxFile, DaxPin};
use super::pins::Owner;
use crate::cache::Later;

/// The calls of a direct access file that may wait, as futures; see [`DaxFile::later`].
///
/// Each does what the call of the same name does, in the memory's service thread (or `tick()`), one
/// after another with those of other files and of spaces ([`LaterCalls`](crate::LaterCalls)), in
/// the order in which they were first polled. Nothing happens before that. A call that waits long,
/// for a slow host, keeps the thread from the others. So none of them waits for pins, whose holder
/// may itself wait for such a call: it is [`DaxError::Busy`] at once. Most wait for accesses that
/// are under way, and so for a [`Session`](crate::Session) up to its next safepoint: a session must
/// not wait for one in place. An open end of a range is the end of the file when the future is
/// made.
///
/// A call that is first polled in a callback of a store is made there and then.
#[derive(Debug)]
pub struct LaterDaxCalls<'file>(&'file DaxFile);

impl DaxFile {
    /// The calls that may wait, as futures. They need no runtime; the memory's service thread (or
    /// `tick()`) makes the calls.
    ///
    /// ```
    /// # use innerspace::{DaxError, DaxFile};
    /// async fn put(file: &DaxFile, mut bytes: &[u8], mut at: u64) -> Result<(), DaxError> {
    ///     while !bytes.is_empty() {
    ///         match file.try_write_at(bytes, at) {
    ///             Err(error) if error.would_block() => {
    ///                 file.later().write_all_at(bytes, at).await?;
    ///                 break;
    ///             }
    ///             written => {
    ///                 let written = written?;
    ///                 (bytes, at) = (&bytes[written..], at + written as u64);
    ///             }
    ///         }
    ///     }
    ///     file.later().sync_all().await
    /// }
    /// ```
    pub fn later(&self) -> LaterDaxCalls<'_> {
        LaterDaxCalls(self)
    }
}

impl LaterDaxCalls<'_> {
    /// It keeps the file open, and is a call of the same handle.
    fn call<T>(
        &self,
        work: impl FnOnce(&DaxFile) -> Result<T, DaxError> + Send + 'static,
    ) -> Later<T, DaxError> {
        let file = self.0.clone();
        let address = std::ptr::from_ref(file.core()) as usize;
        Later::new(file.core().cache.clone(), address, move || work(&file))
    }

    /// The bytes of a range, as far as the file has them when the call is made, as
    /// [`DaxFile::read_exact_at`] reads them; any length, in memory of the caller's own.
    pub fn read(&self, range: impl RangeBounds<u64>) -> Later<Vec<u8>, DaxError> {
        let bytes = self.0.bytes(&range);
        self.call(move |file| {
            let Range { start, end } = file.clip(&bytes);
            let mut bytes = Vec::new();
            let len = usize::try_from(end - start).unwrap_or(usize::MAX);
            if bytes.try_reserve_exact(len).is_err() {
                let error = ErrorKind::OutOfMemory.into();
                return Err(file.core().host_error(DaxAction::Read, start, error));
            }
            bytes.resize(len, 0);
            file.read_exact_at(&mut bytes, start)?;
            Ok(bytes)
        })
    }

    /// [`DaxFile::write_all_at`].
    pub fn write_all_at(&self, bytes: impl Into<Vec<u8>>, offset: u64) -> Later<(), DaxError> {
        let bytes = bytes.into();
        self.call(move |file| file.write_all_at(&bytes, offset))
    }

    /// [`DaxFile::set_len_within`] no time at all.
    pub fn set_len(&self, len: u64) -> Later<(), DaxError> {
        self.call(move |file| file.set_len_within(len, Duration::ZERO))
    }

    /// [`DaxFile::punch`], without waiting for pins.
    pub fn punch(&self, bytes: Range<u64>) -> Later<(), DaxError> {
        self.call(move |file| file.punch_within(bytes, Duration::ZERO))
    }

    /// [`DaxFile::sync_all`].
    pub fn sync_all(&self) -> Later<(), DaxError> {
        self.call(DaxFile::sync_all)
    }

    /// [`DaxFile::sync_range`].
    pub fn sync_range(&self, bytes: impl RangeBounds<u64>) -> Later<(), DaxError> {
        let bytes = self.0.bytes(&bytes);
        self.call(move |file| file.sync_range(bytes))
    }

    /// [`DaxFile::invalidate`].
    pub fn invalidate(&self, bytes: impl RangeBounds<u64>) -> Later<(), DaxError> {
        let bytes = self.0.bytes(&bytes);
        self.call(move |file| file.invalidate(bytes))
    }

    /// [`DaxFile::pin_raw`]. The pin counts as no thread's own: a cut cannot tell that it would
    /// wait for whoever asks for it.
    pub fn pin_raw(&self, bytes: Range<u64>) -> Later<DaxPin, DaxError> {
        self.call(move |file| file.pin_for(bytes, Owner::Unknown))
    }
}
