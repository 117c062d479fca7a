//! Opening files: by path or over any store, each store once.
//!
//! The table of files is locked while a file of the file system is opened, locked and put into it.
//! A store of the user's may open other files when it is asked: it is asked with the table
//! unlocked, and an [`OpenFile::Opening`] stands there meanwhile. If that is gone when the table is
//! locked again, the store was open in between and may have changed: it is asked once more. Nobody
//! waits for an `Opening`; of two who open a store at once the second finds the first one's file.

use std::collections::HashMap;
use std::io;
#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use thiserror::Error;

use super::{Memory, MemoryInner};
use crate::cache::{
    Asked, FileAccess, FileCore, FileError, FileInner, FileOptions, PagedFile, WriteOrder,
};
#[cfg(not(target_family = "wasm"))]
use crate::dax::DaxCore;
use crate::group::Group;
#[cfg(not(target_family = "wasm"))]
use crate::store::{self, CacheMode, Create, Locked, Locking, Opened};
use crate::store::{Identity, Store};
#[cfg(not(target_family = "wasm"))]
use crate::sync::thread;
use crate::sync::{Arc, MutexGuard, Weak};

/// A file that is open, or was: its last handle may be gone.
pub(super) enum OpenFile {
    /// Not yet, and not since this was put here: those who open it are asking its store.
    Opening(Weak<()>),
    /// Through the page cache, and what is there until it is closed, or longer.
    Cached(Weak<FileInner>, Weak<FileCore>),
    /// For direct access, and what is there until it is closed.
    #[cfg(not(target_family = "wasm"))]
    Direct(Weak<DaxCore>, Weak<()>),
}

/// A file of the table that is open.
pub(super) enum Listed {
    Cached(Arc<FileInner>),
    #[cfg(not(target_family = "wasm"))]
    Direct(Arc<DaxCore>),
}

/// The table of files, locked.
type Files<'memory> = MutexGuard<'memory, HashMap<Identity, OpenFile>>;

/// Whether a file is open already.
enum Found<'memory, F> {
    /// It is.
    Same(F),
    /// It is not; the table of files, locked.
    Nothing(Files<'memory>),
}

impl OpenFile {
    fn cached(file: &PagedFile) -> OpenFile {
        let inner = file.inner();
        OpenFile::Cached(Arc::downgrade(inner), Arc::downgrade(inner.core()))
    }

