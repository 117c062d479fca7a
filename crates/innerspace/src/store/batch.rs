//! The completion form of store I/O: many requests in one call, each completed once, in any order.
//!
//! Buffers are borrowed for the duration of [`Store::submit`]: a store cannot keep a request
//! longer, since the batch's lifetime is not its own to name. A request that is dropped unfinished
//! (a store returned early, a thread of it panicked) completes with an error, so that a caller who
//! counts completions never waits for one that cannot come.

use std::collections::VecDeque;
use std::{fmt, io};

use super::{Store, StoreError};

/// Called once for each request with its token and result, on whatever thread finished it.
type OnComplete<'a> = dyn Fn(u64, io::Result<usize>) + Sync + 'a;

/// What a request does, with its borrowed buffer.
#[derive(Debug)]
pub enum Operation<'a> {
    /// Fill the buffer from the store, as [`Store::read_at`] does.
    Read(&'a mut [u8]),
    /// Write the buffer to the store, as [`Store::write_at`] does.
    Write(&'a [u8]),
}

/// One read or write of a [`Batch`]; finish it with [`Request::complete`].
pub struct Request<'a> {
    token: u64,
    offset: u64,
    operation: Operation<'a>,
    on_complete: &'a OnComplete<'a>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pending,
    Complete,
}

impl<'a> Request<'a> {
    /// The caller's name for the request.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Where in the store, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What to do, with the buffer to do it on.
    pub fn operation(&mut self) -> &mut Operation<'a> {
        &mut self.operation
    }

    /// Reports the number of bytes transferred (it may be short, as with the plain calls) or the
    /// error.
    pub fn complete(mut self, result: io::Result<usize>) {
        self.finish(result);
    }

    /// Does the request with the plain calls of `store` and completes it.
    pub fn run<S: Store + ?Sized>(mut self, store: &S) {
        let result = match &mut self.operation {
            Operation::Read(buf) => store.read_at(buf, self.offset),
            Operation::Write(buf) => store.write_at(buf, self.offset),
        };
        self.finish(result);
    }

    fn finish(&mut self, result: io::Result<usize>) {
        self.state = State::Complete;
        (self.on_complete)(self.token, result);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.state == State::Pending {
            self.finish(Err(StoreError::Abandoned.into()));
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("token", &self.token)
            .field("offset", &self.offset)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}

/// Requests for one [`Store::submit`].
///
/// ```
/// use innerspace::store::{Batch, MemoryStore, Store};
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let store = MemoryStore::from_bytes(b"hello, world");
/// let (mut hello, mut world) = ([0; 5], [0; 5]);
/// let total = AtomicUsize::new(0);
/// let count = |_token: u64, result: std::io::Result<usize>| {
///     total.fetch_add(result.unwrap(), Ordering::Relaxed);
/// };
/// let mut batch = Batch::new(&count);
/// batch.read(0, &mut hello, 0);
/// batch.read(1, &mut world, 7);
/// store.submit(batch);
/// assert_eq!((&hello, &world, total.into_inner()), (b"hello", b"world", 10));
/// ```
pub struct Batch<'a> {
    requests: VecDeque<Request<'a>>,
    on_complete: &'a OnComplete<'a>,
}

impl<'a> Batch<'a> {
    /// An empty batch whose requests report to `on_complete`, once each.
    pub fn new(on_complete: &'a OnComplete<'a>) -> Batch<'a> {
        Batch {
            requests: VecDeque::new(),
            on_complete,
        }
    }

    /// Adds a read of `buf.len()` bytes at `offset`; `token` comes back with its result.
    pub fn read(&mut self, token: u64, buf: &'a mut [u8], offset: u64) {
        self.push(token, offset, Operation::Read(buf));
    }

    /// Adds a write of `buf` at `offset`; `token` comes back with its result.
    pub fn write(&mut self, token: u64, buf: &'a [u8], offset: u64) {
        self.push(token, offset, Operation::Write(buf));
    }

    /// Takes the oldest request out; `None` when all are taken.
    pub fn take(&mut self) -> Option<Request<'a>> {
        self.requests.pop_front()
    }

    /// The number of requests not yet taken.
    pub fn remaining(&self) -> usize {
        self.requests.len()
    }

    fn push(&mut self, token: u64, offset: u64, operation: Operation<'a>) {
        let on_complete = self.on_complete;
        let state = State::Pending;
        self.requests.push_back(Request {
            token,
            offset,
            operation,
            on_complete,
            state,
        });
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("requests", &self.requests)
            .finish_non_exhaustive()
    }
}
