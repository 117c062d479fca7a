//! The progress of the closing of a file: it is closed once, and other threads can wait for that.

use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, OnDrop, Rank};

/// The stage of a file's closing. The mutex is not held while the file is closed.
pub(crate) struct Closing {
    stage: Mutex<Stage>,
    moved: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A handle or mapping exists, or the last one is about to report that it is dropped.
    Open,
    /// The last one was dropped where the file could not be closed.
    Left,
    /// This thread is closing the file.
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
    /// Notes that the last handle was dropped where the file cannot be closed.
    pub(crate) fn leave(&self) {
        self.set(Stage::Left);
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.moved.notify_all();
    }

    /// Begins to close the file, unless that was begun before. The closing ends when the result is
    /// dropped, also if a store or waker has panicked.
    pub(crate) fn begin(&self) -> Option<OnDrop<impl FnMut()>> {
        let mut stage = self.stage.lock();
        let begins = matches!(*stage, Stage::Open | Stage::Left);
        if begins {
            *stage = Stage::Running(thread::current().id());
        }
        begins.then(|| OnDrop(|| self.set(Stage::Ended)))
    }

    /// Waits until the file is closed, or has to be closed by the caller. Returns whether the
    /// caller is to close it. Does not wait for a closing by the calling thread itself.
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
