//! Batches of new frames: a frame waits with up to fifteen others, and the list lock is taken once
//! for all of them.
//!
//! Each thread has the batch with its number, to which it alone adds, by plain stores. Threads with
//! higher numbers share a few batches, each with a mutex. `sync::pending` has the protocol: the
//! mark is `LruState::Batch`, and it is cleared under the lock of the lists of the frame's group.
//! So a frame is removed from a batch, or changed there, in the same way as on a list. The frame's
//! number stays behind in the batch, without effect.
//!
//! A frame that was freed may be in a batch again, for another group, while a drain still finds its
//! old number: `frame::listing` tells the two entries apart.

use crate::stats::thread_number;
use crate::sync::pending::Pending;
use crate::sync::per_thread::{OWNERS, SHARED, ThreadSlots};

/// The number of batches of one pool.
pub(super) const BATCHES: usize = OWNERS + SHARED;

/// The number of frames in a full batch.
pub(crate) const BATCH_LEN: usize = 16;

/// The batches of all threads.
pub(super) type Batches = ThreadSlots<Pending<BATCH_LEN>>;

/// Returns the number of the calling thread's batch.
#[inline]
pub(crate) fn thread_batch() -> u8 {
    match thread_number() {
        own if own < OWNERS => own as u8,
        many => (OWNERS + many % SHARED) as u8,
    }
}
