//! Reads of a file by io_uring(7): which reads can go through a ring, and what their completions
//! mean.
//!
//! A read goes through the ring if reads are direct and the offset, the lengths and the memory are
//! aligned. Other reads, and all writes, are calls. A read through the ring has the same result as
//! [`Store::read_vectored_at`]: the end of the file is found in the same way, and the caller
//! continues a short read. If the kernel refuses a read through the ring, the read is done by a
//! call, and [`Watch::fell_back`] makes all later reads calls, too.
//!
//! A store may be dropped while its reads are in flight, for example if a program opens the file
//! for each batch. So each read keeps a [`Source`], which has the descriptor and decides what the
//! read's completion means.
//!
//! [`Store::read_vectored_at`]: crate::store::Store::read_vectored_at

use std::io;
use std::os::fd::AsRawFd;

use crate::store::file::direct::Direct;
use crate::store::file::file_io::FileIo;
use crate::store::file::watch::Watch;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sys::ring::{Transfer, available, iovec, is_passing, is_refusal};

/// The parts of a store that each of its reads in flight keeps: the descriptor, and the file's
/// state.
#[derive(Debug)]
pub(super) struct Source {
    direct: Arc<Direct>,
    watch: Arc<Watch>,
}

/// Decides which engine a file uses now. Returns the descriptor of its direct reads if they go
/// through a ring, and `None` if they are calls.
pub(super) fn direct_reads<'e>(file_io: &'e FileIo, watch: &Watch) -> Option<&'e Arc<Direct>> {
    let direct = file_io.direct_reads()?;
    (!watch.fell_back.load(Ordering::Relaxed) && available()).then_some(direct)
}

impl Source {
    /// Makes the transfer of a read at `offset` into the memory of `iovecs`. Returns `None` if
    /// reads do not go through a ring, or the offset, a length or an address is not aligned. The
    /// caller keeps the source, which has the descriptor, until the read has completed.
    pub(super) fn of_read(
        file_io: &FileIo,
        watch: &Arc<Watch>,
        offset: u64,
        iovecs: Vec<iovec>,
    ) -> Option<(Transfer, Source)> {
        let direct = direct_reads(file_io, watch)?;
        let is_aligned = |piece: &iovec| {
            direct.is_aligned(piece.iov_base.addr()) && direct.is_aligned(piece.iov_len)
        };
        if direct.excess(offset) != 0 || !iovecs.iter().all(is_aligned) {
            return None;
        }
        let source = Source {
            direct: direct.clone(),
            watch: watch.clone(),
        };
        let transfer = Transfer {
            fd: direct.file.as_raw_fd(),
            offset,
            iovecs,
        };
        Some((transfer, source))
    }

    /// Notes that the ring cannot be used. The store's reads are done by calls from now on.
    pub(super) fn fall_back(&self) {
        self.watch.fell_back.store(true, Ordering::Relaxed);
    }

