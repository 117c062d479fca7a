//! Lanes by the subject of their jobs. Each lane is created when it is needed, and dropped with its
//! last handle.

use std::collections::BTreeMap;

use super::lanes::{Lane, Workers};
use crate::sync::{Arc, Mutex, Weak};

/// Unused lanes are not removed while there are fewer than twice this many lanes.
const LEAST: usize = 16;

/// The lanes of one memory, by subject. The subject of a lane of tasks is the address of their file
/// or space. The subject of a lane of deferred calls is their payer.
pub(crate) struct Lanes {
    workers: Workers,
    lanes: Mutex<Named>,
}

#[derive(Default)]
struct Named {
    lanes: BTreeMap<usize, Weak<Lane>>,
    /// The number of lanes that were in use when they were last counted.
    in_use: usize,
}

impl Lanes {
    pub(crate) fn new(workers: &Workers) -> Lanes {
        Lanes {
            workers: workers.clone(),
            lanes: Mutex::default(),
        }
    }

    /// Returns the lane for the subject `about`. If there is none, creates one: `payer` pays for
    /// it, and at most `limit` of its jobs run at a time. The lane lasts as long as some caller
    /// keeps it.
    pub(crate) fn get(&self, about: usize, payer: usize, limit: u32) -> Arc<Lane> {
        let mut named = self.lanes.lock();
        if let Some(lane) = named.lanes.get(&about).and_then(Weak::upgrade) {
            return lane;
        }
        if named.lanes.len() >= 2 * named.in_use.max(LEAST) {
            named.lanes.retain(|_, lane| lane.strong_count() > 0);
            named.in_use = named.lanes.len();
        }
        let lane = Arc::new(self.workers.lane(payer, limit));
        named.lanes.insert(about, Arc::downgrade(&lane));
        lane
    }
}
