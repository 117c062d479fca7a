//! Long writes past the page cache, for the mode that leaves the page cache to the kernel.
//!
//! A write through the page cache costs a copy and a page of the kernel's for each of ours, and is on its way before the next one is
//! made; past it there is neither, and the device is waited for. With short writes the second is worse, with long ones the first.
//! The kernel keeps both ways right beside each other: a direct write first writes out what is cached of its range, and drops it.

use std::fs::File;
use std::io::{self, IoSlice};

use crate::sys::file::{self as sys, Keep};

/// Bytes in a write from which on it goes past the page cache. More than what is written in the background at once: there
/// nobody has to wait, while a sync waits for the device anyway.
pub(super) const LONG: usize = 2 << 20;

/// A second descriptor of a file, for direct I/O.
#[derive(Debug)]
pub(super) struct LongWrites {
    file: File,
    /// Of offsets, lengths and memory: a power of two.
    alignment: usize,
}

impl LongWrites {
    pub(super) fn new(file: File, alignment: usize) -> LongWrites {
        LongWrites { file, alignment }
    }

    /// Writes the buffers up to the first that is not aligned, if they are long together; `None` where they are not, or the file
    /// system does not want it: they go the other way.
    pub(super) fn write(&self, bufs: &[IoSlice<'_>], offset: u64) -> Option<io::Result<usize>> {
        let mask = self.alignment - 1;
        let aligned = |buf: &&IoSlice<'_>| (buf.as_ptr().addr() | buf.len()) & mask == 0;
        let run = bufs.iter().take_while(aligned).count();
        let len: usize = bufs[..run].iter().map(|buf| buf.len()).sum();
        if len < LONG || offset & mask as u64 != 0 {
            return None;
        }
        match sys::write_vectored_at(&self.file, &bufs[..run], offset, Keep::Cached) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
            result => Some(result),
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(shuttle, miri))))]
mod tests {
    use super::*;
    use crate::store::{CacheMode, Create, FileOptions, Store, read_exact_or_eof, write_all_at};

    const PAGE: usize = 4096;

    /// Pages and one more, of which the bytes tell the place, and where in them a page begins.
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
        let long = LongWrites::new(file, PAGE);
        let (bytes, begin) = pages(LONG / PAGE + 1);
        let whole = &bytes[begin..begin + LONG];
        let write = |bufs: &[&[u8]], offset| {
            let bufs: Vec<IoSlice<'_>> = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
            long.write(&bufs, offset).map(|count| count.unwrap())
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

    #[test]
    fn long_and_short_writes_of_the_same_bytes_see_each_other() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        let mut options = FileOptions::new();
        options = options
            .create(Create::Truncate)
            .cache_mode(CacheMode::DontCache);
        let Ok(store) = options.open(&path) else {
            return eprintln!("left out: no such mode");
        };
        let (bytes, begin) = pages(LONG / PAGE + 4);
        let mut model = vec![0; LONG + 3 * PAGE];
        let mut read = vec![0; model.len()];
        let end = begin + LONG + 100;
        let steps = [
            (begin..end, 0),
            (7..300, 3 * PAGE),
            (begin..end, 2 * PAGE),
            (0..PAGE, LONG + 500),
        ];
        for (part, offset) in steps {
            let part = &bytes[part];
            write_all_at(&store, part, offset as u64).unwrap();
            model[offset..offset + part.len()].copy_from_slice(part);
            let len = store.len().unwrap() as usize;
            assert_eq!(read_exact_or_eof(&store, &mut read, 0).unwrap(), len);
            assert!(read[..len] == model[..len], "after a write at {offset}");
        }
    }
}
