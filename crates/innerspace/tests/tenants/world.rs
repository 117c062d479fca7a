//! A memory with two tenants, and helpers that all tests here share.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use innerspace::{Group, Memory, Threads};

/// A memory with two groups: A, hostile, and B, which stays inside its `min`.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) a: Group,
    pub(crate) b: Group,
    _others: Beside,
}

impl World {
    /// Creates a memory of `limit` bytes. A may use a quarter of it. B may use half, which is also
    /// its `min`.
    pub(crate) fn new(limit: u64, threads: Threads) -> World {
        let _others = Beside::begin();
        let options = Memory::builder(limit).threads(threads);
        let memory = options.build().unwrap();
        let a = memory.create_group("a", limit / 4).unwrap();
        let b = memory.create_group("b", limit / 2).unwrap();
        b.set_min(Some(limit / 2)).unwrap();
        World {
            memory,
            a,
            b,
            _others,
        }
    }
}

/// How many tests run that do not mind others, and whether one runs that has to be alone.
#[derive(Default)]
struct Running {
    beside: u32,
    alone: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    beside: 0,
    alone: false,
});
static ENDED: Condvar = Condvar::new();

thread_local! {
    /// Whether this thread runs a test that has to be alone.
    static ALONE: Cell<bool> = const { Cell::new(false) };
    /// How many of the tests that run are this thread's.
    static OWN: Cell<u32> = const { Cell::new(0) };
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test that does not mind others. In a thread that is alone, this does nothing.
struct Beside(bool);

impl Beside {
    fn begin() -> Beside {
        if ALONE.get() {
            return Beside(false);
        }
        let is_alone = |running: &mut Running| running.alone;
        let running = ENDED.wait_while(running(), is_alone);
        running.unwrap_or_else(PoisonError::into_inner).beside += 1;
        OWN.set(OWN.get() + 1);
        Beside(true)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self.0 {
            running().beside -= 1;
            OWN.set(OWN.get().saturating_sub(1));
            ENDED.notify_all();
        }
    }
}

/// Keeps out the tests that have a [`World`], until this is dropped.
pub(crate) struct Alone(());

/// Begins a test that reads what the whole process uses: waits until no other runs.
pub(crate) fn alone() -> Alone {
    let is_busy = |running: &mut Running| running.alone || running.beside > OWN.get();
    let running = ENDED.wait_while(running(), is_busy);
    running.unwrap_or_else(PoisonError::into_inner).alone = true;
    ALONE.set(true);
    Alone(())
}

impl Drop for Alone {
    fn drop(&mut self) {
        ALONE.set(false);
        running().alone = false;
        ENDED.notify_all();
    }
}

/// Returns the bytes on the heap of the process.
pub(crate) fn heap() -> u64 {
    crate::HEAP.current_usage() as u64
}
