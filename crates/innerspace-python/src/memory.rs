//! A memory and its groups.

use std::path::PathBuf;

use innerspace::file::{FileAccess, FileOpener};
use innerspace::{Group, Memory};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::detached::Detached;
use crate::errors::{Failure, Raise};
use crate::file::RawFile;

/// A memory manager with a hard limit.
#[pyclass(frozen, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct RawMemory {
    pub(crate) memory: Detached<Memory>,
}

/// A group of a memory.
#[pyclass(frozen, module = "innerspace._native")]
#[derive(Debug)]
pub(crate) struct RawGroup {
    pub(crate) group: Detached<Group>,
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Read,
    Update,
    Create,
    CreateNew,
}

impl RawMemory {
    /// Returns the options with a group and a block size, where they are given.
    pub(crate) fn opener(&self, group: Option<&RawGroup>, block: Option<u64>) -> FileOpener {
        let mut options = self.memory.file_options();
        if let Some(group) = group {
            options = options.group(&group.group);
        }
        if let Some(block) = block {
            options = options.block_size(block);
        }
        options
    }
}

#[pymethods]
impl RawMemory {
    #[new]
    fn new(py: Python<'_>, limit: u64) -> PyResult<RawMemory> {
        let memory = py.detach(|| Memory::with_limit(limit)).raise(py)?;
        Ok(RawMemory {
            memory: Detached::new(memory),
        })
    }

    /// A memory limited to a share of the machine or container.
    #[staticmethod]
    fn of_machine(py: Python<'_>, share: f64) -> PyResult<RawMemory> {
        let limit = innerspace::Limit::fraction(share);
        let memory = py.detach(|| Memory::with_limit(limit)).raise(py)?;
        Ok(RawMemory {
            memory: Detached::new(memory),
        })
    }

    #[getter]
    fn limit(&self) -> u64 {
        self.memory.limit()
    }

    fn usage(&self) -> u64 {
        self.memory.root_group().usage()
    }

    fn group(&self, py: Python<'_>, name: &str, max: u64) -> PyResult<RawGroup> {
        let group = py
            .detach(|| self.memory.create_group(name, max))
            .raise(py)?;
        Ok(RawGroup {
            group: Detached::new(group),
        })
    }

    #[pyo3(signature = (path, mode, group=None, block=None))]
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        group: Option<&RawGroup>,
        block: Option<u64>,
    ) -> PyResult<RawFile> {
        let mode = match mode {
            "r" => Mode::Read,
            "r+" => Mode::Update,
            "w+" => Mode::Create,
            "x+" => Mode::CreateNew,
            other => {
                return Err(PyValueError::new_err(format!(
                    "mode {other:?} is not one of 'r', 'r+', 'w+' and 'x+'"
                )));
            }
        };
        let options = self.opener(group, block);
        let open = || match mode {
            Mode::Read => options.open(&path),
            Mode::Update => options.access(FileAccess::ReadWrite).open(&path),
            Mode::Create => options.create(&path),
            Mode::CreateNew => options.create_new(&path),
        };
        Ok(RawFile::new(py.detach(open).raise(py)?, false))
    }

    /// Returns the counters as JSON, and as text for people.
    fn stats(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let stats = py.detach(|| self.memory.stats());
        let json = serde_json::to_string(&stats)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((json, stats.to_string()))
    }

    /// Evicts up to this many bytes, and returns how many were freed.
    fn reclaim(&self, py: Python<'_>, bytes: u64) -> u64 {
        py.detach(|| self.memory.reclaim(bytes))
    }

    /// Returns the failures that no file was left to report.
    fn take_errors(&self, py: Python<'_>) -> Vec<String> {
        let errors = py.detach(|| self.memory.take_errors());
        errors.iter().map(ToString::to_string).collect()
    }
}

#[pymethods]
impl RawGroup {
    #[getter]
    fn name(&self) -> String {
        self.group.name()
    }

    #[getter]
    fn path(&self) -> String {
        self.group.path()
    }

    fn usage(&self) -> u64 {
        self.group.usage()
    }

    fn take_peak(&self) -> u64 {
        self.group.take_peak()
    }

    fn child(&self, py: Python<'_>, name: &str, max: u64) -> PyResult<RawGroup> {
        let group = py.detach(|| self.group.create_child(name, max)).raise(py)?;
        Ok(RawGroup {
            group: Detached::new(group),
        })
    }

    /// Sets one of the group's four limits.
    #[pyo3(signature = (which, bytes))]
    fn set(&self, py: Python<'_>, which: &str, bytes: Option<u64>) -> PyResult<()> {
        let group = &*self.group;
        let set = || {
            match which {
                "max" => group.set_max(bytes),
                "high" => group.set_high(bytes),
                "low" => group.set_low(bytes),
                _ => group.set_min(bytes),
            }
            .map_err(Failure::from)
        };
        py.detach(set).raise(py)
    }
}
