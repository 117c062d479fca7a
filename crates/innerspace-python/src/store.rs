//! [`PythonStore`]: a file whose bytes come from a function of Python, as those of `fsspec` do.
//!
//! The library's threads call the function, several at a time, with the interpreter's lock. The
//! thread of the program that wants the bytes only waits, without the lock, and handles signals
//! meanwhile. An exception of the function becomes the cause of the one that the reader gets.

use std::io;

use innerspace::store::{Limits, Store};
use pyo3::exceptions::{PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::buffers::Buffer;
use crate::errors::Raise;
use crate::file::RawFile;
use crate::memory::{RawGroup, RawMemory};

/// A store that is read by a function of Python: `fetch(start, end)` returns the bytes.
struct PythonStore {
    fetch: Py<PyAny>,
    len: u64,
    name: String,
    limits: Limits,
}

impl Store for PythonStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = (self.len.saturating_sub(offset)).min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let fetched = Python::try_attach(|py| {
            let bytes = self.fetch.call1(py, (offset, offset + len as u64))?;
            let bytes = Buffer::of(bytes.bind(py))?;
            // SAFETY: `bytes` lives until the end of this closure.
            let bytes = unsafe { bytes.bytes() };
            let got = bytes.len();
            if got > len {
                return Err(PyValueError::new_err(format!(
                    "{got} bytes were fetched where {len} were asked for"
                )));
            }
            buf[..got].copy_from_slice(bytes);
            Ok(got)
        });
        match fetched {
            Some(Ok(got)) => Ok(got),
            Some(Err(raised)) => Err(io_error(raised)),
            None => Err(io::Error::other("the interpreter is ending")),
        }
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Wraps an exception. Its kind tells the cache whether to try again later.
fn io_error(raised: PyErr) -> io::Error {
    let kind = Python::try_attach(|py| {
        if raised.is_instance_of::<PyTimeoutError>(py) {
            return io::ErrorKind::TimedOut;
        }
        let number = (raised.is_instance_of::<PyOSError>(py))
            .then(|| {
                raised
                    .value(py)
                    .getattr("errno")
                    .ok()?
                    .extract::<i32>()
                    .ok()
            })
            .flatten();
        match number.map(|number| io::Error::from_raw_os_error(number).kind()) {
            // A call that fails with this kind would be repeated for ever.
            None | Some(io::ErrorKind::Interrupted) => io::ErrorKind::Other,
            Some(kind) => kind,
        }
    });
    io::Error::new(kind.unwrap_or(io::ErrorKind::Other), raised)
}

/// Opens a file that is read by a function: `fetch(start, end)` returns the bytes. It is called by up
/// to `requests` threads at a time, for up to `request_size` bytes.
#[pyfunction]
#[pyo3(signature = (memory, fetch, len, name, block, request_size, requests, group=None))]
#[allow(clippy::too_many_arguments, reason = "each is one of Python's")]
pub(crate) fn open_fetched(
    py: Python<'_>,
    memory: &RawMemory,
    fetch: Py<PyAny>,
    len: u64,
    name: String,
    block: u64,
    request_size: usize,
    requests: u32,
    group: Option<&RawGroup>,
) -> PyResult<RawFile> {
    let limits = Limits::default()
        .preferred_size(request_size)
        .requests(requests.max(1));
    let store = PythonStore {
        fetch,
        len,
        name,
        limits,
    };
    let options = memory.opener(group, Some(block));
    let file = py.detach(|| options.open_store(store)).raise(py)?;
    Ok(RawFile::new(file, true))
}
