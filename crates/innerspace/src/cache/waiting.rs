//! Waiting in place for a future, for a limited time. This is for callers that have no executor,
//! and must not wait for ever for a store that hangs.
//!
//! The thread sleeps until the future wakes it or the time is over. If no service thread makes the
//! calls that futures wait for, this thread makes them itself. If another thread is making them (in
//! a `tick()`), this thread sleeps. It is not notified when the other thread is done, so it looks
//! again now and then. A store that this thread calls may delay it for any length of time.
//!
//! In a device's handler, the thread makes no calls of other futures, since the space would refuse
//! them there. If there is no service thread, it makes only the call of the future that it waits
//! for, at the first poll.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::cache::service::Cache;
use crate::exec::reentry;
use crate::frame::{Sleeper, deadline};
use crate::sync::{Arc, WaitEnd};
use crate::texts::into_io_error;

/// The time limit of a wait for a future has passed. The future can be waited for again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[error("not done within {waited:?}")]
#[non_exhaustive]
pub struct TimedOut {
    /// The timeout of the wait.
    pub waited: Duration,
}

into_io_error!(TimedOut, |error| io::ErrorKind::TimedOut);

/// How long to wait for another thread that makes calls before this one checks whether it has to
/// make them itself.
const OTHERS_WAIT: Duration = Duration::from_millis(10);

/// A waker for a thread that sleeps in [`wait_for`].
struct Bell(Arc<Sleeper>);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.rouse();
        self.0.unpark();
    }
}

/// Waits for the future, and returns its result, or [`TimedOut`] after `timeout`. A call that this
/// thread makes may take longer. The caller holds no lock.
pub(crate) fn wait_for<F: Future + Unpin>(
    future: &mut F,
    cache: &Cache,
    timeout: Duration,
) -> Result<F::Output, TimedOut> {
    let end = deadline(timeout);
    let mut is_over = false;
    let is_alone = !cache.is_served() && reentry::is_in_device();
    loop {
        // A new sleeper is created each time, because the last one may already have been woken.
        let sleeper = Sleeper::new();
        let waker = Waker::from(std::sync::Arc::new(Bell(sleeper.clone())));
        let polled = {
            let _here = is_alone.then(|| cache.serving());
            Pin::new(&mut *future).poll(&mut Context::from_waker(&waker))
        };
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        if is_over {
            return Err(TimedOut { waited: timeout });
        }
        let until = match cache.is_served() {
            true => end,
            false => {
                cache.serve_waiting();
                let again = deadline(OTHERS_WAIT);
                end.into_iter().chain(again).min()
            }
        };
        // If the work done here has woken the future, the thread does not sleep.
        let slept = sleeper.sleep(until);
        is_over = slept == WaitEnd::TimedOut && end.is_some_and(|end| Instant::now() >= end);
    }
}
