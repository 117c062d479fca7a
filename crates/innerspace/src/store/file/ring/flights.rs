//! The io_uring(7) ring of a memory. One thread puts reads of files in flight, and completes them.
//!
//! The same thread submits and reaps, because the kernel completes direct I/O in the context of the
//! thread that submitted it (`sys::ring`). A caller that submitted its own reads and then slept
//! would delay them. The first read starts the thread, which ends after a second without work.
//!
//! **Wakers.** The wakers of futures are called at the end of each batch of completions. Wakers are
//! foreign code. If the thread does not return from a waker, another thread takes its place, at the
//! next read or in [`Flights::look_after`]. If no thread can be started, queued reads are done by
//! calls. Reads in flight are then reaped by the next thread that can be started, or by the old one
//! when it returns.
//!
//! Locking: one innermost mutex, which is not held while the ring is used or a read is completed.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::time::{Duration, Instant};

use super::in_flight::Source;
use crate::exec::run_with_wakers;
use crate::store::Request;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::sys::ring::{Ring, Transfer, iovec, is_refusal};

/// The maximum number of reads in flight. Further reads wait.
const DEPTH: u32 = 256;

/// The time without work after which the thread ends. It also bounds each sleep in which the thread
/// waits for a completion.
const LINGER: Duration = Duration::from_secs(1);

/// The time that wakers may take before another thread takes the ring over.
const PATIENCE: Duration = Duration::from_millis(20);

impl Request {
    /// Returns the ring that may perform the request, if there is one.
    pub(super) fn by_ring(&self) -> Option<Arc<Flights>> {
        self.transfer().by_ring()
    }

    /// Returns the memory to read into, in the kernel's form.
    pub(super) fn iovecs(&mut self) -> Vec<iovec> {
        let all = 0..self.len();
        let slices = self.transfer_mut().slices_mut(all);
        let iovec = |mut slice: IoSliceMut<'_>| iovec {
            iov_base: slice.as_mut_ptr().cast(),
            iov_len: slice.len(),
        };
        slices.into_iter().map(iovec).collect()
    }
}

/// A read in flight. Its request owns the memory, and its source keeps the descriptor open.
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) source: Source,
}

/// The ring of one memory. The first read makes it.
#[derive(Default)]
pub(crate) struct Flights {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ring: Option<Arc<Ring<Flight>>>,
    /// Whether the ring could not be made, or is broken, so that reads are done by calls. A broken
    /// ring is kept at least until the last read in flight has completed.
    is_refused: bool,
    queue: VecDeque<(Transfer, Flight)>,
    /// The number of reads that were accepted and have neither been completed nor given back.
    outstanding: usize,
    /// The number of the thread that has the ring, or 0 if no thread has it.
    thread: u64,
    threads: u64,
    /// Whether the thread sleeps, or is about to sleep. It must then be woken for queued reads.
    sleeps: bool,
    /// The time at which the thread began to call wakers, or `None` while it calls none.
    calls_since: Option<Instant>,
}

impl State {
    /// Returns whether a read is in flight, or is queued.
    fn has_work(&self) -> bool {
        let in_flight = |ring: &Arc<Ring<Flight>>| ring.in_flight() > 0;
        !self.queue.is_empty() || self.ring.as_ref().is_some_and(in_flight)
    }
}

impl Flights {
    /// Puts reads in flight. If there is no usable ring, gives them back to be done by calls.
    pub(super) fn launch(self: &Arc<Flights>, reads: Vec<(Transfer, Flight)>) {
        let mut state = self.state.lock();
        if state.ring.is_none() && !state.is_refused {
            match Ring::new(DEPTH) {
                Ok(ring) => state.ring = Some(Arc::new(ring)),
                Err(_) => state.is_refused = true,
            }
        }
        state.outstanding += reads.len();
        if state.is_refused {
            drop(state);
            let flights = reads.into_iter().map(|(_, flight)| flight);
            return self.give_back(flights.inspect(|flight| flight.source.fall_back()));
        }
        state.queue.extend(reads);
        let wakes = std::mem::take(&mut state.sleeps);
        let ring = state.ring.clone().filter(|_| wakes);
        self.ensure_thread(state);
        if let Some(ring) = ring {
            ring.wake();
        }
    }

