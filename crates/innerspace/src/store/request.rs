//! The completion form of store I/O. A store gets a batch of requests, and completes each of them
//! once, now or later, in any order, on any thread.
//!
//! A request owns the memory that it reads into or writes from until it is completed. So if a store
//! keeps a request for a long time, or for ever, it holds that memory and nothing else of the
//! caller's. A request that is dropped without being completed fails with
//! [`StoreError::Abandoned`]; the memory's threads then read the same bytes by plain calls.
//!
//! A read request records how much of its memory has been filled. A store fills the memory from
//! front to back. [`Request::fill`] copies bytes in. [`Request::unfilled`] clears the rest of the
//! memory and lends it, so that a store outside this crate never sees what the memory contained.
//! Bytes that were not filled are never used.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::{fmt, mem};

use super::transfer::{check_written, read_vectored_or_eof, write_all_vectored_at};
use super::{Own, Store, StoreError};

/// The memory that a request reads into or writes from, and the action to take when the request
/// ends.
pub(crate) trait Transfer: Send {
    /// Returns the number of bytes of memory.
    fn len(&self) -> usize;

    /// Returns a part of the memory to read into, in pieces. The memory is not cleared.
    fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>>;

    /// Returns a part of the bytes to write, in pieces.
    fn slices(&self, bytes: Range<usize>) -> Vec<IoSlice<'_>>;

    /// Ends the request with the number of bytes transferred, or with an error.
    fn complete(self: Box<Self>, result: io::Result<usize>);

    /// Returns the io_uring(7) ring that may perform the request, if there is one.
    fn by_ring(&self) -> Option<crate::sync::Arc<super::Flights>> {
        None
    }

    /// Offers the request back to its maker. Called if the store has no completion form, or if the
    /// ring refused the request or could not complete it. If the maker keeps the request, it has
    /// the store's plain calls made elsewhere, and this returns `None`. Otherwise this returns the
    /// request, and the caller performs it, or fails it.
    fn take_back(self: Box<Self>) -> Option<Box<dyn Transfer>>;
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// The request fills memory from the store.
    Read,
    /// The request writes memory to the store.
    Write,
}

/// One read or write of a [`Batch`]. End it by [`Request::complete`] or [`Request::run`]: a request
/// that is dropped fails with [`StoreError::Abandoned`].
pub struct Request {
    operation: Operation,
    offset: u64,
    /// The number of bytes read so far.
    filled: usize,
    /// The memory from `filled` up to this offset has been cleared.
    cleared: usize,
    /// `None` once the request is complete.
    transfer: Option<Box<dyn Transfer>>,
}

impl Request {
    pub(crate) fn new(operation: Operation, offset: u64, transfer: Box<dyn Transfer>) -> Request {
        Request {
            operation,
            offset,
            filled: 0,
            cleared: 0,
            transfer: Some(transfer),
        }
    }

    pub(super) fn transfer(&self) -> &dyn Transfer {
        &**self.transfer.as_ref().expect("not complete")
    }

    pub(super) fn transfer_mut(&mut self) -> &mut dyn Transfer {
        &mut **self.transfer.as_mut().expect("not complete")
    }

