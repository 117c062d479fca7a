//! The file that is read, and what has to be so before it is: a disk below it, room on it, and
//! caches that are cold.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Fallible, interrupted};
use crate::host::PAGE;

/// The page's number stands at the beginning of each of its pieces of so many bytes.
pub(super) const PIECE: usize = 256;
const CHUNK: usize = 1 << 20;
const MIB: u64 = 1 << 20;
/// What the file system itself may need beside the files.
const SLACK: u64 = 64 * MIB;
/// Every so many pages of a file that was written are looked at.
const LOOKED_AT: u64 = 64;

/// The folder to use where none is given: `target` below the current one, if that is on a disk, or
/// else the one for temporary files.
pub(super) fn default_folder() -> PathBuf {
    let target = PathBuf::from("target");
    let usable = target.is_dir() && open_folder(&target).is_ok();
    if usable { target } else { std::env::temp_dir() }
}

/// Opens a folder, and refuses one that is in memory.
fn open_folder(folder: &Path) -> Fallible<File> {
    let opened = File::open(folder).map_err(|error| format!("{folder:?}: {error}"))?;
    if !opened.metadata()?.is_dir() {
        return Err(format!("{folder:?}: not a folder").into());
    }
    let mut kind = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the pointer is to a struct of ours, which the call fills.
    if unsafe { libc::fstatfs(opened.as_raw_fd(), kind.as_mut_ptr()) } != 0 {
        return Err(format!("{folder:?}: {}", io::Error::last_os_error()).into());
    }
    // SAFETY: the call succeeded, so it has filled the struct.
    let kind = unsafe { kind.assume_init() }.f_type;
    if kind == libc::TMPFS_MAGIC || kind == 0x8584_58f6 {
        return Err(format!(
            "{folder:?} is in memory, not on a disk: pass --dir with a folder on a disk"
        )
        .into());
    }
    Ok(opened)
}

/// Refuses a folder that is in memory, or that has no room for `bytes`.
pub(super) fn check_folder(folder: &Path, bytes: u64) -> Fallible {
    let opened = open_folder(folder)?;
    let mut room = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the pointer is to a struct of ours, which the call fills.
    if unsafe { libc::fstatvfs(opened.as_raw_fd(), room.as_mut_ptr()) } != 0 {
        return Err(format!("{folder:?}: {}", io::Error::last_os_error()).into());
    }
    // SAFETY: the call succeeded, so it has filled the struct.
    let room = unsafe { room.assume_init() };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let needed = bytes.saturating_add(SLACK);
    if free < needed {
        return Err(format!(
            "{folder:?} has {} MiB free, and {} MiB are needed: pass --dir or a smaller --size",
            free / MIB,
            needed.div_ceil(MIB)
        )
        .into());
    }
    Ok(())
}

/// A file of the run's own, removed on drop.
#[derive(Debug)]
pub(super) struct OwnFile {
    pub(super) path: PathBuf,
}

impl OwnFile {
    /// The name of a file that does not exist.
    pub(super) fn named(folder: &Path, name: &str) -> OwnFile {
        let name = format!("innerspace-bench-{}-{name}", std::process::id());
        OwnFile {
            path: folder.join(name),
        }
    }

    /// Makes the file, each page with its number, and has it on the disk and out of the cache.
    pub(super) fn write(&self, bytes: u64) -> Fallible {
        let told = |error| format!("{:?}: {error}", self.path);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .open(&self.path)
            .map_err(told)?;
        let mut chunk = filler(CHUNK);
        for start in (0..bytes).step_by(CHUNK) {
            interrupted()?;
            number(&mut chunk, start);
            let rest = (bytes - start).min(CHUNK as u64) as usize;
            file.write_all(&chunk[..rest]).map_err(told)?;
        }
        file.sync_all().map_err(told)?;
        drop_of_file(&file);
        Ok(())
    }

    /// Checks what a contender has written: the length, and the numbers of some pages.
    pub(super) fn check(&self, bytes: u64) -> Fallible {
        let file = File::open(&self.path)?;
        let len = file.metadata()?.len();
        if len != bytes {
            return Err(format!("{bytes} bytes were written, and the file has {len}").into());
        }
        let mut page = [0; PAGE];
        let last = bytes / PAGE as u64 - 1;
        for number in (0..last).step_by(LOOKED_AT as usize).chain([last]) {
            let at = number * PAGE as u64;
            file.read_exact_at(&mut page, at)?;
            check(&page, at)?;
        }
        Ok(())
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Bytes that no layer below can make small.
pub(super) fn filler(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    let words = (0..bytes / 8).flat_map(|_| random.next().to_le_bytes());
    words.collect()
}

/// Writes the numbers of its pages into what belongs at `at`, a multiple of a page.
pub(super) fn number(bytes: &mut [u8], at: u64) {
    for (page, bytes) in bytes.chunks_exact_mut(PAGE).enumerate() {
        let number = (at / PAGE as u64 + page as u64).to_le_bytes();
        for piece in bytes.chunks_exact_mut(PIECE) {
            piece[..8].copy_from_slice(&number);
        }
    }
}

/// Checks the numbers of what was read at `at`, at the beginning of a piece.
#[inline]
pub(super) fn check(bytes: &[u8], at: u64) -> Result<(), String> {
    for (page, bytes) in bytes.chunks(PAGE).enumerate() {
        let at = at + (page * PAGE) as u64;
        let first = bytes.first_chunk().copied();
        check_number(first.map_or(u64::MAX, u64::from_le_bytes), at)?;
    }
    Ok(())
}

/// Checks one number that was read at `at`.
#[inline]
pub(super) fn check_number(found: u64, at: u64) -> Result<(), String> {
    let expected = at / PAGE as u64;
    if found != expected {
        return Err(format!("page {expected} says that it is page {found}"));
    }
    Ok(())
}

/// Whether the kernel lets go of more than this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// All clean pages of the machine.
    All,
    /// The file's pages alone; not what the file system knows of it.
    FileOnly,
}

/// Has everything on the disk, and the caches cold.
pub(super) fn drop_caches(path: &Path) -> Fallible<Dropped> {
    let file = File::open(path).map_err(|error| format!("{path:?}: {error}"))?;
    // SAFETY: a call with a descriptor of ours.
    if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    drop_of_file(&file);
    let dropped = match std::fs::write("/proc/sys/vm/drop_caches", "1") {
        Ok(()) => Dropped::All,
        Err(_) => Dropped::FileOnly,
    };
    // This program's own code is not to be read from the disk while it is measured.
    io::copy(&mut File::open(std::env::current_exe()?)?, &mut io::sink())?;
    Ok(dropped)
}

fn drop_of_file(file: &File) {
    // SAFETY: advice about a descriptor of ours. Where it is not followed, the figures of pages in
    // the cache say so.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Vigna's SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// So many numbers below `end`, each at most once: what was read cannot help any contender.
    pub(super) fn distinct(&mut self, count: u64, end: u64) -> Vec<u64> {
        let mut all: Vec<u32> = (0..end as u32).collect();
        let count = count.min(end);
        for at in 0..count {
            let other = at + self.below(end - at);
            all.swap(at as usize, other as usize);
        }
        all[..count as usize]
            .iter()
            .map(|&page| page.into())
            .collect()
    }
}