    /// Returns what [`Store::read_vectored_at`](crate::store::Store::read_vectored_at) would have
    /// returned for a read of `wanted` bytes at `offset`, which the ring completed with `result`.
    /// Returns `None` if the caller has to read the same bytes by a call, which may wait. If the
    /// kernel refused the read through the ring, the store's later reads are calls, too.
    pub(super) fn completed(
        &self,
        offset: u64,
        wanted: u64,
        result: io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        match result {
            Ok(0) if wanted > 0 => {
                let checked = self.watch.check_end(&self.direct.file, offset, wanted);
                Some(checked.map(|()| 0))
            }
            Err(error) if is_refusal(&error) => {
                self.fall_back();
                None
            }
            Err(error) if is_passing(&error) => None,
            result => Some(result),
        }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Source {
        pub(in crate::store::file) fn new(direct: Arc<Direct>, watch: Arc<Watch>) -> Source {
            Source { direct, watch }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        CacheMode, FileEngine, FileOptions, FileStore, Store, StoreErrorKind, read_exact_or_eof,
    };
    use crate::sys::file::disk_dir;
    use crate::sys::ring::tests::read_pages;

    const PAGE: usize = 4096;

    type Outcome = Option<io::Result<usize>>;

    /// A store over a file, and the file's bytes.
    struct Case {
        store: FileStore,
        bytes: Vec<u8>,
        path: std::path::PathBuf,
        _dir: tempfile::TempDir,
    }

    fn case(len: usize) -> Option<Case> {
        let dir = disk_dir();
        let path = dir.path().join("data.bin");
        let bytes: Vec<u8> = (0..len).map(|at| (at / 5) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let store = FileStore::open_rw(&path).unwrap();
        if store.engine() != FileEngine::IoUring {
            eprintln!("left out: no direct reads, or no io_uring");
            return None;
        }
        Some(Case {
            store,
            bytes,
            path,
            _dir: dir,
        })
    }

    /// Returns memory for four pages, and the offset in it at which the first page begins.
    fn memory() -> (Vec<u8>, usize) {
        let memory = vec![0x55; 5 * PAGE];
        let begin = memory.as_ptr().addr().wrapping_neg() & (PAGE - 1);
        (memory, begin)
    }

    fn piece(memory: &mut [u8], begin: usize, len: usize) -> libc::iovec {
        libc::iovec {
            iov_base: memory[begin..begin + len].as_mut_ptr().cast(),
            iov_len: len,
        }
    }

    /// Reads pages through a ring. Returns `None` if the read cannot go through one.
    fn read(case: &Case, offset: u64, pages: &[usize]) -> Option<(Vec<u8>, Outcome)> {
        let mut source = None;
        let transfer_for = |pieces| {
            let (transfer, of) =
                Source::of_read(&case.store.file_io, &case.store.watch, offset, pieces)?;
            source = Some(of);
            Some(transfer)
        };
        let (read, result) = read_pages(pages, transfer_for)?;
        let wanted = read.len() as u64;
        Some((read, source?.completed(offset, wanted, result)))
    }

    fn count_of(completed: Outcome) -> usize {
        completed.expect("it needs no call").unwrap()
    }

    // spec: R14
    #[test]
    fn pages_come_by_a_ring_as_by_a_call_also_at_the_end() {
        let Some(case) = case(10 * PAGE + 100) else {
            return;
        };
        for (offset, pages) in [
            (PAGE, &[0, 1, 3, 2][..]),
            (8 * PAGE, &[2, 0, 1]),
            (10 * PAGE, &[3]),
        ] {
            let (read, completed) = read(&case, offset as u64, pages).unwrap();
            let rest = &case.bytes[offset..];
            let count = count_of(completed);
            assert_eq!(count, (pages.len() * PAGE).min(rest.len()));
            assert!(read[..count] == rest[..count], "at {offset}");
        }
        let (_, completed) = read(&case, 11 * PAGE as u64, &[0]).unwrap();
        assert_eq!(count_of(completed), 0);
        assert_eq!(case.store.len().unwrap(), case.bytes.len() as u64);
    }

    #[test]
    fn a_file_cut_short_from_outside_is_the_error_that_a_call_gives() {
        let Some(case) = case(10 * PAGE) else { return };
        let options = std::fs::File::options().write(true).open(&case.path);
        options.unwrap().set_len(4 * PAGE as u64).unwrap();
        let (_, completed) = read(&case, 5 * PAGE as u64, &[0]).unwrap();
        let Some(Err(error)) = completed else {
            panic!("{completed:?}");
        };
        assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Shrank);
        let by_call = read_exact_or_eof(&case.store, &mut [0; PAGE], 5 * PAGE as u64);
        assert_eq!(error.to_string(), by_call.unwrap_err().to_string());
    }

    // spec: R14
    #[test]
    fn what_is_not_aligned_is_left_to_calls() {
        let Some(case) = case(10 * PAGE) else { return };
        let (mut memory, begin) = memory();
        let mut takes = |offset, at, len| {
            let whole = piece(&mut memory, begin, PAGE);
            let pieces = vec![whole, piece(&mut memory, begin + at, len)];
            let read = Source::of_read(&case.store.file_io, &case.store.watch, offset, pieces);
            read.is_some_and(|(transfer, _)| transfer.iovecs.len() == 2)
        };
        assert!(takes(0, PAGE, 2 * PAGE));
        assert!(!takes(512, PAGE, PAGE));
        assert!(!takes(0, PAGE + 1, PAGE));
        assert!(!takes(0, PAGE, 100));
        let buffered = FileOptions::new().cache_mode(CacheMode::Kernel);
        let store = buffered.open(&case.path).unwrap();
        assert_eq!(store.engine(), FileEngine::Calls);
        assert!(Source::of_read(&store.file_io, &store.watch, 0, Vec::new()).is_none());
    }

    // spec: R15
    #[test]
    fn a_ring_that_refuses_is_not_tried_again_and_calls_go_on() {
        let refused = [libc::EOPNOTSUPP, libc::EINVAL, libc::EPERM, libc::ENOSYS];
        for number in refused {
            let Some(case) = case(2 * PAGE) else { return };
            let (_, source) =
                Source::of_read(&case.store.file_io, &case.store.watch, 0, Vec::new()).unwrap();
            let complete = |number| {
                let error = io::Error::from_raw_os_error(number);
                source.completed(0, PAGE as u64, Err(error))
            };
            for passing in [libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
                assert!(complete(passing).is_none());
            }
            assert!(matches!(complete(libc::EIO), Some(Err(_))));
            assert_eq!(case.store.engine(), FileEngine::IoUring);
            assert!(complete(number).is_none());
            assert_eq!(case.store.engine(), FileEngine::Calls);
            assert!(read(&case, 0, &[0]).is_none());
            let mut page = [0; PAGE];
            assert_eq!(case.store.read_at(&mut page, 0).unwrap(), PAGE);
            assert!(page[..] == case.bytes[..PAGE]);
        }
    }
}
