//! Opening files: by path or over any store, each store once.

use std::collections::HashMap;
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use thiserror::Error;

use super::{Memory, MemoryInner};
use crate::cache::{FileAccess, FileError, FileInner, FileOptions, PagedFile, WriteOrder};
#[cfg(not(target_family = "wasm"))]
use crate::dax::DaxCore;
use crate::group::Group;
#[cfg(not(target_family = "wasm"))]
use crate::store::{self, CacheMode, Create, Locking, Opened};
use crate::store::{Identity, Store};
#[cfg(not(target_family = "wasm"))]
use crate::sync::thread;
use crate::sync::{Arc, MutexGuard, Weak};

/// A file that is open, or was: its last handle may be gone.
pub(super) enum OpenFile {
    /// Through the page cache.
    Cached(Weak<FileInner>),
    /// For direct access, and what is there until it is closed.
    #[cfg(not(target_family = "wasm"))]
    Direct(Weak<DaxCore>, Weak<()>),
}

/// What the table of files says of an identity.
pub(super) enum Listed {
    Cached(Arc<FileInner>),
    #[cfg(not(target_family = "wasm"))]
    Direct(Arc<DaxCore>),
    Nothing,
}

/// The table of files, locked.
pub(super) type Files<'memory> = MutexGuard<'memory, HashMap<Identity, OpenFile>>;

impl OpenFile {
    fn is_open(&self) -> bool {
        match self {
            OpenFile::Cached(file) => file.strong_count() > 0,
            #[cfg(not(target_family = "wasm"))]
            OpenFile::Direct(_, closed) => closed.strong_count() > 0,
        }
    }
}

/// Why a file could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file system refused.
    #[cfg(not(target_family = "wasm"))]
    #[error(transparent)]
    Path(#[from] store::OpenError),
    /// The store or the options are wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// The same store is open in this memory already, with other options.
    #[error("{file}: is open already {how}; close it first, or open it the same way")]
    OpenOtherwise {
        /// The file.
        file: String,
        /// How it is open.
        how: &'static str,
    },
    /// The same store is open in this memory already, so it was not emptied.
    #[error("{file}: is open already, so it is not emptied; close it first")]
    NotEmptied {
        /// The file.
        file: String,
    },
}

/// How to open a file of a memory; made by [`Memory::options`].
#[derive(Clone, Debug)]
pub struct FileOpener {
    memory: Memory,
    options: FileOptions,
}

impl Memory {
    /// Opens an existing file for reading.
    ///
    /// A file that is open in this memory already is the same [`PagedFile`] again: one cache, one set of dirty blocks.
    ///
    /// # Errors
    /// See [`OpenError`]: missing, a directory, unreadable, not a regular file.
    #[cfg(not(target_family = "wasm"))]
    pub fn open(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.options().open_path(path)
    }

    /// Opens an existing file for reading and writing, and keeps other processes from doing so.
    ///
    /// # Errors
    /// See [`OpenError`]; also when another process has it open for writing.
    #[cfg(not(target_family = "wasm"))]
    pub fn open_rw(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.options().access(FileAccess::ReadWrite).open_path(path)
    }

    /// Makes a file, or empties an existing one, and opens it for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]: [`OpenError::NotEmptied`] for a file that is open in this memory already. A file that is in use keeps its
    /// content.
    #[cfg(not(target_family = "wasm"))]
    pub fn create(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.options().create(path)
    }

    /// Choices for a file: block size, group, write order; then open it by path or over a store.
    pub fn options(&self) -> FileOpener {
        FileOpener {
            memory: self.clone(),
            options: FileOptions::new(),
        }
    }
}

impl FileOpener {
    /// The unit of caching in bytes: a power of two from 4 KiB (the default) to 2 MiB.
    pub fn block_size(mut self, bytes: u64) -> FileOpener {
        self.options = self.options.block_size(bytes);
        self
    }

    /// Reads alone (the default), or writes too.
    pub fn access(mut self, access: FileAccess) -> FileOpener {
        self.options = self.options.access(access);
        self
    }

    /// When dirty blocks are written.
    pub fn write_order(mut self, order: WriteOrder) -> FileOpener {
        self.options = self.options.write_order(order);
        self
    }

    /// The group that pays for the file's blocks; the root group by default.
    ///
    /// # Panics
    /// If `group` belongs to another `Memory`.
    pub fn group(mut self, group: &Group) -> FileOpener {
        assert!(
            group.belongs_to(&self.memory.0.pool.groups),
            "a group of another memory"
        );
        self.options = self.options.group(group);
        self
    }

    /// The name in messages; the store's own by default.
    pub fn name(mut self, name: &str) -> FileOpener {
        self.options = self.options.name(name);
        self
    }

