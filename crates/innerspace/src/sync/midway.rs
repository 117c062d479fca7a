//! Points in the middle of something, where a test has something else happen. A layer names its
//! own.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Where a thread is in the middle of something.
pub(crate) trait Point: Copy + PartialEq + Debug + 'static {}

type Work = Box<dyn FnOnce()>;

thread_local! {
    static NEXT: RefCell<Vec<(Box<dyn Any>, Work)>> = const { RefCell::new(Vec::new()) };
}

/// Work for which a thread is to come to a point. It must have been there when this is dropped, by
/// the same thread.
#[must_use = "it is dropped when the work has to be done"]
pub(crate) struct Awaited<P: Point>(P, PhantomData<*const ()>);

/// Has `work` done the next time that this thread is there.
pub(crate) fn then<P: Point>(point: P, work: impl FnOnce() + 'static) -> Awaited<P> {
    NEXT.with_borrow_mut(|next| next.push((Box::new(point), Box::new(work))));
    Awaited(point, PhantomData)
}

/// The thread is there.
pub(crate) fn reached<P: Point>(point: P) {
    if let Some(work) = take(point) {
        work();
    }
}

fn take<P: Point>(point: P) -> Option<Work> {
    NEXT.with_borrow_mut(|next| {
        let is_here = |(wanted, _): &(Box<dyn Any>, Work)| wanted.downcast_ref() == Some(&point);
        let place = next.iter().position(is_here)?;
        Some(next.remove(place).1)
    })
}

impl<P: Point> Drop for Awaited<P> {
    fn drop(&mut self) {
        let left = take(self.0).is_some();
        assert!(
            !left || std::thread::panicking(),
            "never there: {:?}",
            self.0
        );
    }
}
