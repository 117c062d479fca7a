//! Sessions of threads that end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};

use super::*;

/// Opens a session when its thread's values end.
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
    let mut before = space.accessor();
    let last = space.accessor();
    let (hand_over, ended) = channel();
    let thread = std::thread::spawn(move || {
        AT_END.set(Some(AtEnd(Some((last, hand_over)))));
        before.session(|_| ()); // what lists the sessions begins later, and ends first
    });
    thread.join().unwrap();
    let (last, opened) = ended.recv().unwrap();
    assert!(!opened && !last.core.translator.sections.is_open());
}
