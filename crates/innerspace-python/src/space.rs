//! Address spaces: `RawSpace` and `RawSnapshot`.
//!
//! An accessor of the library belongs to one thread at a time, and any thread of Python may use a
//! space. So a space keeps a few accessors at hand: a call takes one, or makes one, and puts it
//! back. They are taken and put back with the interpreter's lock held, and used without it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use innerspace::error::SpaceError;
use innerspace::space::{Fault, Protection, Snapshot, Space};
use innerspace::{Accessor, Map, VirtAddr};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::Buffer;
use crate::detached::Detached;
use crate::errors::{Failure, Raise, other_process};
use crate::file::{PIECE, RawFile};
use crate::memory::{RawGroup, RawMemory};

/// The accessors that a space keeps at hand, at most. Each has two pages of the memory.
const AT_HAND: usize = 4;

/// A space, or a snapshot of one.
trait Accessible {
    fn make(&self) -> Result<Accessor, Failure>;
}

impl Accessible for Space {
    fn make(&self) -> Result<Accessor, Failure> {
        Ok(self.accessor()?)
    }
}

impl Accessible for Snapshot {
    fn make(&self) -> Result<Accessor, Failure> {
        Ok(self.accessor()?)
    }
}

/// The accessors that no call is using.
#[derive(Debug)]
struct Accessors {
    at_hand: Mutex<Vec<Detached<Accessor>>>,
    /// The process that made them. In a child of fork(2) what an accessor remembers reads as zeros.
    process: u32,
}

impl Accessors {
    fn new() -> Accessors {
        Accessors {
            at_hand: Mutex::default(),
            process: std::process::id(),
        }
    }

    /// Makes an access with an accessor of its own.
    fn access<R: Send>(
        &self,
        py: Python<'_>,
        of: &(impl Accessible + Sync),
        access: impl FnOnce(&mut Accessor) -> Result<R, Fault> + Send,
    ) -> PyResult<R> {
        if std::process::id() != self.process {
            return Err(other_process(py));
        }
        let at_hand = self
            .at_hand
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut accessor = match at_hand {
            Some(accessor) => accessor,
            None => Detached::new(py.detach(|| of.make()).raise(py)?),
        };
        let with = &mut *accessor;
        let done = py.detach(move || access(with).map_err(|fault| with.explain(fault)));
        let surplus = {
            let mut all = self.at_hand.lock().unwrap_or_else(PoisonError::into_inner);
            match all.len() < AT_HAND {
                true => {
                    all.push(accessor);
                    None
                }
                false => Some(accessor),
            }
        };
        drop(surplus);
        done.raise(py)
    }

    /// Reads in pieces between which signals are handled.
    fn read(
        &self,
        py: Python<'_>,
        of: &(impl Accessible + Sync),
        at: u64,
        into: &mut [u8],
    ) -> PyResult<()> {
        let mut at = VirtAddr(at);
        for piece in into.chunks_mut(PIECE) {
            let next = VirtAddr(at.0.wrapping_add(piece.len() as u64));
            self.access(py, of, |accessor| accessor.read(at, piece))?;
            py.check_signals()?;
            at = next;
        }
        Ok(())
    }

    fn bytes<'py>(
        &self,
        py: Python<'py>,
        of: &(impl Accessible + Sync),
        at: u64,
        len: usize,
        limit: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if len as u64 > limit {
            return Err(crate::errors::limit_error(
                py,
                &format!(
                    "{len} bytes of a space would be in memory outside the limit of {limit} bytes; \
                     read less at a time, or raise the limit of the memory"
                ),
            ));
        }
        PyBytes::new_with(py, len, |into| self.read(py, of, at, into))
    }
}

/// An address space.
#[pyclass(frozen, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct RawSpace {
    accessors: Accessors,
    space: Detached<Space>,
}

/// A snapshot of a space.
#[pyclass(frozen, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct RawSnapshot {
    accessors: Accessors,
    snapshot: Detached<Snapshot>,
}

