//! Transfers by io_uring(7), which any thread may submit and reap.
//!
//! [`Ring`] owns one ring of the kernel. A [`Transfer`] is submitted together with a payload, which
//! owns the descriptor and the memory that is read into. The payload comes back once, with the
//! result: from [`Ring::submit`] if the transfer was not accepted, otherwise from [`Ring::reap`].
//! Until then the ring keeps it in a slot, because even a cancelled transfer may still be under
//! way. A completion names its transfer by a number that is never used again, so a completion that
//! comes late or twice is refused and counted.
//!
//! **Completion.** The kernel finishes a direct transfer in the thread that submitted it, and
//! interrupts that thread to do so. A completion is therefore late while that thread is in an
//! uninterruptible wait, such as a read of another file. The interrupt may also end epoll_wait(2)
//! and similar calls with EINTR. (On Linux 6.18, 13 of 16 reads of 1 MiB completed only when
//! vfork(2) returned, 790 ms late.)
//!
//! Delay and EINTR are avoided if the ring has a thread of its own that submits and then waits in
//! [`Ring::reap`]. If the thread that submitted a transfer has ended, the transfer may come back as
//! ECANCELED. IORING_SETUP_COOP_TASKRUN would save the interrupt, but would delay the completion
//! until the thread next enters the kernel, so it is not used.
//!
//! **A ring that breaks.** If the kernel lacks memory, it may take fewer entries than it was given,
//! and entries cannot be withdrawn from a queue that the kernel sees. If entries are not taken
//! after [`TRIES`] attempts, their payloads are returned to the caller, and the ring accepts
//! nothing more. The kernel is never asked to read the queue again. Transfers in flight complete as
//! usual.
//!
//! **fork(2).** A child has neither the parent's requests nor its memory. In a child a submission
//! is an error, reaping finds nothing, and dropping the ring leaks everything.
//!
//! Locking: `submission` is held during io_uring_enter(2) for a submission, and `completion` while
//! available completions are taken. Neither is held while waiting. `slots` is an innermost lock,
//! taken inside both.
//!
//! The ring does not retry, poll, or register buffers. (Registered buffers were no faster at 4 KiB,
//! and 7 % to 80 % faster at 1 MiB, where two equal runs differed by as much. They would pin the
//! whole arena, and count against RLIMIT_MEMLOCK, commonly 8 MiB.)

mod slots;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Mutex, OnceLock, before_waiting, thread};
use crate::sys::file::copy_of;
use crate::sys::join_iovecs;
use crate::sys::process::Process;
use slots::Slots;

pub(crate) use libc::iovec;

/// The largest number of buffers of one transfer.
const IOV_MAX: usize = 1024;
/// How many times to repeat a submission for which the kernel has no memory, a millisecond apart.
const TRIES: u32 = 20;
/// The key of a wake-up's completion. No slot has this key.
const WAKE: u64 = u64::MAX;
/// The key of the completion of a request to cancel a transfer.
const CANCEL: u64 = u64::MAX - 1;
/// How long a waiter sleeps where it cannot be woken, or where the kernel refuses to let it wait.
/// Also the time between the attempts of a submission.
const SLICE: Duration = Duration::from_millis(1);

/// One read of a file into memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// The file. The payload keeps it open.
    pub fd: RawFd,
    /// The offset in bytes from the beginning of the file.
    pub offset: u64,
    /// The memory to read into, in at most 1024 pieces.
    pub iovecs: Vec<libc::iovec>,
}

// SAFETY: the addresses and lengths are used only under the contract of `Ring::submit`.
unsafe impl Send for Transfer {}