    /// Whether it is open, or somebody opens or closes it: who opens it has to find it.
    fn is_in_use(&self) -> bool {
        match self {
            OpenFile::Opening(mark) => mark.strong_count() > 0,
            OpenFile::Cached(_, core) => core.strong_count() > 0,
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
    /// The group that was to pay belongs to another memory.
    #[error("the group that was to pay for the file is of another memory")]
    OtherMemorysGroup,
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

impl OpenError {
    /// Whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        matches!(self, OpenError::File(error) if error.is_limit())
    }

    /// The nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            #[cfg(not(target_family = "wasm"))]
            OpenError::Path(error) => error.kind(),
            OpenError::File(error) => error.kind(),
            OpenError::OtherMemorysGroup => io::ErrorKind::InvalidInput,
            OpenError::OpenOtherwise { .. } | OpenError::NotEmptied { .. } => {
                io::ErrorKind::ResourceBusy
            }
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
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
    /// A file that is open in this memory already is the same [`PagedFile`] again: one cache, one
    /// set of dirty blocks. It is writable if it was opened so, and the group that pays for it
    /// stays the one it was opened in. Its length is what the file system says: files of /proc say
    /// 0, and show nothing.
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
    /// See [`OpenError`]: [`OpenError::NotEmptied`] for a file that is open in this memory already.
    /// A file that is in use keeps its content.
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

    /// When dirty blocks are written. [`WriteOrder::Background`], the default, takes the order of a
    /// file that is open already; another that it has not is [`OpenError::OpenOtherwise`].
    pub fn write_order(mut self, order: WriteOrder) -> FileOpener {
        self.options = self.options.write_order(order);
        self
    }

    /// The group that pays for the file's blocks; the root group by default. With one of another
    /// `Memory` nothing is opened: [`OpenError::OtherMemorysGroup`].
    pub fn group(mut self, group: &Group) -> FileOpener {
        self.options = self.options.group(group);
        self
    }

    /// The name in messages; the store's own by default.
    pub fn name(mut self, name: &str) -> FileOpener {
        self.options = self.options.name(name);
        self
    }

    /// Opens a file over any store. A store whose identity is open in this memory already gives the
    /// same file.
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
        self.check_process(|| store.name())?;
        self.check_group()?;
        let Some(identity) = store.identity() else {
            return Ok(FileInner::open(&inner.cache, store, &self.options)?);
        };
        loop {
            let mark = match inner.look(identity, |listed| self.same_file(listed))? {
                Found::Same(open) => return Ok(open),
                Found::Nothing(mut files) => note_opening(&mut files, identity),
            };
            let asked = Asked::new(store.clone(), &self.options)?;
            let mut files = match inner.look(identity, |listed| self.same_file(listed))? {
                Found::Same(open) => return Ok(open),
                Found::Nothing(files) => files,
            };
            if is_opening(&files, identity, &mark) {
                let file = FileInner::over(&inner.cache, asked, &self.options);
                note_open(&mut files, identity, OpenFile::cached(&file));
                return Ok(file);
            }
        }
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

    /// Opens a file by path for reading and writing, with what it holds; makes an empty one where
    /// there is none.
    ///
    /// # Errors
    /// See [`OpenError`]; also when another process has it open for writing.
    #[cfg(not(target_family = "wasm"))]
    pub fn open_or_create(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::IfMissing)
    }

    #[cfg(not(target_family = "wasm"))]
    fn with_create(self, path: &Path, create: Create) -> Result<PagedFile, OpenError> {
        let inner = &*self.memory.0;
        // What is wrong with the options costs nobody a file.
        self.check_process(|| store::shown(path))?;
        self.check_group()?;
        self.options.check(path)?;
        let access = match self.options.file_access() {
            FileAccess::ReadOnly => store::Access::ReadOnly,
            FileAccess::ReadWrite => store::Access::ReadWrite,
        };
        let same = |listed: Listed| match (listed, create) {
            (Listed::Cached(open), Create::Truncate) => Err(OpenError::NotEmptied {
                file: open.name().to_string(),
            }),
            (listed, _) => self.same_file(listed),
        };
        let make = |locked: Locked<'_>| {
            let store = Arc::new(locked.into_store(CacheMode::Auto)?);
            let file = FileInner::open(&inner.cache, store, &self.options)?;
            let open = OpenFile::cached(&file);
            Ok((file, open))
        };
        inner.open_once(Opened::begin(path, access, create)?, same, make)
    }

    fn check_process(&self, name: impl Fn() -> String) -> Result<(), OpenError> {
        match self.memory.0.pool.foreign_maker() {
            None => Ok(()),
            Some(maker) => Err(OpenError::File(FileError::OtherProcess {
                file: name().into(),
                pid: maker.id(),
            })),
        }
    }

    fn check_group(&self) -> Result<(), OpenError> {
        let own = &self.memory.0.pool.groups;
        match self.options.payer() {
            Some(group) if !group.belongs_to(own) => Err(OpenError::OtherMemorysGroup),
            _ => Ok(()),
        }
    }

    /// The file that is open already, if it is open in the way wanted.
    fn same_file(&self, listed: Listed) -> Result<PagedFile, OpenError> {
        let refuse = |name: &str, how| {
            Err(OpenError::OpenOtherwise {
                file: name.to_string(),
                how,
            })
        };
        let open = match listed {
            Listed::Cached(open) => open,
            #[cfg(not(target_family = "wasm"))]
            Listed::Direct(open) => return refuse(open.name(), "for direct access"),
        };
        if self.options.file_access() == FileAccess::ReadWrite && !open.writable() {
            return refuse(open.name(), "read-only");
        }
        if self.options.bytes_a_block() != open.block_bytes() {
            return refuse(open.name(), "with another block size");
        }
        let order = self.options.order();
        // `Background` holds nothing back, so whoever asks for it is content with any.
        if order != WriteOrder::Background && order != open.write_order {
            return refuse(open.name(), "with another write order");
        }
        Ok(PagedFile::new(&open))
    }
}

