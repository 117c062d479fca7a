//! Lanes: their order, their threads, and what a panic leaves.

use std::sync::mpsc;
use std::sync::{Barrier, Mutex as StdMutex};

use super::*;

/// The bound of waits that only a failing test reaches.
const LONG: Duration = Duration::from_secs(20);

fn threaded() -> Workers {
    let workers = Workers::new();
    workers.begin_threads();
    workers
}

fn push(lane: &Lane, turn: Turn, job: impl FnOnce() + Send + 'static) {
    let _ = lane.push(turn, Box::new(job));
}

/// A lane runs as many jobs at a time as it has places, and all of them are over in the end.
#[test]
fn a_lane_runs_as_many_jobs_at_a_time_as_it_may() {
    let workers = threaded();
    let lane = workers.lane(0, 4);
    let together = Arc::new(Barrier::new(4));
    let (running, most) = (Arc::new(StdMutex::new(0)), Arc::new(StdMutex::new(0)));
    let (done, over) = mpsc::channel();
    for _ in 0..16 {
        let (together, running, most) = (together.clone(), running.clone(), most.clone());
        let done = done.clone();
        push(&lane, Turn::Shared, move || {
            {
                let mut running = running.lock().unwrap();
                *running += 1;
                let mut most = most.lock().unwrap();
                *most = (*most).max(*running);
            }
            // This wait never ends if fewer than four jobs run at a time.
            together.wait();
            *running.lock().unwrap() -= 1;
            done.send(()).unwrap();
        });
    }
    (0..16).for_each(|_| over.recv_timeout(LONG).unwrap());
    assert_eq!(*most.lock().unwrap(), 4);
}

#[test]
fn jobs_that_want_the_lane_alone_keep_the_order_of_the_queue() {
    let workers = Workers::new();
    let lane = workers.lane(0, 8);
    let order = Arc::new(StdMutex::new(Vec::new()));
    let inner = Arc::new(workers.lane(0, 1));
    for (at, turn) in [
        (0, Turn::Shared),
        (1, Turn::Alone),
        (2, Turn::Shared),
        (3, Turn::Shared),
        (4, Turn::Alone),
    ] {
        let (order, inner, workers) = (order.clone(), inner.clone(), workers.clone());
        push(&lane, turn, move || {
            order.lock().unwrap().push(at);
            // While job 2 runs, only job 3 may begin.
            if at < 4 && workers.run_one() {
                order.lock().unwrap().push(10 + at);
            }
            drop(inner);
        });
    }
    while workers.run_one() {}
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 12, 4]);
}

// spec: R9
#[test]
fn lanes_that_hang_keep_no_other_from_its_turn() {
    let workers = threaded();
    let (release, hang) = mpsc::channel::<()>();
    let hang = Arc::new(StdMutex::new(hang));
    let lanes: Vec<Lane> = (0..MOST_THREADS + 3).map(|_| workers.lane(0, 16)).collect();
    for lane in &lanes {
        for _ in 0..16 {
            let hang = hang.clone();
            push(lane, Turn::Shared, move || {
                assert!(hang.lock().unwrap().recv().is_err())
            });
        }
    }
    let other = workers.lane(0, 16);
    let (done, over) = mpsc::channel();
    push(&other, Turn::Shared, move || done.send(()).unwrap());
    over.recv_timeout(LONG).expect("not behind those that hang");
    assert!(workers.threads() <= 2 * MOST_THREADS + 4);
    drop(release);
}

#[test]
fn a_job_that_panics_costs_nobody_his_turn() {
    let workers = threaded();
    let lane = workers.lane(0, 1);
    let (done, over) = mpsc::channel();
    push(&lane, Turn::Alone, || panic!("a job of somebody else's"));
    push(&lane, Turn::Shared, move || done.send(()).unwrap());
    over.recv_timeout(LONG).unwrap();
}

// spec: R22
#[test]
fn threads_without_work_end() {
    let workers = threaded();
    let lane = workers.lane(0, 2);
    let (done, over) = mpsc::channel();
    for _ in 0..10 {
        let done = done.clone();
        push(&lane, Turn::Shared, move || done.send(()).unwrap());
    }
    (0..10).for_each(|_| over.recv_timeout(LONG).unwrap());
    while workers.threads() > 0 {
        std::thread::yield_now();
    }
    // The next job starts a new thread.
    push(&lane, Turn::Shared, move || done.send(()).unwrap());
    over.recv_timeout(LONG).unwrap();
}

#[test]
fn whoever_waits_for_quiet_waits_for_a_job_whose_lane_is_gone() {
    let workers = threaded();
    let lane = workers.lane(0, 1);
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let is_over = Arc::new(StdMutex::new(false));
    let over = is_over.clone();
    push(&lane, Turn::Shared, move || {
        begun.send(()).unwrap();
        assert!(ends.recv().is_err());
        std::thread::sleep(Duration::from_millis(20));
        *over.lock().unwrap() = true;
    });
    begins.recv_timeout(LONG).unwrap();
    drop((lane, end));
    workers.wait_quiet();
    assert!(*is_over.lock().unwrap());
}

#[test]
fn what_has_not_begun_goes_with_its_lane() {
    let workers = Workers::new();
    let (done, over) = mpsc::channel::<()>();
    let (first, second) = (workers.lane(0, 1), workers.lane(0, 1));
    let there = done.clone();
    push(&first, Turn::Shared, move || drop(done));
    push(&second, Turn::Shared, move || there.send(()).unwrap());
    assert_eq!((workers.queued(), first.queued()), (2, 1));
    drop(first);
    assert!(workers.run_one());
    assert!(!workers.run_one());
    assert_eq!(over.iter().count(), 1, "both have gone");
}
