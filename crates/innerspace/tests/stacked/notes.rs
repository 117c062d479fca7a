//! Notes of what each thread is doing, and a watchdog that prints them when a program does not end.

use std::cell::RefCell;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

/// How long a program may take, unless `INNERSPACE_STACKED_PATIENCE` has a number of seconds. A
/// program takes a fraction of one: the bound only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

type Open = Arc<Mutex<Vec<String>>>;

static THREADS: Mutex<Vec<(String, Open)>> = Mutex::new(Vec::new());

/// The number of panics of service threads so far. The threads survive them.
static PANICS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OWN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

fn own() -> Open {
    OWN.with_borrow_mut(|own| {
        own.get_or_insert_with(|| {
            let open = Open::default();
            let thread = std::thread::current();
            let name = format!("{:?} {}", thread.id(), thread.name().unwrap_or("-"));
            let mut threads = THREADS.lock().unwrap();
            threads.retain(|(_, open)| Arc::strong_count(open) > 1);
            threads.push((name, open.clone()));
            open
        })
        .clone()
    })
}

/// While this lives, its thread does the noted work.
pub(crate) struct At(Open);

/// Notes what this thread is about to do.
pub(crate) fn at(what: String) -> At {
    let open = own();
    open.lock().unwrap().push(what);
    At(open)
}

impl Drop for At {
    fn drop(&mut self) {
        self.0.lock().unwrap().pop();
    }
}

/// Prints what all threads are doing, past the test harness's capture.
fn tell_all(seed: u64) {
    let mut out = std::io::stderr();
    let _ = writeln!(out, "INNERSPACE_STACKED_SEED={seed} does not end:");
    for (name, open) in &*THREADS.lock().unwrap() {
        let open = open.lock().unwrap();
        if !open.is_empty() {
            let _ = writeln!(out, "  {name}: {}", open.join(" > "));
        }
    }
}

/// Runs a program. If it hangs, prints where, and ends the process.
pub(crate) fn watched(seed: u64, program: impl FnOnce()) {
    let (running, ended) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let patience = crate::number("INNERSPACE_STACKED_PATIENCE");
        let patience = patience.map_or(PATIENCE, Duration::from_secs);
        if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tell_all(seed);
            std::process::abort();
        }
    });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some("innerspace") {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(info);
        }));
    });
    let before = PANICS.load(Ordering::Relaxed);
    program();
    drop(running);
    watchdog.join().unwrap();
    let panics = PANICS.load(Ordering::Relaxed) - before;
    assert_eq!(panics, 0, "a service thread panicked");
}
