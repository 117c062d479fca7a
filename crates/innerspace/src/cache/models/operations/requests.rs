//! Requests in flight, concurrent with operations that take away their blocks, their file or their
//! memory.
//!
//! Each model runs over three kinds of store: one that completes its requests itself, late, from a
//! thread of its own; one whose plain calls the memory's threads make; and one whose plain calls
//! are made by the threads that wait. The late one reads when it gets a request and fills when it
//! completes it, so a cut that did not wait for the request would bring old bytes back. It also
//! marks the memory that it was lent, and checks at the end that the mark is intact: the frame had
//! no other user meanwhile.

use std::collections::VecDeque;
use std::pin::Pin;

use shuttle::rand::Rng;

use super::*;
use crate::cache::Ready;
use crate::store::{Batch, Request, SyncWhat};
use crate::sync::thread::JoinHandle;

/// The number of schedules of each sort that are tried for a model and a kind of store.
const ROUNDS: usize = 150;

/// The number of pages of the file. Page `n` is full of `n + 1`.
const PAGES: u64 = 8;

/// The bytes in a request's memory until it is completed.
const MARK: u8 = 0xee;

/// Which threads make the calls to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The store itself completes its requests, in any order.
    Late,
    /// Threads of the memory make them.
    Threads,
    /// The callers that wait for the blocks make them.
    Callers,
}

const KINDS: [Kind; 3] = [Kind::Late, Kind::Threads, Kind::Callers];

/// How a store answers requests and calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    /// With all bytes.
    Whole,
    /// In turn with all bytes, with a part, with an error, and not at all. Plain calls are answered
    /// with a part, an error and a panic.
    Mixed,
}

/// The requests that a late store has.
#[derive(Default)]
struct LateRequests {
    requests: VecDeque<(Request, Vec<u8>)>,
    /// Whether the store does not answer for now.
    is_paused: bool,
    /// Whether no more requests will come.
    is_over: bool,
}

struct Device {
    inner: MemoryStore,
    kind: Kind,
    is_mixed: AtomicBool,
    number: AtomicU32,
    asked: Mutex<LateRequests>,
    came: Condvar,
}

impl Device {
    fn new(kind: Kind, answers: Answers, pages: u64) -> Device {
        let bytes: Vec<u8> = (0..pages * PAGE).map(|at| first_value(at / PAGE)).collect();
        Device {
            inner: MemoryStore::from_bytes(&bytes),
            kind,
            is_mixed: AtomicBool::new(answers == Answers::Mixed),
            number: AtomicU32::new(0),
            asked: Mutex::default(),
            came: Condvar::new(),
        }
    }

    /// Returns the number of the answer, if answers are mixed.
    fn turn(&self) -> Option<u32> {
        let number = self.number.fetch_add(1, Ordering::SeqCst);
        self.is_mixed.load(Ordering::SeqCst).then_some(number)
    }

    /// Delays for a random time: with the scheduler alone, each request would land before other
    /// threads get far.
    fn dawdle(&self) {
        let most = [0, 30, 300][shuttle::rand::thread_rng().gen_range(0..3)];
        (0..most).for_each(|_| thread::yield_now());
    }

    fn heal(&self) {
        self.is_mixed.store(false, Ordering::SeqCst);
    }

    /// Completes requests, the oldest and the latest in turn, until no more will come.
    fn complete_all(&self) {
        for number in 0.. {
            let mut asked = self.asked.lock();
            let (request, bytes) = loop {
                let next = match number % 2 {
                    _ if asked.is_paused => None,
                    0 => asked.requests.pop_back(),
                    _ => asked.requests.pop_front(),
                };
                match next {
                    Some(next) => break next,
                    None if asked.is_over && !asked.is_paused => return,
                    None => asked = self.came.wait(asked),
                }
            };
            drop(asked);
            self.complete(request, &bytes);
        }
    }

    fn complete(&self, mut request: Request, bytes: &[u8]) {
        self.dawdle();
        let marked = |piece: &std::io::IoSliceMut<'_>| piece.iter().all(|byte| *byte == MARK);
        assert!(
            request.unfilled().iter().all(marked),
            "a frame in flight has been somebody else's"
        );
        let len = match self.turn().map(|number| number % 4) {
            Some(1) => bytes.len() / 2 + 1,
            Some(2) => return request.complete(Err(io::ErrorKind::TimedOut.into())),
            Some(3) => return drop(request),
            _ => bytes.len(),
        };
        request.fill(&bytes[..len]);
        request.complete(Ok(len));
    }

    fn pause(&self) {
        self.asked.lock().is_paused = true;
    }

