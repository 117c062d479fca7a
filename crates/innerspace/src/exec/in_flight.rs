//! The requests in flight of a file, by their blocks: how each is run, ended once, and waited for.
//!
//! **A request** is an [`Entry`] of its file's [`InFlight`]. Its work is the call to make. The work
//! is with the store, or queued in the entry until it is taken by a worker or by a thread that
//! waits for a block. The request ends once, by [`InFlight::leave`]. That call tells who owns the
//! blocks: the file, or only the request, because the file was closed meanwhile
//! ([`InFlight::detach_all`]).
//!
//! **Waiting.** A thread that waits for a block sleeps on the block's lock, which this module does
//! not know. If threads make the calls, nothing else is needed.
//!
//! If there are no threads, the waiters make the calls. A call may then be queued after a waiter
//! has begun to wait, by a thread that must not make the call itself. Such a waiter sleeps in this
//! module ([`InFlight::wait_filled`]). Under the table's mutex it checks the block and whether a
//! call is queued. The same mutex is taken after a call was queued and after a block was filled
//! ([`InFlight::note_filled`]), whether or not that block has a request.
//!
//! **Locking.** The mutexes of the table and of the entries are innermost, with one exception: the
//! blocks of a closed file leave it under the mutex of the entry's stage.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::{Arc, Condvar, Mutex, thread};

/// The requests of one file.
pub(crate) struct InFlight<W> {
    table: Mutex<Table<W>>,
    /// Notified when a request has left the table, or its work was queued. Without threads, it is
    /// also notified when a block has been filled, because a thread may be waiting for that block.
    changed: Condvar,
}

struct Table<W> {
    /// The requests, ordered by first block. No two have a block in common.
    entries: BTreeMap<u64, Arc<Entry<W>>>,
    /// The number of requests that have left and have yet to release their blocks.
    leaving: u32,
}

/// One request, as other threads see it.
pub(crate) struct Entry<W> {
    blocks: Range<u64>,
    /// The request's work, while it is queued.
    queued: Mutex<Option<W>>,
    /// The state of the request. Its mutex is further out than the mutex of the file's index,
    /// because it is held while the blocks of a closed file leave the index.
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
    /// Returns the request's blocks.
    pub(crate) fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// Takes the work out, if it is queued.
    pub(crate) fn take(&self) -> Option<W> {
        self.queued.lock().take()
    }

    /// Returns whether the work is queued.
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
    /// Makes a table with nothing in flight.
    pub(crate) fn new() -> InFlight<W> {
        InFlight {
            table: Mutex::new(Table {
                entries: BTreeMap::new(),
                leaving: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a request for these blocks.
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
        // A thread that waits for the request may now have to do the work.
        drop(self.table.lock());
        self.changed.notify_all();
        None
    }

    /// Takes a request that is about to end out of the table, unless it was detached. The result
    /// has the request's stage before that, which tells who owns the blocks.
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

    /// Waits until a block was filled or could not be filled, in a memory without threads. If the
    /// work of the block's request is queued, `run` does it.
    pub(crate) fn wait_filled(
        &self,
        block: u64,
        is_being_filled: impl Fn() -> bool,
        run: impl FnMut(W),
    ) {
        self.wait_while(&(block..block + 1), |_| is_being_filled(), run);
    }

    /// Waits for a state of the table, or of a block. If the work of the first request in the range
    /// is queued, `run` does it.
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

    /// Notes that a block was filled or could not be filled, in a memory without threads. The
    /// block's new state must be visible already.
    pub(crate) fn note_filled(&self) {
        // A thread that found the block's old state sleeps once the table is unlocked.
        drop(self.table.lock());
        self.changed.notify_all();
    }

    /// Waits until no request has a block of the range. `run` does queued work. Meanwhile the
    /// caller prevents new requests.
    pub(crate) fn wait_landed(&self, blocks: &Range<u64>, run: impl FnMut(W)) {
        self.wait_while(blocks, |table| table.find(blocks).is_some(), run);
    }

    /// Waits until all requests that have left have also released their blocks.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn wait_quiet(&self) {
        let mut table = self.table.lock();
        while table.leaving > 0 {
            table = self.changed.wait(table);
        }
    }

    /// Detaches every request. If a request's work is queued, the work is dropped, which ends the
    /// request. Any other request owns its blocks from now on, and `take_out` takes those blocks
    /// out of the file. Meanwhile the caller prevents new requests.
    pub(crate) fn detach_all(&self, mut take_out: impl FnMut(&Range<u64>)) {
        while let Some(entry) = self.first_in(&(0..u64::MAX)) {
            // If the work was queued, no store has the request.
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
