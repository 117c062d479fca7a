//! The service thread: does what `tick()` does, once a second and whenever it is asked.

use std::io;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::reclaim::Step;
use crate::sync::{Arc, Mutex, MutexGuard, Rank, Weak};

/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);

/// The handle of a service thread.
#[derive(Debug)]
pub(super) struct Service {
    /// Held by the thread while it is at work.
    at_work: Arc<Mutex<()>>,
}

impl Service {
    /// Starts the thread. It ends when nobody but it has the cache: no memory handle and no file is left.
    pub(super) fn start(cache: &Arc<Cache>) -> io::Result<Service> {
        let cache = Arc::downgrade(cache);
        let at_work = Arc::new(Mutex::ranked(Rank::Service, ()));
        let theirs = at_work.clone();
        let thread = crate::sync::thread::Builder::new().name("innerspace".to_owned());
        thread.spawn(move || run(&cache, &theirs))?;
        Ok(Service { at_work })
    }

    /// Keeps the thread from its work until the result is dropped.
    pub(super) fn pause(&self) -> MutexGuard<'_, ()> {
        self.at_work.lock()
    }
}

fn run(cache: &Weak<Cache>, at_work: &Mutex<()>) {
    let mut next_tick = Instant::now() + TICK;
    while let Some(cache) = cache.upgrade() {
        if Arc::strong_count(&cache) == 1 {
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
            cache.pool().wait_for_work(left);
        }
    }
}

/// Does `work`, in which a waker, a store or a hook may panic: that is reported, and no reason to serve nobody any more.
fn survive<T>(work: impl FnOnce() -> T) -> Option<T> {
    // Foreign: to drop it may be the next panic.
    catch_unwind(AssertUnwindSafe(work)).map_err(forget).ok()
}
