//! Completions of requests: what they may do, and which waiters they wake.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::blocking::{Bell, poll};
use super::requests::{LONG, read_only};
use super::*;
use crate::cache::core::validate::validate;
use crate::frame::FlagSet;
use crate::store::{Batch, Limits, Request};
use crate::sync::Mutex;

/// A store that lets another thread run inside `submit`.
struct Between {
    bytes: Vec<u8>,
    /// Called once, with the offset of the next request.
    meanwhile: Mutex<Option<Meanwhile>>,
}

type Meanwhile = Box<dyn FnOnce(u64) + Send>;

impl Store for Between {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = &self.bytes[offset as usize..];
        let len = buf.len().min(from.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }
    fn submit(&self, mut batch: Batch) {
        let mut again = Batch::new();
        while let Some(request) = batch.take() {
            let meanwhile = self.meanwhile.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile(request.offset());
            }
            again.push(request);
        }
        again.call(self);
    }
}

// spec: R11
#[test]
fn who_came_before_the_request_was_queued_is_not_left_asleep() {
    let cache = memory(256);
    let store = Arc::new(Between {
        bytes: pattern(0..64 * 4096),
        meanwhile: Mutex::new(None),
    });
    let file = Arc::new(open(&cache, &store, &read_only(4096)));
    file.view(0..1).unwrap();
    let (begin, begun) = mpsc::channel::<u64>();
    let (done, over) = mpsc::channel();
    let reader = {
        let file = file.clone();
        std::thread::spawn(move || {
            let at = begun.recv().unwrap();
            let result = file.read_exact_at(&mut [0; 8], at);
            done.send(result).unwrap();
        })
    };
    *store.meanwhile.lock() = Some(Box::new(move |offset| {
        begin.send(offset).unwrap();
        // This thread pauses here, as if preempted, until the other one sleeps.
        std::thread::sleep(Duration::from_millis(300));
    }));
    // The reads form a stream: the next blocks are put in flight, and this thread needs none of
    // them.
    file.view(4096..4097).unwrap();
    let result = over.recv_timeout(Duration::from_secs(5));
    let asleep = result.is_err();
    // The tick wakes the other thread, so that the test ends.
    cache.tick();
    reader.join().unwrap();
    assert!(!asleep, "it slept until somebody ticked");
}

/// A store that keeps its requests until the test takes them, and whose plain calls fail on demand.
pub(super) struct Keeping {
    pub(super) calls: Faulty,
    requests: Mutex<VecDeque<Request>>,
    drops: AtomicBool,
}

impl Keeping {
    pub(super) fn new(len: u64) -> Keeping {
        Keeping {
            calls: FaultyStore::new(MemoryStore::from_bytes(&pattern(0..len))),
            requests: Mutex::default(),
            drops: AtomicBool::new(false),
        }
    }

    /// Takes the oldest request that is not answered yet.
    pub(super) fn take(&self) -> Option<Request> {
        self.requests.lock().pop_front()
    }

    /// Drops requests as they come, from now on.
    pub(super) fn drop_from_now_on(&self) {
        self.drops.store(true, Ordering::SeqCst);
    }
}

impl Store for Keeping {
    fn len(&self) -> io::Result<u64> {
        self.calls.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.calls.read_at(buf, offset)
    }
    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            match self.drops.load(Ordering::SeqCst) {
                true => drop(request),
                false => self.requests.lock().push_back(request),
            }
        }
    }
}

