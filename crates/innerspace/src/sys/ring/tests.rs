//! Tests of rings, over files and pipes.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as Count;

use super::*;
use crate::sys::process::tests::in_child;

const LONG: Duration = Duration::from_secs(60);

/// A payload: the memory of a transfer, its descriptor, and its number in the test.
struct Load {
    name: usize,
    bufs: Vec<Vec<u8>>,
    _file: Arc<OwnedFd>,
    /// Counts the loads that were dropped.
    dropped: Arc<Count>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn read(file: &Arc<OwnedFd>, offset: u64, lens: &[usize]) -> (Transfer, Load) {
    let mut load = Load {
        name: offset as usize,
        bufs: lens.iter().map(|&len| vec![0x55; len]).collect(),
        _file: Arc::clone(file),
        dropped: Arc::default(),
    };
    let iovecs = load.bufs.iter_mut().map(|buf| libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    });
    let transfer = Transfer {
        fd: file.as_raw_fd(),
        offset,
        iovecs: iovecs.collect(),
    };
    (transfer, load)
}

fn submit(ring: &Ring<Load>, transfers: Vec<(Transfer, Load)>) -> Vec<(Load, io::Error)> {
    // SAFETY: the loads own the memory and the descriptor, and touch neither until they have come
    // back.
    unsafe { ring.submit(transfers) }
}

/// Makes a ring. Prints a message and returns `None` where there can be none.
fn ring(depth: u32) -> Option<Ring<Load>> {
    if !available() {
        eprintln!("left out: no io_uring here");
        return None;
    }
    Some(Ring::new(depth).unwrap())
}

fn reap_all(ring: &Ring<Load>) -> Vec<(Load, io::Result<usize>)> {
    let mut done = Vec::new();
    while ring.in_flight() > 0 {
        ring.reap(LONG, &mut done);
    }
    done
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at / 3) ^ (at / 700)) as u8).collect()
}

fn file_with(bytes: &[u8]) -> Arc<OwnedFd> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file.into())
}

/// Makes the two ends of a pipe. A read of the first waits until something is written to the
/// second.
pub(crate) fn pipe() -> (Arc<OwnedFd>, File) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptors were just made, and nothing else has them.
    let [out, into] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    (Arc::new(out), into.into())
}

/// Reads into some of four pages, in the order of `pages`, through a ring made for this call.
/// Returns the bytes that those pages then hold, and the result. Returns `None` if `transfer_for`
/// has no transfer for them, or there can be no ring.
pub(crate) fn read_pages(
    pages: &[usize],
    transfer_for: impl FnOnce(Vec<iovec>) -> Option<Transfer>,
) -> Option<(Vec<u8>, io::Result<usize>)> {
    const PAGE: usize = 4096;
    let mut memory = vec![0x55; 5 * PAGE];
    let begin = memory.as_ptr().addr().wrapping_neg() & (PAGE - 1);
    let places: Vec<_> = pages.iter().map(|page| begin + page * PAGE).collect();
    let pieces = places.iter().map(|&at| iovec {
        iov_base: memory[at..at + PAGE].as_mut_ptr().cast(),
        iov_len: PAGE,
    });
    let transfer = transfer_for(pieces.collect())?;
    let ring = Ring::new(2).ok()?;
    // SAFETY: the payload owns the memory. The descriptor is open until this function returns or
    // unwinds, and it does either only after the read has completed.
    let refused = unsafe { ring.submit(vec![(transfer, memory)]) };
    assert!(refused.is_empty());
    let mut done = Vec::new();
    ring.reap(LONG, &mut done);
    let (memory, result) = done.pop()?;
    let read = places.iter().flat_map(|&at| &memory[at..at + PAGE]);
    Some((read.copied().collect(), result))
}

#[test]
fn bytes_arrive_at_odd_offsets_in_one_buffer_and_in_several() {
    let Some(ring) = ring(8) else { return };
    let bytes = pattern(100_001);
    let file = file_with(&bytes);
    let shapes: [&[usize]; 5] = [&[1000], &[1, 4097, 3], &[0, 5], &[1; 700], &[]];
    for offset in [0, 1, 4095, 99_999] {
        let reads = shapes.map(|lens| read(&file, offset, lens));
        assert!(submit(&ring, reads.into()).is_empty());
        let done = reap_all(&ring);
        assert_eq!(done.len(), shapes.len());
        for (load, count) in done {
            let (all, count) = (load.bufs.concat(), count.unwrap());
            let rest = &bytes[offset as usize..];
            assert_eq!(count, all.len().min(rest.len()), "at {offset}");
            assert!(all[..count] == rest[..count], "at {offset}");
            assert!(all[count..].iter().all(|&byte| byte == 0x55), "at {offset}");
        }
    }
}

