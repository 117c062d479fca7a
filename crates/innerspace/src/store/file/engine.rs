//! One read or write by each cache mode.
//!
//! Direct I/O wants offset, length and memory aligned. The arena's frames are, so the cache's
//! transfers go through as they are. What is not aligned:
//! - a read, or a write from unaligned memory, goes through the engine's one bounce buffer, a piece
//!   at a time (a short transfer: the caller's loop comes back for the rest);
//! - an unaligned edge of a write (the last block of a file) goes through the page cache, is waited
//!   for, and dropped. Reading the block, changing it and writing it back whole would be wrong
//!   against a concurrent write beside it, and would lengthen the file.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};

use super::super::Limits;
use super::CacheMode;
use super::long::LongWrites;
use crate::sync::Mutex;
use crate::sys::file::{self as sys, Keep};

/// The least alignment that direct I/O is used with; more when the file system asks for it.
pub(super) const DIRECT_ALIGNMENT: usize = 4096;
/// Bytes in the bounce buffer.
const BOUNCE: usize = 64 << 10;
/// Bytes written after which what they left in the page cache is dropped without waiting for a
/// sync. Several times what one call writes: the device is at work while the next is copied.
const DROP_EVERY: u64 = 16 << 20;

/// How transfers are done.
#[derive(Debug)]
pub(super) enum Engine {
    Kernel,
    DontCache(Written, Option<LongWrites>),
    Direct(Direct),
    DropAfterUse(Written),
}

impl Engine {
    pub(super) fn mode(&self) -> CacheMode {
        match self {
            Engine::Kernel => CacheMode::Kernel,
            Engine::DontCache(..) => CacheMode::DontCache,
            Engine::Direct(_) => CacheMode::Direct,
            Engine::DropAfterUse(_) => CacheMode::DropAfterUse,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        match self {
            Engine::Direct(direct) => Limits::aligned(direct.alignment),
            _ => Limits::default(),
        }
    }

    pub(super) fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Engine::Kernel => sys::read_at(file, buf, offset, Keep::Cached),
            Engine::DontCache(..) => sys::read_at(file, buf, offset, Keep::Nothing),
            Engine::Direct(direct) => direct.read_at(buf, offset),
            Engine::DropAfterUse(_) => {
                let count = sys::read_at(file, buf, offset, Keep::Cached)?;
                if count > 0 {
                    sys::drop_cached(file, offset, count as u64);
                }
                Ok(count)
            }
        }
    }

    pub(super) fn write_at(&self, file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        match self {
            Engine::Direct(direct) => direct.write_at(file, buf, offset),
            _ => self.write_vectored_at(file, &[IoSlice::new(buf)], offset),
        }
    }

    pub(super) fn write_vectored_at(
        &self,
        file: &File,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        match self {
            Engine::Kernel => sys::write_vectored_at(file, bufs, offset, Keep::Cached),
            Engine::DontCache(written, long) => {
                if let Some(done) = long.as_ref().and_then(|long| long.write(bufs, offset)) {
                    return done;
                }
                let count = sys::write_vectored_at(file, bufs, offset, Keep::Nothing)?;
                // The kernel has started writing; what it has finished can go. The rest is for another time, or the sync.
                if let Some((begin, len)) = written.add(offset, count as u64, OnceDue::Keep) {
                    sys::drop_cached(file, begin, len);
                }
                Ok(count)
            }
            Engine::Direct(direct) => direct.write_vectored_at(file, bufs, offset),
            Engine::DropAfterUse(written) => {
                let count = sys::write_vectored_at(file, bufs, offset, Keep::Cached)?;
                // Dirty pages cannot be dropped, and waiting for each write would be slow: writes
                // are started one by one and waited for together.
                match written.add(offset, count as u64, OnceDue::Forget) {
                    Some((begin, len)) => {
                        // The next sync says it: this write is not the one that failed, or not alone.
                        let _ = written.unsaid.by(|| sys::wait_writeback(file, begin, len));
                        sys::drop_cached(file, begin, len);
                    }
                    None if count > 0 => {
                        let started = sys::start_writeback(file, offset, count as u64);
                        written.unsaid.note(started);
                    }
                    None => {}
                }
                Ok(count)
            }
        }
    }

    /// Runs a sync and drops what it wrote out.
    pub(super) fn sync_with(
        &self,
        file: &File,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let written = match self {
            Engine::Kernel | Engine::Direct(_) => return sync(file),
            Engine::DontCache(written, _) | Engine::DropAfterUse(written) => written,
        };
        // Before the sync: what is written from now on it need not cover, and is the next one's.
        let span = written.take();
        let result = written.unsaid.said_with(sync(file));
        // Also where it failed: the next sync does not know of it.
        if let Some((begin, len)) = span {
            sys::drop_cached(file, begin, len);
        }
        result
    }
}