// spec: R5, R6
#[test]
fn a_reader_asleep_on_a_request_that_is_dropped_gets_what_a_plain_call_gives() {
    for (is_served, is_broken) in [(false, false), (false, true), (true, false), (true, true)] {
        let cache = memory(256);
        if is_served {
            cache.begin_service();
        }
        let store = Arc::new(Keeping::new(64 * 4096));
        let file = open(&cache, &store, &read_only(4096));
        file.view(0..1).unwrap();
        let at = 10 * 4096..10 * 4096 + 100;
        let mut future = file.ready(at.clone());
        assert!(poll(pin!(&mut future), &Arc::new(Bell::default())).is_pending());
        let sleeper = {
            let (file, at) = (file.clone(), at.clone());
            thread::spawn(move || file.view(at).map(|view| view.to_vec()))
        };
        let is_asleep = || match is_served {
            true => {
                let held = core(&file).lookup(10).unwrap();
                held.meta().flags.load().contains(FlagSet::WAITERS)
            }
            false => core(&file).requests.is_waited_on(),
        };
        while !is_asleep() {
            thread::yield_now();
        }
        assert!(file.try_view(at.clone()).unwrap_err().would_block());
        if is_broken {
            store.calls.add(fail(OperationKind::Read).forever());
        }
        drop(store.take().expect("the future's"));
        let slept = sleeper.join().unwrap();
        let polled = future.wait_timeout(LONG).unwrap();
        for result in [slept, polled.map(|view| view.to_vec())] {
            match result {
                Ok(bytes) => assert_eq!((bytes, is_broken), (pattern(at.clone()), false)),
                Err(error) => {
                    assert!(is_broken, "{error}");
                    let text = error.to_string();
                    let expected = "data.bin: read of 4096 bytes at 40,960 failed: ";
                    assert!(text.starts_with(expected), "{text}");
                }
            }
        }
        assert_eq!(core(&file).requests.len(), 0);
        store.calls.heal();
        assert_eq!(file.view(at.clone()).unwrap()[..], pattern(at));
        validate(core(&file));
    }
}

/// A store with a completion form. A thread that is completing a request may not make its plain
/// calls.
#[derive(Default)]
struct Locks {
    requests: Mutex<VecDeque<Request>>,
    completing: Mutex<Option<std::thread::ThreadId>>,
}

impl Store for Locks {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * 4096)
    }
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        let here = Some(std::thread::current().id());
        assert!(*self.completing.lock() != here, "called in a completion");
        buf.fill(7);
        Ok(buf.len())
    }
    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            self.requests.lock().push_back(request);
        }
    }
}

// spec: R10, R11
#[test]
fn a_completion_calls_no_store_without_threads_either() {
    let cache = memory(256);
    let store = Arc::new(Locks::default());
    let file = open(&cache, &store, &read_only(4096));
    file.view(0..1).unwrap();
    let bell = Arc::new(Bell::default());
    let mut futures =
        [10u64, 20, 30].map(|page| Box::pin(file.ready(page * 4096..page * 4096 + 1)));
    for future in &mut futures {
        assert!(poll(future.as_mut(), &bell).is_pending());
    }
    let sleeper = {
        let file = file.clone();
        thread::spawn(move || file.read_exact_at(&mut [0], 10 * 4096))
    };
    while !core(&file).requests.is_waited_on() {
        thread::yield_now();
    }
    *store.completing.lock() = Some(std::thread::current().id());
    let mut requests = std::mem::take(&mut *store.requests.lock()).into_iter();
    requests.next().unwrap().complete(Ok(0));
    let interrupted = io::ErrorKind::Interrupted.into();
    requests.next().unwrap().complete(Err(interrupted));
    drop(requests);
    *store.completing.lock() = None;
    sleeper.join().unwrap().expect("it makes the call itself");
    cache.tick();
    for future in &mut futures {
        assert!(matches!(poll(future.as_mut(), &bell), Poll::Ready(Ok(_))));
    }
}

// spec: R11
#[test]
fn what_a_completion_lacks_is_read_when_the_memory_is_gone() {
    let cache = memory(256);
    let store = Arc::new(Locks::default());
    let file = open(&cache, &store, &read_only(4096));
    file.view(0..1).unwrap();
    let bell = Arc::new(Bell::default());
    let mut future = Box::pin(file.ready(10 * 4096..10 * 4096 + 1));
    assert!(poll(future.as_mut(), &bell).is_pending());
    cache.abandon();
    let request = store.requests.lock().pop_front().unwrap();
    request.complete(Ok(0));
    assert_eq!(bell.rung(), 1);
    assert!(matches!(poll(future.as_mut(), &bell), Poll::Ready(Ok(_))));
}

