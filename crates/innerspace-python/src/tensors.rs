//! The header of a file in the safetensors format, read by the crate `safetensors`.

use innerspace::PagedFile;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use safetensors::tensor::Metadata;

use crate::errors::Raise;
use crate::file::RawFile;

/// The bytes before the header, which say how long it is.
const PREFIX: u64 = 8;

/// The longest header that the format allows.
const LONGEST: u64 = 100_000_000;

/// Name, dtype, shape, offset in the file, length in bytes.
type Tensor = (String, String, Vec<usize>, u64, u64);

/// What is wrong with a header, as a sentence.
fn bad(reason: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(reason.to_string())
}

/// Returns the length of the header, and checks that it can be read.
fn header_len(file: &PagedFile, prefix: &[u8]) -> PyResult<u64> {
    let Ok(prefix) = prefix.try_into() else {
        return Err(bad(format!(
            "it has {} bytes, too few for the length of a header",
            prefix.len()
        )));
    };
    let len = u64::from_le_bytes(prefix);
    if len > LONGEST {
        return Err(bad(format!(
            "its header would have {len} bytes, and the format allows {LONGEST}"
        )));
    }
    if PREFIX + len > file.len() {
        return Err(bad(format!(
            "its header would end at {}, and it has {} bytes",
            PREFIX + len,
            file.len()
        )));
    }
    Ok(len)
}

/// Returns the tensors by offset, and the metadata of a file in the safetensors format. A header
/// that is wrong is a ValueError.
#[pyfunction]
pub(crate) fn read_tensors<'py>(
    py: Python<'py>,
    raw: &RawFile,
) -> PyResult<(Vec<Tensor>, Bound<'py, PyDict>)> {
    let file = &*raw.file;
    let prefix_len = PREFIX.min(file.len());
    let prefix = py.detach(|| file.read_to_vec(..prefix_len)).raise(py)?;
    let len = header_len(file, &prefix)?;
    if len > raw.limit() {
        return Err(crate::errors::limit_error(
            py,
            &format!(
                "the header has {len} bytes, more than the limit of {}; raise the limit",
                raw.limit()
            ),
        ));
    }
    let header = py
        .detach(|| file.read_to_vec(PREFIX..PREFIX + len))
        .raise(py)?;
    let header: Metadata = (py.detach(|| serde_json::from_slice(&header))).map_err(bad)?;
    let (start, data) = (PREFIX + len, header.data_len() as u64);
    if start.saturating_add(data) != file.len() {
        return Err(bad(format!(
            "its header promises {} bytes, and it has {}",
            start.saturating_add(data),
            file.len()
        )));
    }
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        if let Some(info) = header.info(&name) {
            let (from, to) = info.data_offsets;
            let (at, dtype) = (start + from as u64, format!("{:?}", info.dtype));
            tensors.push((name, dtype, info.shape.clone(), at, (to - from) as u64));
        }
    }
    let metadata = PyDict::new(py);
    for (key, value) in header.metadata().iter().flatten() {
        metadata.set_item(key, value)?;
    }
    Ok((tensors, metadata))
}
