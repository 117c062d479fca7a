//! The progress of a file's closing. A file is closed once, and other threads can wait for that.

use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, OnDrop, Rank};

/// The stage of a file's closing. The mutex is not held while a thread does the closing.
pub(crate) struct Closing {
    stage: Mutex<Stage>,
    moved: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A handle or mapping exists, or the drop of the last one has not been noted yet.
    Open,
    /// The last handle or mapping was dropped where the file could not be closed, so any thread may
    /// close it.
    Left,
    /// The thread with this ID is closing the file.
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
    /// Notes that the last handle or mapping was dropped where the file cannot be closed.
    pub(crate) fn leave(&self) {
        self.set(Stage::Left);
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.moved.notify_all();
    }

    /// Begins to close the file. Returns `None` if closing has already begun. The closing ends when
    /// the result is dropped, even if a store or waker has panicked.
    pub(crate) fn begin(&self) -> Option<OnDrop<impl FnMut()>> {
        let mut stage = self.stage.lock();
        let begins = matches!(*stage, Stage::Open | Stage::Left);
        if begins {
            *stage = Stage::Running(thread::current().id());
        }
        begins.then(|| OnDrop(|| self.set(Stage::Ended)))
    }

    /// Waits until the file is closed, or until the caller has to close it. Returns whether the
    /// caller has to. Does not wait if the calling thread itself is closing the file.
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
