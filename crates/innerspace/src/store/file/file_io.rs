//! One read or write in each cache mode. (Which engine makes the reads in flight, io_uring or
//! threads, is decided in `ring/in_flight.rs`.)
//!
//! A [`FileIo`] transfers through the page cache, in one of the ways in [`Cached`]. Where direct
//! I/O works, it also has a second descriptor that bypasses the page cache ([`Direct`]), for reads,
//! for long writes or for all writes. In mode `Auto` reads bypass the page cache, and short writes
//! go through it where there is RWF_DONTCACHE. These measurements are the reason (Linux 6.18, ext4,
//! virtio disk, two processors, file of 2 GiB, none of it cached):
//!
//! | | RWF_DONTCACHE | O_DIRECT |
//! |---|---|---|
//! | random 4 KiB, 1 thread | 21,900 a second, 20 µs of CPU each | 20,300, 25 µs |
//! | 8 threads | 62,500, 9.4 µs | 62,400, 8.2 µs |
//! | 32 threads | 84,800, 8.7 µs | 88,300, 6.0 µs |
//! | one after the other, 1 MiB | 880, 420 µs | 1,245, 76 µs |
//! | writes of 256 KiB, fdatasync every 16 MiB | 14,500, 47 µs | 10,200, 33 µs |
//! | the same, 1 MiB | 4,100, 161 µs | 4,000, 60 µs |
//! | the same, 4 MiB | 900, 760 µs | 910, 165 µs |
//!
//! So a direct read is nearly as fast when few are in flight, and a long one takes a fifth of the
//! processor time. A short write is faster through the page cache, because no thread waits for the
//! device before the sync.
//!
//! `direct.rs` says why the two ways are coherent. If the file system refuses a direct read
//! although it accepted the probe, that read and all later ones go through the page cache.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use super::direct::Direct;
use super::long::write_long;
use super::options::CacheMode;
use crate::store::Limits;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex};
use crate::sys::file::{self as sys, Keep};

/// The number of bytes written through the page cache after which their pages are dropped. It is
/// several times the size of one call, so that the device works while the next call copies.
const DROP_EVERY: u64 = 16 << 20;

/// The pages that a transfer leaves in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cached {
    /// As many as the kernel chooses.
    Kept,
    /// None: the kernel drops the pages itself (RWF_DONTCACHE).
    Nothing,
    /// None: the range is dropped after the transfer.
    Dropped,
}

/// The writes that bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DirectWrites {
    Never,
    /// Only long and aligned ones.
    Long,
    All,
}

/// The ways in which a file's transfers are done.
#[derive(Debug)]
pub(super) struct FileIo {
    cached: Cached,
    written: Written,
    /// The descriptor that bypasses the page cache. Reads in flight share it.
    direct: Option<Arc<Direct>>,
    /// Whether reads use `direct`. Cleared for good when a direct read is refused. Relaxed, because
    /// no other data depends on it.
    direct_reads: AtomicBool,
    direct_writes: DirectWrites,
}

impl FileIo {
    /// Makes a [`FileIo`] that transfers everything through the page cache.
    pub(super) fn new(cached: Cached) -> FileIo {
        FileIo {
            cached,
            written: Written::default(),
            direct: None,
            direct_reads: AtomicBool::new(false),
            direct_writes: DirectWrites::Never,
        }
    }

    /// Adds a descriptor that bypasses the page cache, and sets the transfers that use it.
    pub(super) fn with_direct(self, direct: Direct, reads: bool, writes: DirectWrites) -> FileIo {
        FileIo {
            direct: Some(Arc::new(direct)),
            direct_reads: AtomicBool::new(reads),
            direct_writes: writes,
            ..self
        }
    }

