//! The files of a VFS: opening, deleting, and what all its databases share.

use std::collections::HashMap;
use std::ffi::{OsStr, c_int};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use innerspace::store::{FileAccess, FileLock, FileOptions, Store, read_exact_or_eof};
use innerspace::{FileOpener, Group, Memory, MemoryError, PageCount};

use crate::branch::{self, Branch};
use crate::database::{Beside, Database, identity};
use crate::disk::{self, Deletion, Disk, HostFile, Opening};
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::OpenFile;
use crate::locks::{DATABASE, Locks};
use crate::main_file::MainFile;
use crate::plain::PlainFile;
use crate::temporary::TemporaryFile;
use crate::uri::Wishes;

/// The limit of a memory for which none was given: 64 MiB.
pub(crate) const DEFAULT_LIMIT: u64 = 64 << 20;

/// Creates the memory of the databases. SQLite reads pages of a few KiB all over a file, so it
/// gains nothing by huge pages and would wait for each of them to be cleared.
pub(crate) fn new_memory(limit: u64) -> Result<Memory, MemoryError> {
    Memory::builder(limit).huge_pages(false).build()
}

/// The first bytes of a database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// All that the databases of a VFS share.
pub(crate) struct System {
    state: Mutex<State>,
    /// `None` means the file system.
    disk: Option<Arc<dyn Disk>>,
    block: Option<u64>,
}

#[derive(Default)]
struct State {
    memory: Option<Memory>,
    groups: HashMap<String, Group>,
    databases: HashMap<Key, Weak<Database>>,
}

/// What makes two names one database.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Key {
    File([u64; 2]),
    Name(String),
}

/// A file that was opened, and the flags with which it was opened.
pub(crate) struct Opened {
    pub(crate) file: Box<dyn OpenFile>,
    pub(crate) flags: c_int,
    /// Lines for the log: what will not work with the file, although it is open.
    pub(crate) remarks: Vec<Failure>,
}

impl Opened {
    fn new(file: impl OpenFile + 'static, flags: c_int) -> Opened {
        let file = Box::new(file);
        Opened {
            file,
            flags,
            remarks: Vec::new(),
        }
    }
}

