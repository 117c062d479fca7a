//! Opening direct-access files: on a device's blocks, or over a host file.

use std::path::Path;

use super::Memory;
use super::files::{Listed, OpenFile};
use super::open::{OF_ANOTHER_GROUP, is_another};
use crate::dax::{DaxDevice, DaxError, DaxFile, DaxSetup, HoleWrites, OnShrink};
use crate::group::{Group, MayReclaim};
use crate::stats::tell;
use crate::store::{Create, FileAccess, FileLock, Opened};
use crate::sync::Arc;

/// Options for opening a direct-access file of a memory; made by [`Memory::dax_options`].
///
/// ```
/// # use innerspace::{MIB, Memory, dax::OnShrink};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// let memory = Memory::with_limit(4 * MIB)?;
/// let options = memory.dax_options().on_shrink(OnShrink::Error).capacity(64 * MIB);
/// let file = options.create(&path)?;
/// file.write_at(b"hello", 0)?;
/// assert_eq!(file.read_to_vec(..)?, b"hello");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it only has the choices"]
pub struct DaxOpener {
    memory: Memory,
    group: Option<Group>,
    setup: DaxSetup,
    lock: FileLock,
}

impl Memory {
    /// Creates an empty file in blocks of `device`; other files may be on the same device. The file
    /// lives as long as a handle or mapping of it.
    ///
    /// # Errors
    /// [`DaxError::Unsupported`] if the device belongs to a host file, whose blocks the file system
    /// manages. [`DaxError::Limit`] if the group that pays is full. [`DaxError::OtherProcess`] in a
    /// child of fork(2).
    pub fn create_dax_on(&self, device: &DaxDevice, name: &str) -> Result<DaxFile, DaxError> {
        self.dax_options().create_on(device, name)
    }

    /// Opens an existing host file for direct access, for reading: the file's own bytes are mapped.
    /// This is best on tmpfs or a DAX file system, where the host has no second copy of the bytes.
    ///
    /// If the file is already open for direct access in this memory, the result is the same file,
    /// with the options of the first open: a file first opened for writing can be written through
    /// every handle. A call that names another group ([`DaxOpener::group`]) is refused, unless both
    /// calls set [`DaxOpener::share`].
    ///
    /// # Errors
    /// [`DaxError::Open`], [`DaxError::Unsupported`]; [`DaxError::OpenOtherwise`] if the file is
    /// already open in this memory: through the page cache, or read-only, or for another group, or
    /// with another choice of [`OnShrink`].
    pub fn open_dax(&self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.dax_options().open(path)
    }

    /// Opens an existing host file for direct access, for reading and writing. An advisory lock
    /// keeps out other processes that lock the file.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`]; also if another process has the file open for writing.
    pub fn open_dax_rw(&self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.dax_options().access(FileAccess::ReadWrite).open(path)
    }

    /// Returns the options for a direct-access file: group, access, how much a write to a hole
    /// allocates, and what happens when the file shrinks.
    pub fn dax_options(&self) -> DaxOpener {
        DaxOpener {
            memory: self.clone(),
            group: None,
            setup: DaxSetup::default(),
            lock: FileLock::default(),
        }
    }
}

impl DaxOpener {
    /// Sets the group that pays for the file's entries; the root group by default. The bytes
    /// themselves belong to the device. Opening fails if the group belongs to another `Memory`
    /// ([`DaxError::OtherMemorysGroup`]). It also fails if the file is already open for another
    /// group ([`DaxError::OpenOtherwise`]), unless both calls set [`share`](DaxOpener::share).
    pub fn group(mut self, group: &Group) -> DaxOpener {
        self.group = Some(group.clone());
        self
    }

    /// Shares the file with other groups. If the file is already open, the call uses it, whichever
    /// group it was first opened for; that group pays. The first call and this one must both set
    /// the option, because both sides then trust each other with the file, as with
    /// [`FileOpener::share`](crate::FileOpener::share). No effect on a device's own blocks.
    pub fn share(mut self) -> DaxOpener {
        self.setup.shared = true;
        self
    }

    /// Sets whether the file is opened only for reading (the default), or for writing too. A file
    /// on a device's own blocks is always open for both.
    pub fn access(mut self, access: FileAccess) -> DaxOpener {
        self.setup.access = access;
        self
    }

    /// Sets how much a write to a hole allocates; one page by default.
    pub fn hole_writes(mut self, what: HoleWrites) -> DaxOpener {
        self.setup.hole_writes = what;
        self
    }

    /// Sets what happens when another process truncates the host file: see [`OnShrink`]. No effect
    /// on a device's own blocks.
    pub fn on_shrink(mut self, what: OnShrink) -> DaxOpener {
        self.setup.on_shrink = what;
        self
    }

    /// Sets which advisory lock a host file has while it is open. By default it is an exclusive one
    /// if the file is opened for writing, and none otherwise. A file that is already open in this
    /// memory keeps the lock that it has.
    pub fn lock(mut self, lock: FileLock) -> DaxOpener {
        self.lock = lock;
        self
    }

    /// Sets the length in bytes up to which a host file can grow while it is open. That much
    /// address space is reserved for a file that is opened for writing, or its present length if
    /// that is more. (For a file that is opened only for reading, it is always the present length.)
    /// The default is 64 GiB, or four times the length if that is more. So a process, which has 128
    /// TiB of addresses, can have hundreds of files open. Choose less if address space is limited,
    /// as by `ulimit -v`.
    pub fn capacity(mut self, bytes: u64) -> DaxOpener {
        self.setup.capacity = Some(bytes);
        self
    }

