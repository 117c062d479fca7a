//! The service thread. It does the work of `tick()` once a second, and other work when another
//! thread requests it. It calls no foreign code, which may hang: stores, wakers, watchers and hooks
//! are called in lanes ([`crate::exec`]), each in the lane of its file or its payer. There is one
//! exception: if the system refuses every other thread, this one runs the lanes' jobs.

use std::io;
use std::mem::forget;
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::reclaim::Step;
use crate::sync::panics::caught;
use crate::sync::{Arc, Mutex, Rank};

/// The time between ticks.
const TICK: Duration = Duration::from_secs(1);

/// A handle to a service thread.
#[derive(Debug)]
pub(super) struct Service {
    /// A mutex that the thread holds while it works.
    #[cfg_attr(
        not(any(test, feature = "test-util")),
        expect(dead_code, reason = "only `pause` reads it")
    )]
    at_work: Arc<Mutex<()>>,
}

impl Service {
    /// Starts the thread. It ends when nothing else keeps the cache alive: no memory handle, no
    /// file and no space is left.
    pub(super) fn start(cache: Arc<Cache>) -> io::Result<Service> {
        let at_work = Arc::new(Mutex::ranked(Rank::Service, ()));
        let theirs = at_work.clone();
        cache.begin_service();
        let thread = crate::sync::thread::Builder::new().name("innerspace".to_owned());
        thread.spawn(move || run(cache, &theirs))?;
        Ok(Service { at_work })
    }

    /// Keeps the thread from working until the returned guard is dropped.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn pause(&self) -> crate::sync::MutexGuard<'_, ()> {
        self.at_work.lock()
    }
}

fn run(mut cache: Arc<Cache>, at_work: &Mutex<()>) {
    let mut next_tick = Instant::now() + TICK;
    loop {
        if Arc::get_mut(&mut cache).is_some() {
            return;
        }
        if Instant::now() >= next_tick {
            let _at_work = at_work.lock();
            survive(|| cache.tick());
            next_tick = Instant::now() + TICK;
            continue;
        }
        let step = {
            let _at_work = at_work.lock();
            survive(|| cache.step())
        };
        if step != Some(Step::More) {
            let left = next_tick.saturating_duration_since(Instant::now());
            cache.pool.background.wait_for_work(left);
        }
    }
}

/// Calls `work`, in which a waker, a store or a hook may panic, and catches the panic. The panic
/// hook has already reported the panic, which must not end the service.
fn survive<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The panic's value comes from foreign code: dropping it may panic again, so it is leaked.
    caught(work).map_err(forget).ok()
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::task::{Context, Wake, Waker};

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::cache::{FileAccess, PagedFile};
    use crate::memory::{Memory, Threads};
    use crate::store::faulty::{Failure, Fault, OperationKind, Rule};
    use crate::store::{FaultyStore, MemoryStore};
    use crate::units::MIB;

    /// A waker that reports its call, and then calls a function.
    struct Calls<F>(Sender<()>, F);

    impl<F: Fn() + Send + Sync + 'static> Wake for Calls<F> {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.send(()).unwrap();
            (self.1)();
        }
    }

    /// Makes the service thread call a waker that does `work`.
    fn have_woken(file: &PagedFile, work: impl Fn() + Send + Sync + 'static) {
        let (called, calls) = mpsc::channel();
        let waker = Waker::from(std::sync::Arc::new(Calls(called, work)));
        let mut sync = pin!(file.defer(|file| file.sync_all()));
        let polled = sync.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        wait_called(&calls);
    }

    fn wait_called(calls: &Receiver<()>) {
        // The timeout matters only if there is no longer a service.
        let end = calls.recv_timeout(Duration::from_secs(60));
        end.expect("somebody serves");
    }

    /// Makes more calls than run at the same time, so the later ones run after the panic.
    fn have_many_woken(file: &PagedFile) {
        (0..20).for_each(|_| have_woken(file, || {}));
    }

    #[test]
    fn wakers_and_hooks_that_panic_do_not_end_the_service() {
        let memory = Memory::with_limit(4 * MIB).unwrap();
        let file = memory
            .file_options()
            .open_store(MemoryStore::new())
            .unwrap();
        have_woken(&file, || panic!("a waker of somebody else's"));
        have_many_woken(&file);

        let calls = hook(&memory);
        drop(refused(&memory));
        wait_called(&calls);
        have_many_woken(&file);
        assert_eq!(memory.take_errors().len(), 1);
    }

    /// Sets a hook that records its call and panics.
    fn hook(memory: &Memory) -> Receiver<()> {
        let (called, calls) = mpsc::channel();
        memory.set_error_hook(move |_| {
            called.send(()).unwrap();
            panic!("a hook of somebody else's");
        });
        calls
    }

    /// Opens a file with dirty bytes that can never be written.
    fn refused(memory: &Memory) -> PagedFile {
        let store = FaultyStore::new(MemoryStore::new());
        let refuse = Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Write]);
        store.add(refuse.forever());
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(store).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        file
    }

    #[test]
    fn the_service_tells_what_is_lost_when_the_memory_is_gone() {
        // The service may run before the last drop, or after it.
        for _ in 0..20 {
            let memory = Memory::with_limit(4 * MIB).unwrap();
            let calls = hook(&memory);
            let file = refused(&memory);
            drop(memory);
            drop(file);
            wait_called(&calls);
        }
    }

    #[test]
    fn who_closes_tells_what_is_lost_when_nobody_else_will() {
        let options = Memory::builder(4 * MIB).threads(Threads::None);
        let memory = options.build().unwrap();
        let calls = hook(&memory);
        let files = [(); 4].map(|()| refused(&memory));
        let [first, second, third, fourth] = files;
        drop((first, second));
        assert!(calls.try_recv().is_err(), "the memory may be ticked");
        memory.0.cache.defer(memory.0.root.id(), None, || {
            panic!("a store of somebody else's")
        });
        let told = |work: Box<dyn FnOnce()>| {
            assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
            calls.try_iter().count()
        };
        assert_eq!(told(Box::new(|| drop(memory))), 2, "nor after a panic");
        assert_eq!(told(Box::new(|| drop(third))), 1);
        assert_eq!(told(Box::new(|| drop(fourth))), 1);
    }
}