/// What was written through the page cache and is perhaps still in it.
///
/// That is so with RWF_DONTCACHE too: when a write to blocks that the file has already ends in an
/// interrupt, the kernel does not drop the pages (6.14 to 6.18 at least, ext4).
#[derive(Debug, Default)]
pub(super) struct Written {
    span: Mutex<Option<Span>>,
    unsaid: Unsaid,
}

/// What a sync has to say: a write-out failed while nobody was told, or not whom it concerned. The
/// kernel reports it once by each descriptor, to whoever waits first, and that was us.
///
/// Locked while we wait: a sync whose fsync finds nothing any more because a wait of ours has taken
/// the error comes for it here afterwards, and then it is here.
#[derive(Debug, Default)]
struct Unsaid(Mutex<Option<io::Error>>);

impl Unsaid {
    /// Waits for a write-out, and keeps a copy of its error for the next sync.
    fn by(&self, wait: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut kept = self.0.lock();
        let result = wait();
        if let Err(error) = &result {
            kept.get_or_insert_with(|| match error.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => error.kind().into(),
            });
        }
        result
    }

    /// Keeps the first error for the next sync.
    fn note(&self, result: io::Result<()>) {
        if let Err(error) = result {
            self.0.lock().get_or_insert(error);
        }
    }

    /// What a sync came to that had this result: its error says what the one kept would have said, too.
    fn said_with(&self, result: io::Result<()>) -> io::Result<()> {
        let kept = self.0.lock().take();
        result.and(kept.map_or(Ok(()), Err))
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    begin: u64,
    end: u64,
    /// Bytes written in it since something was last due, those written twice counted twice.
    bytes: u64,
}

/// What becomes of the note of what is due to be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OnceDue {
    /// It stays: dropping leaves what is being written out.
    Keep,
    /// It goes: the caller waits for the write-out, and all of it is dropped.
    Forget,
}

impl Written {
    /// Adds a write; answers with offset and length of what is due to be dropped, if it is due.
    fn add(&self, offset: u64, count: u64, once_due: OnceDue) -> Option<(u64, u64)> {
        if count == 0 {
            return None;
        }
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
        *span = (!due || once_due == OnceDue::Keep).then_some(new);
        due.then_some((new.begin, new.end - new.begin))
    }

    /// Offset and length of all that was written since the last sync, but what was forgotten.
    fn take(&self) -> Option<(u64, u64)> {
        self.span
            .lock()
            .take()
            .map(|span| (span.begin, span.end - span.begin))
    }
}

/// Direct I/O on a second descriptor of the file.
pub(super) struct Direct {
    file: File,
    /// Of offsets, lengths and memory: a power of two.
    alignment: usize,
    /// Held during a transfer through it.
    bounce: Mutex<AlignedBytes>,
    /// Held from the write of an edge until it is written out.
    edges: Mutex<()>,
}

impl Direct {
    pub(super) fn new(file: File, alignment: usize) -> Direct {
        let bounce = AlignedBytes::new(BOUNCE.max(alignment), alignment);
        Direct {
            file,
            alignment,
            bounce: Mutex::new(bounce),
            edges: Mutex::new(()),
        }
    }