    /// Returns the mode that reads use.
    pub(super) fn mode(&self) -> CacheMode {
        match (self.direct_reads(), self.cached) {
            (Some(_), _) => CacheMode::Direct,
            (None, Cached::Kept) => CacheMode::Kernel,
            (None, Cached::Nothing) => CacheMode::DontCache,
            (None, Cached::Dropped) => CacheMode::DropAfterUse,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        match self.direct_reads() {
            Some(direct) => Limits::aligned(direct.alignment),
            None => Limits::default(),
        }
    }

    /// Returns the descriptor of direct reads, unless reads go through the page cache.
    pub(super) fn direct_reads(&self) -> Option<&Arc<Direct>> {
        let direct = self.direct.as_ref()?;
        self.direct_reads.load(Ordering::Relaxed).then_some(direct)
    }

    pub(super) fn read_vectored_at(
        &self,
        file: &File,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let Some(direct) = self.direct_reads() else {
            return self.read_cached(file, bufs, offset);
        };
        match direct.read_vectored_at(bufs, offset) {
            Err(error) if is_refusal(&error) => {
                // If the page cache accepts the same request, the file system has refused direct
                // I/O, and the request was not at fault.
                let count = self.read_cached(file, bufs, offset)?;
                self.direct_reads.store(false, Ordering::Relaxed);
                Ok(count)
            }
            result => result,
        }
    }

    fn read_cached(
        &self,
        file: &File,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let count = sys::read_vectored_at(file, bufs, offset, self.keep())?;
        if self.cached == Cached::Dropped && count > 0 {
            sys::drop_cached(file, offset, count as u64);
        }
        Ok(count)
    }

    pub(super) fn write_vectored_at(
        &self,
        file: &File,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        match (&self.direct, self.direct_writes) {
            (Some(direct), DirectWrites::All) => direct.write_vectored_at(file, bufs, offset),
            (Some(direct), DirectWrites::Long) => match write_long(direct, bufs, offset) {
                Some(done) => done,
                None => self.write_cached(file, bufs, offset),
            },
            _ => self.write_cached(file, bufs, offset),
        }
    }

    fn write_cached(&self, file: &File, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let count = sys::write_vectored_at(file, bufs, offset, self.keep())?;
        if self.cached == Cached::Kept || count == 0 {
            return Ok(count);
        }
        let written = &self.written;
        let drops = self.cached == Cached::Dropped;
        match written.add(offset, count as u64, self.cached) {
            Some((begin, len)) => {
                // With RWF_DONTCACHE the kernel has begun to write the pages out. Those that are
                // written out can be dropped now. The others are dropped when the next drop is due,
                // or by the next sync.
                if drops {
                    // An error of this wait is reported by the next sync, because the write that
                    // failed may be an earlier one, and several may have failed.
                    let _ = written.unsaid.by(|| sys::wait_writeback(file, begin, len));
                }
                sys::drop_cached(file, begin, len);
            }
            // Dirty pages cannot be dropped, and waiting for each write would be slow. So each
            // write's write-out is started now, and several write-outs are waited for together.
            None if drops => {
                let started = sys::start_writeback(file, offset, count as u64);
                written.unsaid.note(started);
            }
            None => {}
        }
        Ok(count)
    }

    /// Returns what the kernel itself may keep of a transfer through the page cache.
    fn keep(&self) -> Keep {
        match self.cached {
            Cached::Nothing => Keep::Nothing,
            Cached::Kept | Cached::Dropped => Keep::Cached,
        }
    }

    /// Runs a sync, and drops the pages that it wrote out.
    pub(super) fn sync_with(
        &self,
        file: &File,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        // The span is taken before the sync, which need not cover later writes. Those are left to
        // the next sync.
        let span = self.written.take();
        let result = self.written.unsaid.said_with(sync(file));
        // The pages are dropped even if the sync failed, because their span was taken, and the next
        // sync would not drop them.
        if let Some((begin, len)) = span {
            sys::drop_cached(file, begin, len);
        }
        result
    }
}

/// Returns whether an error says that the system does not support the call, and not that the call
/// failed.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    error.raw_os_error().is_some() && matches!(error.kind(), InvalidInput | Unsupported)
}

/// The range that was written through the page cache and may still be in it.
///
/// Pages may stay even with RWF_DONTCACHE. If a write to existing blocks of the file is completed
/// in an interrupt, the kernel does not drop the pages (6.14 to 6.18 at least, ext4).
#[derive(Debug, Default)]
pub(super) struct Written {
    span: Mutex<Option<Span>>,
    unsaid: Unsaid,
}

/// The error of a failed write-out that the next sync has to report. The kernel reports such an
/// error once to each descriptor, to the first call that waits. Here that call was not a sync.
///
/// The mutex is held during the wait for a write-out. If that wait takes the error, the fsync of a
/// concurrent sync finds none. The sync then waits for the mutex, and finds the error here.
#[derive(Debug, Default)]
struct Unsaid(Mutex<Option<io::Error>>);

impl Unsaid {
    /// Waits for a write-out, and returns its result. Keeps a copy of an error for the next sync,
    /// unless one is kept already.
    fn by(&self, wait: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut kept = self.0.lock();
        let result = wait();
        if let Err(error) = &result {
            kept.get_or_insert_with(|| sys::copy_of(error));
        }
        result
    }

