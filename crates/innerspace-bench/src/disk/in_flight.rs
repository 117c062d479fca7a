//! Many transfers in flight on one thread: as futures of the library, run by a minimal executor,
//! and as a bare io_uring loop.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use innerspace::PagedFile;
use io_uring::{IoUring, opcode, types};

use super::Fallible;
use super::file::{check, number};
use crate::host::{PAGE, Region};
use crate::translation::HostPages;

/// The tasks to poll, and the thread that polls them, which has to be woken.
#[derive(Debug)]
struct Woken {
    tasks: Mutex<Vec<usize>>,
    thread: Thread,
}

#[derive(Debug)]
struct Task {
    index: usize,
    woken: Arc<Woken>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut tasks = self
            .woken
            .tasks
            .lock()
            .expect("no panic while it is locked");
        tasks.push(self.index);
        // The first task in the list wakes the thread for all of them.
        if tasks.len() == 1 {
            drop(tasks);
            self.woken.thread.unpark();
        }
    }
}

/// Reads these pages, with `at_once` reads in flight, and checks them.
pub(super) fn by_futures(file: &PagedFile, pages: &[u64], at_once: usize) -> Fallible {
    let at_once = at_once.min(pages.len());
    let woken = Arc::new(Woken {
        tasks: Mutex::default(),
        thread: std::thread::current(),
    });
    let task = |index| {
        let woken = woken.clone();
        Waker::from(Arc::new(Task { index, woken }))
    };
    let wakers: Vec<Waker> = (0..at_once).map(task).collect();
    let mut pages = pages.iter().map(|page| page * PAGE as u64);
    let mut next = || {
        let at = pages.next()?;
        Some((at, file.ready(at..at + PAGE as u64)))
    };
    let mut reads: Vec<_> = (0..at_once).map(|_| next()).collect();
    let mut left = at_once;
    let mut due: Vec<usize> = (0..at_once).collect();
    while left > 0 {
        for index in due.drain(..) {
            let mut context = Context::from_waker(&wakers[index]);
            // Polls a task until it has to wait. A spurious wake-up may find that the task has
            // ended.
            while let Some((at, ready)) = &mut reads[index] {
                match Pin::new(ready).poll(&mut context) {
                    Poll::Pending => break,
                    Poll::Ready(view) => check(&view?, *at)?,
                }
                reads[index] = next();
                if reads[index].is_none() {
                    left -= 1;
                }
            }
        }
        if left > 0 {
            loop {
                std::mem::swap(
                    &mut due,
                    &mut woken.tasks.lock().expect("no panic while it is locked"),
                );
                if !due.is_empty() {
                    break;
                }
                std::thread::park();
            }
        }
    }
    Ok(())
}

/// A bare io_uring loop: transfers of one size between its own buffers and files that are open with
/// O_DIRECT.
pub(super) struct Ring {
    ring: IoUring,
    /// One buffer for each slot, in huge pages: scattered small pages limit the size of the disk's
    /// requests.
    buffers: ManuallyDrop<Region>,
    depth: usize,
    len: usize,
    in_flight: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Ring {
    /// Creates a ring for `depth` concurrent transfers of `len` bytes each.
    pub(super) fn new(depth: usize, len: usize) -> Fallible<Ring> {
        let ring = IoUring::new(depth.next_power_of_two() as u32)
            .map_err(|error| format!("cannot set up io_uring: {error}"))?;
        let buffers = Region::anonymous(depth * len, HostPages::Huge)?;
        Ok(Ring {
            ring,
            buffers: ManuallyDrop::new(buffers),
            depth,
            len,
            in_flight: 0,
        })
    }

    /// Fills all buffers with repetitions of a pattern.
    pub(super) fn fill(&mut self, pattern: &[u8]) {
        for bytes in self.buffers.bytes_mut().chunks_mut(pattern.len()) {
            bytes.copy_from_slice(&pattern[..bytes.len()]);
        }
    }

    /// Reads one buffer at each of the offsets, all inside the file, and checks it.
    pub(super) fn read(&mut self, file: &File, offsets: impl Iterator<Item = u64>) -> Fallible {
        self.transfer(file, Direction::Read, offsets)
    }

    /// Writes a buffer with the numbers of its pages at each of the offsets.
    pub(super) fn write(&mut self, file: &File, offsets: impl Iterator<Item = u64>) -> Fallible {
        self.transfer(file, Direction::Write, offsets)
    }

    /// Runs the transfers, and returns when none is in flight, unless the ring itself fails.
    fn transfer(
        &mut self,
        file: &File,
        direction: Direction,
        mut offsets: impl Iterator<Item = u64>,
    ) -> Fallible {
        let (depth, len) = (self.depth, self.len);
        let fd = types::Fd(file.as_raw_fd());
        let first = self.buffers.bytes_mut().as_mut_ptr();
        // SAFETY: a buffer of the slot's own, inside the region.
        let buffer = |slot: usize| unsafe { first.add(slot * len) };
        let mut offset_of = vec![0; depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut landed: Vec<(usize, i32)> = Vec::with_capacity(depth);
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok()
                && let Some(slot) = free.pop()
            {
                let Some(offset) = offsets.next() else {
                    free.push(slot);
                    break;
                };
                offset_of[slot] = offset;
                let entry = match direction {
                    Direction::Read => opcode::Read::new(fd, buffer(slot), len as u32)
                        .offset(offset)
                        .build(),
                    Direction::Write => {
                        // SAFETY: nothing is in flight for a free slot.
                        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer(slot), len) };
                        number(bytes, offset);
                        opcode::Write::new(fd, buffer(slot), len as u32)
                            .offset(offset)
                            .build()
                    }
                };
                // SAFETY: only the slot uses the buffer until its transfer has landed, and the
                // buffer is freed only when nothing is in flight; the file is open until then.
                let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
                pushed.expect("the queue has room for all slots");
                self.in_flight += 1;
            }
            if self.in_flight == 0 {
                return Ok(outcome?);
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            landed.clear();
            let entries = self.ring.completion();
            landed.extend(entries.map(|entry| (entry.user_data() as usize, entry.result())));
            self.in_flight -= landed.len();
            for &(slot, result) in &landed {
                free.push(slot);
                let checked = match usize::try_from(result) {
                    Err(_) => Err(io::Error::from_raw_os_error(-result).to_string()),
                    Ok(got) if got < len => {
                        Err(format!("a transfer of {len} bytes ended at {got}"))
                    }
                    Ok(_) if direction == Direction::Write => Ok(()),
                    // SAFETY: the slot's read has landed, and the next one is sent only after this
                    // check.
                    Ok(_) => check(
                        unsafe { std::slice::from_raw_parts(buffer(slot), len) },
                        offset_of[slot],
                    ),
                };
                outcome = outcome.and(checked);
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write to the buffers while a transfer is in flight: then they are
        // leaked.
        if self.in_flight == 0 {
            // SAFETY: the buffers are not used again.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}