/// Address and length, as Python has them.
type Pages = Vec<(u64, u64)>;

fn pages(ranges: Vec<Range<VirtAddr>>) -> Pages {
    (ranges.into_iter())
        .map(|range| (range.start.0, range.end.0 - range.start.0))
        .collect()
}

fn limit_of(group: &innerspace::Group) -> u64 {
    let max = group.stats().max;
    max.map_or(u64::MAX >> 1, |max| max.bytes())
}

fn protection(of: &str) -> PyResult<Protection> {
    match of {
        "" => Ok(Protection::NONE),
        "r" => Ok(Protection::READ),
        "rw" => Ok(Protection::READ_WRITE),
        other => Err(PyValueError::new_err(format!(
            "protection {other:?} is not one of '', 'r' and 'rw'"
        ))),
    }
}

impl RawSpace {
    fn new(space: Space) -> RawSpace {
        RawSpace {
            accessors: Accessors::new(),
            space: Detached::new(space),
        }
    }

    fn made<E: Into<Failure> + Send>(
        py: Python<'_>,
        make: impl FnOnce() -> Result<Space, E> + Send,
    ) -> PyResult<RawSpace> {
        Ok(RawSpace::new(py.detach(make).raise(py)?))
    }

    fn mapped(&self, py: Python<'_>, mut map: Map, at: Option<u64>) -> PyResult<u64> {
        if let Some(at) = at {
            map = map.at(VirtAddr(at));
        }
        Ok(py.detach(|| self.space.map(map)).raise(py)?.0)
    }
}

#[pymethods]
impl RawSpace {
    /// Creates a space, which a group pays for.
    #[new]
    #[pyo3(signature = (memory, group=None))]
    fn create(py: Python<'_>, memory: &RawMemory, group: Option<&RawGroup>) -> PyResult<RawSpace> {
        RawSpace::made(py, || match group {
            Some(group) => memory.memory.create_space_in(&group.group),
            None => memory.memory.create_space(),
        })
    }

    fn limit(&self) -> u64 {
        limit_of(self.space.group())
    }

    /// Maps zeros, and returns the address.
    #[pyo3(signature = (len, at=None))]
    fn map_anonymous(&self, py: Python<'_>, len: u64, at: Option<u64>) -> PyResult<u64> {
        self.mapped(py, Map::anonymous(len), at)
    }

    /// Maps a range of a file, and returns the address.
    #[pyo3(signature = (file, offset, len, shared, writable, at=None))]
    #[allow(clippy::too_many_arguments, reason = "each is one of Python's")]
    fn map_file(
        &self,
        py: Python<'_>,
        file: &RawFile,
        offset: u64,
        len: Option<u64>,
        shared: bool,
        writable: bool,
        at: Option<u64>,
    ) -> PyResult<u64> {
        let map = Map::file(&file.file);
        let map = match len {
            Some(len) => map.range(offset..offset.saturating_add(len)),
            None => map.range(offset..),
        };
        let map = if shared { map.shared() } else { map.private() };
        let map = if writable { map.writable() } else { map };
        self.mapped(py, map, at)
    }

    fn unmap(&self, py: Python<'_>, at: u64, len: u64) -> PyResult<()> {
        py.detach(|| self.space.unmap(VirtAddr(at), len)).raise(py)
    }

    fn protect(&self, py: Python<'_>, at: u64, len: u64, rights: &str) -> PyResult<()> {
        let rights = protection(rights)?;
        py.detach(|| self.space.protect(VirtAddr(at), len, rights))
            .raise(py)
    }

    /// Writes what is unwritten of shared mappings, and makes it durable.
    fn sync(&self, py: Python<'_>, at: u64, len: u64) -> PyResult<()> {
        py.detach(|| self.space.sync(VirtAddr(at), len)).raise(py)
    }

