//! Calls in the background: the library's futures, for an event loop of Python.
//!
//! [`Background`] is one future. [`Wakeups`] is what the futures of one event loop wake: each wake
//! puts the number of its future into a list, and the first one makes an eventfd(2) readable, which
//! the loop watches. So a thread of the memory that wakes a future neither takes the interpreter's
//! lock nor waits for it, and a burst of wakes costs the loop one turn. No call has a thread of its
//! own.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use innerspace::PagedFile;
use innerspace::error::FileError;
use innerspace::file::Ready;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffers::Buffer;
use crate::detached::Detached;
use crate::errors::{Failure, Raise};
use crate::file::RawFile;
use crate::view::View;

/// The blocks that one read has in flight, at most.
const IN_FLIGHT: u64 = 64;

/// What a call returns.
enum Returned {
    Nothing,
    Bytes(Vec<u8>),
    View(innerspace::View, u64),
}

type Call = Pin<Box<dyn Future<Output = Result<Returned, Failure>> + Send>>;

/// The numbers of the futures that are to be polled, and the eventfd that says so.
#[derive(Debug)]
struct Woken {
    numbers: Mutex<Vec<u64>>,
    event: OwnedFd,
}

impl Woken {
    fn add(&self, number: u64) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.push(number);
        if numbers.len() == 1 {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: the descriptor is open as long as `self` lives, and eight bytes are read from
            // `one`. The counter cannot be full: each wake adds one after it was emptied.
            unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    fn take(&self) -> Vec<u64> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = [0_u8; 8];
        // SAFETY: the descriptor is open as long as `self` lives, and at most eight bytes are
        // written to `count`. It does not block, because the descriptor was made non-blocking.
        unsafe {
            libc::read(
                self.event.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
        std::mem::take(&mut numbers)
    }
}

/// The waker of one future.
struct Number {
    woken: Arc<Woken>,
    number: u64,
}

impl Wake for Number {
    fn wake(self: Arc<Self>) {
        self.woken.add(self.number);
    }
}

/// What the futures of an event loop wake.
#[pyclass(frozen, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct Wakeups(Arc<Woken>);

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Wakeups> {
        // SAFETY: the call takes no memory of ours.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(PyOSError::new_err(io::Error::last_os_error().to_string()));
        }
        Ok(Wakeups(Arc::new(Woken {
            numbers: Mutex::default(),
            // SAFETY: the descriptor was made just now, and nobody else owns it.
            event: unsafe { OwnedFd::from_raw_fd(event) },
        })))
    }

    /// Returns the descriptor that is readable when futures are to be polled.
    fn fileno(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    /// Returns the numbers of the futures that are to be polled.
    fn take(&self) -> Vec<u64> {
        self.0.take()
    }
}

/// A call in the background. It begins with the first poll.
#[pyclass(frozen, module = "innerspace._native")]
pub(crate) struct Background(Mutex<Option<Detached<Call>>>);

impl Background {
    fn new(call: impl Future<Output = Result<Returned, Failure>> + Send + 'static) -> Background {
        let call: Call = Box::pin(call);
        Background(Mutex::new(Some(Detached::new(call))))
    }

    fn take(&self) -> Option<Detached<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Background {
    /// A read of up to `len` bytes.
    #[staticmethod]
    fn read(file: &RawFile, len: u64, offset: u64) -> PyResult<Background> {
        let len = len.min(file.file.len().saturating_sub(offset));
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len as usize).is_err() {
            return Err(PyMemoryError::new_err(format!("no memory for {len} bytes")));
        }
        let file = file.file.clone();
        Ok(Background::new(read(file, offset..offset + len, bytes)))
    }

    /// A view of a range.
    #[staticmethod]
    fn view(file: &RawFile, offset: u64, len: u64) -> PyResult<Background> {
        let Some(end) = offset.checked_add(len) else {
            return Err(PyValueError::new_err("offset and length are past 2**64"));
        };
        let ready = file.file.ready(offset..end);
        Ok(Background::new(async move {
            Ok(Returned::View(ready.await?, offset))
        }))
    }

    /// A write of a copy of the buffer.
    #[staticmethod]
    fn write(file: &RawFile, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<Background> {
        let buffer = Buffer::of(buffer)?;
        // SAFETY: `buffer` lives until the end of this function.
        let bytes = unsafe { buffer.bytes() }.to_vec();
        let write = move |file: &PagedFile| file.write_at(&bytes, offset);
        Ok(Background::of(file, write))
    }

    /// A sync.
    #[staticmethod]
    fn sync(file: &RawFile) -> Background {
        Background::of(file, |file| file.sync_all())
    }

    /// Returns the result in a tuple, or None if it is not there yet: then `number` is woken later.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        wakeups: &Wakeups,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(mut call) = self.take() else {
            return Err(PyValueError::new_err("the call is over"));
        };
        let woken = wakeups.0.clone();
        let waker = Waker::from(Arc::new(Number { woken, number }));
        let polled = py.detach(|| call.as_mut().poll(&mut Context::from_waker(&waker)));
        let Poll::Ready(result) = polled else {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
            return Ok(None);
        };
        drop(call);
        let returned = match result.raise(py)? {
            Returned::Nothing => py.None().into_bound(py),
            Returned::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
            Returned::View(view, offset) => View::new(view, offset).into_bound_py_any(py)?,
        };
        Ok(Some(PyTuple::new(py, [returned])?))
    }

    /// Ends the call as far as it has not been made.
    fn cancel(&self) {
        drop(self.take());
    }
}

/// Reads a range into `bytes`, which has room for it, with many blocks in flight at a time.
async fn read(file: PagedFile, range: Range<u64>, mut bytes: Vec<u8>) -> Result<Returned, Failure> {
    let block = file.block_size();
    let max = file.group().stats().max.map_or(u64::MAX, |max| max.bytes());
    let room = (max / 8 / block).clamp(1, IN_FLIGHT) as usize;
    let mut flights: VecDeque<Ready> = VecDeque::new();
    let (mut next, end) = (range.start, range.end);
    while next < end || !flights.is_empty() {
        while flights.len() < room && next < end {
            // A view over several blocks would move them, so each block has a future of its own.
            let until = ((next / block + 1) * block).min(end);
            let from = std::mem::replace(&mut next, until);
            let mut ready = file.ready(from..until);
            // A block that is cached is copied at once if its turn has come. Otherwise it is looked
            // up again in its turn: a view kept until then would hold memory.
            match poll_fn(|context| Poll::Ready(Pin::new(&mut ready).poll(context))).await {
                Poll::Ready(view) if flights.is_empty() => bytes.extend_from_slice(&view?),
                Poll::Ready(view) => {
                    drop(view?);
                    flights.push_back(file.ready(from..until));
                }
                Poll::Pending => flights.push_back(ready),
            }
        }
        if let Some(first) = flights.pop_front() {
            bytes.extend_from_slice(&first.await?);
        }
    }
    Ok(Returned::Bytes(bytes))
}

impl Background {
    /// A call on a file, which a thread of its memory makes.
    fn of(
        file: &RawFile,
        call: impl FnOnce(&PagedFile) -> Result<(), FileError> + Send + 'static,
    ) -> Background {
        let task = file.file.defer(call);
        Background::new(async move {
            task.await?;
            Ok(Returned::Nothing)
        })
    }
}
