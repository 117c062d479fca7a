//! [`RawFile`]: the calls of a cached file by offset, on which Python builds its file object.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};

use innerspace::PagedFile;
use innerspace::file::{FileAccess, FileError, Reading};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::Buffer;
use crate::detached::Detached;
use crate::errors::Raise;
use crate::strided::{self, Shape};
use crate::view::View;

/// The bytes that are moved between two looks at Python's signals.
pub(crate) const PIECE: usize = 4 << 20;

/// The bytes of a slow store that are wanted as one, and how many of these are in flight at a time.
const CHUNK: u64 = 4 << 20;
const CHUNKS: usize = 4;

/// An open file.
#[pyclass(frozen, weakref, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct RawFile {
    pub(crate) file: Detached<PagedFile>,
    /// Whether its store may take long, because it is written in Python, or is far away. The thread
    /// that reads then only waits, and looks at the signals meanwhile.
    slow: bool,
}

impl RawFile {
    pub(crate) fn new(file: PagedFile, slow: bool) -> RawFile {
        RawFile {
            file: Detached::new(file),
            slow,
        }
    }

    /// Reads up to `into.len()` bytes, in pieces between which signals are handled.
    fn read_pieces(&self, py: Python<'_>, into: &mut [u8], offset: u64) -> PyResult<usize> {
        let mut done = 0;
        for piece in into.chunks_mut(PIECE) {
            let (at, wanted) = (offset + done as u64, piece.len());
            if self.slow {
                self.wait_for(py, at, wanted as u64)?;
            }
            let got = py.detach(|| self.file.read_at(piece, at)).raise(py)?;
            done += got;
            py.check_signals()?;
            if got < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Waits until a range of a slow store is cached, as far as the memory has room for it. Several
    /// chunks are in flight at a time, each in requests of the size that the store prefers.
    fn wait_for(&self, py: Python<'_>, offset: u64, len: u64) -> PyResult<()> {
        let block = self.file.block_size();
        let end = offset.saturating_add(len).min(self.file.len());
        let chunk = (self.limit() / 32).min(CHUNK) / block * block;
        let mut chunks = VecDeque::new();
        let mut next = offset;
        while next < end || !chunks.is_empty() {
            while chunks.len() < CHUNKS && next < end {
                let until = ((next / block * block).saturating_add(chunk.max(block))).min(end);
                let mut ready = self.file.ready(next..until);
                let is_missing = py.detach(|| {
                    let mut context = Context::from_waker(Waker::noop());
                    Pin::new(&mut ready).poll(&mut context).is_pending()
                });
                // What is there already is not kept.
                if is_missing {
                    chunks.push_back(ready);
                }
                next = until;
            }
            if let Some(mut first) = chunks.pop_front() {
                match strided::wait_for(py, &mut first)? {
                    // Without room for the chunk as a whole, it is read block by block afterwards.
                    Ok(_) | Err(FileError::Limit(_) | FileError::ViewTooLarge { .. }) => {}
                    Err(error) => return Err(error).raise(py),
                }
            }
        }
        Ok(())
    }
}

#[pymethods]
impl RawFile {
    #[getter]
    fn name(&self) -> &str {
        self.file.name()
    }

    /// Returns the limit of the group that pays for the file, in bytes.
    pub(crate) fn limit(&self) -> u64 {
        let max = self.file.group().stats().max;
        max.map_or(u64::MAX >> 1, |max| max.bytes())
    }

    fn size(&self) -> u64 {
        self.file.len()
    }

    #[getter]
    fn block_size(&self) -> u64 {
        self.file.block_size()
    }

    #[getter]
    fn writable(&self) -> bool {
        self.file.access() == FileAccess::ReadWrite
    }

    /// Returns up to `len` bytes at `offset`.
    fn read<'py>(&self, py: Python<'py>, len: u64, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let len = len.min(self.file.len().saturating_sub(offset)) as usize;
        let mut got = 0;
        let bytes = PyBytes::new_with(py, len, |buffer| {
            got = self.read_pieces(py, buffer, offset)?;
            Ok(())
        })?;
        match got == len {
            true => Ok(bytes),
            false => Ok(PyBytes::new(py, &bytes.as_bytes()[..got])),
        }
    }

    /// Fills a buffer with the bytes at `offset`, and returns how many there were.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        // SAFETY: `buffer` lives until the end of this function, and is writable.
        let into = unsafe { buffer.bytes_mut() };
        self.read_pieces(py, into, offset)
    }

