//! The file that is read, the disk below it, and the dropping of caches.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Fallible, MIB, interrupted};
use crate::host::PAGE;

/// The bytes of a piece: a page consists of pieces, each of which begins with the page's number.
pub(super) const PIECE: usize = 256;
/// The bytes after which the content of the file repeats, except for the numbers of the pages.
pub(super) const CHUNK: usize = 1 << 20;
/// The room that the file system itself may need in addition to the files.
const SLACK: u64 = 64 * MIB;

/// Returns the default folder: `target` in the current one, if that is on a disk, and otherwise the
/// folder for temporary files.
pub(crate) fn default_folder() -> PathBuf {
    let target = PathBuf::from("target");
    let usable = target.is_dir() && open_folder(&target).is_ok();
    if usable { target } else { std::env::temp_dir() }
}

const OVERLAY: &str = "an overlay";

/// Returns the name of the file system of an open file or folder, and whether it is in memory.
/// Returns `None` for a file system from which this cannot be told.
fn file_system(file: &File) -> io::Result<Option<(&'static str, bool)>> {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the pointer is to a struct of ours, which the call fills.
    if unsafe { libc::fstatfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the struct.
    let kind = unsafe { about.assume_init() }.f_type;
    Ok(match kind {
        libc::TMPFS_MAGIC => Some(("tmpfs", true)),
        0x8584_58f6 => Some(("ramfs", true)),
        libc::HUGETLBFS_MAGIC => Some(("hugetlbfs", true)),
        libc::OVERLAYFS_SUPER_MAGIC => Some((OVERLAY, false)),
        _ => None,
    })
}

/// Opens a folder, and refuses one that is in memory. The second value is the reason to doubt that
/// the folder is on a disk, if there is one.
fn open_folder(folder: &Path) -> Fallible<(File, Option<String>)> {
    let told = |error: io::Error| format!("{folder:?}: {error}");
    let opened = File::open(folder).map_err(told)?;
    let about = opened.metadata().map_err(told)?;
    if !about.is_dir() {
        return Err(format!("{folder:?}: not a folder").into());
    }
    let instead = "that is memory, not a disk; pass --dir with a folder on a disk";
    match file_system(&opened).map_err(told)? {
        Some((name, true)) => Err(format!("{folder:?} is on {name}: {instead}").into()),
        Some((OVERLAY, _)) => {
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let upper = upper_layer(&mounts, about.dev());
            // The meaning of a relative path depends on where mount(8) was run.
            let upper = upper.filter(|upper| upper.is_absolute());
            let seen = upper.as_deref().and_then(|upper| File::open(upper).ok());
            let below = seen.map(|upper| file_system(&upper)).transpose();
            match (upper, below.map_err(told)?) {
                (Some(upper), Some(Some((name, true)))) => Err(format!(
                    "{folder:?} is on an overlay whose upper layer, {upper:?}, is on {name}: \
                     {instead}"
                )
                .into()),
                (Some(_), Some(_)) => Ok((opened, None)),
                (_, _) => {
                    let doubt = format!(
                        "{folder:?} is on an overlay whose upper layer cannot be seen from here; \
                         the figures are those of a disk only if that layer is on one."
                    );
                    Ok((opened, Some(doubt)))
                }
            }
        }
        _ => Ok((opened, None)),
    }
}

/// Returns the upper layer of the overlay with this device number, from the text of
/// /proc/self/mountinfo.
fn upper_layer(mounts: &str, device: u64) -> Option<PathBuf> {
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let options = mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let found = mount.split(' ').nth(2)? == device;
        found.then(|| file_system.split(' ').nth(2))?
    })?;
    let mut options = options.split(',');
    let path = options.find_map(|option| option.strip_prefix("upperdir="))?;
    Some(unescaped(path))
}

/// Decodes a path of /proc/self/mountinfo, where three octal digits after a backslash stand for a
/// byte. Before that encoding, the overlay has escaped some characters, each by a backslash.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        rest = if byte.is_some() { &after[3..] } else { after };
        bytes.push(byte.unwrap_or(first));
    }
    let mut escaped = false;
    bytes.retain(|&byte| {
        escaped = byte == b'\\' && !escaped;
        !escaped
    });
    OsString::from_vec(bytes).into()
}

