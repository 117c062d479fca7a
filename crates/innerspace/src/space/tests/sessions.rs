//! Sessions of threads that end, and sessions in which something panics.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

use super::*;
use crate::cache::{Cache, FileOptions, PagedFile};
use crate::space::{Device, DeviceError};
use crate::store::Store;
use crate::sync::domain::suspend_sessions;

/// Opens a session when the values of its thread are dropped.
struct AtEnd(Option<(Accessor, Sender<(Accessor, bool)>)>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let (mut accessor, hand_over) = self.0.take().unwrap();
        let opened = catch_unwind(AssertUnwindSafe(|| accessor.session(|_| ())));
        hand_over.send((accessor, opened.is_ok())).unwrap();
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_opens_no_session_and_no_section() {
    let space = space(&pool(64));
    let mut before = space.accessor().unwrap();
    let last = space.accessor().unwrap();
    let (hand_over, ended) = channel();
    let thread = std::thread::spawn(move || {
        AT_END.set(Some(AtEnd(Some((last, hand_over)))));
        before.session(|_| ()); // creates the list of sessions, dropped before `AtEnd`
    });
    thread.join().unwrap();
    let (last, opened) = ended.recv().unwrap();
    assert!(!opened && !last.core.translator.sections.is_open());
}

/// A device that panics at every call.
struct Panicking;

impl Device for Panicking {
    fn load(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        panic!("on purpose");
    }
    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        panic!("on purpose");
    }
}

impl Store for Panicking {
    fn len(&self) -> io::Result<u64> {
        Ok(PAGE)
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        panic!("on purpose");
    }
}

#[test]
fn a_session_whose_program_catches_a_panic_goes_on_in_its_section() {
    let cache = Cache::new(&pool(64));
    let space = space(&cache.pool);
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let file = PagedFile::open(&cache, Arc::new(Panicking), &FileOptions::new()).unwrap();
    let file = space.map(Map::file(&file)).unwrap();
    let device = space.map(Map::device(Panicking, PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + 64, 7_u64).unwrap();
    for (panicking, what) in [(file, "store"), (device, "device")] {
        a.session(|a| {
            assert_eq!(a.load::<u64>(at + 64), Ok(7));
            let load = AssertUnwindSafe(|| a.load::<u64>(panicking + 64));
            catch_unwind(load).unwrap_err();
            assert!(a.core.translator.sections.is_open(), "{what}");
            assert_eq!(a.load::<u64>(at + 64), Ok(7));
            // A wait on this thread still closes the session's section.
            suspend_sessions();
            assert!(!a.core.translator.sections.is_open(), "{what}");
            assert_eq!(a.load::<u64>(at + 64), Ok(7));
        });
        assert!(!a.core.translator.sections.is_open(), "{what}");
    }
}