    /// Keeps the error of `result` for the next sync, unless one is kept already.
    fn note(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.0.lock().get_or_insert(error);
        }
    }

    /// Returns the result of a sync: its own error if there is one, and otherwise the kept error.
    /// In either case no error is kept from now on.
    fn said_with(&self, result: io::Result<()>) -> io::Result<()> {
        let kept = self.0.lock().take();
        result.and(kept.map_or(Ok(()), Err))
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    begin: u64,
    end: u64,
    /// The number of bytes written to the span since a drop was last due. Bytes written twice count
    /// twice.
    bytes: u64,
}

impl Written {
    /// Adds a write. Returns the offset and length of the span if it is due to be dropped. With
    /// [`Cached::Dropped`] a span that is due is forgotten, because the caller waits for its
    /// write-out and drops all of it. Otherwise the span stays, because dropping skips pages that
    /// are still being written out.
    fn add(&self, offset: u64, count: u64, cached: Cached) -> Option<(u64, u64)> {
        let mut span = self.span.lock();
        let old = span.unwrap_or(Span {
            begin: offset,
            end: offset,
            bytes: 0,
        });
        let mut new = Span {
            begin: old.begin.min(offset),
            end: old.end.max(offset + count),
            bytes: old.bytes + count,
        };
        let due = new.bytes >= DROP_EVERY;
        if due {
            new.bytes = 0;
        }
        *span = (!due || cached != Cached::Dropped).then_some(new);
        due.then_some((new.begin, new.end - new.begin))
    }

    /// Takes the span that was written since the last sync and not forgotten. Returns its offset
    /// and length.
    fn take(&self) -> Option<(u64, u64)> {
        self.span
            .lock()
            .take()
            .map(|span| (span.begin, span.end - span.begin))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn write_at(file_io: &FileIo, file: &File, bytes: &[u8]) -> io::Result<usize> {
        file_io.write_vectored_at(file, &[IoSlice::new(bytes)], 0)
    }

    #[test]
    fn a_write_out_that_failed_unseen_comes_out_of_the_next_sync_once() {
        let file = tempfile::tempfile().unwrap();
        let file_io = FileIo::new(Cached::Dropped);
        let written = &file_io.written;
        written.unsaid.note(Err(io::ErrorKind::TimedOut.into()));
        written.unsaid.note(Err(io::ErrorKind::StorageFull.into()));
        let sync = || file_io.sync_with(&file, File::sync_data);
        assert_eq!(sync().unwrap_err().kind(), io::ErrorKind::TimedOut);
        sync().unwrap();
    }

    #[test]
    fn an_error_that_a_wait_has_taken_is_found_by_the_sync_beside_it() {
        let file = tempfile::tempfile().unwrap();
        let file_io = FileIo::new(Cached::Dropped);
        let written = &file_io.written;
        let waited = written.unsaid.by(|| {
            // A sync that ended now would find no error, so it has to wait.
            assert!(written.unsaid.0.try_lock().is_none(), "it does not wait");
            Err(io::ErrorKind::TimedOut.into())
        });
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let sync = || file_io.sync_with(&file, File::sync_data);
        assert_eq!(sync().unwrap_err().kind(), io::ErrorKind::TimedOut);
        sync().unwrap();
    }

    #[test]
    fn one_failure_is_told_once_whoever_met_it() {
        let file = tempfile::tempfile().unwrap();
        let both = [FileIo::new(Cached::Dropped), FileIo::new(Cached::Nothing)];
        for file_io in both {
            file_io
                .written
                .unsaid
                .note(Err(io::ErrorKind::StorageFull.into()));
            let failing = |_: &File| Err(io::ErrorKind::TimedOut.into());
            let error = file_io.sync_with(&file, failing).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            file_io.sync_with(&file, File::sync_data).unwrap();
        }
    }

    #[test]
    fn what_a_failed_sync_was_for_is_dropped() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        let file_io = FileIo::new(Cached::Dropped);
        assert_eq!(write_at(&file_io, &file, &[1; 8192]).unwrap(), 8192);
        let failing = |file: &File| {
            file.sync_data()?;
            Err(io::ErrorKind::TimedOut.into())
        };
        file_io.sync_with(&file, failing).unwrap_err();
        let Ok(left) = sys::cached_bytes(&file) else {
            return eprintln!("left out: no word about what is cached");
        };
        // On tmpfs the page cache is the file itself, so nothing can be dropped.
        sys::drop_cached(&file, 0, 0);
        assert_eq!(left, sys::cached_bytes(&file).unwrap());
    }

