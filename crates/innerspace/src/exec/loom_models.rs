//! Loom models of the lanes and of the requests in flight.
//!
//! Loom reports a lost wake-up as a deadlock. In these models a memory has one thread, and one more
//! for each lane with no running job. With many threads the models would not end.

use loom::cell::UnsafeCell;
use loom::model::Builder;

use super::{InFlight, Lane, Stage, Turn, Workers};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, Condvar, Mutex, thread};

/// Explores all schedules with at most `preemptions` forced switches.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// A counter on which threads can wait for a number.
#[derive(Default)]
struct Count(Mutex<u32>, Condvar);

impl Count {
    fn add(&self) {
        *self.0.lock() += 1;
        self.1.notify_all();
    }

    fn wait_for(&self, number: u32) {
        let mut count = self.0.lock();
        while *count < number {
            count = self.1.wait(count);
        }
    }

    fn get(&self) -> u32 {
        *self.0.lock()
    }
}

fn push(lane: &Lane, turn: Turn, job: impl FnOnce() + Send + 'static) {
    let _ = lane.push(turn, Box::new(job));
}

/// A resource. Each job of a lane wants to be its only user.
#[derive(Default)]
struct Alone {
    users: AtomicU32,
    /// The number of times that a job met another user. It is counted, because a panic of a worker
    /// would go no further.
    met: AtomicU32,
    done: Count,
}

impl Alone {
    fn use_it(&self) {
        let others = self.users.fetch_add(1, Ordering::SeqCst);
        self.met.fetch_add(others, Ordering::SeqCst);
        thread::yield_now();
        self.users.fetch_sub(1, Ordering::SeqCst);
        self.done.add();
    }

    /// Waits until the resource was used `number` times.
    fn wait_for(&self, number: u32) {
        self.done.wait_for(number);
        assert_eq!(self.met.load(Ordering::SeqCst), 0, "two at once");
    }
}