    fn read<'py>(&self, py: Python<'py>, at: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let limit = self.limit();
        self.accessors.bytes(py, &*self.space, at, len, limit)
    }

    fn readinto(&self, py: Python<'_>, at: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        // SAFETY: `buffer` lives until the end of this function, and is writable.
        let into = unsafe { buffer.bytes_mut() };
        self.accessors.read(py, &*self.space, at, into)?;
        Ok(into.len())
    }

    fn write(&self, py: Python<'_>, at: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let buffer = Buffer::of(buffer)?;
        // SAFETY: `buffer` lives until the end of this function.
        let bytes = unsafe { buffer.bytes() };
        let mut at = VirtAddr(at);
        for piece in bytes.chunks(PIECE) {
            let write = |accessor: &mut Accessor| accessor.write(at, piece);
            self.accessors.access(py, &*self.space, write)?;
            py.check_signals()?;
            at = VirtAddr(at.0.wrapping_add(piece.len() as u64));
        }
        Ok(bytes.len())
    }

    fn fill(&self, py: Python<'_>, at: u64, len: usize, byte: u8) -> PyResult<()> {
        let fill = |accessor: &mut Accessor| accessor.fill(VirtAddr(at), byte, len);
        self.accessors.access(py, &*self.space, fill)
    }

    #[pyo3(signature = (group=None))]
    fn fork(&self, py: Python<'_>, group: Option<&RawGroup>) -> PyResult<RawSpace> {
        RawSpace::made(py, || match group {
            Some(group) => self.space.fork_in(&group.group),
            None => self.space.fork(),
        })
    }

    fn freeze(&self, py: Python<'_>) -> PyResult<RawSnapshot> {
        let snapshot = py.detach(|| self.space.freeze()).raise(py)?;
        Ok(RawSnapshot {
            accessors: Accessors::new(),
            snapshot: Detached::new(snapshot),
        })
    }

    fn restore(&self, py: Python<'_>, snapshot: &RawSnapshot) -> PyResult<()> {
        py.detach(|| self.space.restore(&snapshot.snapshot))
            .raise(py)
    }

    fn changed_since(&self, py: Python<'_>, snapshot: &RawSnapshot) -> PyResult<Pages> {
        let changed = py.detach(|| self.space.changed_since(&snapshot.snapshot));
        changed.map(pages).raise(py)
    }

    /// Returns address, length, protection and file of each mapping, by address.
    fn mappings(&self, py: Python<'_>) -> Vec<(u64, u64, String, Option<String>)> {
        let stats = py.detach(|| self.space.stats());
        (stats.mappings.into_iter())
            .map(|one| {
                let (start, end) = (one.start.0, one.end.0);
                (start, end - start, one.protection.to_string(), one.file)
            })
            .collect()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a space cannot be pickled"))
    }
}

#[pymethods]
impl RawSnapshot {
    fn read<'py>(&self, py: Python<'py>, at: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let limit = limit_of(self.snapshot.group());
        self.accessors.bytes(py, &*self.snapshot, at, len, limit)
    }

    fn readinto(&self, py: Python<'_>, at: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut buffer = Buffer::writable(buffer)?;
        // SAFETY: `buffer` lives until the end of this function, and is writable.
        let into = unsafe { buffer.bytes_mut() };
        self.accessors.read(py, &*self.snapshot, at, into)?;
        Ok(into.len())
    }

    #[pyo3(signature = (group=None))]
    fn fork(&self, py: Python<'_>, group: Option<&RawGroup>) -> PyResult<RawSpace> {
        RawSpace::made(py, || -> Result<Space, SpaceError> {
            match group {
                Some(group) => self.snapshot.fork_in(&group.group),
                None => self.snapshot.fork(),
            }
        })
    }

    fn diff(&self, py: Python<'_>, other: &RawSnapshot) -> PyResult<Pages> {
        let changed = py.detach(|| self.snapshot.diff(&other.snapshot));
        changed.map(pages).raise(py)
    }
}
