//! How far the closing of a file has come: it is closed once, and others can wait for that.

use crate::cache::core::FileCore;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, Rank};

/// See the module. The mutex is not held while the file is closed.
pub(crate) struct Closing {
    stage: Mutex<Stage>,
    moved: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A handle or mapping exists, or the last one is about to report that it is gone.
    Open,
    /// The last one went where the file could not be closed.
    Left,
    /// This thread closes it.
    Running(ThreadId),
    Ended,
}

impl Default for Closing {
    fn default() -> Closing {
        Closing {
            stage: Mutex::ranked(Rank::Leaf, Stage::Open),
            moved: Condvar::new(),
        }
    }
}

impl Closing {
    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.moved.notify_all();
    }

    /// Whether the file is to be closed by the caller.
    fn begin(&self) -> bool {
        let mut stage = self.stage.lock();
        let begins = matches!(*stage, Stage::Open | Stage::Left);
        if begins {
            *stage = Stage::Running(thread::current().id());
        }
        begins
    }

    /// Waits until there is something to do. Returns whether the caller is to close the file; does
    /// not wait for the caller itself.
    fn wait(&self) -> bool {
        let mut stage = self.stage.lock();
        loop {
            match *stage {
                Stage::Left => return true,
                Stage::Ended => return false,
                Stage::Running(by) if by == thread::current().id() => return false,
                Stage::Open | Stage::Running(_) => stage = self.moved.wait(stage),
            }
        }
    }
}

/// The file is closed when this is dropped, also if a store or waker has panicked.
struct Ended<'f>(&'f Closing);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set(Stage::Ended);
    }
}

impl FileCore {
    /// Closes the file, whose last handle is gone, unless that was begun.
    pub(crate) fn close_once(&self) {
        if self.closing.begin() {
            let _ended = Ended(&self.closing);
            self.close();
        }
    }

    /// The last handle went where the file cannot be closed: has another thread do it.
    pub(crate) fn close_elsewhere(&self) {
        let Some(core) = self.me.upgrade() else {
            return;
        };
        self.closing.set(Stage::Left);
        let (group, owner) = (self.id.group.id(), self.id.owner);
        self.cache
            .defer(group, Some(owner), move || core.close_once());
    }

    /// Closes the file if that is left to somebody, and waits until it is closed. The last handle
    /// is gone, or going. No section is open, no lock held.
    pub(crate) fn wait_closed(&self) {
        while self.closing.wait() {
            self.close_once();
        }
    }
}
