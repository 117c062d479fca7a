//! The native half of the Python package `innerspace`: files, views and strided copies.
//!
//! The Python half has the file objects, the rules of indexing and the exceptions. This crate moves
//! the bytes.
//!
//! | file | contents |
//! |---|---|
//! | `detached` | values that are dropped with the interpreter's lock released |
//! | `errors` | the library's errors as Python's exceptions |
//! | `buffers` | the memory of a Python object, as bytes to read or to fill |
//! | `memory` | `RawMemory`, `RawGroup` |
//! | `file` | `RawFile`: reads and writes at an offset |
//! | `view` | `View`: the buffer protocol over a view of the library |
//! | `strided` | the elements of an array, gathered from a file and scattered to it |
//! | `background` | calls in the background, for an event loop |
//! | `store` | a file whose bytes come from a function of Python |
//! | `space` | `RawSpace`, `RawSnapshot` |
//! | `tensors` | the header of a safetensors file |
//!
//! **SQLite.** The same shared object is the extension of `innerspace-sqlite`: it exports that
//! crate's entry point, so that one file is installed.
//!
//! **The interpreter's lock** is released in each call that may wait: for a disk, for memory, for
//! another thread, or for a store that is itself written in Python. Dropping a file or a view may
//! wait too.
//!
//! **Signals.** A long transfer is made in pieces. Python's handlers run between two of them, so an
//! interrupt ends it.

mod background;
mod buffers;
mod detached;
mod errors;
mod file;
mod memory;
mod space;
mod store;
mod strided;
mod tensors;
mod view;

// The entry point of SQLite's extension is exported because the crate is linked.
use innerspace_sqlite as _;
use pyo3::prelude::*;

/// The extension module `innerspace._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<memory::RawMemory>()?;
    module.add_class::<memory::RawGroup>()?;
    module.add_class::<file::RawFile>()?;
    module.add_class::<view::View>()?;
    module.add_class::<space::RawSpace>()?;
    module.add_class::<space::RawSnapshot>()?;
    module.add_class::<background::Background>()?;
    module.add_class::<background::Wakeups>()?;
    module.add_function(wrap_pyfunction!(store::open_fetched, module)?)?;
    module.add_function(wrap_pyfunction!(tensors::read_tensors, module)?)?;
    Ok(())
}