    /// Tries a read, for file systems that take the flag and fail later.
    pub(super) fn probe(&self) -> io::Result<()> {
        let mut bounce = self.bounce.lock();
        self.read_direct(&mut bounce.get()[..self.alignment], 0)
            .map(drop)
    }

    fn is_aligned(&self, number: usize) -> bool {
        number & (self.alignment - 1) == 0
    }

    /// How far `offset` is past a multiple of the alignment.
    fn excess(&self, offset: u64) -> usize {
        (offset & (self.alignment as u64 - 1)) as usize
    }

    fn read_direct(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        sys::read_at(&self.file, buf, offset, Keep::Cached)
    }

    fn write_direct(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        sys::write_at(&self.file, buf, offset, Keep::Cached)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let whole = buf.len() & !(self.alignment - 1);
        let skip = self.excess(offset);
        if whole > 0 && skip == 0 && self.is_aligned(buf.as_ptr().addr()) {
            return self.read_direct(&mut buf[..whole], offset);
        }
        let mut bounce = self.bounce.lock();
        let bounce = bounce.get();
        let span = skip.saturating_add(buf.len()).min(bounce.len());
        let bounce = &mut bounce[..span.next_multiple_of(self.alignment)];
        let got = self.read_direct(bounce, offset - skip as u64)?;
        let count = got.saturating_sub(skip).min(buf.len());
        buf[..count].copy_from_slice(&bounce[skip..skip + count]);
        Ok(count)
    }

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
            return self.write_direct(&buf[..whole], offset);
        }
        let mut bounce = self.bounce.lock();
        let bounce = bounce.get();
        let count = whole.min(bounce.len());
        bounce[..count].copy_from_slice(&buf[..count]);
        self.write_direct(&bounce[..count], offset)
    }

    fn write_vectored_at(
        &self,
        file: &File,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let aligned =
            |buf: &&IoSlice<'_>| self.is_aligned(buf.as_ptr().addr()) && self.is_aligned(buf.len());
        let run = bufs.iter().take_while(aligned).count();
        if self.excess(offset) == 0 && bufs[..run].iter().any(|buf| !buf.is_empty()) {
            return sys::write_vectored_at(&self.file, &bufs[..run], offset, Keep::Cached);
        }
        let first = bufs.iter().find(|buf| !buf.is_empty());
        first.map_or(Ok(0), |buf| self.write_at(file, buf, offset))
    }

    fn write_edge(&self, file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_edge_and(file, buf, offset, sys::wait_writeback)
    }

    /// Writes less than a block through the page cache and sees it out of there, by `wait`.
    ///
    /// The kernel tells each descriptor once of a write-out that failed. A sync asks by `file`; were it waited for by that one too, a
    /// sync beside this could take the error along, and this would end well. So it is waited for by the other, by one edge at a time:
    /// what it is told of there is its own.
    ///
    /// Where the system cannot write a range out (a filter of system calls may refuse), the whole file is: the bytes are written by
    /// then, and an error would say that they are not.
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

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct")
            .field("alignment", &self.alignment)
            .finish_non_exhaustive()
    }
}