    #[test]
    fn what_was_written_is_due_after_enough_and_named_as_a_whole() {
        for cached in [Cached::Nothing, Cached::Dropped] {
            let written = Written::default();
            let add = |offset, count| written.add(offset, count, cached);
            assert_eq!(add(80 << 20, 1 << 20), None);
            assert_eq!(add(1 << 20, 1 << 20), None);
            let rest = DROP_EVERY - (2 << 20);
            let whole = Some((1 << 20, 80 << 20));
            assert_eq!(add(2 << 20, rest), whole);
            // Pages that dropping has left are known to the sync, and also the next time that pages
            // are due.
            let kept = whole.filter(|_| cached == Cached::Nothing);
            assert_eq!(add(90 << 20, DROP_EVERY - 1), None);
            let end = (90 << 20) + DROP_EVERY - 1;
            let begin = kept.map_or(90 << 20, |(begin, _)| begin);
            assert_eq!(written.take(), Some((begin, end - begin)));
            assert_eq!(written.take(), None);
            assert_eq!(add(5, 7), None);
            assert_eq!(written.take(), Some((5, 7)));
        }
    }

    #[test]
    fn a_write_of_nothing_is_not_due() {
        let file = tempfile::tempfile().unwrap();
        for cached in [Cached::Nothing, Cached::Dropped] {
            let file_io = FileIo::new(cached);
            assert_eq!(file_io.write_cached(&file, &[], 100).unwrap(), 0);
            assert_eq!(file_io.written.take(), None);
        }
    }

    #[test]
    fn the_longest_writes_of_a_sync_are_not_each_waited_for() {
        let written = Written::default();
        let longest = 4 << 20;
        let dues = (0..8).filter(|at| {
            let due = written.add(at * longest, longest, Cached::Dropped);
            due.is_some()
        });
        assert_eq!(dues.collect::<Vec<_>>(), [3, 7]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_due_while_it_is_written_out_goes_with_the_sync() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        let file = options.open(path).unwrap();
        if !sys::enable_dontcache(&file) {
            return eprintln!("left out: no such mode");
        }
        let file_io = FileIo::new(Cached::Nothing);
        let bytes = vec![5; DROP_EVERY as usize];
        // The second write goes to blocks that the file has already: the kernel leaves their pages
        // in the page cache.
        for _ in 0..2 {
            assert_eq!(write_at(&file_io, &file, &bytes).unwrap(), bytes.len());
            file_io.sync_with(&file, File::sync_data).unwrap();
        }
        let Ok(left) = sys::cached_bytes(&file) else {
            return eprintln!("left out: no word about what is cached");
        };
        assert!(left <= DROP_EVERY / 50, "{left} bytes left");
    }

    // spec: R15
    #[cfg(target_os = "linux")]
    #[test]
    fn reads_that_are_refused_past_the_page_cache_go_through_it_from_then_on() {
        let dir = sys::disk_dir();
        let path = dir.path().join("data.bin");
        std::fs::write(&path, b"abc").unwrap();
        let mut options = File::options();
        let file = options.read(true).open(&path).unwrap();
        let Ok(refusing) = sys::open_direct(&path, &options) else {
            return eprintln!("left out: no direct I/O");
        };
        // The alignment of 1 makes every transfer count as aligned.
        let direct = Direct::new(refusing, 1);
        let file_io = FileIo::new(Cached::Dropped).with_direct(direct, true, DirectWrites::Never);
        let read = |offset| {
            let mut byte = [0];
            let count = file_io.read_vectored_at(&file, &mut [IoSliceMut::new(&mut byte)], offset);
            count.map(|count| byte[..count].to_vec())
        };
        read(u64::MAX).unwrap_err();
        assert_eq!(
            file_io.mode(),
            CacheMode::Direct,
            "the request was at fault"
        );
        assert_eq!(read(1).unwrap(), b"b");
        if file_io.mode() == CacheMode::Direct {
            return eprintln!("left out: the file system takes what is not aligned");
        }
        assert_eq!(file_io.mode(), CacheMode::DropAfterUse);
        assert_eq!(file_io.limits().alignment, 1);
        assert_eq!(read(2).unwrap(), b"c");
    }
}
