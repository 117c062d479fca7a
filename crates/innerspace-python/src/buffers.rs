//! The memory of a Python object: `bytes`, `bytearray`, `memoryview`, an array of numpy.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// A contiguous buffer of an object, which the object keeps in place while this value lives.
#[derive(Debug)]
pub(crate) struct Buffer(PyUntypedBuffer);

impl Buffer {
    /// Takes the buffer of an object.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer is not contiguous; pass a copy of it",
            ));
        }
        Ok(Buffer(buffer))
    }

    /// Takes a buffer that may be filled.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let buffer = Buffer::of(object)?;
        match buffer.0.readonly() {
            true => Err(PyBufferError::new_err("the buffer is read-only")),
            false => Ok(buffer),
        }
    }

    /// Returns the bytes to read.
    ///
    /// # Safety
    /// The program does not write to the object meanwhile, as for a `write` of Python's own files.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        match self.0.len_bytes() {
            0 => &[],
            // SAFETY: the object keeps this memory in place while the buffer is taken.
            len => unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), len) },
        }
    }

    /// Returns the bytes to fill.
    ///
    /// # Safety
    /// The buffer is writable, and the program does not use the object meanwhile, as for a
    /// `readinto` of Python's own files.
    pub(crate) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        match self.0.len_bytes() {
            0 => &mut [],
            // SAFETY: the object keeps this memory in place while the buffer is taken.
            len => unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), len) },
        }
    }
}
