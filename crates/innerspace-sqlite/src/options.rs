//! Registering the VFS from Rust.

use std::ffi::{CString, c_int};
use std::sync::Arc;

use innerspace::{Memory, MemoryError};

use crate::NAME;
use crate::disk::Disk;
use crate::ffi::{Api, install};
use crate::system::{DEFAULT_LIMIT, System};

/// How the VFS is registered.
///
/// The program has to be linked with SQLite, as by rusqlite with or without its feature `bundled`.
#[derive(Default)]
pub struct Options {
    name: Option<String>,
    limit: Option<u64>,
    memory: Option<Memory>,
    block: Option<u64>,
    is_default: bool,
    disk: Option<Box<dyn Disk>>,
}

/// Why the VFS was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// There is no memory of the limit asked for.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A VFS of this name is registered already.
    #[error("a VFS named {name:?} is registered already; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name has a zero in it, which SQLite cannot take.
    #[error("{name:?} is no name for a VFS: it has a zero in it")]
    BadName {
        /// The name.
        name: String,
    },
    /// SQLite refused the VFS.
    #[error("SQLite refused the VFS {name:?} with code {code}")]
    Refused {
        /// The name.
        name: String,
        /// SQLite's result code.
        code: i32,
    },
}

/// A VFS that is registered. It stays so as long as the process lives, even without this handle.
#[derive(Clone, Debug)]
pub struct Vfs {
    name: String,
    memory: Memory,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("name", &self.name)
            .field("limit", &self.limit)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The name `innerspace`, a memory of its own of 64 MiB, and the file system.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the name by which connections ask for the VFS.
    pub fn name(mut self, name: &str) -> Options {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the limit of a memory of its own, in bytes.
    pub fn limit(mut self, bytes: u64) -> Options {
        self.limit = Some(bytes);
        self
    }

    /// Uses a memory that the program has, in place of one of its own.
    pub fn memory(mut self, memory: &Memory) -> Options {
        self.memory = Some(memory.clone());
        self
    }

    /// Sets the unit of caching in bytes, for databases that ask for none: a power of two from
    /// 4 KiB, the default, to 2 MiB. Larger pages of SQLite (`PRAGMA page_size`) are used in place
    /// (`PRAGMA mmap_size`) only if they fit in a block.
    pub fn block_size(mut self, bytes: u64) -> Options {
        self.block = Some(bytes);
        self
    }

    /// Makes the VFS the one of connections that ask for none.
    pub fn default_vfs(mut self) -> Options {
        self.is_default = true;
        self
    }

    /// Puts the databases into stores, in place of the file system.
    pub fn disk(mut self, disk: impl Disk) -> Options {
        self.disk = Some(Box::new(disk));
        self
    }

    /// Registers the VFS with the SQLite that the program is linked with.
    ///
    /// # Errors
    /// [`RegisterError`].
    #[inline]
    pub fn register(self) -> Result<Vfs, RegisterError> {
        self.register_with(Api::linked())
    }

    #[doc(hidden)]
    pub fn register_with(self, api: Api) -> Result<Vfs, RegisterError> {
        let name = self.name.unwrap_or_else(|| NAME.to_owned());
        let Ok(c_name) = CString::new(name.as_str()) else {
            return Err(RegisterError::BadName { name });
        };
        // SAFETY: the name ends with a zero.
        if !unsafe { (api.sqlite3_vfs_find)(c_name.as_ptr()) }.is_null() {
            return Err(RegisterError::NameTaken { name });
        }
        let memory = match self.memory {
            Some(memory) => memory,
            None => Memory::with_limit(self.limit.unwrap_or(DEFAULT_LIMIT))?,
        };
        let system = System::new(Some(memory.clone()), self.disk, self.block);
        let refused = |code: c_int| RegisterError::Refused {
            name: name.clone(),
            code,
        };
        install(api, Arc::new(system), c_name, self.is_default).map_err(refused)?;
        Ok(Vfs { name, memory })
    }
}

impl Vfs {
    /// Returns the name by which connections ask for the VFS.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the memory in which the databases are cached.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
