//! The threads on which the clients of object storage run: a small tokio runtime, shared by all
//! files of the process that are given no other one.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::Handle;

/// The number of threads of the shared runtime. They only move bytes.
const THREADS: usize = 2;

/// The runtime that is shared, as long as something uses it.
static SHARED: Mutex<Weak<Own>> = Mutex::new(Weak::new());

/// A tokio runtime for the clients of object storage. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Runtime {
    handle: Handle,
    /// Keeps the threads, if they are this crate's.
    _own: Option<Arc<Own>>,
}

/// A runtime of this crate. It ends with its last user, without waiting for anything.
#[derive(Debug)]
struct Own(Option<tokio::runtime::Runtime>);

impl Drop for Own {
    fn drop(&mut self) {
        // The last user may be a task of another runtime, which must not wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Runtime {
    /// Starts a runtime with this many threads, at least one.
    ///
    /// # Errors
    /// The system's error, if it refuses threads.
    pub fn new(threads: usize) -> io::Result<Runtime> {
        Ok(Runtime::of_own(Own::start(threads)?))
    }

    /// Returns the runtime of the process, with two threads. It is started by its first user, and
    /// ends with its last.
    ///
    /// # Errors
    /// The system's error, if it refuses threads.
    pub fn shared() -> io::Result<Runtime> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = shared.upgrade() {
            return Ok(Runtime::of_own(own));
        }
        let own = Own::start(THREADS)?;
        *shared = Arc::downgrade(&own);
        Ok(Runtime::of_own(own))
    }

    /// Uses a runtime of the program. It needs tokio's time and I/O drivers, and has to outlive the
    /// files.
    ///
    /// ```
    /// use innerspace_object_store::{ObjectStoreFile, Runtime};
    /// # fn main() -> std::io::Result<()> {
    /// let own = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let options = ObjectStoreFile::options().runtime(&Runtime::of(own.handle().clone()));
    /// # drop(options);
    /// # Ok(()) }
    /// ```
    pub fn of(handle: Handle) -> Runtime {
        Runtime { handle, _own: None }
    }

    fn of_own(own: Arc<Own>) -> Runtime {
        let runtime = own.0.as_ref().expect("only a drop takes it");
        Runtime {
            handle: runtime.handle().clone(),
            _own: Some(own),
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Runs a future in this thread, with the runtime's clock and sockets. Unlike tokio's own
    /// `block_on` it may be called on a thread of a runtime, which it then blocks.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let _context = self.handle.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(value) => return value,
                // A wake-up before this makes `park` return at once.
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Own {
    fn start(threads: usize) -> io::Result<Arc<Own>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("innerspace-remote")
            .enable_all()
            .build()?;
        Ok(Arc::new(Own(Some(runtime))))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_future_is_waited_for_on_a_thread_of_a_runtime() {
        let runtime = Runtime::new(1).unwrap();
        let inner = runtime.clone();
        let (send, receive) = std::sync::mpsc::channel();
        let other = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        other.spawn(async move {
            inner.wait(async { tokio::time::sleep(Duration::from_millis(5)).await });
            send.send(7).unwrap();
        });
        assert_eq!(receive.recv(), Ok(7));
    }

    #[test]
    fn the_shared_runtime_ends_with_its_last_user_and_starts_anew() {
        let first = Runtime::shared().unwrap();
        let weak = Arc::downgrade(first._own.as_ref().unwrap());
        drop(first);
        // Other tests may have it in use.
        let second = Runtime::shared().unwrap();
        assert_eq!(second.wait(async { 3 }), 3);
        drop(weak);
    }
}