    fn go_on(&self) {
        self.asked.lock().is_paused = false;
        self.came.notify_all();
    }

    fn end(&self) {
        self.asked.lock().is_over = true;
        self.came.notify_all();
    }
}

impl Store for Device {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.kind == Kind::Threads {
            self.dawdle();
        }
        let len = match self.turn().map(|number| number % 5) {
            Some(1) => buf.len().div_ceil(2),
            Some(2) => return Err(io::ErrorKind::TimedOut.into()),
            Some(3) => std::panic::resume_unwind(Box::new("on purpose")),
            _ => buf.len(),
        };
        self.inner.read_at(&mut buf[..len], offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.inner.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.inner.sync(what)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.punch(offset, len)
    }
    fn writable(&self) -> bool {
        true
    }
    fn submit(&self, mut batch: Batch) {
        if self.kind != Kind::Late {
            return batch.call(self);
        }
        while let Some(mut request) = batch.take() {
            let mut bytes = vec![0; request.len()];
            let read = self.inner.read_at(&mut bytes, request.offset()).unwrap();
            assert_eq!(read, request.len(), "inside the store");
            for mut piece in request.unfilled() {
                piece.fill(MARK);
            }
            self.asked.lock().requests.push_back((request, bytes));
            self.came.notify_all();
        }
    }
}

/// Returns the bytes of a page before a thread writes to it.
fn first_value(page: u64) -> u8 {
    page as u8 + 1
}

/// A file over a store of one kind, with the threads that this kind needs.
struct World {
    cache: Arc<Cache>,
    device: Arc<Device>,
    file: Option<PagedFile>,
    ended: Arc<AtomicBool>,
    service: Option<JoinHandle<()>>,
    late: Option<JoinHandle<()>>,
}

impl World {
    fn new(kind: Kind, answers: Answers, frames: u32, pages: u64) -> World {
        let pool = Pool::new(&PoolOptions::new(frames)).expect("small arenas can be had");
        let cache = Cache::new(&pool);
        let device = Arc::new(Device::new(kind, answers, pages));
        let file = open(&cache, device.clone());
        let ended = Arc::new(AtomicBool::new(false));
        let late = (kind == Kind::Late).then(|| {
            let device = device.clone();
            thread::spawn(move || device.complete_all())
        });
        let service = (kind == Kind::Threads).then(|| {
            cache.begin_service();
            let (cache, ended) = (cache.clone(), ended.clone());
            thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    cache.pool.background.wait_for_work(Duration::from_secs(1));
                    while cache.step() == Step::More {}
                }
            })
        });
        World {
            cache,
            device,
            file: Some(file),
            ended,
            service,
            late,
        }
    }

    fn file(&self) -> &PagedFile {
        self.file.as_ref().expect("not closed")
    }

    /// Waits for a future. If no other thread makes the calls, this one makes them.
    fn wait<F: Future>(&self, future: Pin<&mut F>) -> F::Output {
        wait_or(future, || self.tick())
    }

    /// Does the work that a program without a service does now and then. Returns whether the model
    /// is such a program.
    fn tick(&self) -> bool {
        let is_alone = self.device.kind != Kind::Threads;
        if is_alone {
            self.cache.tick();
        }
        is_alone
    }

    /// Recounts everything, closes the file, lets the late store complete its requests, and checks
    /// that all memory is given back.
    fn end(mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.cache.pool.background.kick();
        if let Some(service) = self.service.take() {
            service.join().unwrap();
        }
        // Files that the model has opened itself are already closed.
        self.cache.validate();
        drop(self.file.take());
        self.device.end();
        if let Some(late) = self.late.take() {
            late.join().unwrap();
        }
        self.cache.workers.end_threads();
        self.cache.tick();
        let pool = &self.cache.pool;
        pool.flush_retired();
        assert_eq!(pool.totals().usage, 0, "pages are charged still");
        let root = self.cache.root.id();
        assert_eq!(self.cache.in_flight.of(root), 0);
        assert_eq!(self.cache.workers.queued(), 0);
        pool.frames.validate();
    }
}

fn open(cache: &Arc<Cache>, store: Arc<dyn Store>) -> PagedFile {
    let options = FileOptions::new()
        .access(FileAccess::ReadWrite)
        .name("data.bin");
    PagedFile::open(cache, store, &options).expect("the store is whole")
}

/// Polls a future each time that it is woken, or that `work` has done something.
fn wait_or<F: Future>(mut future: Pin<&mut F>, work: impl Fn() -> bool) -> F::Output {
    let bell = std::sync::Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        match work() {
            true => thread::yield_now(),
            false => bell.wait(),
        }
    }
}