impl System {
    /// Makes a system over a memory; without one, the first database makes it.
    pub(crate) fn new(
        memory: Option<Memory>,
        disk: Option<Arc<dyn Disk>>,
        block: Option<u64>,
    ) -> System {
        let state = State {
            memory,
            ..State::default()
        };
        System {
            state: Mutex::new(state),
            disk,
            block,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the files are in the file system.
    pub(crate) fn is_host(&self) -> bool {
        self.disk.is_none()
    }

    /// Returns the memory. The first call makes it.
    pub(crate) fn memory(&self, limit: Option<u64>) -> Outcome<Memory> {
        let mut state = self.state();
        if let Some(memory) = &state.memory {
            return match limit {
                Some(limit) if limit != memory.limit() => Err(Failure::new(
                    raw::CANTOPEN,
                    format!(
                        "limit={limit}: all databases share one memory, which was made with \
                         limit={}; leave `limit` out, or give it with the first database",
                        memory.limit()
                    ),
                )),
                _ => Ok(memory.clone()),
            };
        }
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        let memory = new_memory(limit).map_err(|error| {
            Failure::new(
                raw::CANTOPEN,
                format!("limit={limit}: {error}; choose another `limit`"),
            )
        })?;
        state.memory = Some(memory.clone());
        Ok(memory)
    }

    /// Returns the group that a URI names, and makes it at its first mention.
    fn group(&self, memory: &Memory, wishes: &Wishes) -> Outcome<Option<Group>> {
        let Some(name) = &wishes.group else {
            return Ok(None);
        };
        let mut state = self.state();
        if let Some(group) = state.groups.get(name) {
            let max = group.stats().max;
            let is_other = |asked: u64| max.is_some_and(|max| max != PageCount::floor(asked));
            return match wishes.group_limit {
                Some(asked) if is_other(asked) => Err(Failure::new(
                    raw::CANTOPEN,
                    format!(
                        "group_limit={asked}: group {name} has another limit; leave \
                         `group_limit` out, or choose another name"
                    ),
                )),
                _ => Ok(Some(group.clone())),
            };
        }
        let max = wishes.group_limit.unwrap_or(memory.limit());
        let group = memory
            .create_group(name, max)
            .map_err(|error| Failure::new(raw::CANTOPEN, format!("group={name}: {error}")))?;
        state.groups.insert(name.clone(), group.clone());
        Ok(Some(group))
    }

    /// Opens a file. `name` is `None` for a temporary one.
    pub(crate) fn open(
        &self,
        name: Option<&OsStr>,
        flags: c_int,
        wishes: &Wishes,
    ) -> Outcome<Opened> {
        let name = name.filter(|_| flags & raw::OPEN_DELETEONCLOSE == 0);
        let Some(name) = name else {
            let file = TemporaryFile::new(&self.memory(None)?)?;
            return Ok(Opened::new(file, flags));
        };
        match flags & raw::OPEN_MAIN_DB != 0 {
            true => self.open_main(name, flags, wishes),
            false => self.open_plain(name, flags),
        }
    }

    fn open_plain(&self, name: &OsStr, flags: c_int) -> Outcome<Opened> {
        let shown = name.to_string_lossy().into_owned();
        if let Some((database, file)) = branch::split(&shown) {
            let branch = self.branch(database, file)?;
            let store = branch.file(file, flags & raw::OPEN_CREATE != 0)?;
            let missing = || Failure::new(raw::CANTOPEN, format!("there is no {shown}"));
            let file = TemporaryFile::shared(store.ok_or_else(missing)?);
            return Ok(Opened::new(file, flags));
        }
        let failed = |error| cannot_open(&shown, &error);
        if let Some(disk) = &self.disk {
            let create = flags & raw::OPEN_CREATE != 0;
            let store = disk::open_on(&**disk, &shown, create).map_err(failed)?;
            let file = PlainFile {
                store,
                database: self.of_wal(&shown, flags),
                name: shown,
                new: None,
            };
            return Ok(Opened::new(file, flags));
        }
        let path = Path::new(name);
        let (file, flags) = open_host(path, flags, disk::open_beside).map_err(|error| {
            match flags & raw::OPEN_CREATE != 0 && is_refused_by_folder(path, &error) {
                true => Failure::new(
                    raw::READONLY_DIRECTORY,
                    format!(
                        "cannot make {shown}: {error}; SQLite has to write in the folder, so \
                             check its permissions"
                    ),
                ),
                false => failed(error),
            }
        })?;
        let is_new = flags & raw::OPEN_CREATE != 0;
        let file = PlainFile {
            store: Arc::new(HostFile(Arc::new(file))),
            database: self.of_wal(&shown, flags),
            name: shown,
            new: is_new.then(|| path.to_owned()),
        };
        Ok(Opened::new(file, flags))
    }

    /// Returns the database whose WAL a file is.
    fn of_wal(&self, name: &str, flags: c_int) -> Option<Arc<Database>> {
        let database = name
            .strip_suffix("-wal")
            .filter(|_| flags & raw::OPEN_WAL != 0)?;
        self.opened(database)
    }

    /// Returns a database that is open already, by its path.
    fn opened(&self, name: &str) -> Option<Arc<Database>> {
        let key = match &self.disk {
            Some(_) => Key::Name(name.to_owned()),
            None => Key::File(identity(&std::fs::metadata(name).ok()?)),
        };
        self.state().databases.get(&key)?.upgrade()
    }

    /// Opens a database that is to be branched, by its path.
    pub(crate) fn open_existing(&self, path: &Path) -> Outcome<Box<dyn OpenFile>> {
        let flags = raw::OPEN_READWRITE | raw::OPEN_MAIN_DB;
        let full = self.full_path(path)?;
        Ok(self
            .open(Some(full.as_os_str()), flags, &Wishes::default())?
            .file)
    }

    /// Returns the name by which SQLite knows a file.
    pub(crate) fn full_path(&self, path: &Path) -> Outcome<PathBuf> {
        let full = match self.disk {
            None => std::fs::canonicalize(path),
            Some(_) => Ok(path.to_owned()),
        };
        full.map_err(|error| cannot_open(&path.to_string_lossy(), &error))
    }

    /// Returns the names of a database's branches, in order.
    pub(crate) fn branches(&self, path: &Path) -> Vec<String> {
        let open = self.opened(&path.to_string_lossy());
        open.map_or_else(Vec::new, |open| open.branches.names())
    }

    /// Returns a branch, by the path of its database and the name of one of its files.
    fn branch(&self, database: &str, file: &str) -> Outcome<Arc<Branch>> {
        let branch = self
            .opened(database)
            .and_then(|open| open.branches.get(file));
        branch.ok_or_else(|| {
            let is_missing = self.is_host() && !Path::new(database).exists();
            let reason = match is_missing {
                true => format!(
                    "there is no {database}, and so no branch {file:?} of it; check the path"
                ),
                false => format!(
                    "there is no branch {file:?} of {database} in this process; \
                     innerspace_branch() on a connection to {database} makes one"
                ),
            };
            Failure::new(raw::CANTOPEN, reason)
        })
    }

    fn open_main(&self, name: &OsStr, flags: c_int, wishes: &Wishes) -> Outcome<Opened> {
        if let Some((database, file)) = branch::split(&name.to_string_lossy()) {
            let branch = self.branch(database, file)?;
            let opened = branch.database();
            if !branch.root.branches.has(&branch) {
                // It was discarded meanwhile.
                self.branch(database, file)?;
            }
            let database = opened;
            let locks = Locks::process(&database.table);
            let manner = wishes.manner.clone();
            let file = MainFile::new(database, branch, None, locks, manner);
            return Ok(Opened::new(file, flags));
        }
        let memory = self.memory(wishes.limit)?;
        let group = self.group(&memory, wishes)?;
        let mut options = memory.file_options();
        if let Some(block) = wishes.block.or(self.block) {
            options = options.block_size(block);
        }
        if let Some(group) = &group {
            options = options.group(group);
        }
        let mut manner = wishes.manner.clone();
        let shown = name.to_string_lossy().into_owned();
        let failed = |error| cannot_open(&shown, &error);
        if let Some(disk) = &self.disk {
            let create = flags & raw::OPEN_CREATE != 0;
            let store = disk::open_on(&**disk, &shown, create).map_err(failed)?;
            let key = Key::Name(shown.clone());
            let disk = disk.clone();
            let base = shown.clone();
            let beside: Beside =
                Arc::new(move |end, write| disk::open_on(&*disk, &format!("{base}{end}"), write));
            let reads = || Ok(store.clone());
            let database = self.database((&memory, options), key, &shown, wishes, reads, beside)?;
            let locks = Locks::process(&database.table);
            let mut first = [0; MAGIC.len()];
            // If it cannot be read, SQLite meets the same error.
            let read = read_exact_or_eof(&*store, &mut first, 0).unwrap_or(0);
            let file = MainFile::new(database, store, None, locks, manner);
            let mut opened = Opened::new(file, flags);
            opened
                .remarks
                .extend(not_a_database(&shown, &first[..read]));
            return Ok(opened);
        }
        let path = Path::new(name);
        let asked = flags;
        let (file, flags) = open_host(path, flags, disk::open).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let reason = format!("{shown} is not a regular file; a database has to be one");
            return Err(Failure::new(raw::CANTOPEN, reason));
        }
        manner.read_only = flags & raw::OPEN_READONLY != 0;
        let own = identity(&metadata);
        let reads = || reading_store(path, own);
        let base = name.to_owned();
        let beside: Beside = Arc::new(move |end, write| {
            let mut name = base.clone();
            name.push(end);
            if write {
                return disk::open_durably(Path::new(&name));
            }
            Ok(Arc::new(HostFile(Arc::new(File::open(name)?))) as Arc<dyn Store>)
        });
        let key = Key::File(own);
        let database = self.database((&memory, options), key, &shown, wishes, reads, beside)?;
        let mut first = [0; MAGIC.len()];
        let read = disk::read_first_page(&file, &mut first);
        let mut remarks: Vec<_> = not_a_database(&shown, &first[..read]).collect();
        if flags != asked {
            let reason =
                format!("{shown} can only be read; to write it, check the permissions of the file");
            remarks.push(Failure::new(raw::READONLY, reason));
        }
        let file = Arc::new(file);
        let store = Arc::new(HostFile(file.clone()));
        let locks = Locks::host(file.clone(), &DATABASE);
        let host = Some((file, path.to_owned()));
        let file = MainFile::new(database, store, host, locks, manner);
        Ok(Opened {
            remarks,
            ..Opened::new(file, flags)
        })
    }

    /// Returns the database that is open already, or opens it.
    fn database(
        &self,
        (memory, options): (&Memory, FileOpener),
        key: Key,
        name: &str,
        wishes: &Wishes,
        reads: impl FnOnce() -> Outcome<Arc<dyn Store>>,
        beside: Beside,
    ) -> Outcome<Arc<Database>> {
        let mut state = self.state();
        if let Some(open) = state.databases.get(&key).and_then(Weak::upgrade) {
            return check_same(open, wishes);
        }
        // The lock is held meanwhile, so that two connections do not open the same file twice. No
        // call to the store waits for this system.
        let database = Arc::new(Database::open(memory, options, name, reads()?, beside)?);
        state.databases.retain(|_, open| open.strong_count() > 0);
        state.databases.insert(key, Arc::downgrade(&database));
        Ok(database)
    }

    /// Whether the base VFS knows nothing of a file: it is a disk's, or a branch's.
    pub(crate) fn is_own(&self, name: &OsStr) -> bool {
        self.disk.is_some() || branch::split(&name.to_string_lossy()).is_some()
    }

    /// Deletes a file of a disk or a branch.
    pub(crate) fn delete(&self, name: &OsStr, durably: bool) -> Outcome {
        let missing = || Failure::new(raw::IOERR_DELETE_NOENT, "");
        if let Some((database, file)) = branch::split(&name.to_string_lossy()) {
            return match self.branch(database, file)?.delete_file(file) {
                true => Ok(()),
                false => Err(missing()),
            };
        }
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let name = name.to_string_lossy();
        let deletion = match durably {
            true => Deletion::Durable,
            false => Deletion::MayComeBack,
        };
        disk.delete(&name, deletion)
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => missing(),
                _ => Failure::io(raw::IOERR_DELETE, "cannot delete", &name, &error),
            })
    }

    /// Returns whether a file of a disk exists and has bytes.
    pub(crate) fn exists(&self, name: &OsStr) -> Outcome<bool> {
        if let Some((database, file)) = branch::split(&name.to_string_lossy()) {
            let branch = self.branch(database, file)?;
            let file = branch.file(file, false)?;
            return Ok(file.is_some_and(|file| !file.is_empty()));
        }
        let Some(disk) = &self.disk else {
            return Ok(false);
        };
        let name = name.to_string_lossy();
        let failed = |error| Failure::io(raw::IOERR_ACCESS, "cannot look for", &name, &error);
        if !disk.exists(&name).map_err(failed)? {
            return Ok(false);
        }
        let store = disk.open(&name).map_err(failed)?;
        Ok(store.len().map_err(failed)? > 0)
    }
}

