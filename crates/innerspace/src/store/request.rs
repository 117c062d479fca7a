//! The completion form of store I/O. A store is handed a batch of requests, and completes each of
//! them once, later, in any order, on any thread.
//!
//! A request owns the memory it reads into or writes from until it is completed. So a store that
//! keeps one for long, or for ever, holds that memory and nothing else of the caller. A request
//! that is dropped without being completed fails with [`StoreError::Abandoned`]; a memory then
//! reads the same bytes by plain calls.
//!
//! A request to read knows how far it was filled. A store fills it from front to back:
//! [`Request::fill`] copies bytes in, [`Request::unfilled`] lends the next piece, cleared first, so
//! that no store of a program's own ever sees the earlier content of the memory. Bytes that were
//! not filled are never used.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::{fmt, mem};

use super::transfer::{read_vectored_or_eof, write_all_vectored_at};
use super::{Own, Store, StoreError};

/// The memory that a request reads into or writes from, and its end.
pub(crate) trait Transfer: Send {
    /// Bytes of memory.
    fn len(&self) -> usize;

    /// Some of the memory to read into, piece by piece, with its earlier content.
    fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>>;

    /// Some of the bytes to write, piece by piece.
    fn slices(&self, bytes: Range<usize>) -> Vec<IoSlice<'_>>;

    /// Ends the request with the number of bytes transferred, or the error.
    fn complete(self: Box<Self>, result: io::Result<usize>);

    /// The ring that may do the request.
    fn by_ring(&self) -> Option<crate::sync::Arc<super::Flights>> {
        None
    }

    /// The store has no completion form. The maker of the request may take it back, to have it done
    /// by the store's plain calls elsewhere; otherwise it is done at once.
    fn take_back(self: Box<Self>) -> Option<Box<dyn Transfer>>;
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Fill memory from the store.
    Read,
    /// Write memory to the store.
    Write,
}

/// One read or write of a [`Batch`]; finish it with [`Request::complete`].
pub struct Request {
    operation: Operation,
    offset: u64,
    /// Bytes read so far.
    filled: usize,
    /// Bytes up to here, from `filled` on, are cleared already.
    cleared: usize,
    /// `None` once it is complete.
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

    /// Whether this is a read or a write.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The offset in the store, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes to read or to write.
    #[allow(
        clippy::len_without_is_empty,
        reason = "no request is empty: they are made of whole blocks"
    )]
    pub fn len(&self) -> usize {
        self.transfer().len()
    }

    /// For a read: how many bytes were filled so far, from the front.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// For a read: appends bytes to those that are there, as many as there is room for; returns how
    /// many.
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

    /// For a read: the memory behind the filled part, all zeros, in pieces. Say by
    /// [`Request::advance`] how much of it was filled.
    pub fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        let (filled, len) = (self.filled, self.len());
        let stale = mem::replace(&mut self.cleared, len)..len;
        for mut slice in self.transfer_mut().slices_mut(stale) {
            slice.fill(0);
        }
        self.transfer_mut().slices_mut(filled..len)
    }

    /// For a read: `count` more bytes were filled.
    ///
    /// # Panics
    /// When that is more than [`Request::unfilled`] gave.
    pub fn advance(&mut self, count: usize) {
        let filled = self.filled.checked_add(count);
        let filled = filled.filter(|filled| *filled <= self.cleared);
        self.filled = filled.expect("no more than was lent");
    }

    /// For a write: the bytes, in pieces.
    pub fn bytes(&self) -> Vec<IoSlice<'_>> {
        self.transfer().slices(0..self.len())
    }

    /// Ends the request. If a read filled less than was asked for, the rest is read by plain calls;
    /// there, reading nothing means the end of the store. `Ok(0)` for a write is an error.
    ///
    /// For a request of a memory, those calls are made later, elsewhere: by a thread of the memory,
    /// by a caller that waits for the bytes, or by `tick()`. So locks of the store may be held
    /// here, with one exception: if the memory was without threads and its last handle is gone, the
    /// calls are made in here.
    ///
    /// `Ok` carries the bytes written. For a read its number is ignored: the bytes filled count.
    pub fn complete(mut self, result: io::Result<usize>) {
        let result = match self.operation {
            Operation::Read => result.map(|_| self.filled),
            Operation::Write => result,
        };
        self.finish(result);
    }

    /// The ring refused the request: its maker has it done by calls.
    pub(crate) fn give_back(mut self) {
        let left = self.transfer.take().and_then(Transfer::take_back);
        if let Some(left) = left {
            left.complete(Err(StoreError::Abandoned.into()));
        }
    }

    /// Does the request with the plain calls of `store`, in this thread, and completes it.
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

    /// Ends the request, for a store whose count of bytes is trusted.
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

/// Requests for one [`Store::submit`].
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
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a read of `buffer.len()` bytes at `offset`. `on_complete` gets the buffer back, and how
    /// many bytes of it were filled, or the error.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: Vec<u8>,
        on_complete: impl FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static,
    ) {
        self.add(Operation::Read, offset, buffer, on_complete);
    }

    /// Adds a write of `bytes` at `offset`. `on_complete` gets them back, and how many were
    /// written, or the error.
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

    /// Takes out the oldest request; `None` when all are taken.
    pub fn take(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// The number of requests not yet taken.
    pub fn remaining(&self) -> usize {
        self.requests.len()
    }

    /// Does the requests by the plain calls of `store`: on the threads of the memory that made
    /// them, as many at a time as [`Limits::requests`](super::Limits::requests) says, or in this
    /// thread for requests made with [`Batch::read`] and [`Batch::write`]. For stores without a
    /// completion form of their own.
    pub fn call<S: Store + ?Sized>(mut self, store: &S) {
        while let Some(mut request) = self.take() {
            let transfer = request.transfer.take().expect("not complete");
            request.transfer = transfer.take_back();
            if request.transfer.is_some() {
                request.run(store);
            }
        }
    }
}

/// The transfer of a request that is not a cache's: it has memory of its own.
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
