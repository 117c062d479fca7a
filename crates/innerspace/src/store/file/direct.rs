//! Direct I/O on a second descriptor of the file.
//!
//! Direct I/O requires offset, length and memory to be aligned. The arena's frames are aligned, so
//! most of the cache's transfers go to the file directly. The exceptions:
//! - An unaligned read, or a write from unaligned memory, uses a bounce buffer of its own. The
//!   buffer has at most 64 KiB, or one unit of the alignment if that is more. So the transfer may
//!   be short, and the caller continues it. Calls share no buffer, so no thread waits for another.
//! - An unaligned edge of a write (the last block of a file) goes through the page cache. The write
//!   waits until the kernel has written the edge out, and then drops it from the page cache. It
//!   would be wrong to read the block, change it and write all of it back: that could undo a
//!   concurrent write next to the edge, and would lengthen the file.
//!
//! Both descriptors reach the same bytes. Before a direct transfer the kernel writes out the dirty
//! pages of the range that are in its page cache. For a direct write it also drops the range's
//! pages.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;

use crate::sync::Mutex;
use crate::sys::file::{self as sys, Keep};

/// The smallest alignment used for direct I/O. A larger one is used if the file system requires it.
pub(super) const DIRECT_ALIGNMENT: usize = 4096;
/// The maximum size of a bounce buffer in bytes, unless the alignment is larger.
const BOUNCE: usize = 64 << 10;

/// A second descriptor of the file, opened for direct I/O.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) file: File,
    /// The alignment of offsets, lengths and memory, which is a power of two.
    pub(super) alignment: usize,
    /// Held from the write of an edge (the unaligned part of a write) to the page cache until the
    /// kernel has written the edge out.
    edges: Mutex<()>,
}

impl Direct {
    pub(super) fn new(file: File, alignment: usize) -> Direct {
        Direct {
            file,
            alignment,
            edges: Mutex::new(()),
        }
    }

    /// Tries a read, because some file systems accept `O_DIRECT` when a file is opened, and fail
    /// later.
    pub(super) fn probe(&self) -> io::Result<()> {
        let mut bytes = AlignedBytes::new(self.alignment, self.alignment);
        sys::read_at(&self.file, bytes.get(), 0, Keep::Cached).map(drop)
    }

    /// Returns whether a number of bytes, or an address, is a multiple of the alignment.
    pub(super) fn is_aligned(&self, number: usize) -> bool {
        number & (self.alignment - 1) == 0
    }

    /// Returns the number of bytes from the last multiple of the alignment to `offset`.
    pub(super) fn excess(&self, offset: u64) -> usize {
        (offset & (self.alignment as u64 - 1)) as usize
    }

    /// Reads into the buffers before the first unaligned one. If the first buffer is unaligned only
    /// in its length, reads into its aligned part. If that part is empty, or the offset or the
    /// first buffer's address is unaligned, reads through a bounce buffer.
    pub(super) fn read_vectored_at(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let Some(first) = bufs.iter().position(|buf| !buf.is_empty()) else {
            return Ok(0);
        };
        let bufs = &mut bufs[first..];
        if self.excess(offset) != 0 || !self.is_aligned(bufs[0].as_ptr().addr()) {
            return self.read_by_bounce(bufs, offset);
        }
        let run = self.aligned_run(bufs);
        if run > 0 {
            return sys::read_vectored_at(&self.file, &mut bufs[..run], offset, Keep::Cached);
        }
        match bufs[0].len() & !(self.alignment - 1) {
            0 => self.read_by_bounce(bufs, offset),
            whole => sys::read_at(&self.file, &mut bufs[0][..whole], offset, Keep::Cached),
        }
    }