fn model(answers: Answers, frames: u32, pages: u64, body: fn(World)) {
    for kind in KINDS {
        let run = move || body(World::new(kind, answers, frames, pages));
        shuttle::check_random(run, ROUNDS);
        // This scheduler lets one thread get far while another pauses.
        shuttle::check_pct(run, ROUNDS, 3);
    }
}

/// Views pages one after the other. Each must have its first value, or be zeros if `may_be_zero`
/// allows that, or be past the end of the file.
fn read_pages(file: &PagedFile, pages: impl Iterator<Item = u64>, may_be_zero: bool) {
    for number in pages {
        match file.view(page(number)) {
            Ok(view) => {
                let seen = value(&view);
                let is_right = seen == first_value(number) || may_be_zero && seen == 0;
                assert!(is_right, "page {number}: {seen}");
            }
            Err(error) => assert!(
                may_be_zero && matches!(error, FileError::PastEnd { .. }),
                "{error}"
            ),
        }
    }
}

fn spawn_with(file: &PagedFile, run: impl FnOnce(&PagedFile) + Send + 'static) -> JoinHandle<()> {
    let file = file.clone();
    thread::spawn(move || run(&file))
}

/// Checks the whole file: zeros in `zeros`, and first values before and after.
fn assert_zeros_in(file: &PagedFile, zeros: Range<u64>) {
    for number in 0..PAGES {
        let wanted = match zeros.contains(&number) {
            true => 0,
            false => first_value(number),
        };
        let seen = value(&file.view(page(number)).unwrap());
        assert_eq!(seen, wanted, "page {number}");
    }
}

// spec: R5, R17
#[test]
fn shuttle_fills_beside_a_cut_bring_no_old_bytes_back() {
    model(Answers::Whole, 64, PAGES, |world| {
        let readers = [0, 1].map(|from| {
            spawn_with(world.file(), move |file| {
                read_pages(file, from..from + 4, true);
            })
        });
        let cutter = spawn_with(world.file(), |file| {
            file.set_len(2 * PAGE).unwrap();
            file.set_len(PAGES * PAGE).unwrap();
        });
        cutter.join().unwrap();
        assert_zeros_in(world.file(), 2..PAGES);
        for reader in readers {
            reader.join().unwrap();
        }
        world.end();
    });
}

// spec: R17
#[test]
fn shuttle_fills_beside_a_punch_bring_no_old_bytes_back() {
    model(Answers::Whole, 64, PAGES, |world| {
        let readers = [0, 2].map(|from| {
            spawn_with(world.file(), move |file| {
                read_pages(file, from..from + 4, true);
            })
        });
        let puncher = spawn_with(world.file(), |file| file.punch(2 * PAGE..6 * PAGE).unwrap());
        puncher.join().unwrap();
        assert_zeros_in(world.file(), 2..6);
        for reader in readers {
            reader.join().unwrap();
        }
        world.end();
    });
}

// spec: R5
#[test]
fn shuttle_everybody_who_waits_for_a_fill_gets_it() {
    model(Answers::Whole, 64, PAGES, |world| {
        let readers = [0, 0, 1].map(|from| {
            spawn_with(world.file(), move |file| {
                read_pages(file, from..PAGES, false)
            })
        });
        for reader in readers {
            reader.join().unwrap();
        }
        world.end();
    });
}

// spec: R6
#[test]
fn shuttle_a_closed_file_leaves_no_write_into_a_frame_of_others() {
    model(Answers::Whole, 32, PAGES, |mut world| {
        read_pages(world.file(), 0..2, false);
        let other = open(&world.cache, Arc::new(MemoryStore::new()));
        let writer = spawn_with(&other, |other| {
            for number in 0..20 {
                other
                    .write_at(&[0xaa; PAGE as usize], number * PAGE)
                    .unwrap();
            }
        });
        drop(world.file.take());
        for number in (0..20).rev() {
            if let Ok(view) = other.view(page(number)) {
                assert_eq!(value(&view), 0xaa);
            }
        }
        writer.join().unwrap();
        for number in 0..20 {
            assert_eq!(value(&other.view(page(number)).unwrap()), 0xaa);
        }
        drop(other);
        world.end();
    });
}

/// Creates a future for the first byte of a page.
fn ready(file: &PagedFile, page: u64) -> Pin<Box<Ready>> {
    Box::pin(file.ready(page * PAGE..page * PAGE + 1))
}

