//! Registering the VFS from Rust.

use std::ffi::{CString, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use innerspace::store::Store;
use innerspace::{Memory, MemoryError};

use crate::NAME;
use crate::branch::join;
use crate::disk::Disk;
use crate::error::Failure;
use crate::ffi::{Api, install, raw, write_back_to};
use crate::file::{BranchAnswer, BranchCall};
use crate::system::{DEFAULT_LIMIT, System, new_memory};

/// How the VFS is registered.
///
/// The program has to be linked with SQLite, as by rusqlite with or without its feature `bundled`.
#[derive(Clone, Default)]
#[must_use]
pub struct Options {
    name: Option<String>,
    limit: Option<u64>,
    memory: Option<Memory>,
    block: Option<u64>,
    is_default: bool,
    disk: Option<Arc<dyn Disk>>,
}

/// Why the VFS was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// No memory could be created with the limit asked for.
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
#[derive(Clone)]
pub struct Vfs {
    name: String,
    memory: Memory,
    system: Arc<System>,
    api: Api,
}

/// Why a call for a branch failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BranchError {
    /// Another connection is writing, or a connection has the branch open. Try again.
    #[error("{reason}")]
    Busy {
        /// The holder, and what to do.
        reason: String,
    },
    /// There is no such database or branch, the name is taken or bad, or the parent has moved on.
    #[error("{reason}")]
    Refused {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The disk or the memory failed.
    #[error("{reason}")]
    Failed {
        /// SQLite's result code.
        code: i32,
        /// What failed.
        reason: String,
    },
}

impl From<BranchError> for io::Error {
    fn from(error: BranchError) -> io::Error {
        let kind = match &error {
            BranchError::Busy { .. } => io::ErrorKind::ResourceBusy,
            BranchError::Refused { .. } => io::ErrorKind::InvalidInput,
            BranchError::Failed { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl From<RegisterError> for io::Error {
    fn from(error: RegisterError) -> io::Error {
        let kind = match &error {
            RegisterError::Memory(error) => error.kind(),
            RegisterError::NameTaken { .. } => io::ErrorKind::AlreadyExists,
            RegisterError::BadName { .. } => io::ErrorKind::InvalidInput,
            RegisterError::Refused { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

impl From<Failure> for BranchError {
    fn from(failure: Failure) -> BranchError {
        let Failure { code, reason } = failure;
        match code & 0xff {
            raw::BUSY => BranchError::Busy { reason },
            raw::ERROR | raw::CANTOPEN => BranchError::Refused { reason },
            _ => BranchError::Failed { code, reason },
        }
    }
}

impl std::fmt::Debug for Vfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vfs")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
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
    /// Returns the default options: the name `innerspace`, a memory of its own of 64 MiB, and the
    /// file system.
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
        self.disk = Some(Arc::new(disk));
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
            None => new_memory(self.limit.unwrap_or(DEFAULT_LIMIT))?,
        };
        let system = Arc::new(System::new(Some(memory.clone()), self.disk, self.block));
        let refused = |code: c_int| RegisterError::Refused {
            name: name.clone(),
            code,
        };
        install(api, system.clone(), c_name, self.is_default).map_err(refused)?;
        Ok(Vfs {
            name,
            memory,
            system,
            api,
        })
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

    /// Makes a branch of a database: a writable copy as of now, in this process, until it is
    /// discarded. Nothing is copied. Open it by [`Vfs::branch_path`], or by `branch=NAME` in a URI.
    ///
    /// The SQL function `innerspace_branch(name)` does the same for a connection's main database,
    /// which may be a branch itself.
    ///
    /// ```
    /// use rusqlite::{Connection, OpenFlags};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data.db");
    /// let vfs = innerspace_sqlite::Options::new().name("branches").register()?;
    /// let flags = OpenFlags::default();
    /// let open = |path| Connection::open_with_flags_and_vfs(path, flags, vfs.name());
    /// let parent = open(path.clone())?;
    /// parent.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)")?;
    /// vfs.branch(&path, "what_if")?;
    /// let branch = open(vfs.branch_path(&path, "what_if")?)?;
    /// branch.execute("UPDATE t SET x = 2", [])?;
    /// parent.execute("UPDATE t SET x = 3", [])?;
    /// let x = |of: &Connection| of.query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0));
    /// assert_eq!((x(&branch)?, x(&parent)?), (2, 3));
    /// drop(branch);
    /// vfs.discard_branch(&path, "what_if")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BranchError`]: no such database, or a name that is taken or bad; or another connection is
    /// writing for more than a second.
    pub fn branch(&self, path: impl AsRef<Path>, name: &str) -> Result<(), BranchError> {
        self.call(path.as_ref(), BranchCall::Begin(name, None))
            .map(drop)
    }

    /// Makes a branch whose own pages are in `store`: as far as the memory has no room for them,
    /// and at each commit of the branch. The store is cut to nothing at the branch's first write,
    /// and must not be used by others as long as the branch lives. It serves a branch that needs a
    /// disk, a quota or a failure of its own; it is not a database, and cannot be opened again.
    ///
    /// # Errors
    /// Those of [`Vfs::branch`]. If the store fails, the branch's calls fail, and nobody else's.
    pub fn branch_in(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        store: impl Store,
    ) -> Result<(), BranchError> {
        let call = BranchCall::Begin(name, Some(Arc::new(store)));
        self.call(path.as_ref(), call).map(drop)
    }

    /// Returns the names of a database's branches, and of their branches, in order.
    pub fn branches(&self, path: impl AsRef<Path>) -> Vec<String> {
        self.system.branches(path.as_ref())
    }

    /// Returns the path by which a connection opens a branch.
    ///
    /// # Errors
    /// [`BranchError`]: no such database.
    pub fn branch_path(&self, path: impl AsRef<Path>, name: &str) -> Result<PathBuf, BranchError> {
        let full = self.system.full_path(path.as_ref())?;
        Ok(join(&full.to_string_lossy(), name).into())
    }

    /// Returns the numbers of the pages that differ between a branch and its parent as it was.
    ///
    /// # Errors
    /// [`BranchError`].
    pub fn changed_pages(
        &self,
        path: impl AsRef<Path>,
        name: &str,
    ) -> Result<Vec<u32>, BranchError> {
        match self.call(path.as_ref(), BranchCall::Changes(name))? {
            BranchAnswer::Pages(pages) => Ok(pages.into_iter().collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends a branch, and lets go of what it had.
    ///
    /// # Errors
    /// [`BranchError`]: no such branch, or it has connections or branches.
    pub fn discard_branch(&self, path: impl AsRef<Path>, name: &str) -> Result<(), BranchError> {
        self.call(path.as_ref(), BranchCall::Discard(name))
            .map(drop)
    }

    /// Writes a branch back to the database, in one transaction. The branch stays, and cannot be
    /// written back again.
    ///
    /// The pages that the branch has changed are written, as SQLite would: with the old ones in a
    /// journal until the end, which then stays as an empty file, or as frames of the WAL. SQLite's
    /// backup writes the whole database instead if the branch has other pages than its parent
    /// (`PRAGMA page_size`) or a WAL of its own, or if the parent is itself a branch.
    ///
    /// # Errors
    /// [`BranchError`]: no such branch, the parent has moved on since it began, or another
    /// connection is writing.
    pub fn commit_branch(&self, path: impl AsRef<Path>, name: &str) -> Result<(), BranchError> {
        let full = self.system.full_path(path.as_ref())?;
        let vfs = CString::new(self.name.as_str()).unwrap_or_default();
        Ok(write_back_to(self.api, &full, &vfs, name)?)
    }

    fn call(&self, path: &Path, call: BranchCall<'_>) -> Result<BranchAnswer, BranchError> {
        Ok(self.system.open_existing(path)?.branch(call)?)
    }
}