/// Notes a file that was just opened, and forgets those that are closed.
fn note_open(files: &mut HashMap<Identity, OpenFile>, identity: Identity, open: OpenFile) {
    files.retain(|_, file| file.is_in_use());
    files.insert(identity, open);
}

/// Notes that a store is about to be asked. The mark is good while the result of this lives, and is
/// that of all who ask it now.
fn note_opening(files: &mut HashMap<Identity, OpenFile>, identity: Identity) -> Arc<()> {
    if let Some(OpenFile::Opening(mark)) = files.get(&identity)
        && let Some(mark) = mark.upgrade()
    {
        return mark;
    }
    let mark = Arc::new(());
    files.insert(identity, OpenFile::Opening(Arc::downgrade(&mark)));
    mark
}

/// Whether the store has not been open since it was marked.
fn is_opening(files: &HashMap<Identity, OpenFile>, identity: Identity, mark: &Arc<()>) -> bool {
    let now = files.get(&identity);
    matches!(now, Some(OpenFile::Opening(now)) if std::ptr::eq(now.as_ptr(), Arc::as_ptr(mark)))
}

impl MemoryInner {
    /// The file at a path, once: what `same` makes of the one that is open already, or else what
    /// `make` makes of it, locked against other processes.
    ///
    /// It is known by what was opened, for the path may name another file a moment later. A second
    /// writable open of one file would meet our own lock: it is looked for before, in the table,
    /// which stays locked until the file is in it.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn open_once<F, E: From<store::OpenError>>(
        &self,
        mut opened: Opened,
        same: impl Fn(Listed) -> Result<F, E>,
        make: impl FnOnce(Locked<'_>) -> Result<(F, OpenFile), E>,
    ) -> Result<F, E> {
        loop {
            let identity = opened.identity();
            let files = match identity {
                None => None,
                Some(identity) => match self.look(identity, &same)? {
                    Found::Same(open) => return Ok(open),
                    Found::Nothing(files) => Some(files),
                },
            };
            let locked = match opened.lock()? {
                Locking::Done(locked) => locked,
                Locking::Other(other) => {
                    opened = other;
                    continue;
                }
            };
            let (file, open) = make(locked)?;
            if let (Some(mut files), Some(identity)) = (files, identity) {
                note_open(&mut files, identity, open);
            }
            return Ok(file);
        }
    }

    /// What `same` makes of the file that is open as `identity`. One that it refuses may be open
    /// for nothing but mappings that nobody can find any more: those are let go, and the file is
    /// looked for once more.
    fn look<F, E>(
        &self,
        identity: Identity,
        same: impl Fn(Listed) -> Result<F, E>,
    ) -> Result<Found<'_, F>, E> {
        let mut refused = false;
        loop {
            let (files, listed) = self.look_for(identity);
            let Some(listed) = listed else {
                return Ok(Found::Nothing(files));
            };
            drop(files);
            match same(listed) {
                Ok(open) => return Ok(Found::Same(open)),
                Err(error) if refused => return Err(error),
                // Outside every section, with nothing locked.
                Err(_) => self.pool.run_deferred(),
            }
            refused = true;
        }
    }

    /// The table of files, and what it says of an identity. A file whose last handle is gone may
    /// still be writing, and has its store locked: that is waited for, with the table unlocked,
    /// since stores are called meanwhile.
    fn look_for(&self, identity: Identity) -> (Files<'_>, Option<Listed>) {
        loop {
            let files = self.files.lock();
            match files.get(&identity) {
                Some(OpenFile::Cached(file, _)) => match file.upgrade() {
                    Some(file) => return (files, Some(Listed::Cached(file))),
                    None if self.cache.is_closing(identity) => {
                        drop(files);
                        self.cache.wait_closed(identity);
                    }
                    None => return (files, None),
                },
                #[cfg(not(target_family = "wasm"))]
                Some(OpenFile::Direct(file, closed)) => match file.upgrade() {
                    Some(file) => return (files, Some(Listed::Direct(file))),
                    None if closed.strong_count() > 0 => {
                        drop(files);
                        thread::yield_now();
                    }
                    None => return (files, None),
                },
                Some(OpenFile::Opening(_)) | None => return (files, None),
            }
        }
    }
}