    /// Returns whether this is a read or a write.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the offset in the store, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes to read or to write.
    #[allow(
        clippy::len_without_is_empty,
        reason = "no request is empty: they are made of whole blocks"
    )]
    pub fn len(&self) -> usize {
        self.transfer().len()
    }

    /// Returns the number of bytes of a read that have been filled so far, from the front.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Copies bytes to the end of the filled part of a read, as many as there is room for. Returns
    /// how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.len() - self.filled);
        let range = self.filled..self.filled + len;
        let mut rest = &bytes[..len];
        for mut slice in self.transfer_mut().slices_mut(range) {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from_slice(now);
            rest = later;
        }
        self.filled += len;
        self.cleared = self.cleared.max(self.filled);
        len
    }

    /// Returns the memory of a read after the filled part, in pieces. The first call clears it.
    /// After filling some of it, call [`Request::advance`].
    pub fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        let (filled, len) = (self.filled, self.len());
        let stale = mem::replace(&mut self.cleared, len)..len;
        for mut slice in self.transfer_mut().slices_mut(stale) {
            slice.fill(0);
        }
        self.transfer_mut().slices_mut(filled..len)
    }

    /// Counts the next `count` bytes of a read as filled.
    ///
    /// # Panics
    /// If `count` is more than is left of the memory that [`Request::unfilled`] has lent.
    pub fn advance(&mut self, count: usize) {
        let filled = self.filled.checked_add(count);
        let filled = filled.filter(|filled| *filled <= self.cleared);
        self.filled = filled.expect("no more than was lent");
    }

    /// Returns the bytes of a write, in pieces.
    pub fn bytes(&self) -> Vec<IoSlice<'_>> {
        self.transfer().slices(0..self.len())
    }

    /// Ends the request. If a memory made the request, and a read filled less than was asked for,
    /// the rest is read by plain calls; if such a call reads nothing, the store is taken to end
    /// there.
    ///
    /// `Ok` carries the number of bytes written. If that is 0, or more than the request has, the
    /// write has failed, as in [`write_all_at`](super::write_all_at). For a read the number is
    /// ignored, because the request knows how much was filled.
    ///
    /// The plain calls for the rest of a read are made later and elsewhere: by a thread of the
    /// memory, by a caller that waits for the bytes, or by `tick()`. So a store may complete a
    /// request while it holds locks of its own. There is one exception: if the memory has no
    /// threads and its last handle is gone, the plain calls are made inside this call.
    pub fn complete(mut self, result: io::Result<usize>) {
        let result = match self.operation {
            Operation::Read => result.map(|_| self.filled),
            Operation::Write => {
                result.and_then(|count| check_written(count, self.len(), self.offset))
            }
        };
        self.finish(result);
    }

    /// Gives a request that the ring has not performed back to its maker, which has it performed by
    /// plain calls. If the maker does not keep the request, the request fails with
    /// [`StoreError::Abandoned`].
    pub(crate) fn give_back(mut self) {
        let left = self.transfer.take().and_then(Transfer::take_back);
        if let Some(left) = left {
            left.complete(Err(StoreError::Abandoned.into()));
        }
    }

    /// Serves the request in this thread with the plain calls of `store`, and completes it.
    pub fn run<S: Store + ?Sized>(mut self, store: &S) {
        let offset = self.offset;
        let result = match self.operation {
            Operation::Read => {
                let mut slices = match store.fills_as_told(Own::ASKS) {
                    true => {
                        let all = 0..self.len();
                        self.transfer_mut().slices_mut(all)
                    }
                    false => self.unfilled(),
                };
                read_vectored_or_eof(store, &mut slices, offset)
            }
            Operation::Write => {
                let len = self.len();
                let mut slices = self.bytes();
                write_all_vectored_at(store, &mut slices, offset).map(|()| len)
            }
        };
        self.finish(result);
    }

    /// Ends the request. Unlike [`Request::complete`], uses the count in `result` for a read, too.
    pub(crate) fn finish(&mut self, result: io::Result<usize>) {
        if let Some(transfer) = self.transfer.take() {
            transfer.complete(result);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.finish(Err(StoreError::Abandoned.into()));
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("operation", &self.operation)
            .field("offset", &self.offset)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

/// Requests for one call to [`Store::submit`].
///
/// ```
/// use innerspace::store::{Batch, MemoryStore, Store};
/// use std::sync::mpsc::channel;
///
/// let store = MemoryStore::from_bytes(b"hello, world");
/// let (done, over) = channel();
/// let mut batch = Batch::new();
/// for (offset, len) in [(0, 5), (7, 5)] {
///     let done = done.clone();
///     batch.read(offset, vec![0; len], move |bytes, result| {
///         done.send((offset, bytes, result.unwrap())).unwrap();
///     });
/// }
/// store.submit(batch);
/// let mut read: Vec<_> = over.iter().take(2).collect();
/// read.sort();
/// assert_eq!(read, [(0, b"hello".to_vec(), 5), (7, b"world".to_vec(), 5)]);
/// ```
#[derive(Debug, Default)]
pub struct Batch {
    requests: VecDeque<Request>,
}

impl Batch {
    /// Makes an empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a read of `buffer.len()` bytes at `offset`. `on_complete` gets the buffer back, with
    /// the number of bytes that were filled, or with the error.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: Vec<u8>,
        on_complete: impl FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static,
    ) {
        self.add(Operation::Read, offset, buffer, on_complete);
    }

    /// Adds a write of `bytes` at `offset`. `on_complete` gets the bytes back, with the number of
    /// bytes that were written, or with the error.
    pub fn write(
        &mut self,
        offset: u64,
        bytes: Vec<u8>,
        on_complete: impl FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static,
    ) {
        self.add(Operation::Write, offset, bytes, on_complete);
    }

    fn add(
        &mut self,
        operation: Operation,
        offset: u64,
        buffer: Vec<u8>,
        on_complete: impl FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static,
    ) {
        let on_complete = Box::new(on_complete);
        let transfer = Box::new(Owned {
            buffer,
            on_complete,
        });
        self.push(Request::new(operation, offset, transfer));
    }

    pub(crate) fn push(&mut self, request: Request) {
        self.requests.push_back(request);
    }

    /// Removes the oldest request and returns it. Returns `None` if the batch is empty.
    pub fn take(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Returns the number of requests that have not been taken yet.
    pub fn remaining(&self) -> usize {
        self.requests.len()
    }

    /// Serves the requests by the plain calls of `store`, for stores without a completion form of
    /// their own. Requests that a memory made are served on its threads, as many at the same time
    /// as [`Limits::requests`](super::Limits::requests) says. Requests made by [`Batch::read`] and
    /// [`Batch::write`] are served in this thread.
    pub fn call<S: Store + ?Sized>(mut self, store: &S) {
        while let Some(mut request) = self.take() {
            let transfer = request.transfer.take();
            request.transfer = transfer.and_then(|transfer| transfer.take_back());
            if request.transfer.is_some() {
                request.run(store);
            }
        }
    }
}

/// The transfer of a request made by [`Batch::read`] or [`Batch::write`], which owns its buffer.
struct Owned<F> {
    buffer: Vec<u8>,
    on_complete: Box<F>,
}

impl<F: FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static> Transfer for Owned<F> {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>> {
        vec![IoSliceMut::new(&mut self.buffer[bytes])]
    }

    fn slices(&self, bytes: Range<usize>) -> Vec<IoSlice<'_>> {
        vec![IoSlice::new(&self.buffer[bytes])]
    }

    fn complete(self: Box<Self>, result: io::Result<usize>) {
        (self.on_complete)(self.buffer, result);
    }

    fn take_back(self: Box<Self>) -> Option<Box<dyn Transfer>> {
        Some(self)
    }
}
