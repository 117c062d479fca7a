//! The completion form of store I/O: a batch of requests is handed over and goes on by itself; each
//! request is completed once, later, in any order, on any thread.
//!
//! A request owns what it reads into or writes from until it is completed, so a store that keeps
//! one for long, or for ever, holds that memory and nothing else of its caller's. A request that is
//! dropped without being completed fails with [`StoreError::Abandoned`]; a memory reads the same
//! by plain calls.
//!
//! A request to read knows how far it was filled. A store fills it from front to back:
//! [`Request::fill`] copies bytes in, [`Request::unfilled`] lends the next piece, which is cleared
//! first: no store of a program's own ever sees what the memory held before. Bytes that were not
//! filled are shown to nobody.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::{fmt, mem};

#[cfg(all(
    target_os = "linux",
    feature = "io-uring",
    not(any(loom, shuttle, miri, portable))
))]
use super::file::Flights;
#[cfg(all(
    target_os = "linux",
    feature = "io-uring",
    not(any(loom, shuttle, miri, portable))
))]
use crate::sync::Arc;

use super::transfer::{read_vectored_or_eof, write_all_vectored_at};
use super::{Own, Store, StoreError};

/// What a request is about, with the memory it reads into or writes from, and who is told of its
/// end.
pub(crate) trait Transfer: Send {
    /// Bytes in all.
    fn len(&self) -> usize;

    /// Some of the memory to read into, piece by piece: whatever it held before.
    fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>>;

    /// Some of the bytes to write, piece by piece.
    fn slices(&self, bytes: Range<usize>) -> Vec<IoSlice<'_>>;

    /// It is over: so many bytes were transferred, or why not.
    fn complete(self: Box<Self>, result: io::Result<usize>);

    #[cfg(all(
        target_os = "linux",
        feature = "io-uring",
        not(any(loom, shuttle, miri, portable))
    ))]
    /// The ring that may do it.
    fn by_ring(&self) -> Option<Arc<Flights>> {
        None
    }

    /// The store has no completion form. Whoever made the request may take it back, to have it done
    /// by the store's plain calls elsewhere; the others are done at once.
    fn take_back(self: Box<Self>) -> Option<Box<dyn Transfer>>;
}

/// What a request does.
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
    /// Bytes from `filled` on that were cleared already.
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

    fn transfer(&self) -> &dyn Transfer {
        &**self.transfer.as_ref().expect("not complete")
    }

    fn transfer_mut(&mut self) -> &mut dyn Transfer {
        &mut **self.transfer.as_mut().expect("not complete")
    }

    /// Whether to read or to write.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Where in the store, in bytes.
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

    /// Of a read: how many bytes were filled so far, from the front.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Of a read: copies bytes in behind those that are there, as many as there is room for;
    /// returns how many.
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

    /// Of a read: the memory behind what was filled, all zeros, in pieces; [`Request::advance`]
    /// says how much of it was.
    pub fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        let (filled, len) = (self.filled, self.len());
        let stale = mem::replace(&mut self.cleared, len)..len;
        for mut slice in self.transfer_mut().slices_mut(stale) {
            slice.fill(0);
        }
        self.transfer_mut().slices_mut(filled..len)
    }

    /// Of a read: `count` bytes more were filled.
    ///
    /// # Panics
    /// When that is more than [`Request::unfilled`] gave.
    pub fn advance(&mut self, count: usize) {
        let filled = self.filled.checked_add(count);
        let filled = filled.filter(|filled| *filled <= self.cleared);
        self.filled = filled.expect("no more than was lent");
    }

    /// Of a write: the bytes, in pieces.
    pub fn bytes(&self) -> Vec<IoSlice<'_>> {
        self.transfer().slices(0..self.len())
    }

    /// Ends the request. A read that filled less than was asked for is asked for the rest by plain
    /// calls, where nothing at all is the end of the store; `Ok(0)` of a write is an error.
    ///
    /// Of a request that a memory made, those calls are made later, elsewhere: by a thread of the
    /// memory's, by a caller that waits for the bytes, or by `tick()`. So this may be called with
    /// locks of the store held, but where the memory was without threads and its last handle is
    /// gone: then nobody else comes by, and they are made in here.
    ///
    /// `Ok` carries the bytes written; for reads it is what was filled that counts.
    pub fn complete(mut self, result: io::Result<usize>) {
        let result = match self.operation {
            Operation::Read => result.map(|_| self.filled),
            Operation::Write => result,
        };
        self.finish(result);
    }

    /// The same for a store of the library's own, which fills memory as it says it does.
    #[cfg_attr(
        not(all(target_os = "linux", feature = "io-uring")),
        allow(dead_code, reason = "for the ring")
    )]
    pub(crate) fn complete_filled(mut self, result: io::Result<usize>) {
        self.finish(result);
    }

    #[cfg(all(
        target_os = "linux",
        feature = "io-uring",
        not(any(loom, shuttle, miri, portable))
    ))]
    /// The ring that may do it.
    pub(crate) fn by_ring(&self) -> Option<Arc<Flights>> {
        self.transfer().by_ring()
    }

    #[cfg(all(
        target_os = "linux",
        feature = "io-uring",
        not(any(loom, shuttle, miri, portable))
    ))]
    /// The memory to read into, as the kernel takes it.
    pub(crate) fn iovecs(&mut self) -> Vec<crate::sys::ring::iovec> {
        let all = 0..self.len();
        let slices = self.transfer_mut().slices_mut(all);
        let iovec = |mut slice: IoSliceMut<'_>| crate::sys::ring::iovec {
            iov_base: slice.as_mut_ptr().cast(),
            iov_len: slice.len(),
        };
        slices.into_iter().map(iovec).collect()
    }

    #[cfg(all(
        target_os = "linux",
        feature = "io-uring",
        not(any(loom, shuttle, miri, portable))
    ))]
    /// It cannot be done by a ring: whoever made it has it done by calls.
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

    fn finish(&mut self, result: io::Result<usize>) {
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

    /// Adds a read of `buffer.len()` bytes at `offset`; `on_complete` gets the buffer back, and how
    /// many bytes of it were filled, or why they could not be.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: Vec<u8>,
        on_complete: impl FnOnce(Vec<u8>, io::Result<usize>) + Send + 'static,
    ) {
        self.add(Operation::Read, offset, buffer, on_complete);
    }

    /// Adds a write of `bytes` at `offset`; `on_complete` gets them back, and how many were
    /// written, or why they could not be.
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

    /// Takes the oldest request out; `None` when all are taken.
    pub fn take(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// The number of requests not yet taken.
    pub fn remaining(&self) -> usize {
        self.requests.len()
    }

    /// What a store without a completion form of its own does with a batch: the plain calls of
    /// `store`, on the threads of the memory that made the requests, as many at a time as
    /// [`Limits::requests`](super::Limits::requests) says; in this thread for requests made with
    /// [`Batch::read`] and [`Batch::write`].
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

/// A request of somebody who is not a cache: memory of its own.
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