/// Zeroed bytes at an aligned address, found inside a larger allocation.
struct AlignedBytes {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl AlignedBytes {
    fn new(len: usize, alignment: usize) -> AlignedBytes {
        let bytes = vec![0; len + alignment];
        // Not `align_offset`, which need not answer.
        let begin = bytes.as_ptr().addr().wrapping_neg() & (alignment - 1);
        AlignedBytes { bytes, begin, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_write_out_that_failed_unseen_comes_out_of_the_next_sync_once() {
        let file = tempfile::tempfile().unwrap();
        let engine = Engine::DropAfterUse(Written::default());
        let Engine::DropAfterUse(written) = &engine else {
            unreachable!()
        };
        written.unsaid.note(Err(io::ErrorKind::TimedOut.into()));
        written.unsaid.note(Err(io::ErrorKind::StorageFull.into()));
        let sync = || engine.sync_with(&file, File::sync_data);
        assert_eq!(sync().unwrap_err().kind(), io::ErrorKind::TimedOut);
        sync().unwrap();
    }

    #[test]
    fn an_error_that_a_wait_has_taken_is_found_by_the_sync_beside_it() {
        let file = tempfile::tempfile().unwrap();
        let engine = Engine::DropAfterUse(Written::default());
        let Engine::DropAfterUse(written) = &engine else {
            unreachable!()
        };
        let waited = written.unsaid.by(|| {
            // A sync that ends now would find nothing: it has to wait.
            assert!(written.unsaid.0.try_lock().is_none(), "it does not wait");
            Err(io::ErrorKind::TimedOut.into())
        });
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let sync = || engine.sync_with(&file, File::sync_data);
        assert_eq!(sync().unwrap_err().kind(), io::ErrorKind::TimedOut);
        sync().unwrap();
    }

    #[test]
    fn one_failure_is_told_once_whoever_met_it() {
        let file = tempfile::tempfile().unwrap();
        let engines = [
            Engine::DropAfterUse(Written::default()),
            Engine::DontCache(Written::default(), None),
        ];
        for engine in engines {
            let unsaid = match &engine {
                Engine::Kernel | Engine::Direct(_) => unreachable!(),
                Engine::DontCache(written, _) | Engine::DropAfterUse(written) => &written.unsaid,
            };
            unsaid.note(Err(io::ErrorKind::StorageFull.into()));
            let failing = |_: &File| Err(io::ErrorKind::TimedOut.into());
            let error = engine.sync_with(&file, failing).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            engine.sync_with(&file, File::sync_data).unwrap();
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
        let engine = Engine::DropAfterUse(Written::default());
        assert_eq!(engine.write_at(&file, &[1; 8192], 0).unwrap(), 8192);
        let failing = |file: &File| {
            file.sync_data()?;
            Err(io::ErrorKind::TimedOut.into())
        };
        engine.sync_with(&file, failing).unwrap_err();
        let Ok(left) = sys::cached_bytes(&file) else {
            return eprintln!("left out: no word about what is cached");
        };
        // On tmpfs the cache is the file itself.
        sys::drop_cached(&file, 0, 0);
        assert_eq!(left, sys::cached_bytes(&file).unwrap());
    }

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
        // As sync_file_range(2) where it may not be called.
        let refuse = |_: &File, _, _| Err(io::ErrorKind::Unsupported.into());
        let written = direct.write_edge_and(&file, b"edge", 5, refuse);
        assert_eq!(written.unwrap(), 4);
        let engine = Engine::Direct(direct);
        engine.sync_with(&file, File::sync_data).unwrap();
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

    #[test]
    fn what_was_written_is_due_after_enough_and_named_as_a_whole() {
        for once_due in [OnceDue::Keep, OnceDue::Forget] {
            let written = Written::default();
            let add = |offset, count| written.add(offset, count, once_due);
            assert_eq!(add(100, 0), None);
            assert_eq!(add(80 << 20, 1 << 20), None);
            assert_eq!(add(1 << 20, 1 << 20), None);
            let rest = DROP_EVERY - (2 << 20);
            let whole = Some((1 << 20, 80 << 20));
            assert_eq!(add(2 << 20, rest), whole);
            // What dropping has left is known to the sync, and when something is due again.
            let kept = whole.filter(|_| once_due == OnceDue::Keep);
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
    fn the_longest_writes_of_a_sync_are_not_each_waited_for() {
        let written = Written::default();
        let longest = 4 << 20;
        let dues = (0..8).filter(|at| {
            let due = written.add(at * longest, longest, OnceDue::Forget);
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
        let engine = Engine::DontCache(Written::default(), None);
        let bytes = vec![5; DROP_EVERY as usize];
        // Over blocks that the file has already: the kernel leaves those in the page cache.
        for _ in 0..2 {
            assert_eq!(engine.write_at(&file, &bytes, 0).unwrap(), bytes.len());
            engine.sync_with(&file, File::sync_data).unwrap();
        }
        let Ok(left) = sys::cached_bytes(&file) else {
            return eprintln!("left out: no word about what is cached");
        };
        assert!(left <= DROP_EVERY / 50, "{left} bytes left");
    }
}
