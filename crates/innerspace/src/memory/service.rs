//! The service thread: does what `tick()` does, once a second and whenever it is asked.

use std::io;
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::reclaim::Step;
use crate::sync::{Arc, Weak};

/// Time between ticks.
const TICK: Duration = Duration::from_secs(1);

/// Starts the thread. It ends when nobody but it has the cache: no memory handle and no file is left.
pub(super) fn start(cache: &Arc<Cache>) -> io::Result<()> {
    let cache = Arc::downgrade(cache);
    let thread = crate::sync::thread::Builder::new().name("innerspace".to_owned());
    thread.spawn(move || run(&cache)).map(drop)
}

fn run(cache: &Weak<Cache>) {
    let mut next_tick = Instant::now() + TICK;
    while let Some(cache) = cache.upgrade() {
        if Arc::strong_count(&cache) == 1 {
            return;
        }
        if Instant::now() >= next_tick {
            cache.tick();
            next_tick = Instant::now() + TICK;
        } else if cache.step() == Step::Idle {
            let left = next_tick.saturating_duration_since(Instant::now());
            cache.pool().wait_for_work(left);
        }
    }
}