/// A ring of the kernel, with the payloads of transfers in flight.
pub(crate) struct Ring<T: Send + 'static> {
    /// The kernel's ring. It is not dropped in a child of fork(2), nor before all transfers have
    /// completed.
    ring: ManuallyDrop<IoUring>,
    slots: ManuallyDrop<Mutex<Slots<T>>>,
    /// The process that created the ring.
    process: Process,
    /// Held from the time the first entry is added to the queue until the kernel has taken the last
    /// one. The queue is thus empty whenever this mutex is unlocked, unless the ring is broken.
    submission: Mutex<()>,
    completion: Mutex<()>,
    /// Whether a wake-up is on its way. Acquire and release, in `wake` and in `take`: a thread
    /// whose wait is ended by `wake` sees everything that preceded that call.
    woken: AtomicBool,
    /// The number of the error with which the kernel has refused a submission for good, or 0.
    broken: AtomicU32,
}

/// Returns whether this process can have rings. It cannot if the kernel lacks io_uring, if the
/// administrator or a system-call filter forbids it, or if the kernel has no memory for a ring.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| Ring::<()>::new(2).is_ok())
}

impl<T: Send + 'static> Ring<T> {
    /// Creates a ring for `depth` transfers in flight, at most 32,768.
    ///
    /// # Errors
    /// The errors of io_uring_setup(2), or `Unsupported` if the kernel cannot wait for completions
    /// with a timeout.
    pub(crate) fn new(depth: u32) -> io::Result<Ring<T>> {
        // The queue of completions has room for each transfer, for a request to cancel each, and
        // for wake-ups, so it never overflows.
        let completions = depth.saturating_mul(4).min(1 << 16);
        let ring = IoUring::builder().setup_cqsize(completions).build(depth)?;
        // EXT_ARG came later (Linux 5.11) than all operations that are used, so a kernel that has
        // it has all of them.
        if !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            slots: ManuallyDrop::new(Mutex::new(Slots::new(depth))),
            process: Process::current(),
            submission: Mutex::new(()),
            completion: Mutex::new(()),
            woken: AtomicBool::new(false),
            broken: AtomicU32::new(0),
        })
    }

    /// Puts transfers in flight, with one system call if the kernel takes them all at once. Returns
    /// the payloads of the transfers that were not accepted, each with the reason: there is no room
    /// (`WouldBlock`), the transfer is invalid (`InvalidInput`), this is a child of fork(2)
    /// (`Unsupported`), or the kernel refused it.
    ///
    /// # Safety
    /// Each of a transfer's `iovecs` is valid memory that nothing else reads or writes, and its
    /// descriptor is open. Both hold until the payload has come back, from here or from
    /// [`Ring::reap`], or was dropped with the ring. The payload owns both, so leaking it is
    /// allowed too.
    pub(crate) unsafe fn submit(&self, transfers: Vec<(Transfer, T)>) -> Vec<(T, io::Error)> {
        if !self.process.is_current() {
            let refuse = |(_, payload)| (payload, io::ErrorKind::Unsupported.into());
            return transfers.into_iter().map(refuse).collect();
        }
        let mut refused = Vec::new();
        let mut keys = Vec::with_capacity(transfers.len());
        let _submission = self.submission.lock();
        self.put(transfers, &mut keys, &mut refused);
        if let Err((left, error)) = self.enter_all(keys.len()) {
            // The kernel takes entries in order, and will not see the remaining ones.
            let mut slots = self.slots.lock();
            for &key in &keys[keys.len() - left..] {
                let payload = slots.take(key);
                refused.extend(payload.map(|payload| (payload, copy_of(&error))));
            }
        }
        refused
    }

    /// Adds transfers to the queue and their keys to `keys`, or their payloads to `refused`. The
    /// caller holds `submission`.
    fn put(
        &self,
        transfers: Vec<(Transfer, T)>,
        keys: &mut Vec<u64>,
        refused: &mut Vec<(T, io::Error)>,
    ) {
        let mut slots = self.slots.lock();
        // SAFETY: entries are added only with `submission` held, which the caller holds.
        let mut queue = unsafe { self.ring.submission_shared() };
        for (transfer, payload) in transfers {
            let Transfer {
                fd,
                offset,
                mut iovecs,
            } = transfer;
            if let Err(error) = self.check(offset, &iovecs) {
                refused.push((payload, error));
                continue;
            }
            join_iovecs(&mut iovecs);
            let (key, iovecs) = match slots.put(iovecs, payload) {
                Ok(put) => put,
                Err(payload) => {
                    refused.push((payload, io::ErrorKind::WouldBlock.into()));
                    continue;
                }
            };
            let (fd, len) = (types::Fd(fd), iovecs.len() as u32);
            let read = opcode::Readv::new(fd, iovecs.as_ptr(), len).offset(offset);
            let entry = read.build().user_data(key);
            // SAFETY: the caller of `submit` promised that the memory is valid until the payload
            // comes back. The list of buffers stays in the slot until then, too.
            let pushed = unsafe { queue.push(&entry) };
            pushed.expect("the queue has an entry for each slot");
            keys.push(key);
        }
    }

    /// Returns an error if a transfer cannot be given to the kernel at all.
    fn check(&self, offset: u64, iovecs: &[libc::iovec]) -> io::Result<()> {
        match self.broken.load(Ordering::Relaxed) {
            0 => {}
            number => return Err(io::Error::from_raw_os_error(number as i32)),
        }
        // As a signed number, -1 would mean "at the cursor".
        if i64::try_from(offset).is_err() || iovecs.len() > IOV_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    /// Makes the kernel take the last `count` entries. If it does not take all, returns how many
    /// are left, and the error. The caller holds `submission`.
    fn enter_all(&self, count: usize) -> Result<(), (usize, io::Error)> {
        let (mut left, mut tries) = (count, 0);
        while left > 0 {
            // SAFETY: no argument is passed. The kernel takes entries that holders of `submission`
            // have added, each under the contract of `submit`.
            let taken = unsafe {
                let none = None::<&libc::sigset_t>;
                self.ring.submitter().enter(left as u32, 0, 0, none)
            };
            let error = match taken {
                Ok(0) => io::Error::from_raw_os_error(libc::EAGAIN),
                Ok(count) => {
                    (left, tries) = (left - count.min(left), 0);
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(SLICE);
                }
                number => {
                    let number = number.unwrap_or(libc::EIO);
                    self.broken.store(number.unsigned_abs(), Ordering::Relaxed);
                    return Err((left, error));
                }
            }
        }
        Ok(())
    }

    /// Adds the available completions to `into`. If there are none, waits for at least one, until
    /// `patience` is over or [`Ring::wake`] is called. Several threads may wait at the same time. A
    /// completion may then end the wait of any of them, or of several.
    pub(crate) fn reap(&self, patience: Duration, into: &mut Vec<(T, io::Result<usize>)>) {
        if !self.process.is_current() {
            return;
        }
        let end = Instant::now().checked_add(patience);
        loop {
            if self.take(into) {
                return;
            }
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return;
            }
            before_waiting();
            self.wait(left);
        }
    }

    /// Adds the available completions to `into`. Returns whether the caller's wait ends.
    fn take(&self, into: &mut Vec<(T, io::Result<usize>)>) -> bool {
        // A broken ring takes no entries, so it delivers no wake-up, and the flag is looked at
        // here.
        let is_broken = self.is_broken();
        let mut ends = is_broken && self.woken.swap(false, Ordering::AcqRel);
        let _completion = self.completion.lock();
        // SAFETY: completions are taken only with `completion` held, which it is here.
        let queue = unsafe { self.ring.completion_shared() };
        if queue.is_empty() {
            return ends;
        }
        let mut slots = self.slots.lock();
        for entry in queue {
            match entry.user_data() {
                CANCEL => {}
                WAKE => {
                    self.woken.swap(false, Ordering::AcqRel);
                    ends = true;
                }
                key => {
                    if let Some(payload) = slots.take(key) {
                        into.push((payload, result_of(entry.result())));
                        ends = true;
                    }
                }
            }
        }
        ends
    }

    /// Waits for a completion, at most for `left`. May return earlier.
    fn wait(&self, left: Duration) {
        /// `struct io_uring_getevents_arg`.
        #[repr(C)]
        struct Argument {
            signals: u64,
            signals_len: u32,
            least_wait: u32,
            timeout: u64,
        }
        let is_broken = self.is_broken();
        let most = if is_broken {
            SLICE
        } else {
            Duration::from_secs(3600)
        };
        let timeout = types::Timespec::from(left.min(most));
        let argument = Argument {
            signals: 0,
            signals_len: 0,
            least_wait: 0,
            timeout: (&raw const timeout).expose_provenance() as u64,
        };
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: the argument has the layout that EXT_ARG requires. The argument and the time to
        // which it points outlive the call. No entry is submitted.
        let waited = unsafe {
            let submitter = self.ring.submitter();
            submitter.enter(0, 1, flags.bits(), Some(&argument))
        };
        match waited.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR)) => {}
            // Completions arrive in shared memory, even where the kernel refuses to wait for them.
            Err(_) => thread::sleep(left.min(SLICE)),
        }
    }

    /// Returns whether the ring accepts nothing more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) != 0
    }

    /// Returns the number of transfers whose payload has not come back.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.lock().len()
    }

    /// Ends the wait of one thread in [`Ring::reap`], or of the next thread that would wait there.
    /// (If the ring breaks while a thread waits, that thread may keep waiting for a completion.)
    pub(crate) fn wake(&self) {
        if !self.process.is_current() || self.woken.swap(true, Ordering::AcqRel) {
            return;
        }
        let _submission = self.submission.lock();
        if !self.is_broken() {
            self.put_own(&[opcode::Nop::new().build().user_data(WAKE)]);
        }
    }

    /// Submits entries that touch no memory. The caller holds `submission`.
    fn put_own(&self, entries: &[squeue::Entry]) {
        // SAFETY: entries are added only with `submission` held, which the caller holds.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the entries touch no memory.
        let put = unsafe { queue.push_multiple(entries) };
        drop(queue);
        if put.is_ok() {
            // A failure leaves the ring broken, which later calls notice.
            let _ = self.enter_all(entries.len());
        }
    }

    /// Asks the kernel to cancel all transfers in flight.
    fn cancel_all(&self) {
        let _submission = self.submission.lock();
        if self.is_broken() {
            return;
        }
        let keys = self.slots.lock().keys();
        let cancel = |key| opcode::AsyncCancel::new(key).build().user_data(CANCEL);
        let entries: Vec<squeue::Entry> = keys.into_iter().map(cancel).collect();
        self.put_own(&entries);
    }
}

impl<T: Send + 'static> Drop for Ring<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            if done.is_empty() {
                self.cancel_all();
            }
            done.clear();
            self.reap(Duration::from_secs(1), &mut done);
        }
        // SAFETY: neither is used again. No transfer is in flight, so the kernel has no address of
        // ours.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}

/// Returns whether an error may mean that a ring cannot do the operation. The corresponding system
/// call may fail with the same error, too.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM | libc::ENOSYS)
    )
}

/// Returns whether a transfer failed for a reason other than the file: it would have had to wait,
/// it was interrupted, or the thread that submitted it has ended.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EINTR | libc::ECANCELED)
    )
}

/// Converts the kernel's answer: a number of bytes, or a negated error number.
fn result_of(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl<T: Send + 'static> Ring<T> {
        /// Breaks the ring, as if the kernel had no memory for a submission even after all
        /// repetitions.
        pub(crate) fn break_off(&self) {
            self.broken.store(libc::ENOMEM as u32, Ordering::Relaxed);
        }

        /// Returns the number of completions that belonged to no transfer in flight: late or
        /// duplicate ones.
        pub(crate) fn refused(&self) -> u64 {
            self.slots.lock().refused()
        }
    }
}