#[test]
fn each_error_comes_back_with_the_payload_it_is_of() {
    let Some(ring) = ring(8) else { return };
    let file = file_with(&pattern(5000));
    let (mut closed, load) = read(&file, 1, &[10]);
    closed.fd = -1;
    let past = read(&file, 6000, &[10]);
    let short = read(&file, 4990, &[100]);
    let cursor = read(&file, u64::MAX, &[10]);
    let many = read(&file, 2, &[1; IOV_MAX + 1]);
    let all = vec![(closed, load), past, short, cursor, many];
    let refused = submit(&ring, all);
    let refused = refused
        .iter()
        .map(|(load, error)| (load.bufs.len(), error.kind()));
    let invalid = io::ErrorKind::InvalidInput;
    assert!(refused.eq([(1, invalid), (IOV_MAX + 1, invalid)]));
    let mut done: Vec<_> = reap_all(&ring)
        .into_iter()
        .map(|(load, result)| (load.name, result.map_err(|error| error.raw_os_error())))
        .collect();
    done.sort_by_key(|&(name, _)| name);
    let bad = Err(Some(libc::EBADF));
    assert_eq!(done, [(1, bad), (4990, Ok(10)), (6000, Ok(0))]);
}

// spec: R5
#[test]
fn a_completion_that_comes_twice_or_late_is_refused_and_counted() {
    let mut slots = Slots::new(2);
    let Ok((first, _)) = slots.put(Vec::new(), "a") else {
        panic!("there is room");
    };
    assert_eq!(slots.take(first), Some("a"));
    assert_eq!((slots.take(first), slots.refused()), (None, 1));
    let Ok((second, _)) = slots.put(Vec::new(), "b") else {
        panic!("there is room");
    };
    assert_ne!(first, second, "the same slot, filled again");
    assert_eq!((slots.take(first), slots.take(77)), (None, None));
    assert_eq!((slots.keys(), slots.refused()), (vec![second], 3));
    assert_eq!(slots.take(second), Some("b"));
}