/// Two callers run the queued jobs, each once, in a memory without threads.
// spec: R11
#[test]
fn callers_run_each_job_once() {
    model(3, || {
        let workers = Workers::new();
        let lane = Arc::new(workers.lane(0, 2));
        let counts: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
        for count in &counts {
            let count = count.clone();
            push(&lane, Turn::Shared, move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        let other = {
            let workers = workers.clone();
            thread::spawn(move || while workers.run_one() {})
        };
        while lane.run_one() {}
        other.join().unwrap();
        assert!(
            counts
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 1)
        );
        assert_eq!(workers.queued(), 0);
    });
}

/// The worker runs each job: when it was just started, when it looks for more, and when it sleeps.
/// No lane runs more jobs than its share.
// spec: R9, R22
#[test]
fn workers_run_each_job_within_the_share_of_its_lane() {
    model(3, || {
        let workers = Workers::new();
        workers.begin_threads();
        let lane = workers.lane(0, 1);
        let alone = Arc::new(Alone::default());
        for _ in 0..2 {
            let alone = alone.clone();
            push(&lane, Turn::Shared, move || alone.use_it());
        }
        alone.wait_for(2);
        workers.wait_quiet();
        workers.end_threads();
        assert_eq!(alone.done.get(), 2);
    });
}

/// A job that is pushed while the worker falls asleep wakes the worker.
#[test]
fn a_job_finds_a_worker_that_falls_asleep() {
    model(2, || {
        let workers = Workers::new();
        workers.begin_threads();
        let lane = workers.lane(0, 2);
        let done = Arc::new(Count::default());
        for number in 1..4 {
            let counted = done.clone();
            push(&lane, Turn::Shared, move || counted.add());
            if number != 2 {
                done.wait_for(number);
            }
        }
        workers.end_threads();
        assert_eq!(done.get(), 3);
    });
}

/// A caller that runs jobs of a lane takes from the same share as the lane's workers.
// spec: R9
#[test]
fn a_waiter_and_a_worker_share_a_lane() {
    model(3, || {
        let workers = Workers::new();
        workers.begin_threads();
        let lane = workers.lane(0, 1);
        let alone = Arc::new(Alone::default());
        for turn in [Turn::Shared, Turn::Shared] {
            let alone = alone.clone();
            push(&lane, turn, move || alone.use_it());
        }
        while lane.run_one() {}
        // This includes a job that the caller could not start, because a worker was running the job
        // before it.
        alone.wait_for(2);
        workers.end_threads();
        assert_eq!(workers.queued(), 0);
    });
}

/// If hanging jobs occupy all threads, a lane with no running job gets one more thread.
// spec: R9
#[test]
fn a_lane_that_hangs_keeps_no_other_from_its_turn() {
    model(2, || {
        let workers = Workers::new();
        workers.begin_threads();
        let (hanging, other) = (workers.lane(0, 1), workers.lane(0, 1));
        let done = Arc::new(Count::default());
        for _ in 0..2 {
            let done = done.clone();
            push(&hanging, Turn::Shared, move || done.wait_for(1));
        }
        let counted = done.clone();
        push(&other, Turn::Shared, move || counted.add());
        workers.wait_quiet();
        workers.end_threads();
    });
}

/// `wait_quiet` also waits for a job whose lane is gone.
#[test]
fn a_job_that_outlives_its_lane_is_waited_for() {
    model(3, || {
        let workers = Workers::new();
        workers.begin_threads();
        let lane = workers.lane(0, 1);
        let bytes = Arc::new(Bytes::default());
        let begun = Arc::new(Count::default());
        let (used, counted) = (bytes.clone(), begun.clone());
        push(&lane, Turn::Shared, move || {
            counted.add();
            used.write(1);
        });
        begun.wait_for(1);
        drop(lane);
        workers.wait_quiet();
        assert_eq!(bytes.read(), 1);
        workers.end_threads();
    });
}

/// The bytes of a request's blocks. Loom reports accesses that are not ordered.
#[derive(Default)]
struct Bytes(UnsafeCell<u32>);

// SAFETY: the protocols under test order the accesses; loom reports an access that is not ordered.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn write(&self, value: u32) {
        // SAFETY: loom checks the access.
        self.0.with_mut(|bytes| unsafe { *bytes = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: loom checks the access.
        self.0.with(|bytes| unsafe { *bytes })
    }
}

/// A request's work is queued. A worker takes it, or the thread that has the file exclusively. The
/// work is done once, and is over before that thread goes on.
// spec: R5, R17
#[test]
fn a_cut_waits_for_a_request_that_is_queued_meanwhile() {
    model(3, || {
        let in_flight = Arc::new(InFlight::<u32>::new());
        let bytes = Arc::new(Bytes::default());
        let entry = in_flight.add(3..5);
        let fill = |in_flight: &InFlight<u32>, bytes: &Bytes, entry: &_, value| {
            bytes.write(value);
            let leaving = in_flight.leave(entry);
            assert_eq!(leaving.was, Stage::Attached, "it ends once");
        };
        let worker = {
            let (in_flight, bytes, entry) = (in_flight.clone(), bytes.clone(), entry.clone());
            thread::spawn(move || {
                in_flight.queue(&entry, 7);
                if let Some(value) = entry.take() {
                    fill(&in_flight, &bytes, &entry, value);
                }
            })
        };
        in_flight.wait_landed(&(4..9), |value| fill(&in_flight, &bytes, &entry, value));
        assert_eq!(bytes.read(), 7);
        bytes.write(0);
        worker.join().unwrap();
        assert!(!entry.is_queued());
    });
}

/// A store completes two requests, the later one first. No thread that waits for a part of one of
/// them sleeps for ever.
// spec: R5, R17
#[test]
fn cuts_of_different_ranges_wait_for_their_own_requests() {
    model(2, || {
        let in_flight = Arc::new(InFlight::<()>::new());
        let entries = [in_flight.add(0..2), in_flight.add(2..4)];
        let bytes: [_; 2] = std::array::from_fn(|_| Arc::new(Bytes::default()));
        let store = {
            let (in_flight, bytes) = (in_flight.clone(), bytes.clone());
            thread::spawn(move || {
                for at in [1, 0] {
                    bytes[at].write(1);
                    drop(in_flight.leave(&entries[at]));
                }
            })
        };
        let other = {
            let (in_flight, bytes) = (in_flight.clone(), bytes.clone());
            thread::spawn(move || {
                in_flight.wait_landed(&(3..4), |()| unreachable!("it was never queued"));
                assert_eq!(bytes[1].read(), 1);
            })
        };
        in_flight.wait_landed(&(1..2), |()| unreachable!("it was never queued"));
        assert_eq!(bytes[0].read(), 1);
        store.join().unwrap();
        other.join().unwrap();
    });
}

/// A file is closed while the store completes a request. The blocks belong to the file, or they
/// left the file before the request frees them.
// spec: R5, R6
#[test]
fn a_request_of_a_closing_file_ends_attached_or_detached() {
    model(3, || {
        let in_flight = Arc::new(InFlight::<()>::new());
        let bytes = Arc::new(Bytes::default());
        let entry = in_flight.add(0..2);
        let store = {
            let (in_flight, bytes) = (in_flight.clone(), bytes.clone());
            thread::spawn(move || {
                let leaving = in_flight.leave(&entry);
                if leaving.was == Stage::Detached {
                    assert_eq!(bytes.read(), 1, "not out of the file yet");
                }
                bytes.write(2);
                leaving.was
            })
        };
        let mut is_out = false;
        in_flight.detach_all(|blocks| {
            assert_eq!(*blocks, 0..2);
            bytes.write(1);
            is_out = true;
        });
        in_flight.wait_landed(&(0..9), |()| unreachable!("all are off"));
        if !is_out {
            in_flight.wait_quiet();
            assert_eq!(bytes.read(), 2, "it has not let go of the blocks");
        }
        let stage = store.join().unwrap();
        assert_eq!(is_out, stage == Stage::Detached);
    });
}

/// Work that takes its request out of the table when it is dropped, as a fill that is never run
/// does.
struct Leaves(Box<dyn FnMut() + Send>);

impl Drop for Leaves {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A file is closed while a worker takes the call of a request. One of the two gets the call.
// spec: R6
#[test]
fn a_request_of_a_closing_file_is_given_up_or_made() {
    model(3, || {
        let in_flight = Arc::new(InFlight::<Leaves>::new());
        let left = Arc::new(Count::default());
        let entry = in_flight.add(0..2);
        let leave = {
            let (in_flight, entry, left) = (in_flight.clone(), entry.clone(), left.clone());
            move || {
                drop(in_flight.leave(&entry));
                left.add();
            }
        };
        in_flight.queue(&entry, Leaves(Box::new(leave)));
        let worker = thread::spawn(move || drop(entry.take()));
        in_flight.detach_all(|_| ());
        worker.join().unwrap();
        assert_eq!(left.get(), 1);
    });
}

/// A thread waits for a block in a memory without threads. It makes the block's call, even if the
/// request is queued, or added to the table, only after the wait began.
// spec: R11
#[test]
fn a_call_that_is_queued_after_somebody_waits_is_made() {
    model(3, || {
        let in_flight = Arc::new(InFlight::<u32>::new());
        let is_filled = Arc::new(AtomicU32::new(0));
        let waiter = {
            let (in_flight, is_filled) = (in_flight.clone(), is_filled.clone());
            thread::spawn(move || {
                let is_being_filled = || is_filled.load(Ordering::Relaxed) == 0;
                let run = |number| {
                    is_filled.store(number, Ordering::Relaxed);
                    in_flight.note_filled();
                };
                in_flight.wait_filled(4, is_being_filled, run);
            })
        };
        let entry = in_flight.add(3..5);
        in_flight.queue(&entry, 7);
        waiter.join().unwrap();
        assert_eq!(is_filled.load(Ordering::Relaxed), 7);
        assert!(entry.take().is_none());
    });
}

/// A thread waits for a block that has no request, and that another thread fills. The wait ends.
// spec: R11
#[test]
fn a_block_that_is_filled_as_somebody_begins_to_wait_is_noticed() {
    model(3, || {
        let in_flight = Arc::new(InFlight::<u32>::new());
        let is_filled = Arc::new(AtomicU32::new(0));
        let waiters = [0; 2].map(|_| {
            let (in_flight, is_filled) = (in_flight.clone(), is_filled.clone());
            let is_being_filled = move || is_filled.load(Ordering::Relaxed) == 0;
            thread::spawn(move || in_flight.wait_filled(4, is_being_filled, |_| unreachable!()))
        });
        is_filled.store(1, Ordering::Relaxed);
        in_flight.note_filled();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}
