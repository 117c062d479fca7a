//! Many reads in flight on one thread: as futures of the library's, by as small an executor as can
//! be, and by io_uring without anything around it.

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
use super::file::check;
use crate::host::{PAGE, Region};
use crate::translation::HostPages;

/// The tasks that are to be polled, and the thread that does so.
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
        let mut tasks = self.woken.tasks.lock().expect("nobody panics with it");
        tasks.push(self.index);
        // Whoever was first has woken the thread for all.
        if tasks.len() == 1 {
            drop(tasks);
            self.woken.thread.unpark();
        }
    }
}

/// Reads these pages, `at_once` of them at the same time, and checks them.
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
            // A task goes on until it has to wait; one that was woken once too often has ended.
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
                    &mut woken.tasks.lock().expect("nobody panics with it"),
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

/// Reads `len` bytes at each of the offsets, `depth` of them in flight, and checks them. The file
/// is open with O_DIRECT, and has all of them.
pub(super) fn by_ring(
    file: &File,
    depth: usize,
    len: usize,
    mut offsets: impl Iterator<Item = u64>,
) -> Fallible {
    let mut ring = IoUring::new(depth.next_power_of_two() as u32)?;
    // Buffers in huge pages: scattered small pages limit the size of the disk's requests. They are
    // not let go before the kernel has written all that it was asked to.
    let mut memory = ManuallyDrop::new(Region::anonymous(depth * len, HostPages::Huge)?);
    let buffers = memory.bytes_mut().as_mut_ptr();
    // SAFETY: a buffer of the slot's own, inside the region.
    let buffer = |slot: usize| unsafe { buffers.add(slot * len) };
    let mut reading = vec![0; depth];
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
            reading[slot] = offset;
            let fd = types::Fd(file.as_raw_fd());
            let read = opcode::Read::new(fd, buffer(slot), len as u32)
                .offset(offset)
                .build()
                .user_data(slot as u64);
            // SAFETY: the buffer is the slot's alone until its read has landed, and outlives the
            // ring's use of it; the file is open until then.
            let pushed = unsafe { ring.submission().push(&read) };
            pushed.expect("the queue has room for all slots");
        }
        if free.len() == depth {
            break;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What is in flight may be written yet: the memory is left to it.
            Err(error) => return Err(error.into()),
        }
        landed.clear();
        let entries = ring.completion();
        landed.extend(entries.map(|entry| (entry.user_data() as usize, entry.result())));
        for &(slot, result) in &landed {
            free.push(slot);
            let checked = match usize::try_from(result) {
                Err(_) => Err(io::Error::from_raw_os_error(-result).to_string()),
                Ok(got) if got < len => Err(format!("a read of {len} bytes got {got}")),
                // SAFETY: the slot's read has landed, and nothing else is sent there before the
                // bytes were checked.
                Ok(_) => check(
                    unsafe { std::slice::from_raw_parts(buffer(slot), len) },
                    reading[slot],
                ),
            };
            outcome = outcome.and(checked);
        }
    }
    // Nothing is in flight.
    drop(ManuallyDrop::into_inner(memory));
    Ok(outcome?)
}
