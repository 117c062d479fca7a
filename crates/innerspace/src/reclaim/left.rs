//! Work that comes to stores and wakers, left by those who could not do it where they were.
//!
//! The last reference to a file may go in an odd place: below reclaim, with a block locked, in a call of the file's own store.
//! To close the file there would wait for what that very thread holds. So it is left here, and done where no lock is held and
//! no store is being called: by the service, and by the calls that let go of files (an unmapping, a space that ends), when
//! they are done. What waits for a grace period alone is another matter, and may be done wherever memory is wanted: see
//! [`super::retire`].

use std::collections::VecDeque;

use super::owners::OwnerId;
use super::pool::Pool;
use crate::sync::panics::Panics;
use crate::sync::{Mutex, may_call_out};

/// What is to be done.
struct Left {
    /// The file that it is about, if it is about one.
    of: Option<OwnerId>,
    work: Box<dyn FnOnce() + Send>,
}

/// What is left, oldest first.
#[derive(Default)]
pub(super) struct LeftWork(Mutex<VecDeque<Left>>);

impl LeftWork {
    fn take(&self, wanted: impl Fn(&Left) -> bool) -> Option<Left> {
        let mut left = self.0.lock();
        let at = left.iter().position(wanted)?;
        left.remove(at)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Pool {
    /// Leaves `work`, about the file `of` if it is about one, to whoever comes by where it may be done. Never waits.
    pub(crate) fn leave(&self, of: Option<OwnerId>, work: impl FnOnce() + Send + 'static) {
        let work = Box::new(work);
        self.left.0.lock().push_back(Left { of, work });
        self.kick();
    }

    /// Does what was left, and what is left by that. Outside every section, with no lock held; in a call of a store, whose caller
    /// may hold some, nothing is done.
    pub(crate) fn do_left(&self) {
        if self.left.is_empty() || Pool::in_any_store_scope() {
            return;
        }
        may_call_out();
        let mut panics = Panics::default();
        while let Some(left) = self.left.take(|_| true) {
            panics.catch(left.work);
        }
        panics.go_on();
    }

    /// Does what was left about the file `of`, also in a call of a store: for who would wait for it. Outside every section, with no
    /// lock held but those of that call.
    pub(crate) fn do_left_of(&self, of: OwnerId) {
        while let Some(left) = self.left.take(|left| left.of == Some(of)) {
            (left.work)();
        }
    }

    /// [`Pool::flush_retired`] and [`Pool::do_left`]: whatever was let go is gone then. Where both are allowed.
    pub(crate) fn let_go(&self) {
        self.flush_retired();
        self.do_left();
    }
}