    /// Starts another thread for the ring, if the present one does not return from a waker, or if
    /// there is work and no thread.
    pub(crate) fn look_after(self: &Arc<Flights>) {
        let state = self.state.lock();
        if state.thread != 0 || state.has_work() {
            self.ensure_thread(state);
        }
    }

    /// Waits until every read has been completed or given back. A request leaves its file's table a
    /// little earlier than that.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn wait_quiet(&self) {
        while self.state.lock().outstanding > 0 {
            crate::sync::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts a thread, unless one serves the ring and is not stuck in a waker. If none can be
    /// started, gives the queued reads back.
    fn ensure_thread(self: &Arc<Flights>, mut state: MutexGuard<'_, State>) {
        let is_stuck = state
            .calls_since
            .is_some_and(|since| since.elapsed() > PATIENCE);
        if state.thread != 0 && !is_stuck {
            return;
        }
        state.threads += 1;
        state.thread = state.threads;
        state.calls_since = None;
        let number = state.thread;
        drop(state);
        let flights = self.clone();
        let thread = crate::sync::thread::Builder::new().name("innerspace-ring".to_owned());
        if thread.spawn(move || flights.serve(number)).is_err() {
            // Queued reads are done by calls. Reads in flight are reaped by the next thread.
            let mut state = self.state.lock();
            if state.thread == number {
                state.thread = 0;
            }
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            self.give_back(queue.into_iter().map(|(_, flight)| flight));
        }
    }

    /// Gives reads back to their makers, which have them done by calls.
    fn give_back(&self, flights: impl Iterator<Item = Flight>) {
        let mut count = 0;
        for flight in flights {
            flight.request.give_back();
            count += 1;
        }
        self.state.lock().outstanding -= count;
    }

    /// Submits and completes reads until there have been none for [`LINGER`], or another thread has
    /// the ring. This is the main loop of the thread.
    fn serve(self: &Arc<Flights>, number: u64) {
        let mut idle_since = Instant::now();
        let mut landed = Vec::new();
        loop {
            let (ring, queue) = {
                let mut state = self.state.lock();
                if state.thread == 0 {
                    // This thread was to be replaced, but no other thread could be started, or the
                    // other thread has ended already.
                    state.thread = number;
                }
                if state.thread != number {
                    return;
                }
                let Some(ring) = state.ring.clone() else {
                    return;
                };
                let room = (DEPTH as usize).saturating_sub(ring.in_flight());
                let many = room.min(state.queue.len());
                let queue: Vec<_> = state.queue.drain(..many).collect();
                let is_idle = queue.is_empty() && ring.in_flight() == 0;
                if is_idle && state.queue.is_empty() && idle_since.elapsed() >= LINGER {
                    state.thread = 0;
                    if state.is_refused {
                        state.ring = None;
                    }
                    return;
                }
                // `sleeps` is set under the mutex under which reads are queued. So a caller that
                // queues a read from here on wakes this thread.
                state.sleeps = queue.is_empty();
                (ring, queue)
            };
            if !queue.is_empty() {
                idle_since = Instant::now();
                self.submit(&ring, queue);
            }
            let patience = match self.state.lock().sleeps {
                true => LINGER,
                // There may be more reads to submit.
                false => Duration::ZERO,
            };
            ring.reap(patience, &mut landed);
            self.state.lock().sleeps = false;
            if !landed.is_empty() {
                idle_since = Instant::now();
                self.complete(number, &mut landed);
            }
        }
    }

    fn submit(&self, ring: &Ring<Flight>, reads: Vec<(Transfer, Flight)>) {
        // SAFETY: the memory of each transfer belongs to the request that is paired with it. The
        // request owns the right to fill that memory, and keeps it until the request is completed
        // or dropped. The request stays in the ring until the kernel is done with the memory. The
        // paired source keeps the descriptor open.
        let refused = unsafe { ring.submit(reads) };
        if refused.is_empty() {
            return;
        }
        let is_broken = ring.is_broken();
        self.give_back(refused.into_iter().map(|(flight, error)| {
            if is_broken || is_refusal(&error) {
                flight.source.fall_back();
            }
            flight
        }));
        self.state.lock().is_refused |= is_broken;
    }

    fn complete(&self, number: u64, landed: &mut Vec<(Flight, io::Result<usize>)>) {
        let calls = || {
            let mut state = self.state.lock();
            if state.thread == number {
                state.calls_since = Some(Instant::now());
            }
        };
        run_with_wakers(
            || {
                let count = landed.len();
                for (flight, result) in landed.drain(..) {
                    let Flight {
                        mut request,
                        source,
                    } = flight;
                    let (offset, wanted) = (request.offset(), request.len() as u64);
                    match source.completed(offset, wanted, result) {
                        Some(result) => request.finish(result),
                        None => request.give_back(),
                    }
                }
                self.state.lock().outstanding -= count;
            },
            calls,
        );
        let mut state = self.state.lock();
        if state.thread == number {
            state.calls_since = None;
        }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Flights {
        /// Makes the ring behave as if the kernel had none.
        pub(crate) fn refuse(&self) {
            self.state.lock().is_refused = true;
        }

        /// Makes the ring behave as if the kernel had refused a submission for good.
        pub(crate) fn break_ring(&self) {
            let ring = self.state.lock().ring.clone();
            ring.expect("it was used").break_off();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Wake, Waker};

    use super::*;
    use crate::exec::wake_after;
    use crate::store::Batch;
    use crate::store::file::direct::Direct;
    use crate::store::file::watch::Watch;
    use crate::sys::ring::tests::pipe;

    /// The longest wait of a test, which only a failing one reaches.
    const LONG: Duration = Duration::from_secs(20);

    /// Makes a read of one byte from a pipe, and returns it with the pipe's other end. `then` runs
    /// when the read completes.
    fn read(then: impl FnOnce() + Send + 'static) -> ((Transfer, Flight), File) {
        let (out, into) = pipe();
        let out = File::from(out.try_clone().unwrap());
        let mut batch = Batch::new();
        batch.read(0, vec![0], move |_, result| {
            if result.is_ok() {
                then();
            }
        });
        let mut request = batch.take().unwrap();
        let transfer = Transfer {
            fd: std::os::fd::AsRawFd::as_raw_fd(&out),
            offset: 0,
            iovecs: request.iovecs(),
        };
        let watch = Watch::new(&out.metadata().unwrap(), false);
        let source = Source::new(Arc::new(Direct::new(out, 1)), Arc::new(watch));
        ((transfer, Flight { request, source }), into)
    }

    /// Makes a read like `read`. The receiver is told when it completes.
    fn heard() -> ((Transfer, Flight), File, Receiver<()>) {
        let (done, over) = channel();
        let (read, into) = read(move || done.send(()).unwrap());
        (read, into, over)
    }

    // spec: R9
    #[test]
    fn what_is_in_flight_without_a_thread_is_reaped_by_the_next_tick() {
        let Ok(ring) = Ring::new(4) else {
            return eprintln!("left out: no io_uring");
        };
        let (read, mut into, over) = heard();
        let (flights, ring) = (Arc::new(Flights::default()), Arc::new(ring));
        // This is the state left by a thread that is to be replaced while no other can be started.
        flights.state.lock().ring = Some(ring.clone());
        flights.state.lock().outstanding = 1;
        flights.submit(&ring, vec![read]);
        into.write_all(b"a").unwrap();
        flights.look_after();
        over.recv_timeout(LONG).expect("somebody reaps it");
    }

    /// A waker that does not return before it is released.
    struct Stuck(std::sync::Mutex<Receiver<()>>);

    impl Wake for Stuck {
        fn wake(self: std::sync::Arc<Self>) {
            let _ = self.0.lock().unwrap().recv();
        }
    }

    // spec: R9
    #[test]
    fn a_thread_that_could_not_be_replaced_goes_on() {
        let flights = Arc::new(Flights::default());
        let (let_go, stays) = channel();
        let waker = Waker::from(std::sync::Arc::new(Stuck(stays.into())));
        let (first, mut into_first) = read(move || wake_after(waker).unwrap());
        let (second, mut into_second, over) = heard();
        flights.launch(vec![first, second]);
        if flights.state.lock().is_refused {
            return eprintln!("left out: no io_uring");
        }
        into_first.write_all(b"a").unwrap();
        while flights.state.lock().calls_since.is_none() {
            std::thread::yield_now();
        }
        // `ensure_thread` leaves this state if it cannot start a thread.
        flights.state.lock().calls_since = None;
        flights.state.lock().thread = 0;
        drop(let_go);
        into_second.write_all(b"a").unwrap();
        over.recv_timeout(LONG).expect("it takes the ring back");
    }
}
