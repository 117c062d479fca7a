//! Points in the middle of something, where a test has something else happen.

use std::cell::RefCell;
use std::marker::PhantomData;

/// Where a thread is in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    /// In a structural change: the gate is closed, the words are changed, the mappings are not.
    Change,
    /// In a fault that makes its path the space's own, before it waits for its turn.
    Turn,
    /// In a fault that makes a page writable: those who watch it have been told, its word is not changed.
    Told,
    /// In a watch of code: a grace period is over, and the page's word is not looked at.
    Waited,
    /// In a fault of a file's page: its block is had and locked, and the page is not mapped.
    BlockHad,
    /// In a copy of a leaf: the words are taken, and the leaf does not know of a borrower.
    LeafCopied,
    /// In the section of a revocation: the mappings are read, no word is looked at.
    Revocation,
    /// In the end of a space: its table is let go, and what that retired is still there.
    TableGone,
}

type Work = Box<dyn FnOnce()>;

thread_local! {
    static NEXT: RefCell<Option<(Point, Work)>> = const { RefCell::new(None) };
}

/// Work for which a thread is to come to a point. It must have been there when this is dropped, by the same thread.
#[must_use = "it is dropped when the work has to be done"]
pub(super) struct Awaited(Point, PhantomData<*const ()>);

/// Has `work` done the next time that this thread is there.
pub(super) fn then(point: Point, work: impl FnOnce() + 'static) -> Awaited {
    NEXT.set(Some((point, Box::new(work))));
    Awaited(point, PhantomData)
}

/// The thread is there.
pub(super) fn reached(point: Point) {
    if let Some(work) = take(point) {
        work();
    }
}

fn take(point: Point) -> Option<Work> {
    let here = |next: &mut Option<(Point, Work)>| next.take_if(|(wanted, _)| *wanted == point);
    NEXT.with_borrow_mut(here).map(|(_, work)| work)
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let left = take(self.0).is_some();
        assert!(
            !left || std::thread::panicking(),
            "never there: {:?}",
            self.0
        );
    }
}
