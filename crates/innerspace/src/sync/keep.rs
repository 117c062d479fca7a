//! Something shared that keeps itself alive while others count on it.
//!
//! Its usual users hold an `Arc`. Others, of whom there are too many to count each one (the views of a file's blocks), are kept by one
//! of the usual users for as long as that lives. What such a user leaves behind when it goes is counted here instead: while
//! the count is not 0, there is an `Arc` in the thing itself.
//!
//! | step | who leaves something behind | who ends it |
//! |---|---|---|
//! | 1 | [`KeepSelf::begin`], with its own `Arc` in hand | takes an `Arc` out: [`KeepSelf::get`] |
//! | 2 | leaves it: it can be ended from here on | does what there is to do |
//! | 3 | drops its `Arc`, some time | [`KeepSelf::end`], then drops both `Arc`s |
//!
//! Count and `Arc` change together under a mutex, so that whoever may call `get` finds the `Arc`. Both sides are rare.

use super::{Arc, Mutex};

/// The count, and the reference that goes with it.
#[derive(Debug)]
pub(crate) struct KeepSelf<T>(Mutex<Kept<T>>);

#[derive(Debug)]
struct Kept<T> {
    count: u64,
    own: Option<Arc<T>>,
}

impl<T> KeepSelf<T> {
    /// Nothing is counted.
    pub(crate) fn new() -> KeepSelf<T> {
        KeepSelf(Mutex::new(Kept {
            count: 0,
            own: None,
        }))
    }

    /// Counts one more; `me` is what this is a part of.
    pub(crate) fn begin(&self, me: &Arc<T>) {
        let mut kept = self.0.lock();
        kept.count += 1;
        if kept.own.is_none() {
            kept.own = Some(me.clone());
        }
    }

    /// The thing, for somebody who is counted.
    ///
    /// # Panics
    /// When nobody is.
    pub(crate) fn get(&self) -> Arc<T> {
        let kept = self.0.lock();
        kept.own.clone().expect("whoever asks is counted")
    }

    /// Counts one less. With the last one the thing's own reference comes out: drop it when `self` is not used any more.
    #[must_use = "it may be the last reference"]
    pub(crate) fn end(&self) -> Option<Arc<T>> {
        let mut kept = self.0.lock();
        kept.count -= 1;
        if kept.count > 0 {
            return None;
        }
        kept.own.take()
    }
}
