//! A reference of a shared object to itself, held while others depend on the object.
//!
//! Most users hold an `Arc`. There are too many views of a file's blocks for each to hold one. A
//! holder of an `Arc`, such as a file, keeps the object alive for the views of its own blocks. The
//! views that it leaves behind are counted here. While the count is not 0, the object holds an
//! `Arc` of itself.
//!
//! The holder that leaves views behind
//!
//! 1. calls [`SelfRefState::begin`] while it holds its own `Arc`;
//! 2. leaves the views, which can end from here on;
//! 3. drops its `Arc` at some later time.
//!
//! The thread that drops such a view
//!
//! 1. gets a clone of the `Arc` by [`SelfRef::get`];
//! 2. does its work on the object;
//! 3. calls [`SelfRefState::end`], then drops its `Arc`, and the one that `end` returned, if any.
//!
//! Count and `Arc` change together under a mutex, so a caller of `get` always finds the `Arc`. The
//! same mutex may guard further counts that the user keeps. All these calls are rare.

use super::{Arc, Mutex, MutexGuard};

/// The count, and the object's reference to itself.
#[derive(Debug)]
pub(crate) struct SelfRef<T>(Mutex<SelfRefState<T>>);

/// The state behind [`SelfRef`]'s mutex.
#[derive(Debug)]
pub(crate) struct SelfRefState<T> {
    count: u64,
    own: Option<Arc<T>>,
}

impl<T> SelfRef<T> {
    /// Creates a `SelfRef` that counts nothing.
    pub(crate) fn new() -> SelfRef<T> {
        SelfRef(Mutex::new(SelfRefState {
            count: 0,
            own: None,
        }))
    }

    /// Locks the count, together with whatever the user counts under the same mutex.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SelfRefState<T>> {
        self.0.lock()
    }

    /// Returns a clone of the object's `Arc`. The caller has not yet called [`SelfRefState::end`]
    /// for something that is counted here, such as a view.
    ///
    /// # Panics
    /// If the count is 0.
    pub(crate) fn get(&self) -> Arc<T> {
        let kept = self.0.lock();
        kept.own.clone().expect("the caller is counted")
    }
}

impl<T> SelfRefState<T> {
    /// Increases the count by one. `me` is the object that contains this `SelfRef`.
    pub(crate) fn begin(&mut self, me: &Arc<T>) {
        self.count += 1;
        if self.own.is_none() {
            self.own = Some(me.clone());
        }
    }

    /// Decreases the count by one. If the count is then 0, returns the `Arc` that the object held
    /// of itself; the caller drops it when it no longer uses the object. Otherwise returns `None`.
    #[must_use = "it may be the last reference"]
    pub(crate) fn end(&mut self) -> Option<Arc<T>> {
        self.count -= 1;
        if self.count > 0 {
            return None;
        }
        self.own.take()
    }
}