/// Refuses a folder that is in memory, or that has no room for `bytes`. Returns the reason to doubt
/// that it is on a disk, if there is one.
pub(crate) fn check_folder(folder: &Path, bytes: u64) -> Fallible<Option<String>> {
    let (opened, doubt) = open_folder(folder)?;
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
    Ok(doubt)
}

/// A file of the run, removed on drop.
#[derive(Debug)]
pub(super) struct OwnFile {
    pub(super) path: PathBuf,
}

impl OwnFile {
    /// Chooses a name for a file, which does not exist yet.
    pub(super) fn named(folder: &Path, name: &str) -> OwnFile {
        let name = format!("innerspace-bench-{}-{name}", std::process::id());
        OwnFile {
            path: folder.join(name),
        }
    }

    /// Makes the file.
    pub(super) fn make(&self, bytes: u64) -> Fallible {
        File::create_new(&self.path).map_err(|error| format!("{:?}: {error}", self.path))?;
        self.write(bytes)
    }

    /// Writes the first `bytes` of the file, each page with its number, to the disk, and drops them
    /// from the kernel's cache.
    pub(super) fn write(&self, bytes: u64) -> Fallible {
        let told = |error| format!("{:?}: {error}", self.path);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).open(&self.path).map_err(told)?;
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
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // This fails if the file was never made.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns bytes that no layer below can compress.
pub(super) fn filler(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    let words = (0..bytes / 8).flat_map(|_| random.next().to_le_bytes());
    words.collect()
}

/// Writes the numbers of the pages into bytes that belong at `at`, a multiple of a page.
pub(super) fn number(bytes: &mut [u8], at: u64) {
    for (page, bytes) in bytes.chunks_exact_mut(PAGE).enumerate() {
        let number = (at / PAGE as u64 + page as u64).to_le_bytes();
        for piece in bytes.chunks_exact_mut(PIECE) {
            piece[..8].copy_from_slice(&number);
        }
    }
}

/// Checks the numbers in bytes that were read at `at`, where a piece begins.
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

/// Which caches the kernel has dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// All clean pages of the machine.
    All,
    /// Only the file's pages, without the file system's metadata.
    FileOnly,
}

/// Writes all dirty pages of the file system to the disk, and drops the caches.
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
    // The code of this program must not be read from the disk during the measurement.
    io::copy(&mut File::open(std::env::current_exe()?)?, &mut io::sink())?;
    Ok(dropped)
}

/// Drops the clean pages of a file from the kernel's cache.
pub(crate) fn drop_of_file(file: &File) {
    // SAFETY: advice about a descriptor of ours. If the kernel does not follow it, the column of
    // cached pages shows that.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Vigna's SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Returns distinct numbers below `end`, in random order: `count` of them, or all.
    pub(crate) fn distinct(&mut self, count: u64, end: u64) -> Vec<u64> {
        let count = count.min(end);
        // These are the first steps of a shuffle, of which only the swapped places are stored.
        let mut swapped = HashMap::new();
        let mut numbers = Vec::with_capacity(count as usize);
        for at in 0..count {
            let other = at + self.below(end - at);
            let here = swapped.get(&at).copied().unwrap_or(at);
            numbers.push(swapped.insert(other, here).unwrap_or(other));
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_numbers_are_distinct_and_may_be_all() {
        for (count, end) in [(1, 1), (100, 100), (60, 100), (200, 100)] {
            let mut numbers = Random::new(7).distinct(count, end);
            assert!(numbers.iter().all(|&number| number < end));
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len() as u64, count.min(end));
        }
    }

    #[test]
    fn the_upper_layer_is_the_one_of_the_device() {
        let mounts = "\
            21 1 254:0 / / rw - ext4 /dev/vda rw\n\
            65 60 0:39 / /a rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u/1,workdir=/w\n\
            66 60 0:40 / /b rw shared:1 - overlay none rw,upperdir=/a\\134\\054\\040b,workdir=/w\n\
            67 60 0:41 / /c ro - overlay overlay ro,lowerdir=/l:/m\n";
        let upper = |minor| upper_layer(mounts, libc::makedev(0, minor));
        assert_eq!(upper(39), Some("/u/1".into()));
        assert_eq!(upper(40), Some("/a, b".into()));
        assert_eq!(upper(41), None);
        assert_eq!(upper(42), None);
    }
}