// spec: R20
#[test]
fn shuttle_futures_beside_dropped_ones_and_a_cut_all_end() {
    model(Answers::Whole, 64, PAGES, |world| {
        // From here on, the file knows which ranges the store has.
        read_pages(world.file(), 0..1, false);
        let dropper = spawn_with(world.file(), |file| {
            for number in [3, 4] {
                let waker = Waker::from(std::sync::Arc::new(Bell::default()));
                let mut unwanted = ready(file, number);
                drop(unwanted.as_mut().poll(&mut Context::from_waker(&waker)));
            }
        });
        let cutter = spawn_with(world.file(), |file| file.set_len(4 * PAGE).unwrap());
        let mut kept = [3, 5].map(|number| (number, ready(world.file(), number)));
        for (number, future) in &mut kept {
            match world.wait(future.as_mut()) {
                Ok(view) => assert_eq!(view[0], first_value(*number)),
                Err(error) => assert!(
                    *number >= 4 && matches!(error, FileError::PastEnd { .. }),
                    "{error}"
                ),
            }
        }
        dropper.join().unwrap();
        cutter.join().unwrap();
        drop(kept);
        world.end();
    });
}

// spec: R20
#[test]
fn shuttle_futures_end_beside_the_closing_of_their_file() {
    model(Answers::Whole, 64, PAGES, |mut world| {
        read_pages(world.file(), 0..1, false);
        let mut futures = [2, 5].map(|number| (number, ready(world.file(), number)));
        let file = world.file.take();
        let closer = thread::spawn(move || drop(file));
        for (number, future) in &mut futures {
            if let Ok(view) = world.wait(future.as_mut()) {
                assert_eq!(view[0], first_value(*number));
            }
        }
        closer.join().unwrap();
        drop(futures);
        world.end();
    });
}

// spec: R6, R9
#[test]
fn shuttle_a_file_is_closed_while_its_store_does_not_answer() {
    let body = || {
        let mut world = World::new(Kind::Late, Answers::Whole, 64, PAGES);
        world.device.pause();
        read_pages(world.file(), 0..1, false);
        let mut futures = [2, 5].map(|number| ready(world.file(), number));
        let file = world.file.take();
        let closer = thread::spawn(move || drop(file));
        let waker = Waker::from(std::sync::Arc::new(Bell::default()));
        for future in &mut futures {
            drop(future.as_mut().poll(&mut Context::from_waker(&waker)));
        }
        closer.join().unwrap();
        world.device.go_on();
        drop(futures);
        world.end();
    };
    // One thread has to get far while the other pauses. This scheduler tries such schedules.
    shuttle::check_pct(body, 1000, 3);
}

// spec: R12
#[test]
fn shuttle_read_ahead_in_a_small_memory_fails_nobody() {
    model(Answers::Whole, 32, 40, |world| {
        let readers = [0, 20].map(|from| {
            spawn_with(world.file(), move |file| {
                read_pages(file, from..from + 20, false)
            })
        });
        for reader in readers {
            reader.join().unwrap();
        }
        world.end();
    });
}

// spec: R6
#[test]
fn shuttle_the_end_of_the_memory_beside_requests_in_flight() {
    model(Answers::Whole, 64, PAGES, |mut world| {
        read_pages(world.file(), 0..2, false);
        let mut future = ready(world.file(), 6);
        let reader = spawn_with(world.file(), |file| read_pages(file, 2..5, false));
        if world.device.kind == Kind::Threads {
            world.cache.released(Vec::new());
        } else {
            world.cache.abandon();
        }
        if let Ok(view) = world.wait(future.as_mut()) {
            assert_eq!(view[0], first_value(6));
        }
        drop(world.file.take());
        reader.join().unwrap();
        drop(future);
        world.end();
    });
}

// spec: R7, R10
#[test]
fn shuttle_failures_and_panics_of_a_store_end_every_wait() {
    model(Answers::Mixed, 64, PAGES, |world| {
        let readers = [0, 2].map(|from| {
            spawn_with(world.file(), move |file| {
                for number in from..from + 4 {
                    let view = || file.view(page(number));
                    // A panic in a call to the store that the caller itself makes is passed on to
                    // the caller.
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(view)) {
                        Ok(Ok(view)) => assert_eq!(value(&view), first_value(number)),
                        Ok(Err(error)) => {
                            assert!(matches!(error, FileError::Store { .. }), "{error}");
                        }
                        Err(panic) => drop(panic),
                    }
                }
            })
        });
        for reader in readers {
            reader.join().unwrap();
        }
        world.device.heal();
        world.file().inner().core().wait_all_landed();
        read_pages(world.file(), 0..PAGES, false);
        world.end();
    });
}
