//! Tests of calls to devices that are under way when the mapping is removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::*;
use crate::sync::{Mutex, failpoint};

/// The timeout of a wait, which only a failure reaches.
const LONG: Duration = Duration::from_secs(20);

/// A device whose calls report that they have begun, and end when they are told to.
struct Slow {
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    over: AtomicBool,
}

impl Device for Slow {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.begun.lock().send(()).unwrap();
        self.go_on.lock().recv_timeout(LONG).unwrap();
        bytes.fill(7);
        self.over.store(true, Ordering::Release);
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        panic!("on purpose");
    }
}

/// Creates a device, a receiver that reports the beginning of its calls, and a sender that ends
/// one.
fn slow() -> (Arc<Slow>, Receiver<()>, Sender<()>) {
    let (begun, begins) = channel();
    let (ends, go_on) = channel();
    let device = Slow {
        begun: Mutex::new(begun),
        go_on: Mutex::new(go_on),
        over: AtomicBool::new(false),
    };
    (Arc::new(device), begins, ends)
}

// spec: A17
#[test]
fn an_unmap_does_not_wait_for_a_call_and_another_wait_does() {
    let pool = pool(128);
    let space = space(&pool);
    let (device, begins, ends) = slow();
    let at = space.map(Map::device(device.clone(), 8)).unwrap();
    let mut a = space.accessor().unwrap();
    let caller = thread::spawn(move || (a.load::<u8>(at), a.load::<u8>(at)));
    begins.recv_timeout(LONG).unwrap();
    space.unmap(at, 8).unwrap();
    assert!(!device.over.load(Ordering::Acquire));
    let _there = failpoint::on("CallsAwaited", move || ends.send(()).unwrap());
    space.wait_for_calls().unwrap();
    assert!(device.over.load(Ordering::Acquire));
    let (first, second) = caller.join().unwrap();
    assert_eq!(first, Ok(7), "it had begun");
    assert_eq!(second.unwrap_err().kind(), FaultKind::NotMapped);
}

/// An access has found the device, and has not called it yet.
// spec: A17
#[test]
fn a_call_that_is_about_to_begin_is_waited_for() {
    let pool = pool(128);
    let space = space(&pool);
    let (device, _begins, ends) = slow();
    let at = space.map(Map::device(device.clone(), 8)).unwrap();
    let mut a = space.accessor().unwrap();
    let waiter = Arc::new(Mutex::new(None));
    let there = failpoint::on("DeviceFound", {
        let (space, waiter) = (space.clone(), waiter.clone());
        move || {
            space.unmap(at, 8).unwrap();
            let (waiting, awaited) = channel();
            *waiter.lock() = Some(thread::spawn(move || {
                let _there = failpoint::on("CallsAwaited", move || waiting.send(()).unwrap());
                space.wait_for_calls().unwrap();
                device.over.load(Ordering::Acquire)
            }));
            awaited.recv_timeout(LONG).expect("it waits");
        }
    });
    ends.send(()).unwrap();
    assert_eq!(a.load::<u8>(at), Ok(7));
    drop(there);
    let waiter = waiter.lock().take().unwrap();
    assert!(waiter.join().unwrap(), "after the call");
}

// spec: A17
#[test]
fn a_call_that_panics_or_is_not_made_is_over() {
    let pool = pool(128);
    let space = space(&pool);
    let (device, ..) = slow();
    let at = space.map(Map::device(device, 8)).unwrap();
    let mut a = space.accessor().unwrap();
    let call = std::panic::AssertUnwindSafe(|| a.store(at, 1_u8));
    assert!(std::panic::catch_unwind(call).is_err());
    space.wait_for_calls().unwrap();
    assert!(a.load::<u32>(at + 6).is_err(), "past the end");
    assert!(a.swap(at, 1_u32, Ordering::SeqCst).is_err());
    assert!(a.fetch::<u32>(at).is_err());
    space.wait_for_calls().unwrap();
}
