//! Opening direct access files: on a device's blocks, or over a host file.

#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use super::Memory;
use crate::cache::FileAccess;
use crate::dax::{DaxDevice, DaxError, DaxFile, DaxSetup, HoleWrites, OnShrink};
use crate::group::Group;
#[cfg(not(target_family = "wasm"))]
use crate::store::Create;

/// How to open a direct access file of a memory; made by [`Memory::direct_options`].
#[derive(Clone, Debug)]
pub struct DirectOpener {
    memory: Memory,
    group: Group,
    setup: DaxSetup,
}

impl Memory {
    /// An empty file in blocks of `device`, which other files may share. It lives as long as a handle or mapping of it.
    ///
    /// # Errors
    /// [`DaxError::Unsupported`] when the device is a host file's, whose file system has the blocks.
    pub fn direct_file(&self, device: &DaxDevice, name: &str) -> Result<DaxFile, DaxError> {
        self.direct_options().on(device, name)
    }

    /// An existing host file, its own bytes mapped: best on tmpfs or a DAX file system, where the host has no second copy
    /// of them. For reading and writing; other processes are kept out by an advisory lock.
    ///
    /// # Errors
    /// [`DaxError::Open`], [`DaxError::Unsupported`].
    #[cfg(not(target_family = "wasm"))]
    pub fn open_direct(&self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.direct_options().open(path)
    }

    /// Choices for a direct access file: group, access, what a write to a hole allocates, a guard.
    pub fn direct_options(&self) -> DirectOpener {
        DirectOpener {
            memory: self.clone(),
            group: self.0.root.clone(),
            setup: DaxSetup::default(),
        }
    }
}

impl DirectOpener {
    /// The group that pays for the file's entries; the root group by default. The bytes themselves are the device's.
    ///
    /// # Panics
    /// If `group` belongs to another `Memory`.
    pub fn group(mut self, group: &Group) -> DirectOpener {
        assert!(
            group.belongs_to(&self.memory.0.pool.groups),
            "a group of another memory"
        );
        self.group = group.clone();
        self
    }

    /// Reads and writes (the default), or reads alone.
    pub fn access(mut self, access: FileAccess) -> DirectOpener {
        self.setup.access = access;
        self
    }

    /// What a write to a hole allocates: one page, by default.
    pub fn hole_writes(mut self, what: HoleWrites) -> DirectOpener {
        self.setup.hole_writes = what;
        self
    }

    /// What happens when another process cuts the host file short: see [`OnShrink`]. No effect on a device's own blocks.
    pub fn on_shrink(mut self, what: OnShrink) -> DirectOpener {
        self.setup.on_shrink = what;
        self
    }

    /// The most bytes that a host file can grow to: so much address space is taken for it. 1 TiB by default, and at least
    /// what the file has.
    pub fn capacity(mut self, bytes: u64) -> DirectOpener {
        self.setup.capacity = bytes;
        self
    }

    /// An empty file in blocks of `device`.
    ///
    /// # Errors
    /// As [`Memory::direct_file`].
    pub fn on(self, device: &DaxDevice, name: &str) -> Result<DaxFile, DaxError> {
        DaxFile::on_device(&self.memory.0.pool, &self.group, device, name, self.setup)
    }

    /// An existing host file.
    ///
    /// # Errors
    /// As [`Memory::open_direct`].
    #[cfg(not(target_family = "wasm"))]
    pub fn open(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.over_host(path.as_ref(), Create::Never)
    }

    #[cfg(not(target_family = "wasm"))]
    fn over_host(self, path: &Path, create: Create) -> Result<DaxFile, DaxError> {
        DaxFile::over_host(&self.memory.0.pool, &self.group, path, create, self.setup)
    }

    /// Makes a host file, or empties an existing one that nobody has open, for reading and writing.
    ///
    /// # Errors
    /// As [`Memory::open_direct`].
    #[cfg(not(target_family = "wasm"))]
    pub fn create(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.access(FileAccess::ReadWrite)
            .over_host(path.as_ref(), Create::Truncate)
    }
}
