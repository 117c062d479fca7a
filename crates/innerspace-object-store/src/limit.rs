//! Requests in flight: a limit that several files share, and what they have done so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limit on the requests in flight of all files that are opened with it. Clones are the same one.
///
/// Make one for each [`Group`](innerspace::Group) whose files are to share the network fairly with
/// those of other groups.
///
/// ```
/// use innerspace_object_store::{ObjectStoreFile, RequestLimit};
///
/// let tenant = RequestLimit::new(16);
/// let options = ObjectStoreFile::options().request_limit(&tenant);
/// assert_eq!(tenant.stats().requests, 0);
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
pub struct RequestLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    semaphore: Arc<Semaphore>,
    max: u32,
    counters: Counters,
}

/// What the requests of a file, or of all files with one [`RequestLimit`], have done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemoteStats {
    /// Requests that were made, including repeated ones and second ones.
    pub requests: u64,
    /// Bytes of objects that arrived.
    pub bytes_fetched: u64,
    /// Requests that were made again after a failure.
    pub retries: u64,
    /// Second requests, made because the first had not been answered in time.
    pub hedges: u64,
    /// Reads that ended with an error.
    pub failures: u64,
    /// Bytes of objects that were written.
    pub bytes_written: u64,
    /// Reads that are in flight now.
    pub in_flight: u64,
    /// The greatest number of reads that were in flight at the same time.
    pub most_in_flight: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes_fetched: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    in_flight: AtomicU64,
    most_in_flight: AtomicU64,
}

impl RequestLimit {
    /// Makes a limit of this many requests at the same time, at least one.
    pub fn new(requests: u32) -> RequestLimit {
        let max = requests.max(1);
        RequestLimit(Arc::new(Shared {
            semaphore: Arc::new(Semaphore::new(max as usize)),
            max,
            counters: Counters::default(),
        }))
    }

    /// Returns the number of requests that may be in flight.
    pub fn requests(&self) -> u32 {
        self.0.max
    }

    /// Returns what the requests have done so far.
    pub fn stats(&self) -> RemoteStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        RemoteStats {
            requests: get(&counters.requests),
            bytes_fetched: get(&counters.bytes_fetched),
            retries: get(&counters.retries),
            hedges: get(&counters.hedges),
            failures: get(&counters.failures),
            bytes_written: get(&counters.bytes_written),
            in_flight: get(&counters.in_flight),
            most_in_flight: get(&counters.most_in_flight),
        }
    }

    async fn acquire(&self) -> Permit {
        let permit = self.0.semaphore.clone().acquire_owned().await;
        self.permit(permit.expect("the semaphore is never closed"))
    }

    fn try_acquire(&self) -> Option<Permit> {
        let permit = self.0.semaphore.clone().try_acquire_owned().ok()?;
        Some(self.permit(permit))
    }

    fn permit(&self, permit: OwnedSemaphorePermit) -> Permit {
        let counters = &self.0.counters;
        let now = counters.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        counters.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Permit {
            limit: self.clone(),
            _permit: permit,
        }
    }
}

/// One request that may be in flight.
struct Permit {
    limit: RequestLimit,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let counters = &self.limit.0.counters;
        counters.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limits of one file: its own, and the one that it shares.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) own: RequestLimit,
    pub(crate) shared: Option<RequestLimit>,
}

/// A request's place under both limits.
pub(crate) struct Permits {
    _own: Permit,
    _shared: Option<Permit>,
}

impl Limits {
    /// Waits for a place under the file's limit, and then for one under the shared limit. A request
    /// that has its places waits for no others, so this always ends.
    pub(crate) async fn acquire(&self) -> Permits {
        let own = self.own.acquire().await;
        let shared = match &self.shared {
            Some(shared) => Some(shared.acquire().await),
            None => None,
        };
        Permits {
            _own: own,
            _shared: shared,
        }
    }

    /// Takes a place under both limits, if there is one now.
    pub(crate) fn try_acquire(&self) -> Option<Permits> {
        let own = self.own.try_acquire()?;
        let shared = match &self.shared {
            Some(shared) => Some(shared.try_acquire()?),
            None => None,
        };
        Some(Permits {
            _own: own,
            _shared: shared,
        })
    }

    /// Adds to a counter of each limit.
    pub(crate) fn count(&self, which: impl Fn(&Counters) -> &AtomicU64, by: u64) {
        which(&self.own.0.counters).fetch_add(by, Ordering::Relaxed);
        if let Some(shared) = &self.shared {
            which(&shared.0.counters).fetch_add(by, Ordering::Relaxed);
        }
    }
}
