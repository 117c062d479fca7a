//! Long writes, which bypass the page cache. Short ones go through it.
//!
//! A write through the page cache costs a copy, and a page of the kernel's memory for each page of
//! ours, but returns before the device has written anything. A direct write costs neither, but
//! waits for the device. For short writes the wait costs more, for long ones the copy.

use std::io::{self, IoSlice};

use super::direct::Direct;

/// The length from which a write bypasses the page cache. Background writes are shorter: one call
/// writes at most 1 MiB, or one block of at most 2 MiB. So background work does not wait for the
/// device. A sync waits for the device in any case.
pub(super) const LONG: usize = (2 << 20) + 4096;

/// Writes the buffers before the first unaligned one, if they have at least [`LONG`] bytes
/// together. Returns `None` if they have fewer, if the offset is unaligned, or if the file system
/// refuses. The caller then writes through the page cache.
pub(super) fn write_long(
    direct: &Direct,
    bufs: &[IoSlice<'_>],
    offset: u64,
) -> Option<io::Result<usize>> {
    let run = &bufs[..direct.aligned_run(bufs)];
    let len: usize = run.iter().map(|buf| buf.len()).sum();
    if len < LONG || direct.excess(offset) != 0 {
        return None;
    }
    match direct.write_aligned(run, offset) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
        result => Some(result),
    }
}

