//! Trials: spans in which a refusal may still be resolved before the caller learns of it. A trial
//! counts a refusal only if it is not resolved.

use crate::group::GroupId;
use crate::reclaim::pool::Pool;
use crate::reclaim::scope::Refusals;
use crate::stats::Event;

/// A span in which refusals of this thread's requests are held back. Dropping this counts the last
/// refusal, if there was one: it has made the trial fail. A trial within another leaves the
/// counting to the outer one.
#[must_use = "the trial ends when this is dropped"]
pub(crate) struct Trial<'p> {
    pool: &'p Pool,
    before: Refusals,
}

impl<'p> Trial<'p> {
    #[inline]
    pub(crate) fn begin(pool: &'p Pool) -> Trial<'p> {
        let before = Refusals::now();
        if before == Refusals::Counted {
            Refusals::Kept(None).set();
        }
        Trial { pool, before }
    }

    /// Ends the trial without counting a refusal: no refusal made the trial fail, or the work is
    /// tried again.
    #[inline]
    pub(crate) fn forget(self) {
        Refusals::Kept(None).set();
    }
}

impl Drop for Trial<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.before == Refusals::Counted {
            let ended = Refusals::now();
            Refusals::Counted.set();
            if let Refusals::Kept(Some((pool, group))) = ended
                && pool == self.pool.domain.id()
            {
                count_failure(self.pool, group);
            }
        }
    }
}

/// Counts a request that has failed, or keeps the refusal while this thread is in a trial.
pub(crate) fn note_failure(pool: &Pool, group: GroupId) {
    match Refusals::now() {
        Refusals::Counted => count_failure(pool, group),
        Refusals::Kept(_) => Refusals::Kept(Some((pool.domain.id(), group))).set(),
    }
}

fn count_failure(pool: &Pool, group: GroupId) {
    pool.counters.count(Event::LimitError);
    pool.groups.count_oom(group);
}
