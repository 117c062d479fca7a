//! The requests in flight of a file, by their blocks: how each is run, ended once, and waited for.
//!
//! **A request** is an [`Entry`] of its file's [`InFlight`]. Its work is the call to make. The work
//! is with the store, or queued in the entry until it is taken by a worker or by a thread that
//! waits for a block. The request ends once, by [`InFlight::leave`]. That call returns the owner of
//! the blocks: the file, or only the request if the file was closed meanwhile
//! ([`InFlight::detach_all`]).
//!
//! **Waiting.** A thread that waits for a block sleeps on the block's lock, which this module does
//! not know. If threads make the calls, nothing else is needed.
//!
//! If there are no threads, the waiters make the calls. A call may then be queued after a waiter
//! has begun to wait, by a thread that must not make the call itself. Such a waiter sleeps in this
//! module ([`InFlight::wait_filled`]). Under the table's mutex it checks the block and whether a
//! call is queued. A thread that has queued a call or filled a block ([`InFlight::note_filled`])
//! acquires the same mutex before it notifies, whether or not the block has a request. So the
//! waiter misses neither.
//!
//! **Locking.** The mutexes of the table and of the entries are innermost, with two exceptions. A
//! waiter takes an entry's work under the table's mutex. The blocks of a closed file leave it under
//! the mutex of the entry's stage.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::{Arc, Condvar, Mutex, thread};

/// The requests of one file.
pub(crate) struct InFlight<W> {
    table: Mutex<Table<W>>,
    /// Notified when a request has left the table by ending, when it has released its blocks, and
    /// when its work has been queued. Without threads, it is also notified when a block has been
    /// filled, because a thread may be waiting for that block.
    changed: Condvar,
}

struct Table<W> {
    /// The requests, ordered by first block. No two have a block in common.
    entries: BTreeMap<u64, Arc<Entry<W>>>,
    /// The number of requests that have left the table and have yet to release their blocks.
    leaving: u32,
}

/// One request, as other threads see it.
pub(crate) struct Entry<W> {
    blocks: Range<u64>,
    /// The request's work, while it is queued.
    queued: Mutex<Option<W>>,
    /// The state of the request. Its mutex is acquired before that of the file's index, because it
    /// is held while the blocks of a closed file leave the index.
    stage: Mutex<Stage>,
}

/// The owner of a request's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The file owns them, and waits for the request.
    Attached,
    /// The request owns them: its file was closed.
    Detached,
    /// The file owns them: the request is over, or about to be.
    Over,
}

impl<W> Entry<W> {
    pub(crate) fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// Removes and returns the work, if it is queued.
    pub(crate) fn take(&self) -> Option<W> {
        self.queued.lock().take()
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.queued.lock().is_some()
    }
}

impl<W> Table<W> {
    fn find(&self, blocks: &Range<u64>) -> Option<&Arc<Entry<W>>> {
        let meets = |entry: &&Arc<Entry<W>>| {
            entry.blocks.start < blocks.end && blocks.start < entry.blocks.end
        };
        let before = self.entries.range(..=blocks.start).next_back();
        let before = before.map(|(_, entry)| entry).filter(meets);
        before.or_else(|| {
            let behind = self.entries.range(blocks.start..).next();
            behind.map(|(_, entry)| entry).filter(meets)
        })
    }
}