#[cfg(all(test, target_os = "linux", not(any(shuttle, miri))))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::super::file_io::{Cached, DirectWrites, FileIo};
    use super::*;
    use crate::store::{
        CacheMode, FileOptions, FileStore, Store, SyncWhat, read_exact_or_eof, write_all_at,
        write_all_vectored_at,
    };
    use crate::sys::file::{self as sys, Keep};

    const PAGE: usize = 4096;

    /// Returns bytes that encode their position, for `count` pages and one more, with the offset of
    /// the first page boundary in them.
    fn pages(count: usize) -> (Vec<u8>, usize) {
        let bytes: Vec<u8> = (0..(count + 1) * PAGE).map(|at| (at / 7) as u8).collect();
        let begin = bytes.as_ptr().addr().wrapping_neg() & (PAGE - 1);
        (bytes, begin)
    }

    #[test]
    fn what_is_long_and_aligned_goes_and_the_rest_is_left() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        drop(options.open(&path).unwrap());
        let Ok(file) = sys::open_direct(&path, &options) else {
            return eprintln!("left out: no direct I/O");
        };
        let direct = Direct::new(file, PAGE);
        let (bytes, begin) = pages(LONG / PAGE + 1);
        let whole = &bytes[begin..begin + LONG];
        let write = |bufs: &[&[u8]], offset| {
            let bufs: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            write_long(&direct, &bufs, offset).map(|count| count.unwrap())
        };
        assert_eq!(write(&[&whole[..LONG - PAGE]], 0), None, "short");
        assert_eq!(write(&[whole], 100), None, "a page torn in two");
        assert_eq!(
            write(&[&bytes[begin + 1..begin + 1 + LONG]], 0),
            None,
            "memory that is not aligned"
        );
        assert_eq!(write(&[&whole[..100], whole], 0), None, "torn first");
        let (first, second) = whole.split_at(PAGE);
        assert_eq!(
            write(&[first, second, &whole[..100]], PAGE as u64),
            Some(LONG),
            "the end is left"
        );
        let mut expected = vec![0; PAGE];
        expected.extend(whole);
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    /// A store in the mode that has long writes. `other` is a second handle of the same file, which
    /// uses the page cache as other programs do.
    struct Both {
        store: FileStore,
        other: File,
        model: Vec<u8>,
        /// Whether the file system accepts direct writes.
        direct: bool,
        _dir: tempfile::TempDir,
    }

    impl Both {
        fn new(len: usize) -> Option<Both> {
            let dir = sys::disk_dir();
            let path = dir.path().join("data.bin");
            let options = FileOptions::new().cache_mode(CacheMode::DontCache);
            let store = options.create(&path).ok()?;
            let mut options = File::options();
            options.read(true).write(true);
            let other = options.open(&path).unwrap();
            let (bytes, begin) = pages(1);
            let direct = sys::open_direct(&path, &options).is_ok_and(|file| {
                sys::write_at(&file, &bytes[begin..begin + PAGE], 0, Keep::Cached).is_ok()
            });
            if !direct {
                eprintln!("no direct writes here: all go through the page cache");
            }
            store.set_len(0).unwrap();
            store.set_len(len as u64).unwrap();
            Some(Both {
                store,
                other,
                model: vec![0; len],
                direct,
                _dir: dir,
            })
        }

        fn check(&self, when: &str) {
            let mut read = vec![0; self.model.len()];
            let whole = read.len();
            assert_eq!(read_exact_or_eof(&self.store, &mut read, 0).unwrap(), whole);
            assert!(read == self.model, "the store {when}");
            read.fill(0);
            self.other.read_exact_at(&mut read, 0).unwrap();
            assert!(read == self.model, "the page cache {when}");
        }

        /// Writes pages and a tail in as many calls as needed. The first call writes only the pages
        /// if it bypasses the page cache, and otherwise the tail too.
        fn write_long(&mut self, (whole, tail): (&[u8], &[u8]), offset: usize) {
            let mut slices: Vec<IoSlice<'_>> = whole.chunks(PAGE).map(IoSlice::new).collect();
            slices.push(IoSlice::new(tail));
            let at = offset as u64;
            let count = self.store.write_vectored_at(&slices, at).unwrap();
            let all = whole.len() + tail.len();
            assert_eq!(count, if self.direct { whole.len() } else { all });
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, count);
            write_all_vectored_at(&self.store, rest, at + count as u64).unwrap();
            self.model[offset..offset + whole.len()].copy_from_slice(whole);
            self.model[offset + whole.len()..offset + all].copy_from_slice(tail);
        }

        fn write_short(&mut self, bytes: &[u8], offset: usize) {
            write_all_at(&self.store, bytes, offset as u64).unwrap();
            self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        /// Leaves dirty pages in the kernel's page cache, whose write-out has not begun.
        fn write_cached(&mut self, bytes: &[u8], offset: usize) {
            self.other.write_all_at(bytes, offset as u64).unwrap();
            self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    #[test]
    fn long_and_short_writes_of_the_same_bytes_see_each_other() {
        let Some(mut both) = Both::new(LONG + 9 * PAGE) else {
            return eprintln!("left out: no such mode");
        };
        let (bytes, begin) = pages(LONG / PAGE + 2);
        let long_from = |page: usize| {
            let whole = &bytes[begin + page * PAGE..][..LONG];
            (whole, &bytes[7..107])
        };
        both.write_long(long_from(0), 0);
        both.check("after the first long write");
        // Now the whole file is cached and clean.
        both.write_long(long_from(1), 2 * PAGE);
        both.check("after a long write over what was read");
        both.write_short(&bytes[5..5 + 3 * PAGE], PAGE + 9);
        both.write_short(&bytes[1..3000], LONG + PAGE);
        both.write_long(long_from(0), 3 * PAGE);
        both.check("after a long write over what was written short");
        both.write_cached(&bytes[3..3 + 20 * PAGE], 100);
        both.write_cached(&bytes[9..9 + 2 * PAGE], LONG + 2 * PAGE + 5);
        both.write_long(long_from(1), 4 * PAGE);
        both.check("after a long write over what was dirty");
        both.write_cached(&bytes[2..2 + PAGE], 5 * PAGE);
        both.write_long(long_from(0), 5 * PAGE);
        both.write_short(&bytes[4..4 + 2 * PAGE], 6 * PAGE + 1);
        both.check("after short writes before and behind a long one");
        both.store.sync(SyncWhat::All).unwrap();
        both.check("after the sync");
    }

    #[test]
    fn what_the_file_system_does_not_take_goes_through_the_page_cache() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).unwrap();
        if !sys::enable_dontcache(&file) {
            return eprintln!("left out: no such mode");
        }
        let Ok(direct) = sys::open_direct(&path, &options) else {
            return eprintln!("left out: no direct I/O");
        };
        let (bytes, begin) = pages(LONG / PAGE + 1);
        let bytes = &bytes[begin + 1..begin + 1 + LONG];
        let bufs = [IoSlice::new(bytes)];
        // The alignment of 1 makes every transfer count as aligned.
        let direct = Direct::new(direct, 1);
        if write_long(&direct, &bufs, 100).is_some() {
            eprintln!("the file system takes what is not aligned");
        }
        let file_io = FileIo::new(Cached::Nothing).with_direct(direct, false, DirectWrites::Long);
        let count = file_io.write_vectored_at(&file, &bufs, 100).unwrap();
        assert_eq!(count, LONG);
        let read = std::fs::read(&path).unwrap();
        assert_eq!((&read[..100], read.len()), (&[0; 100][..], 100 + LONG));
        assert!(read[100..] == *bytes);
    }
}