/// A store with a completion form, whose plain calls run one at a time and hang.
#[derive(Default)]
struct Slow {
    requests: Mutex<VecDeque<Request>>,
    gate: Mutex<Option<mpsc::Receiver<()>>>,
    hanging: AtomicUsize,
}

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * 4096)
    }
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        let gate = self.gate.lock().take();
        if let Some(gate) = gate {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            let _ = gate.recv();
        }
        buf.fill(7);
        Ok(buf.len())
    }
    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            self.requests.lock().push_back(request);
        }
    }
    fn limits(&self) -> Limits {
        Limits::default().requests(1)
    }
}

// spec: R9, R20
#[test]
fn who_waits_for_what_has_landed_is_woken_beside_a_call_that_hangs() {
    let cache = memory(256);
    cache.begin_service();
    let store = Arc::new(Slow::default());
    let file = open(&cache, &store, &read_only(4096));
    file.view(0..1).unwrap();
    let bell = Arc::new(Bell::default());
    let mut first = Box::pin(file.ready(10 * 4096..10 * 4096 + 1));
    let mut second = Box::pin(file.ready(20 * 4096..20 * 4096 + 1));
    assert!(poll(first.as_mut(), &Arc::new(Bell::default())).is_pending());
    assert!(poll(second.as_mut(), &bell).is_pending());
    let (open_gate, gate) = mpsc::channel();
    *store.gate.lock() = Some(gate);
    // The request is answered with too few bytes. The rest is read by a plain call, which hangs.
    let (one, mut two) = {
        let mut requests = store.requests.lock();
        (requests.pop_front().unwrap(), requests.pop_front().unwrap())
    };
    one.complete(Ok(0));
    while store.hanging.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let len = two.len();
    assert_eq!(two.fill(&vec![7; len]), len);
    two.complete(Ok(len));
    let end = Instant::now() + LONG;
    while bell.rung() == 0 && Instant::now() < end {
        thread::yield_now();
    }
    let rung = bell.rung();
    drop(open_gate);
    assert_eq!(rung, 1, "its bytes are there");
}

/// A store that reports when it is dropped. Its requests are kept elsewhere.
#[derive(Default)]
struct Leaving {
    requests: Arc<Mutex<VecDeque<Request>>>,
    has_left: Arc<AtomicBool>,
}

impl Store for Leaving {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * 4096)
    }
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }
    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            self.requests.lock().push_back(request);
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.has_left.store(true, Ordering::SeqCst);
    }
}

// spec: R6
#[test]
fn a_completion_does_not_drop_the_store_it_is_of() {
    let cache = memory(256);
    let store = Arc::new(Leaving::default());
    let (requests, has_left) = (store.requests.clone(), store.has_left.clone());
    let has_left = || has_left.load(Ordering::SeqCst);
    let file = open(&cache, &store, &read_only(4096));
    file.read_exact_at(&mut [0], 0).unwrap();
    file.read_exact_at(&mut [0], 4096).unwrap();
    drop((file, store));
    let mut taken = std::mem::take(&mut *requests.lock());
    assert!(!taken.is_empty() && !has_left(), "they are in flight");
    for mut request in taken.drain(..) {
        let len = request.len();
        request.fill(&vec![7; len]);
        request.complete(Ok(len));
    }
    assert!(!has_left(), "this might be a thread of its own");
    cache.tick();
    assert!(has_left());
    assert_empty(&cache);
}

// spec: R6, R11
#[test]
fn what_comes_back_to_a_closed_file_is_given_up_at_once() {
    let cache = memory(256);
    let store = Arc::new(Leaving::default());
    let requests = store.requests.clone();
    let file = open(&cache, &store, &read_only(4096));
    file.read_exact_at(&mut [0], 0).unwrap();
    file.read_exact_at(&mut [0], 4096).unwrap();
    drop(file);
    let taken = std::mem::take(&mut *requests.lock());
    assert!(!taken.is_empty());
    for request in taken {
        request.complete(Ok(0));
    }
    assert_eq!(cache.queued(), 0, "nobody wants the rest");
    assert_empty(&cache);
}
