//! Trials: requests whose refusal may be mended before anybody hears of it, so is counted only if
//! it is not.

use std::cell::Cell;

use super::pool::Pool;
use crate::group::GroupId;
use crate::stats::Event;

/// What becomes of a refusal of this thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusals {
    /// Counted at once.
    Counted,
    /// Kept back: the last one, of which pool and group. What came before it did not end what is
    /// tried.
    Kept(Option<(u64, GroupId)>),
}

crate::sync::thread_local! {
    static REFUSALS: Cell<Refusals> = const { Cell::new(Refusals::Counted) };
}

fn now() -> Refusals {
    REFUSALS.try_with(Cell::get).unwrap_or(Refusals::Counted)
}

fn become_now(refusals: Refusals) {
    let _ = REFUSALS.try_with(|now| now.set(refusals));
}

/// While it lives, this thread tries something. Dropped, that has failed by what was refused last.
/// One that is part of another leaves it to that.
#[must_use = "the trial ends when this is dropped"]
pub(crate) struct Trial<'p> {
    pool: &'p Pool,
    before: Refusals,
}

impl Trial<'_> {
    /// No refusal has failed it, or it is tried again.
    #[inline]
    pub(crate) fn forget(self) {
        become_now(Refusals::Kept(None));
    }
}

impl Drop for Trial<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.before == Refusals::Counted {
            let ended = now();
            become_now(Refusals::Counted);
            if let Refusals::Kept(Some((pool, group))) = ended
                && pool == self.pool.domain.id()
            {
                self.pool.count_failure(group);
            }
        }
    }
}

/// While it lives, refusals are counted at once: this thread is in a call of a store or of a user,
/// whose requests have nothing to do with what is tried around it.
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Untried(Refusals);

impl Untried {
    pub(crate) fn begin() -> Untried {
        let before = now();
        become_now(Refusals::Counted);
        Untried(before)
    }
}

impl Drop for Untried {
    fn drop(&mut self) {
        become_now(self.0);
    }
}

impl Pool {
    /// Begins one.
    #[inline]
    pub(crate) fn trial(&self) -> Trial<'_> {
        let before = now();
        if before == Refusals::Counted {
            become_now(Refusals::Kept(None));
        }
        Trial { pool: self, before }
    }

    /// A request has failed: counts that, or keeps it back.
    pub(crate) fn note_failure(&self, group: GroupId) {
        match now() {
            Refusals::Counted => self.count_failure(group),
            Refusals::Kept(_) => become_now(Refusals::Kept(Some((self.domain.id(), group)))),
        }
    }

    fn count_failure(&self, group: GroupId) {
        self.counters.count(Event::LimitError);
        self.groups.count_oom(group);
    }
}