    /// Writes all of a buffer at `offset`, and returns its length.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let buffer = Buffer::of(buffer)?;
        // SAFETY: `buffer` lives until the end of this function.
        let bytes = unsafe { buffer.bytes() };
        let mut at = offset;
        for piece in bytes.chunks(PIECE) {
            py.detach(|| self.file.write_at(piece, at)).raise(py)?;
            at += piece.len() as u64;
            py.check_signals()?;
        }
        Ok(bytes.len())
    }

    /// Writes all of a buffer at the end of the file, and returns the offset of its end.
    fn append(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<u64> {
        let buffer = Buffer::of(buffer)?;
        // SAFETY: `buffer` lives until the end of this function.
        let bytes = unsafe { buffer.bytes() };
        let at = py.detach(|| self.file.append(bytes)).raise(py)?;
        Ok(at + bytes.len() as u64)
    }

    fn set_len(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        py.detach(|| self.file.set_len(len)).raise(py)
    }

    /// Writes what is unwritten, so that other programs see it.
    fn write_back(&self, py: Python<'_>) -> PyResult<()> {
        let write = || -> Result<(), FileError> {
            // A handle of its own: closing it writes, and makes nothing durable.
            let handle = self.file.clone();
            handle.close().map_err(|error| error.error().clone())
        };
        py.detach(write).raise(py)
    }

    /// Writes what is unwritten, and makes it durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.file.sync_all()).raise(py)
    }

    fn view(&self, py: Python<'_>, offset: u64, len: u64) -> PyResult<View> {
        let Some(end) = offset.checked_add(len) else {
            return Err(PyValueError::new_err("offset and length are past 2**64"));
        };
        if self.slow {
            self.wait_for(py, offset, len)?;
        }
        let view = py.detach(|| self.file.view(offset..end)).raise(py)?;
        Ok(View::new(view, offset))
    }

    fn prefetch(&self, py: Python<'_>, offset: u64, len: u64) -> PyResult<()> {
        let range = offset..offset.saturating_add(len);
        py.detach(|| self.file.prefetch(range)).raise(py)
    }

    /// Forgets cached blocks, and takes over the length that the store has now.
    fn invalidate(&self, py: Python<'_>) -> PyResult<u64> {
        let pages = py.detach(|| self.file.invalidate(..)).raise(py)?;
        Ok(pages.bytes())
    }

    fn evict(&self, py: Python<'_>) -> PyResult<u64> {
        let pages = py.detach(|| self.file.evict(..)).raise(py)?;
        Ok(pages.bytes())
    }

    /// Says in which order the file will be read.
    fn set_reading(&self, order: &str) -> PyResult<()> {
        self.file.set_reading(match order {
            "normal" => Reading::Normal,
            "random" => Reading::Random,
            "sequential" => Reading::Sequential,
            other => {
                return Err(PyValueError::new_err(format!(
                    "order {other:?} is not one of 'normal', 'random' and 'sequential'"
                )));
            }
        });
        Ok(())
    }

    /// Copies the elements of a strided array out of the file into a contiguous buffer. `starts`
    /// has the offset of each part as native 64-bit numbers; each part has the shape and strides.
    #[pyo3(signature = (into, starts, shape, strides, item))]
    fn gather(
        &self,
        py: Python<'_>,
        into: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        strides: Vec<i64>,
        item: usize,
    ) -> PyResult<()> {
        let (mut into, starts) = (Buffer::writable(into)?, Buffer::of(starts)?);
        // SAFETY: both buffers live until the end of this function, and `into` is writable.
        let (into, starts) = unsafe { (into.bytes_mut(), starts.bytes()) };
        let shape = Shape::new(starts, &shape, &strides, item, into.len())?;
        strided::gather(py, &self.file, self.slow, into, &shape)
    }

    /// Copies a contiguous buffer to the elements of a strided array in the file.
    #[pyo3(signature = (bytes, starts, shape, strides, item))]
    fn scatter(
        &self,
        py: Python<'_>,
        bytes: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        strides: Vec<i64>,
        item: usize,
    ) -> PyResult<()> {
        let (from, starts) = (Buffer::of(bytes)?, Buffer::of(starts)?);
        // SAFETY: both buffers live until the end of this function.
        let (from, starts) = unsafe { (from.bytes(), starts.bytes()) };
        let shape = Shape::new(starts, &shape, &strides, item, from.len())?;
        strided::scatter(py, &self.file, from, &shape)
    }
}