    /// Opens a file over any store. A store whose identity is open in this memory already gives the same file.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(self, store: impl Store) -> Result<PagedFile, OpenError> {
        self.open_store(Arc::new(store))
    }

    /// Like [`FileOpener::open`], for a store that others hold too.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_store(self, store: Arc<dyn Store>) -> Result<PagedFile, OpenError> {
        let inner = &*self.memory.0;
        let Some(identity) = store.identity() else {
            return Ok(FileInner::open(&inner.cache, store, &self.options)?);
        };
        let (mut files, open) = inner.look_for_cached(identity)?;
        if let Some(open) = open {
            drop(files);
            return self.same_file(&open);
        }
        let file = FileInner::open(&inner.cache, store, &self.options)?;
        let open = OpenFile::Cached(Arc::downgrade(file.inner()));
        note_open(&mut files, identity, open);
        Ok(file)
    }

    /// Opens an existing file by path.
    ///
    /// # Errors
    /// See [`OpenError`].
    #[cfg(not(target_family = "wasm"))]
    pub fn open_path(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.with_create(path.as_ref(), Create::Never)
    }

    /// Makes a file by path, or empties an existing one, for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]: [`OpenError::NotEmptied`] for a file that is open in this memory already.
    #[cfg(not(target_family = "wasm"))]
    pub fn create(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::Truncate)
    }

    #[cfg(not(target_family = "wasm"))]
    fn with_create(self, path: &Path, create: Create) -> Result<PagedFile, OpenError> {
        let inner = &*self.memory.0;
        // What is wrong with the options costs nobody a file.
        self.options.check(path)?;
        let access = match self.options.file_access() {
            FileAccess::ReadOnly => store::Access::ReadOnly,
            FileAccess::ReadWrite => store::Access::ReadWrite,
        };
        // Known by what was opened, for the path may name another file a moment later. A second writable open of one file would meet
        // our own lock: looked for before, in the table, which stays locked until the file is in it.
        let mut opened = Opened::begin(path, access, create)?;
        loop {
            let identity = opened.identity();
            let files = match identity {
                None => None,
                Some(identity) => match inner.look_for_cached(identity)? {
                    (files, None) => Some(files),
                    (files, Some(open)) => {
                        drop(files);
                        return self.same_path(&open, create);
                    }
                },
            };
            let locked = match opened.lock()? {
                Locking::Done(locked) => locked,
                Locking::Other(other) => {
                    opened = other;
                    continue;
                }
            };
            let store = Arc::new(locked.into_store(CacheMode::Auto)?);
            let file = FileInner::open(&inner.cache, store, &self.options)?;
            if let (Some(mut files), Some(identity)) = (files, identity) {
                let open = OpenFile::Cached(Arc::downgrade(file.inner()));
                note_open(&mut files, identity, open);
            }
            return Ok(file);
        }
    }

    /// The file that is open already, unless it was to be emptied.
    #[cfg(not(target_family = "wasm"))]
    fn same_path(&self, open: &Arc<FileInner>, create: Create) -> Result<PagedFile, OpenError> {
        if create == Create::Never {
            return self.same_file(open);
        }
        let file = open.name().to_string();
        Err(OpenError::NotEmptied { file })
    }

    /// The file that is open already, if it is open in the way wanted.
    fn same_file(&self, open: &Arc<FileInner>) -> Result<PagedFile, OpenError> {
        let refuse = |how| {
            Err(OpenError::OpenOtherwise {
                file: open.name().to_string(),
                how,
            })
        };
        if self.options.file_access() == FileAccess::ReadWrite && !open.writable() {
            return refuse("read-only");
        }
        if self.options.bytes_a_block() != open.block_bytes() {
            return refuse("with another block size");
        }
        Ok(PagedFile::new(open))
    }
}

/// Notes a file that was just opened, and forgets those that are closed.
pub(super) fn note_open(
    files: &mut HashMap<Identity, OpenFile>,
    identity: Identity,
    open: OpenFile,
) {
    files.retain(|_, file| file.is_open());
    files.insert(identity, open);
}

impl MemoryInner {
    /// The table of files, and what it says of an identity. A file whose last handle is gone may still be writing, and has its store
    /// locked: that is waited for, with the table unlocked, since stores are called meanwhile.
    pub(super) fn look_for(&self, identity: Identity) -> (Files<'_>, Listed) {
        loop {
            let files = self.files.lock();
            match files.get(&identity) {
                Some(OpenFile::Cached(file)) => match file.upgrade() {
                    Some(file) => return (files, Listed::Cached(file)),
                    None if self.cache.is_closing(identity) => {
                        drop(files);
                        self.cache.wait_closed(identity);
                    }
                    None => return (files, Listed::Nothing),
                },
                #[cfg(not(target_family = "wasm"))]
                Some(OpenFile::Direct(file, closed)) => match file.upgrade() {
                    Some(file) => return (files, Listed::Direct(file)),
                    None if closed.strong_count() > 0 => {
                        drop(files);
                        thread::yield_now();
                    }
                    None => return (files, Listed::Nothing),
                },
                None => return (files, Listed::Nothing),
            }
        }
    }

    /// The same for who wants it through the page cache; the table stays locked.
    fn look_for_cached(
        &self,
        identity: Identity,
    ) -> Result<(Files<'_>, Option<Arc<FileInner>>), OpenError> {
        #[cfg(not(target_family = "wasm"))]
        if let (files, Listed::Direct(open)) = self.look_for(identity) {
            drop(files);
            drop(open);
            self.let_closed_go();
        }
        let (files, listed) = self.look_for(identity);
        match listed {
            Listed::Nothing => Ok((files, None)),
            Listed::Cached(open) => Ok((files, Some(open))),
            #[cfg(not(target_family = "wasm"))]
            Listed::Direct(open) => {
                drop(files);
                Err(OpenError::OpenOtherwise {
                    file: open.name().to_string(),
                    how: "for direct access",
                })
            }
        }
    }

    /// Files without a handle that are open for nothing but mappings which nobody can find any more are closed: for who would be
    /// refused because of one. Outside every section, with nothing locked.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn let_closed_go(&self) {
        self.pool.flush_retired();
    }
}