    /// Creates an empty file in blocks of `device`.
    ///
    /// # Errors
    /// The errors of [`Memory::create_dax_on`]; also [`DaxError::OtherMemorysGroup`].
    pub fn create_on(self, device: &DaxDevice, name: &str) -> Result<DaxFile, DaxError> {
        self.check_process(|| name.into())?;
        self.check_group()?;
        let group = self.payer().clone();
        let heap = group.charge_heap(DaxFile::HEAP + name.len(), MayReclaim::Yes)?;
        let file = DaxFile::on_device(&self.memory.0.cache, &group, device, name, self.setup)?;
        file.core().keep(Box::new(heap));
        Ok(told(file))
    }

    /// Opens an existing host file.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.over_path(path.as_ref(), Create::Never)
    }

    /// Opens a host file for which the program already has a `File`, for example one without a
    /// name, or one that another process passed on. The file must permit the access that
    /// [`DaxOpener::access`] sets.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`]; also an error if the file was opened for appending,
    /// or with `O_DIRECT`.
    pub fn open_file(self, file: std::fs::File) -> Result<DaxFile, DaxError> {
        let path = Opened::path_of(&file);
        self.check(&path)?;
        let opened = Opened::given(file, &path, self.setup.access)?;
        self.over_host(opened, &path, Create::Never)
    }

    fn over_path(self, path: &Path, create: Create) -> Result<DaxFile, DaxError> {
        self.check(path)?;
        let opened = Opened::begin(path, self.setup.access, create)?;
        self.over_host(opened, path, create)
    }

    /// Refuses a group of another memory, and calls in a child of fork(2), before anything is done
    /// to the file.
    fn check(&self, path: &Path) -> Result<(), DaxError> {
        self.check_process(|| crate::store::shown(path).into())?;
        self.check_group()
    }

    fn over_host(
        self,
        opened: Opened<'_>,
        path: &Path,
        create: Create,
    ) -> Result<DaxFile, DaxError> {
        let inner = &*self.memory.0;
        let same = |listed| self.same_file(path, listed, create);
        // The heap is charged while the table of files is unlocked. If the file is already open,
        // the charge is given back.
        let heap = self.payer().charge_heap(DaxFile::HEAP, MayReclaim::Yes);
        let make = |locked: Opened<'_>| {
            let heap = heap?;
            let file = DaxFile::over_host(&inner.cache, self.payer(), locked, self.setup.clone())?;
            let core = file.core();
            let open = OpenFile::Direct(Arc::downgrade(core), core.until_closed());
            Ok((file, open, heap))
        };
        let opened = opened.locked_by(self.lock);
        let file = inner.files.open_once(&inner.cache, opened, same, make)?;
        Ok(told(file))
    }

    fn check_process(&self, name: impl Fn() -> Arc<str>) -> Result<(), DaxError> {
        let pool = &self.memory.0.pool;
        pool.check_process(|pid| DaxError::OtherProcess { file: name(), pid })
    }

    fn payer(&self) -> &Group {
        self.group.as_ref().unwrap_or(&self.memory.0.root)
    }

    fn check_group(&self) -> Result<(), DaxError> {
        match self.payer().belongs_to(&self.memory.0.pool.groups) {
            true => Ok(()),
            false => Err(DaxError::OtherMemorysGroup),
        }
    }

    /// Returns a handle to a file that is already open, unless its options conflict with those of
    /// this call. Errors name the file by `path`, because another caller may have opened it under a
    /// different name.
    fn same_file(&self, path: &Path, listed: Listed, create: Create) -> Result<DaxFile, DaxError> {
        let file = || -> Arc<str> { crate::store::shown(path).into() };
        let otherwise = |how| Err(DaxError::OpenOtherwise { file: file(), how });
        let open = match listed {
            Listed::Cached(_) => return otherwise("through the page cache"),
            Listed::Direct(open) => open,
        };
        if create == Create::Truncate {
            return Err(DaxError::NotEmptied { file: file() });
        }
        let both_share = self.setup.shared && open.setup.shared;
        if !both_share && is_another(self.group.as_ref(), open.group()) {
            return otherwise(OF_ANOTHER_GROUP);
        }
        if self.setup.access == FileAccess::ReadWrite && !open.writable() {
            return otherwise("read-only");
        }
        if self.setup.on_shrink != open.setup.on_shrink {
            return otherwise("with another choice for being cut short");
        }
        Ok(DaxFile::new(open))
    }

    /// Creates a host file, or empties an existing one, and opens it for reading and writing.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`], and [`DaxError::NotEmptied`] if the file is already open
    /// for direct access in this memory.
    pub fn create(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.access(FileAccess::ReadWrite)
            .over_path(path.as_ref(), Create::Truncate)
    }

    /// Creates a host file, which must not exist yet, and opens it for reading and writing.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`], and [`DaxError::Open`] if the file exists.
    pub fn create_new(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.access(FileAccess::ReadWrite)
            .over_path(path.as_ref(), Create::New)
    }

    /// Opens a host file for reading and writing, and keeps its content; creates an empty file if
    /// there is none.
    ///
    /// # Errors
    /// The errors of [`Memory::open_dax`].
    pub fn open_or_create(self, path: impl AsRef<Path>) -> Result<DaxFile, DaxError> {
        self.access(FileAccess::ReadWrite)
            .over_path(path.as_ref(), Create::IfMissing)
    }
}

/// Reports the opened file to the program's `tracing` subscriber, and returns it.
fn told(file: DaxFile) -> DaxFile {
    tell!(
        debug,
        file = file.name(),
        len = file.len(),
        group = %file.core().group().path(),
        "direct file opened"
    );
    file
}