// spec: R5
#[test]
fn many_threads_submit_while_one_reaps() {
    const THREADS: usize = 8;
    const EACH: usize = 200;
    let Some(ring) = ring(16) else { return };
    let bytes = pattern(1 << 20);
    let file = file_with(&bytes);
    let mut seen = vec![0; THREADS * EACH];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ring, file) = (&ring, &file);
            scope.spawn(move || {
                for number in (0..EACH).step_by(4) {
                    let offset = |at| (thread * EACH + number + at) as u64;
                    let mut left = [0, 1, 2, 3].map(|at| read(file, offset(at), &[999])).into();
                    while !Vec::is_empty(&left) {
                        let refused = submit(ring, left).into_iter();
                        left = refused
                            .map(|(load, error)| {
                                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                                read(file, load.name as u64, &[999])
                            })
                            .collect();
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut left = THREADS * EACH;
        while left > 0 {
            let mut done = Vec::new();
            ring.reap(LONG, &mut done);
            left -= done.len();
            for (load, count) in done {
                assert_eq!(count.unwrap(), 999);
                assert!(load.bufs[0] == bytes[load.name..load.name + 999]);
                seen[load.name] += 1;
            }
        }
    });
    assert!(seen.iter().all(|&times| times == 1));
    assert_eq!((ring.in_flight(), ring.refused()), (0, 0));
}

// spec: R6
#[test]
fn a_ring_that_goes_waits_for_what_is_in_flight() {
    let Some(ring) = ring(4) else { return };
    let (out, mut into) = pipe();
    let mut loads = [[5, 5].as_slice(), &[9]].map(|lens| read(&out, 0, lens));
    let counts = [0, 1].map(|at| Arc::clone(&loads[at].1.dropped));
    // The memory outlives the payloads, so that the test can look at it afterwards.
    let mut memory = [0x55_u8; 32];
    let start = memory.as_mut_ptr();
    for (at, (transfer, _)) in loads.iter_mut().enumerate() {
        for iovec in &mut transfer.iovecs {
            iovec.iov_base = start.wrapping_add(at * 16).cast();
        }
    }
    // If the kernel's ring is closed, the kernel cancels what is in flight. This descriptor keeps
    // the kernel's ring open, so only the drop of ours can have done that.
    let kept = kernel_ring(&ring).try_clone_to_owned().unwrap();
    assert!(submit(&ring, loads.into()).is_empty());
    assert_eq!(ring.in_flight(), 2);
    let gone = |count: &Arc<Count>| count.load(Ordering::SeqCst);
    assert_eq!(counts.each_ref().map(gone), [0, 0]);
    drop(ring);
    assert_eq!(counts.each_ref().map(gone), [1, 1]);
    assert_eq!(Arc::strong_count(&out), 1);
    into.write_all(b"ab").unwrap();
    // SAFETY: the memory is valid, and no transfer is in flight that could change it meanwhile.
    let now = unsafe { start.cast::<[u8; 32]>().read_volatile() };
    assert_eq!(now, [0x55; 32], "the kernel has written to freed memory");
    let mut unread: libc::c_int = 0;
    // SAFETY: the request stores one number.
    let asked = unsafe { libc::ioctl(out.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
    assert_eq!((asked, unread), (0, 2), "no transfer has taken the bytes");
    drop(kept);
}

/// Returns the descriptor of the kernel's ring.
fn kernel_ring(ring: &Ring<Load>) -> BorrowedFd<'_> {
    // SAFETY: the ring keeps the descriptor open.
    unsafe { BorrowedFd::borrow_raw(ring.ring.as_raw_fd()) }
}

// spec: R23
#[test]
fn a_child_of_fork_gets_errors_and_leaves_its_parent_what_is_in_flight() {
    let Some(ring) = ring(4) else { return };
    let (out, mut into) = pipe();
    assert!(submit(&ring, vec![read(&out, 0, &[3])]).is_empty());
    let mut more = Some(vec![read(&out, 1, &[3]), read(&out, 2, &[3])]);
    let mut done = Vec::with_capacity(4);
    let mut ring = Some(ring);
    assert!(in_child(|| {
        let (Some(inherited), Some(more)) = (ring.take(), more.take()) else {
            return false;
        };
        let refused = submit(&inherited, more);
        inherited.reap(LONG, &mut done);
        inherited.wake();
        drop(inherited);
        let is_right = refused.len() == 2 && done.is_empty();
        std::mem::forget(refused);
        is_right
    }));
    let ring = ring.unwrap();
    assert_eq!(ring.in_flight(), 1);
    into.write_all(b"abc").unwrap();
    let (load, count) = reap_all(&ring).pop().unwrap();
    assert_eq!((count.unwrap(), &load.bufs[0][..]), (3, &b"abc"[..]));
}

#[test]
fn a_full_ring_gives_the_rest_back_and_takes_it_later() {
    let Some(ring) = ring(2) else { return };
    let (out, mut into) = pipe();
    let reads = [10, 11, 12, 13].map(|name| read(&out, name, &[1]));
    let refused = submit(&ring, reads.into());
    let names = refused
        .iter()
        .map(|(load, error)| (load.name, error.kind()));
    let full = io::ErrorKind::WouldBlock;
    assert!(names.eq([(12, full), (13, full)]));
    into.write_all(b"ab").unwrap();
    assert_eq!(reap_all(&ring).len(), 2);
    assert!(submit(&ring, vec![read(&out, 14, &[1])]).is_empty());
    into.write_all(b"c").unwrap();
    let (load, count) = reap_all(&ring).pop().unwrap();
    assert_eq!((load.name, load.bufs[0][0], count.unwrap()), (14, b'c', 1));
}

#[test]
fn a_thread_that_waits_is_woken_and_so_is_one_that_is_about_to() {
    let Some(ring) = ring(2) else { return };
    let (out, _into) = pipe();
    assert!(submit(&ring, vec![read(&out, 0, &[1])]).is_empty());
    // `LONG * 60` is longer than the test may take.
    let mut done = Vec::new();
    ring.wake();
    ring.wake();
    ring.reap(LONG * 60, &mut done);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ring.reap(LONG * 60, &mut Vec::new()));
        while !waiter.is_finished() {
            ring.wake();
            std::thread::yield_now();
        }
    });
    assert!(done.is_empty());
    assert_eq!(ring.in_flight(), 1);
}

#[test]
fn a_wait_ends_with_its_patience() {
    let Some(ring) = ring(2) else { return };
    let mut done = Vec::new();
    ring.reap(Duration::ZERO, &mut done);
    let (begin, patience) = (Instant::now(), Duration::from_millis(20));
    ring.reap(patience, &mut done);
    assert!(begin.elapsed() >= patience);
    assert!(done.is_empty());
}

#[test]
fn a_submission_does_not_wait_for_a_thread_that_reaps() {
    let Some(ring) = ring(2) else { return };
    let file = file_with(b"abc");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut done = Vec::new();
            ring.reap(LONG * 60, &mut done);
            done.len()
        });
        assert!(submit(&ring, vec![read(&file, 0, &[3])]).is_empty());
        assert_eq!(waiter.join().unwrap(), 1);
    });
}

// spec: R15
#[test]
fn a_broken_ring_takes_nothing_more_and_completes_the_rest() {
    let Some(ring) = ring(4) else { return };
    let (out, mut into) = pipe();
    assert!(submit(&ring, vec![read(&out, 0, &[1])]).is_empty());
    ring.broken.store(libc::EPERM as u32, Ordering::Relaxed);
    let refused = submit(&ring, vec![read(&out, 1, &[1])]);
    assert_eq!(refused[0].1.raw_os_error(), Some(libc::EPERM));
    ring.wake();
    ring.reap(LONG * 60, &mut Vec::new());
    into.write_all(b"a").unwrap();
    let (load, count) = reap_all(&ring).pop().unwrap();
    assert_eq!((load.name, count.unwrap()), (0, 1));
}