    fn read_by_bounce(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let skip = self.excess(offset);
        let most = BOUNCE.max(self.alignment);
        let wanted = bufs
            .iter()
            .fold(skip, |sum, buf| sum.saturating_add(buf.len()));
        let span = wanted.min(most).next_multiple_of(self.alignment);
        let mut bounce = AlignedBytes::new(span, self.alignment);
        let bounce = bounce.get();
        let got = sys::read_at(&self.file, bounce, offset - skip as u64, Keep::Cached)?;
        let mut rest = &bounce[skip.min(got)..got.min(wanted)];
        let count = rest.len();
        for buf in bufs {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(count)
    }

    /// Writes from the buffers past the page cache, perhaps only a part of them. The caller has
    /// checked that the offset and the buffers are aligned.
    pub(super) fn write_aligned(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        sys::write_vectored_at(&self.file, bufs, offset, Keep::Cached)
    }

    /// Writes from one buffer, perhaps only a part of it. An unaligned edge goes through the page
    /// cache, by the descriptor `file`.
    fn write_at(&self, file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        let excess = self.excess(offset);
        if excess != 0 {
            let head = (self.alignment - excess).min(buf.len());
            return self.write_edge(file, &buf[..head], offset);
        }
        let whole = buf.len() & !(self.alignment - 1);
        if whole == 0 {
            return self.write_edge(file, buf, offset);
        }
        if self.is_aligned(buf.as_ptr().addr()) {
            return self.write_aligned(&[IoSlice::new(&buf[..whole])], offset);
        }
        let count = whole.min(BOUNCE.max(self.alignment));
        let mut bounce = AlignedBytes::new(count, self.alignment);
        bounce.get().copy_from_slice(&buf[..count]);
        self.write_aligned(&[IoSlice::new(bounce.get())], offset)
    }

    /// Writes the buffers before the first unaligned one. If there are none, or the offset is
    /// unaligned, writes from the first buffer that is not empty, perhaps only a part of it. An
    /// unaligned edge goes through the page cache, with the descriptor `file`.
    pub(super) fn write_vectored_at(
        &self,
        file: &File,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let run = self.aligned_run(bufs);
        if self.excess(offset) == 0 && bufs[..run].iter().any(|buf| !buf.is_empty()) {
            return self.write_aligned(&bufs[..run], offset);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty());
        first.map_or(Ok(0), |buf| self.write_at(file, buf, offset))
    }

    /// Returns the number of buffers before the first unaligned one.
    pub(super) fn aligned_run(&self, bufs: &[impl Deref<Target = [u8]>]) -> usize {
        let is_aligned =
            |buf: &[u8]| self.is_aligned(buf.as_ptr().addr()) && self.is_aligned(buf.len());
        bufs.iter().take_while(|buf| is_aligned(buf)).count()
    }

    fn write_edge(&self, file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_edge_and(file, buf, offset, sys::wait_writeback)
    }

    /// Writes less than one unit of the alignment through the page cache, and calls `wait` to wait
    /// until the kernel has written it out.
    ///
    /// The kernel reports a failed write-out once to each descriptor. A sync gets its errors
    /// through `file`. If the wait for the edge used `file` too, a concurrent sync could take the
    /// edge's error, and this write would succeed. So the wait uses the descriptor for direct I/O.
    /// Edges are written one at a time, so an error reported by that descriptor belongs to this
    /// edge.
    ///
    /// If the system cannot write out a range (a filter of system calls may refuse it), the whole
    /// file is written out. The bytes are in the page cache by then, so returning an error would be
    /// wrong: an error means that nothing was written.
    fn write_edge_and(
        &self,
        file: &File,
        buf: &[u8],
        offset: u64,
        wait: impl FnOnce(&File, u64, u64) -> io::Result<()>,
    ) -> io::Result<usize> {
        let _one = self.edges.lock();
        let count = sys::write_at(file, buf, offset, Keep::Cached)?;
        match wait(&self.file, offset, count as u64) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.file.sync_data()?,
            waited => waited?,
        }
        sys::drop_cached(file, offset, count as u64);
        Ok(count)
    }
}

