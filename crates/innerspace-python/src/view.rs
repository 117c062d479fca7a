//! [`View`]: bytes of a file that do not change, through the buffer protocol.

use std::ffi::c_int;

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};
use pyo3::{IntoPyObjectExt, ffi};

use crate::detached::Detached;

/// Bytes of a file that do not change while the view lives, even if the file is written, cut or
/// closed. It has the buffer protocol, read-only: pass it to `memoryview`, `bytes`,
/// `numpy.frombuffer`, or to anything else that takes bytes. What is made of it keeps it alive.
///
/// A view keeps its blocks in the memory, and charged, as long as it lives.
#[pyclass(frozen, module = "innerspace")]
#[derive(Debug)]
pub(crate) struct View {
    view: Detached<innerspace::View>,
    /// Where the bytes begin in the file.
    offset: u64,
}

impl View {
    pub(crate) fn new(view: innerspace::View, offset: u64) -> View {
        View {
            view: Detached::new(view),
            offset,
        }
    }
}

#[pymethods]
impl View {
    /// The offset of the first byte in the file.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.view.len()
    }

    /// Returns a copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.view)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.tobytes(py)
    }

    fn __len__(&self) -> usize {
        self.view.len()
    }

    /// Returns one byte as an integer, or a view of a part, without a copy.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, len) = (index.py(), self.view.len());
        if let Ok(slice) = index.cast::<PySlice>() {
            let indices = slice.indices(len.cast_signed())?;
            if indices.step != 1 {
                return Err(PyValueError::new_err(
                    "a part of a view has a step of 1; take memoryview(view)[...] for others",
                ));
            }
            let start = indices.start.cast_unsigned();
            let part = self.view.slice(start..start + indices.slicelength);
            return View::new(part, self.offset + start as u64).into_bound_py_any(py);
        }
        let Ok(index) = index.extract::<isize>() else {
            return Err(PyTypeError::new_err(
                "an index of a view is an integer or a slice",
            ));
        };
        let at = if index < 0 {
            index + len.cast_signed()
        } else {
            index
        };
        match usize::try_from(at).ok().and_then(|at| self.view.get(at)) {
            Some(byte) => byte.into_bound_py_any(py),
            None => Err(PyIndexError::new_err(format!(
                "index {index} is out of range: the view has {len} bytes"
            ))),
        }
    }

    fn __repr__(&self) -> String {
        format!(
            "<innerspace.View of {} bytes at {}>",
            self.view.len(),
            self.offset
        )
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a view cannot be pickled: pass bytes(view), or open the file again there",
        ))
    }

    /// Fills in the request for the buffer.
    ///
    /// # Safety
    /// Python's: `request` points to a buffer that is to be filled in.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, View>,
        request: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().view;
        // SAFETY: the buffer refers to the view, which keeps the bytes in place and unchanged;
        // with `readonly` set, a request for a writable buffer is refused.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                request,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len().cast_signed(),
                1,
                flags,
            )
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
