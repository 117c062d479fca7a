//! The requests in flight of a file: see [`requests`](crate::cache::read::requests).

use crate::exec::{InFlight, Job, Lane};

/// The requests of one file, and the lane in which plain calls to its store are made.
pub(crate) struct Requests {
    pub(crate) in_flight: InFlight<Box<dyn Job>>,
    /// The calls to the store.
    pub(crate) store_calls: Lane,
}

impl Requests {
    pub(crate) fn new(store_calls: Lane) -> Requests {
        Requests {
            in_flight: InFlight::new(),
            store_calls,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Requests {
        /// Returns how many threads sleep in `FileCore::wait_made`.
        pub(crate) fn waiting(&self) -> u32 {
            self.in_flight.waiting()
        }

        /// Returns the number of requests in flight.
        pub(crate) fn in_flight(&self) -> usize {
            self.in_flight.len()
        }
    }
}
