//! Something shared that keeps itself alive while others count on it.
//!
//! Its usual users hold an `Arc`. Others, of whom there are too many to count each one (the views
//! of a file's blocks), are kept by one of the usual users for as long as that lives. What such a
//! user leaves behind when it goes is counted here instead: while the count is not 0, there is an
//! `Arc` in the thing itself.
//!
//! | step | who leaves something behind | who ends it |
//! |---|---|---|
//! | 1 | [`SelfRefState::begin`], with its own `Arc` in hand | takes an `Arc` out: [`SelfRef::get`] |
//! | 2 | leaves it: it can be ended from here on | does what there is to do |
//! | 3 | drops its `Arc`, some time | [`SelfRefState::end`], then drops both `Arc`s |
//!
//! Count and `Arc` change together under a mutex, so that whoever may call `get` finds the `Arc`;
//! what is left behind may be counted under it, too. All of it is rare.

use super::{Arc, Mutex, MutexGuard};

/// The count, and the reference that goes with it.
#[derive(Debug)]
pub(crate) struct SelfRef<T>(Mutex<SelfRefState<T>>);

/// What [`SelfRef`]'s mutex guards.
#[derive(Debug)]
pub(crate) struct SelfRefState<T> {
    count: u64,
    own: Option<Arc<T>>,
}

impl<T> SelfRef<T> {
    /// Nothing is counted.
    pub(crate) fn new() -> SelfRef<T> {
        SelfRef(Mutex::new(SelfRefState {
            count: 0,
            own: None,
        }))
    }

    /// For a change of the count, and of what it counts.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SelfRefState<T>> {
        self.0.lock()
    }

    /// The thing, for somebody who is counted.
    ///
    /// # Panics
    /// When nobody is.
    pub(crate) fn get(&self) -> Arc<T> {
        let kept = self.0.lock();
        kept.own.clone().expect("whoever asks is counted")
    }
}

impl<T> SelfRefState<T> {
    /// Counts one more; `me` is what this is a part of.
    pub(crate) fn begin(&mut self, me: &Arc<T>) {
        self.count += 1;
        if self.own.is_none() {
            self.own = Some(me.clone());
        }
    }

    /// Counts one less. With the last one the thing's own reference comes out: drop it when nothing
    /// of it is used any more.
    #[must_use = "it may be the last reference"]
    pub(crate) fn end(&mut self) -> Option<Arc<T>> {
        self.count -= 1;
        if self.count > 0 {
            return None;
        }
        self.own.take()
    }
}