/// Checks that a database that is open is open in the way that a connection wants.
fn check_same(open: Arc<Database>, wishes: &Wishes) -> Outcome<Arc<Database>> {
    let name = &open.name;
    let Some(cached) = open.cached() else {
        return Ok(open);
    };
    let block = cached.block_size();
    if let Some(asked) = wishes.block.filter(|asked| *asked != block) {
        return Err(Failure::new(
            raw::CANTOPEN,
            format!("block={asked}: {name} is open with block={block}; leave `block` out"),
        ));
    }
    let group = cached.group().name();
    if let Some(asked) = wishes.group.as_ref().filter(|asked| **asked != group) {
        return Err(Failure::new(
            raw::CANTOPEN,
            format!("group={asked}: {name} is open in group {group:?}; leave `group` out"),
        ));
    }
    Ok(open)
}

/// Opens a file as SQLite's flags say; only for reading if it cannot be written. Returns the flags
/// with which it was opened.
fn open_host(
    path: &Path,
    flags: c_int,
    open: impl Fn(&Path, Opening) -> std::io::Result<File>,
) -> std::io::Result<(File, c_int)> {
    let how = Opening {
        write: flags & raw::OPEN_READWRITE != 0,
        create: flags & raw::OPEN_CREATE != 0,
        exclusive: flags & raw::OPEN_EXCLUSIVE != 0,
        mode: 0o644,
    };
    let error = match open(path, how) {
        Ok(file) => return Ok((file, flags)),
        Err(error) => error,
    };
    if !how.write || error.raw_os_error() == Some(libc::EISDIR) {
        return Err(error);
    }
    let reading = Opening {
        write: false,
        create: false,
        ..how
    };
    // If it cannot be read either, the first error says more.
    let file = open(path, reading).map_err(|_| error)?;
    let kept = flags & !(raw::OPEN_READWRITE | raw::OPEN_CREATE);
    Ok((file, kept | raw::OPEN_READONLY))
}

