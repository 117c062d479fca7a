//! Where the disk is measured: a file whose pages tell their numbers, the kernel's caches, and a
//! memory cgroup for the kernel's contenders.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

const PAGE: usize = 4096;

/// File systems that are no disk, by the numbers in statfs(2).
const NO_DISKS: [(i64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

static FLAG: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn interrupted(_: libc::c_int) {
    let flag = FLAG.load(Ordering::Relaxed);
    // SAFETY: null, or the static that `on_interrupt` was given.
    if let Some(flag) = unsafe { flag.as_ref() } {
        flag.store(true, Ordering::Relaxed);
    }
}

/// Has Ctrl-C set `flag`, which is looked at between runs: so that the file is removed.
pub(super) fn on_interrupt(flag: &'static AtomicBool) -> io::Result<()> {
    FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Relaxed);
    let handler = interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler stores to an atomic and does nothing else.
    match unsafe { libc::signal(libc::SIGINT, handler) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The file that is read, removed when this is dropped.
pub(super) struct Place {
    path: PathBuf,
    file: File,
    drops_all: bool,
}

impl Place {
    /// Makes the file, of `size` bytes.
    pub(super) fn make(folder: &Path, size: u64) -> Result<Place, String> {
        let shown = folder.display();
        let name = CString::new(folder.as_os_str().as_bytes())
            .map_err(|error| format!("{shown}: {error}"))?;
        // SAFETY: plain integers, for which all zeros is a value.
        let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: a C string and a whole statfs, which outlive the call.
        if unsafe { libc::statfs(name.as_ptr(), &raw mut stat) } != 0 {
            return Err(format!("{shown}: {}", io::Error::last_os_error()));
        }
        let kind = NO_DISKS
            .iter()
            .find(|(magic, _)| *magic == stat.f_type as i64);
        if let Some((_, kind)) = kind {
            return Err(format!(
                "{shown} is a {kind}, which is memory: name a folder on a disk with --dir"
            ));
        }
        // The file, a second one that is written, and a little.
        let room = stat.f_bavail as u64 * stat.f_bsize as u64;
        let wanted = size + (2 << 30);
        if room < wanted {
            let (room, wanted) = (room >> 20, wanted >> 20);
            return Err(format!(
                "{shown}: {room} MiB free, and {wanted} MiB are wanted"
            ));
        }
        let path = folder.join(format!("innerspace-bench-disk-{}", std::process::id()));
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let mut options = File::options();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(&path).map_err(failed)?;
        let mut place = Place {
            path: path.clone(),
            file,
            drops_all: false,
        };
        place.fill(size).map_err(failed)?;
        place.drops_all = fs::write("/proc/sys/vm/drop_caches", "1").is_ok();
        Ok(place)
    }

    fn fill(&mut self, size: u64) -> io::Result<()> {
        let mut chunk = vec![0x5a; 1 << 20];
        let mut page = 0u64;
        let mut left = size;
        while left > 0 {
            let len = left.min(chunk.len() as u64) as usize;
            for bytes in chunk[..len].chunks_mut(PAGE) {
                bytes[..8].copy_from_slice(&page.to_le_bytes());
                page += 1;
            }
            self.file.write_all(&chunk[..len])?;
            left -= len as u64;
        }
        self.file.sync_all()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is dropped before each run.
    pub(super) fn caches(&self) -> &'static str {
        match self.drops_all {
            true => "the kernel's caches are dropped before each run",
            false => {
                "the file is dropped from the kernel's cache before each run, other caches stay"
            }
        }
    }

    pub(super) fn drop_caches(&self) {
        let _ = self.file.sync_all();
        // SAFETY: no memory is passed, and the descriptor is open.
        unsafe {
            libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        if self.drops_all {
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        }
    }

    /// Pages of the file that the kernel caches.
    pub(super) fn cached_pages(&self) -> u64 {
        innerspace::store::kernel_cached_pages(&self.path).map_or(0, |pages| pages.0)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.path.with_extension("written"));
    }
}

/// A memory cgroup, removed when this is dropped.
pub(super) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Makes one of so many bytes, of version 1 or 2.
    pub(super) fn make(limit: u64) -> Result<Cgroup, String> {
        let name = format!("innerspace-bench-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let mut why = "there is none".to_owned();
        for (root, file) in kinds {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).is_dir() {
                continue;
            }
            if let Err(error) = fs::create_dir(&folder) {
                why = format!("{root}: {error}");
                continue;
            }
            let cgroup = Cgroup { folder };
            match fs::write(cgroup.folder.join(file), limit.to_string()) {
                Ok(()) => return Ok(cgroup),
                Err(error) => why = format!("{root}: {file}: {error}"),
            }
        }
        Err(why)
    }

    /// The file that a process joins by.
    pub(super) fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
