//! [`WakerSlot`]: the waker of a future, stored with the state that the future waits for.
//!
//! A waker is foreign code: cloning, calling or dropping it may do anything, even poll this future
//! again. All three happen with the slot's lock released.

use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// A state, and the waker of the one future that waits for it to change. The mutex is an innermost
/// lock.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot<S>(Mutex<(S, Option<Waker>)>);

impl<S> WakerSlot<S> {
    /// Creates a slot for a state that no future has looked at yet.
    pub(crate) fn new(state: S) -> WakerSlot<S> {
        WakerSlot(Mutex::new((state, None)))
    }

    /// Returns the result that `look` finds in the state. If there is none yet, stores the future's
    /// waker. The state and the waker are under one lock, so either `look` sees a change, or the
    /// change finds the waker.
    pub(crate) fn poll<R>(
        &self,
        context: &Context<'_>,
        look: impl FnOnce(&mut S) -> Poll<R>,
    ) -> Poll<R> {
        let waker = context.waker().clone();
        let before = {
            let mut slot = self.0.lock();
            match look(&mut slot.0) {
                Poll::Ready(result) => return Poll::Ready(result),
                Poll::Pending => slot.1.replace(waker),
            }
        };
        drop(before);
        Poll::Pending
    }

    /// Changes the state without a wake-up.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        change(&mut self.0.lock().0)
    }

    /// Changes the state. Returns the result of `change`, and the waker, if there is one, for the
    /// caller to call or drop.
    #[must_use = "the future sleeps until its waker is called"]
    pub(crate) fn settle<R>(&self, change: impl FnOnce(&mut S) -> R) -> (R, Option<Waker>) {
        let (state, waker) = &mut *self.0.lock();
        (change(state), waker.take())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    /// A waker whose drop looks at the slot.
    struct Looks(Arc<WakerSlot<u32>>);

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            self.0.change(|state| *state += 1);
        }
    }

    fn poll(slot: &Arc<WakerSlot<u32>>, wanted: u32) -> Poll<u32> {
        let waker = Waker::from(Arc::new(Looks(slot.clone())));
        let context = Context::from_waker(&waker);
        let look = |state: &mut u32| match *state == wanted {
            true => Poll::Ready(*state),
            false => Poll::Pending,
        };
        slot.poll(&context, look)
    }

    #[test]
    fn a_waker_is_dropped_with_the_slot_unlocked() {
        let slot = Arc::new(WakerSlot::default());
        // Three wakers are dropped: one that another replaces, one that is not needed because the
        // result is there, and one that is taken out.
        assert_eq!(poll(&slot, 1), Poll::Pending);
        assert_eq!(poll(&slot, 9), Poll::Pending);
        assert_eq!(slot.change(|state| *state), 1, "the first waker is dropped");
        assert_eq!(poll(&slot, 1), Poll::Ready(1));
        let ((), waker) = slot.settle(|state| *state = 7);
        drop(waker);
        assert_eq!(slot.settle(|state| *state).0, 8);
        assert!(slot.settle(|_| {}).1.is_none(), "it is called once");
    }
}
