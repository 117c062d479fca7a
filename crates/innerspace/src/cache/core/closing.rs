//! How far the closing of a file has come: it is closed once, and others can wait for that.

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
    /// The last handle went where the file cannot be closed.
    pub(crate) fn leave(&self) {
        self.set(Stage::Left);
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.moved.notify_all();
    }

    /// The caller is to close the file, if that was not begun: until it drops the result.
    pub(crate) fn begin(&self) -> Option<Ended<'_>> {
        let mut stage = self.stage.lock();
        let begins = matches!(*stage, Stage::Open | Stage::Left);
        if begins {
            *stage = Stage::Running(thread::current().id());
        }
        begins.then(|| Ended(self))
    }

    /// Waits until there is something to do. Returns whether the caller is to close the file; does
    /// not wait for the caller itself.
    pub(crate) fn wait(&self) -> bool {
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
pub(crate) struct Ended<'f>(&'f Closing);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.set(Stage::Ended);
    }
}