/// Zeroed bytes at an aligned address inside a larger allocation.
struct AlignedBytes {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl AlignedBytes {
    fn new(len: usize, alignment: usize) -> AlignedBytes {
        let bytes = vec![0; len + alignment];
        // `align_offset` is not used, because it is allowed to give up.
        let begin = bytes.as_ptr().addr().wrapping_neg() & (alignment - 1);
        AlignedBytes { bytes, begin, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::file_io::{Cached, DirectWrites, FileIo};
    use super::*;

    #[cfg(unix)]
    #[test]
    fn an_edge_is_waited_for_where_no_sync_can_take_its_error() {
        use std::os::fd::AsRawFd;

        let file = tempfile::tempfile().unwrap();
        let direct = Direct::new(file.try_clone().unwrap(), DIRECT_ALIGNMENT);
        assert_eq!(direct.write_at(&file, b"edge", 5).unwrap(), 4);
        let error = direct.write_edge_and(&file, b"edge", 5, |by, offset, len| {
            assert_eq!(by.as_raw_fd(), direct.file.as_raw_fd());
            assert_ne!(by.as_raw_fd(), file.as_raw_fd(), "a sync asks by this");
            assert_eq!((offset, len), (5, 4));
            assert!(direct.edges.try_lock().is_none(), "another edge beside it");
            Err(io::Error::from_raw_os_error(5))
        });
        assert_eq!(error.unwrap_err().raw_os_error(), Some(5));
        // The whole file is written out where sync_file_range(2) is not permitted, with the same
        // result.
        let refuse = |_: &File, _, _| Err(io::ErrorKind::Unsupported.into());
        let written = direct.write_edge_and(&file, b"edge", 5, refuse);
        assert_eq!(written.unwrap(), 4);
        let file_io = FileIo::new(Cached::Dropped).with_direct(direct, true, DirectWrites::All);
        file_io.sync_with(&file, File::sync_data).unwrap();
    }

    #[test]
    fn of_a_write_that_is_not_aligned_the_ends_alone_are_written_by_way_of_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let direct = Direct::new(file.try_clone().unwrap(), DIRECT_ALIGNMENT);
        let bytes: Vec<u8> = (0..3 * DIRECT_ALIGNMENT).map(|at| at as u8 | 1).collect();
        let mut done = 0;
        let parts = [DIRECT_ALIGNMENT - 100, 2 * DIRECT_ALIGNMENT, 100];
        for part in parts {
            let count = direct.write_at(&file, &bytes[done..], 100 + done as u64);
            assert_eq!(count.unwrap(), part);
            done += part;
        }
        let mut back = vec![0; bytes.len()];
        sys::read_at(&file, &mut back, 100, Keep::Cached).unwrap();
        assert!(back == bytes);
    }

    // spec: R8
    // spec: R14
    #[test]
    fn a_read_that_is_not_aligned_is_scattered_up_to_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100_001u32).map(|at| (at / 3) as u8).collect();
        sys::write_at(&file, &bytes, 0, Keep::Cached).unwrap();
        // The second alignment stands for blocks larger than a page, the third for blocks larger
        // than a bounce buffer.
        for alignment in [DIRECT_ALIGNMENT, 16 << 10, 2 * BOUNCE] {
            let direct = Direct::new(file.try_clone().unwrap(), alignment);
            for offset in [0, 1, 4096, 50_000, 99_999, 100_001, 1 << 40] {
                let mut parts = [vec![7; 0], vec![7; 100], vec![7; 5001], vec![7; 90_000]];
                let mut bufs: Vec<_> = parts.iter_mut().map(|part| &mut part[..]).collect();
                let mut bufs: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
                let count = direct
                    .read_vectored_at(&mut bufs, offset as u64)
                    .expect("the read");
                let rest = &bytes[bytes.len().min(offset)..];
                assert_eq!(count == 0, rest.is_empty(), "{alignment} at {offset}");
                let all = parts.concat();
                assert!(all[..count] == rest[..count], "{alignment} at {offset}");
                assert!(all[count..].iter().all(|&byte| byte == 7), "beyond the end");
            }
        }
    }
}