/// Whether a file is missing, and its folder does not let this process make it.
fn is_refused_by_folder(path: &Path, error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES) && !path.exists()
}

/// Returns a remark about a file whose first bytes are not those of a database. SQLite says so
/// itself when it reads them.
fn not_a_database(name: &str, first: &[u8]) -> impl Iterator<Item = Failure> + use<> {
    let differs = !first.is_empty() && first != MAGIC;
    let reason = differs.then(|| {
        format!(
            "{name} does not begin like a database of SQLite; check the name, or take the file \
             from a backup"
        )
    });
    reason
        .into_iter()
        .map(|reason| Failure::new(raw::NOTADB, reason))
}

/// Opens the store that reads a file's blocks into the cache, past the kernel's.
fn reading_store(path: &Path, own: [u64; 2]) -> Outcome<Arc<dyn Store>> {
    let failed = |reason: String| Failure::new(raw::CANTOPEN, reason);
    let options = FileOptions::new()
        .access(FileAccess::ReadOnly)
        .lock(FileLock::None);
    let store = options
        .open(path)
        .map_err(|error| failed(error.to_string()))?;
    let named = std::fs::metadata(path).map(|named| identity(&named)).ok();
    if named != Some(own) {
        let path = path.display();
        return Err(failed(format!(
            "{path} was replaced while it was opened; try again"
        )));
    }
    Ok(Arc::new(store))
}

fn cannot_open(name: &str, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "; check the folder, or open it with mode=rwc",
        std::io::ErrorKind::PermissionDenied => "; check the permissions of file and folder",
        std::io::ErrorKind::IsADirectory => "; name a file in it",
        _ => "",
    };
    Failure::new(raw::CANTOPEN, format!("cannot open {name}: {error}{hint}"))
}

/// Returns a name of SQLite's as a path.
pub(crate) fn path_of(name: &std::ffi::CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}
