//! Where the files of databases are: in the file system, or in stores.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use innerspace::store::{Store, SyncWhat};

/// The place of a database and of the files next to it (journal, WAL), for databases that are not
/// in the file system: [`Options::disk`](crate::Options::disk).
///
/// Only this process may use them meanwhile. SQLite chooses the names: the database's name, and the
/// same name followed by `-journal` or `-wal`.
///
/// ```
/// use std::collections::HashMap;
/// use std::io;
/// use std::sync::{Arc, Mutex};
/// use innerspace::store::{MemoryStore, Store};
/// use innerspace_sqlite::{Deletion, Disk, Options};
///
/// #[derive(Default)]
/// struct Stores(Mutex<HashMap<String, Arc<MemoryStore>>>);
///
/// impl Disk for Stores {
///     fn open(&self, name: &str) -> io::Result<Arc<dyn Store>> {
///         match self.0.lock().unwrap().get(name) {
///             Some(store) => Ok(store.clone()),
///             None => Err(io::ErrorKind::NotFound.into()),
///         }
///     }
///
///     fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn Store>> {
///         Ok(self.0.lock().unwrap().entry(name.to_owned()).or_default().clone())
///     }
///
///     fn delete(&self, name: &str, _: Deletion) -> io::Result<()> {
///         let old = self.0.lock().unwrap().remove(name);
///         old.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
///     }
///
///     fn exists(&self, name: &str) -> io::Result<bool> {
///         Ok(self.0.lock().unwrap().contains_key(name))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// Options::new().name("stores").disk(Stores::default()).register()?;
/// let flags = rusqlite::OpenFlags::default();
/// let database = rusqlite::Connection::open_with_flags_and_vfs("a.db", flags, "stores")?;
/// database.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (7)")?;
/// assert_eq!(database.query_row("SELECT x FROM t", [], |row| row.get::<_, i64>(0))?, 7);
/// # Ok(()) }
/// ```
pub trait Disk: Send + Sync + 'static {
    /// Opens a file. The handles of one file reach the same bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none; otherwise the disk's own error.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Store>>;

    /// Opens a file, and makes an empty one if there is none.
    ///
    /// # Errors
    /// The disk's own error.
    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn Store>>;

    /// Deletes a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none; otherwise the disk's own error.
    fn delete(&self, name: &str, deletion: Deletion) -> io::Result<()>;

    /// Returns whether there is such a file.
    ///
    /// # Errors
    /// The disk's own error.
    fn exists(&self, name: &str) -> io::Result<bool>;
}

/// Whether a file that was [deleted](Disk::delete) may come back after a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Deletion {
    /// It may come back, so the disk need not wait.
    MayComeBack,
    /// It must not come back.
    Durable,
}

/// Opens a file of a disk, and makes an empty one if there is none and `create` says so.
pub(crate) fn open_on(disk: &dyn Disk, name: &str, create: bool) -> io::Result<Arc<dyn Store>> {
    match create {
        true => disk.open_or_create(name),
        false => disk.open(name),
    }
}

/// A file of the file system by plain calls, through the kernel's page cache.
#[derive(Debug)]
pub(crate) struct HostFile(pub(crate) Arc<File>);

impl Store for HostFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(&*self.0, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(&*self.0, buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        match what {
            SyncWhat::Data => self.0.sync_data(),
            SyncWhat::All => self.0.sync_all(),
        }
    }

    fn writable(&self) -> bool {
        true
    }
}

/// How a file of the file system is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) write: bool,
    pub(crate) create: bool,
    /// The file must not exist.
    pub(crate) exclusive: bool,
    /// The permissions of a new file.
    pub(crate) mode: u32,
}

/// Opens a file. Symbolic links are not followed: `xFullPathname` has resolved those that may be.
pub(crate) fn open(path: &Path, how: Opening) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(how.write)
        .create(how.write && how.create)
        .create_new(how.write && how.exclusive)
        .mode(how.mode)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    above_standard(file)
}

/// Moves a descriptor away from 0, 1 and 2, if the program has closed those: what it prints must
/// not end up in a database.
fn above_standard(file: File) -> io::Result<File> {
    if file.as_raw_fd() > 2 {
        return Ok(file);
    }
    // SAFETY: the descriptor is open.
    let higher = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if higher < 0 {
        return Err(io::Error::last_os_error());
    }
    // The low one stays open on purpose, so that the next file does not get it.
    let _ = OwnedFd::from(file).into_raw_fd();
    // SAFETY: the call made the descriptor, and nothing else knows it.
    Ok(unsafe { File::from_raw_fd(higher) })
}

/// Opens the file of a journal or a WAL, with the owner and the permissions of its database: a
/// user of the one may need the other.
pub(crate) fn open_beside(path: &Path, how: Opening) -> io::Result<File> {
    let name = path.as_os_str().as_bytes();
    let dash = name.iter().rposition(|byte| *byte == b'-');
    let database = dash.map(|dash| OsStr::from_bytes(&name[..dash]));
    let owner = database.and_then(|database| std::fs::metadata(database).ok());
    let mode = owner
        .as_ref()
        .map_or(how.mode, |owner| owner.mode() & 0o777);
    let file = open(path, Opening { mode, ..how })?;
    if owner.is_some() && how.create {
        match_mode(&file, mode);
    }
    // SAFETY: the call takes nothing.
    if let Some(owner) = owner.filter(|_| unsafe { libc::geteuid() } == 0)
        && how.create
    {
        // If it fails, the owner of the database cannot open the file, and sees an error.
        let _ = std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()));
    }
    Ok(file)
}

/// Opens the file of a journal or a WAL to write it, makes it if there is none, and makes its name
/// durable.
pub(crate) fn open_durably(path: &Path) -> io::Result<Arc<dyn Store>> {
    let how = Opening {
        write: true,
        create: true,
        exclusive: false,
        mode: 0o644,
    };
    let file = open_beside(path, how)?;
    // A failure is ignored, as in SQLite's own VFS: not every system can open a folder.
    let _ = sync_folder(path);
    Ok(Arc::new(HostFile(Arc::new(file))))
}

/// Gives a file that is new the permissions that it should have, whatever the process's umask.
pub(crate) fn match_mode(file: &File, mode: u32) {
    let differs = |found: Metadata| found.len() == 0 && found.mode() & 0o777 != mode;
    if file.metadata().is_ok_and(differs) {
        // If it fails, others cannot open the file, and see an error.
        let _ = file.set_permissions(Permissions::from_mode(mode));
    }
}

/// Reads the first bytes of a database, and returns how many there are. The kernel reads the first
/// page, which each shared lock looks at, and none of those that follow: they are in the memory.
pub(crate) fn read_first_page(file: &File, buf: &mut [u8]) -> usize {
    // Hints, so their results say nothing of use.
    // SAFETY: the descriptor is open.
    let advise = |advice| unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
    advise(libc::POSIX_FADV_RANDOM);
    // A page that cannot be read is an error as soon as SQLite reads it.
    let read = FileExt::read_at(file, buf, 0).unwrap_or(0);
    advise(libc::POSIX_FADV_NORMAL);
    read
}

/// Makes the names in a file's folder durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
