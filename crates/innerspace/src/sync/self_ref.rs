//! A reference of a shared object to itself, held while others depend on the object.
//!
//! Most users hold an `Arc`. Some are too many for a reference count each: the views of a file's
//! blocks. One of the `Arc` holders keeps the object alive for them while it lives. The views it
//! leaves behind when it goes are counted here instead: while the count is not 0, the object holds
//! an `Arc` of itself.
//!
//! The holder that leaves views behind
//!
//! 1. calls [`SelfRefState::begin`], with its own `Arc` in hand;
//! 2. leaves the views: they can end from here on;
//! 3. drops its `Arc`, some time.
//!
//! The thread that drops such a view
//!
//! 1. takes an `Arc` out: [`SelfRef::get`];
//! 2. does what there is to do;
//! 3. calls [`SelfRefState::end`], then drops both `Arc`s.
//!
//! Count and `Arc` change together under a mutex, so a caller of `get` always finds the `Arc`. The
//! same mutex may guard further counts of the user's. All of this is rare.

use super::{Arc, Mutex, MutexGuard};

/// The count, and the reference that goes with it.
#[derive(Debug)]
pub(crate) struct SelfRef<T>(Mutex<SelfRefState<T>>);

/// The state behind [`SelfRef`]'s mutex.
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

    /// Locks the count, and whatever the user counts with it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SelfRefState<T>> {
        self.0.lock()
    }

    /// The object, for a caller that is counted.
    ///
    /// # Panics
    /// If the count is 0.
    pub(crate) fn get(&self) -> Arc<T> {
        let kept = self.0.lock();
        kept.own.clone().expect("the caller is counted")
    }
}

impl<T> SelfRefState<T> {
    /// Counts one more; `me` is the object that contains this.
    pub(crate) fn begin(&mut self, me: &Arc<T>) {
        self.count += 1;
        if self.own.is_none() {
            self.own = Some(me.clone());
        }
    }

    /// Counts one less. The last one returns the object's own reference: drop it when the object is
    /// no longer used.
    #[must_use = "it may be the last reference"]
    pub(crate) fn end(&mut self) -> Option<Arc<T>> {
        self.count -= 1;
        if self.count > 0 {
            return None;
        }
        self.own.take()
    }
}