impl<W> InFlight<W> {
    /// Creates a table with nothing in flight.
    pub(crate) fn new() -> InFlight<W> {
        InFlight {
            table: Mutex::new(Table {
                entries: BTreeMap::new(),
                leaving: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a request for these blocks. Panics if another request begins at the same block.
    pub(crate) fn add(&self, blocks: Range<u64>) -> Arc<Entry<W>> {
        let first = blocks.start;
        let entry = Arc::new(Entry {
            blocks,
            queued: Mutex::new(None),
            stage: Mutex::new(Stage::Attached),
        });
        let before = self.table.lock().entries.insert(first, entry.clone());
        assert!(before.is_none(), "I7: block {first} is in flight already");
        entry
    }

    /// Queues the work of a request. If the file was closed, returns the work, since it is no
    /// longer wanted.
    pub(crate) fn queue(&self, entry: &Entry<W>, work: W) -> Option<W> {
        *entry.queued.lock() = Some(work);
        // The stage is read after the work was queued. Either this thread sees that the file is
        // closed, or the thread that closes the file sees the queued work.
        if *entry.stage.lock() == Stage::Detached {
            return entry.take();
        }
        // Wakes threads that wait for the request, since one of them may have to do the work. The
        // mutex is acquired first, so that a thread that is about to sleep is not missed.
        drop(self.table.lock());
        self.changed.notify_all();
        None
    }

    /// Removes from the table a request that is about to end, unless it was detached. The result
    /// holds the request's previous stage, which names the owner of the blocks.
    pub(crate) fn leave(&self, entry: &Entry<W>) -> Leaving<'_, W> {
        let was = {
            let mut stage = entry.stage.lock();
            match *stage {
                Stage::Detached => Stage::Detached,
                _ => std::mem::replace(&mut *stage, Stage::Over),
            }
        };
        let mut table = self.table.lock();
        table.leaving += 1;
        if was == Stage::Attached {
            table.entries.remove(&entry.blocks.start);
            drop(table);
            self.changed.notify_all();
        }
        let in_flight = self;
        Leaving { in_flight, was }
    }

    /// Returns the first request that has a block of the range.
    fn first_in(&self, blocks: &Range<u64>) -> Option<Arc<Entry<W>>> {
        self.table.lock().find(blocks).cloned()
    }

    /// Takes the work of the request that has the block, if it is queued.
    pub(crate) fn take_queued(&self, block: u64) -> Option<W> {
        self.first_in(&(block..block + 1))?.take()
    }

    /// In a memory without threads, waits until a block was filled or could not be filled. If the
    /// work of the block's request is queued, passes it to `run`.
    pub(crate) fn wait_filled(
        &self,
        block: u64,
        is_being_filled: impl Fn() -> bool,
        run: impl FnMut(W),
    ) {
        self.wait_while(&(block..block + 1), |_| is_being_filled(), run);
    }

    /// Waits while `waits`, which is called with the table locked, returns true. If the work of the
    /// first request in the range is queued, passes it to `run`.
    fn wait_while(
        &self,
        blocks: &Range<u64>,
        waits: impl Fn(&Table<W>) -> bool,
        mut run: impl FnMut(W),
    ) {
        let mut table = self.table.lock();
        while waits(&table) {
            if let Some(work) = table.find(blocks).and_then(|entry| entry.take()) {
                drop(table);
                run(work);
                table = self.table.lock();
                continue;
            }
            table = self.changed.wait(table);
        }
    }

    /// In a memory without threads, wakes the callers that wait for a block, after one was filled
    /// or could not be filled. The block's new state must be visible already.
    pub(crate) fn note_filled(&self) {
        // A thread that found the block's old state did so with the table locked. By the time this
        // thread has acquired the lock, that thread is asleep, and the notification reaches it.
        drop(self.table.lock());
        self.changed.notify_all();
    }

    /// Waits until no request has a block of the range. Passes queued work to `run`. The caller
    /// must prevent new requests meanwhile.
    pub(crate) fn wait_landed(&self, blocks: &Range<u64>, run: impl FnMut(W)) {
        self.wait_while(blocks, |table| table.find(blocks).is_some(), run);
    }

    /// Waits until all requests that have left the table have also released their blocks.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn wait_quiet(&self) {
        let mut table = self.table.lock();
        while table.leaving > 0 {
            table = self.changed.wait(table);
        }
    }

    /// Detaches every request. If a request's work is queued, the work is dropped, which ends the
    /// request. A request that is about to end leaves the table by itself. Any other request owns
    /// its blocks from now on, and `take_out` removes those blocks from the file. The caller must
    /// prevent new requests meanwhile.
    pub(crate) fn detach_all(&self, mut take_out: impl FnMut(&Range<u64>)) {
        while let Some(entry) = self.first_in(&(0..u64::MAX)) {
            // If the work was queued, no store has the request, and dropping the work ends it.
            let queued = entry.take();
            if queued.is_some() {
                continue;
            }
            let mut stage = entry.stage.lock();
            if *stage != Stage::Attached {
                // The request is about to end. It leaves the table without waiting for this thread.
                drop(stage);
                thread::yield_now();
                continue;
            }
            *stage = Stage::Detached;
            take_out(&entry.blocks);
            drop(stage);
            self.table.lock().entries.remove(&entry.blocks.start);
            // The work may have been queued again meanwhile.
            drop(entry.take());
        }
    }
}

/// A request that has left the table and is releasing its blocks.
#[must_use = "the blocks count as released when this is dropped"]
pub(crate) struct Leaving<'f, W> {
    in_flight: &'f InFlight<W>,
    pub(crate) was: Stage,
}

impl<W> Drop for Leaving<'_, W> {
    fn drop(&mut self) {
        self.in_flight.table.lock().leaving -= 1;
        self.in_flight.changed.notify_all();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl<W> InFlight<W> {
        /// Returns whether a thread sleeps in [`InFlight::wait_filled`].
        pub(crate) fn is_waited_on(&self) -> bool {
            self.changed.is_waited_on()
        }

        /// Returns the number of requests in flight.
        pub(crate) fn len(&self) -> usize {
            self.table.lock().entries.len()
        }
    }
}
