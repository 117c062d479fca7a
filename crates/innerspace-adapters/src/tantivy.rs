//! tantivy indexes in a cache with a hard limit.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use innerspace::file::{Cursor, FileError, Reading};
use innerspace::{FileOpener, OpenError, PagedFile, store};
use tantivy::HasLen;
use tantivy::directory::error::{
    DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError,
};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, OwnedBytes,
    TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};

/// A folder whose index files are read and written through an [`innerspace::Memory`].
///
/// Names, locks, and the small files that are replaced as a whole (`meta.json`) are left to
/// tantivy's own [`MmapDirectory`], so that both open the same index. Nothing is mapped.
///
/// tantivy asks for some ranges as one slice that a small limit has no room for: for all stored
/// documents of a segment when it is merged. Such a range is a copy on the heap, outside the limit,
/// until tantivy drops it.
///
/// ```
/// use innerspace::{MIB, Memory};
/// use innerspace_adapters::tantivy::PagedDirectory;
/// use tantivy::schema::{STORED, Schema, TEXT};
/// use tantivy::{Index, IndexSettings, doc};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let memory = Memory::with_limit(32 * MIB)?;
/// let directory = PagedDirectory::open(memory.file_options(), folder.path())?;
/// let mut schema = Schema::builder();
/// let title = schema.add_text_field("title", TEXT | STORED);
/// let index = Index::create(directory, schema.build(), IndexSettings::default())?;
/// let mut writer = index.writer_with_num_threads(1, 15_000_000)?;
/// writer.add_document(doc!(title => "the old man and the sea"))?;
/// writer.commit()?;
/// assert_eq!(index.reader()?.searcher().num_docs(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PagedDirectory {
    folder: MmapDirectory,
    path: PathBuf,
    options: FileOpener,
    reading: Reading,
}

impl PagedDirectory {
    /// Opens an existing folder. `options` say which memory and group pay, and how large a block
    /// is: 4 KiB reads least in cold queries, 64 KiB is quicker for merging.
    ///
    /// # Errors
    /// [`OpenDirectoryError`]: there is no such folder.
    pub fn open(
        options: FileOpener,
        path: impl AsRef<Path>,
    ) -> Result<PagedDirectory, OpenDirectoryError> {
        let path = path.as_ref();
        Ok(PagedDirectory {
            folder: MmapDirectory::open(path)?,
            path: path.to_owned(),
            options,
            reading: Reading::Normal,
        })
    }

    /// Says in which order the files will be read, as the advice of [`MmapDirectory`] does: with
    /// [`Reading::Random`], for queries, nothing is read ahead.
    #[must_use]
    pub fn reading(mut self, reading: Reading) -> PagedDirectory {
        self.reading = reading;
        self
    }
}

impl fmt::Debug for PagedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagedDirectory({:?})", self.path)
    }
}

impl Directory for PagedDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        match self.options.clone().open(self.path.join(path)) {
            Ok(file) => {
                file.set_reading(self.reading);
                Ok(Arc::new(PagedHandle(file)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(OpenReadError::FileDoesNotExist(path.to_owned()))
            }
            Err(error) => Err(OpenReadError::wrap_io_error(error.into(), path.to_owned())),
        }
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        match self.options.clone().create_new(self.path.join(path)) {
            Ok(file) => Ok(BufWriter::new(Box::new(PagedWriter(file.cursor())))),
            Err(OpenError::Path(store::FileOpenError::AlreadyExists { .. })) => {
                Err(OpenWriteError::FileAlreadyExists(path.to_owned()))
            }
            Err(error) => Err(OpenWriteError::wrap_io_error(error.into(), path.to_owned())),
        }
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.folder.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.folder.exists(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.folder.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        self.folder.atomic_write(path, data)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.folder.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.folder.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.folder.watch(callback)
    }
}

/// A file of the index, to read. It keeps its bytes even after its name was removed.
struct PagedHandle(PagedFile);

impl fmt::Debug for PagedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagedHandle({})", self.0.name())
    }
}

impl HasLen for PagedHandle {
    fn len(&self) -> usize {
        self.0.len() as usize
    }
}

impl FileHandle for PagedHandle {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let (start, len) = (range.start as u64, range.len());
        match self.0.view(start..start + len as u64) {
            Ok(view) => Ok(OwnedBytes::new(view)),
            // Merging asks for all of a segment's stored documents as one slice.
            Err(error) if error.is_limit() || matches!(error, FileError::ViewTooLarge { .. }) => {
                let mut bytes = vec![0; len];
                match self.0.read_at_uncached(&mut bytes, start)? {
                    read if read == len => Ok(OwnedBytes::new(bytes)),
                    _ => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A file of the index that is being written.
struct PagedWriter(Cursor);

impl Write for PagedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TerminatingWrite for PagedWriter {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        Ok(self.0.file().sync_data()?)
    }
}
