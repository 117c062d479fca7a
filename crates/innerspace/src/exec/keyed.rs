//! Lanes by the subject of their jobs: made when needed, gone with the last job.

use std::collections::BTreeMap;

use super::lanes::{Lane, Workers};
use crate::sync::{Arc, Mutex, Weak};

/// Lanes that are kept before those are looked for that nobody has any more.
const LEAST: usize = 16;

/// What the jobs of a lane have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum About {
    /// The file or space at this address: the calls of its tasks.
    Object(usize),
    /// The payer with this number: calls that were deferred on its behalf.
    Payer(usize),
}

/// The lanes of one memory that have names.
pub(crate) struct Lanes {
    workers: Workers,
    lanes: Mutex<Named>,
}

#[derive(Default)]
struct Named {
    lanes: BTreeMap<About, Weak<Lane>>,
    /// How many were in use when that was last counted.
    in_use: usize,
}

impl Lanes {
    pub(crate) fn new(workers: &Workers) -> Lanes {
        Lanes {
            workers: workers.clone(),
            lanes: Mutex::default(),
        }
    }

    /// The lane of this name, which `payer` pays for, of whose jobs `limit` run at a time. It lasts
    /// as long as the result.
    pub(crate) fn get(&self, about: About, payer: usize, limit: u32) -> Arc<Lane> {
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
