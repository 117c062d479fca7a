//! The end of a file: closes it when its last handle or mapping is dropped, or leaves that to
//! another thread.

use crate::cache::core::FileCore;
use crate::cache::dirty::punch::has_unwritten;
use crate::cache::dirty::sync_file::{sync_blocks, wait_written};
use crate::cache::errors::ErrorCursor;
use crate::cache::lookup::batch::remove_blocks;
use crate::stats::tell;
use crate::sync::failpoint;
use crate::sync::panics::Panics;

/// Closes the file, unless closing has already begun. The caller has seen the last handle dropped.
pub(crate) fn close_once(core: &FileCore) {
    if let Some(_ended) = core.closing.begin() {
        close(core);
    }
}

/// Leaves the closing of the file to another thread. The file's last handle was dropped where the
/// file cannot be closed.
pub(crate) fn close_elsewhere(core: &FileCore) {
    let Some(shared) = core.me.upgrade() else {
        return;
    };
    core.closing.leave();
    let (group, owner) = (core.id.group.id(), Some(core.id.owner));
    core.cache.defer(group, owner, move || close_once(&shared));
}

/// Waits until the file is closed, and closes it here if that was left to another thread. The
/// caller has seen the last handle dropped, or being dropped. It has no section open and holds no
/// lock.
pub(crate) fn wait_closed(core: &FileCore) {
    while core.closing.wait() {
        close_once(core);
    }
}

/// Closes the file, whose last handle is dropped: writes unwritten data and frees the blocks. Data
/// that cannot be written is lost, and the memory's error list says so. The caller has no section
/// open and holds no lock. If foreign code (a store, a waker) panics, the panic resumes once the
/// file is closed.
fn close(core: &FileCore) {
    core.ready.begin_close();
    // A thread that found the file open under this mutex has inserted its blocks by now.
    drop(core.blocks.index.lock());
    let mut panics = Panics::default();
    // This is a first attempt, whose failure is not reported yet. A panic of the store is a
    // failure, too.
    panics.catch(|| drop(sync_blocks(core, 0..core.end_block(), None)));
    if has_unwritten(core) {
        write_last(core, &mut panics);
    }
    core.detach_requests();
    remove_blocks(core, 0..u64::MAX);
    debug_assert_eq!(
        core.blocks.index.counts().blocks,
        0,
        "blocks of a closed file"
    );
    core.blocks.index.write().drop_shadows(core.frames(), 0);
    panics.catch(|| core.store.close());
    core.cache.remove_file(core);
    // Futures are woken only now, when the store can be opened again: their tasks may open it
    // immediately.
    core.ready.wake_closed(&core.closed(), &mut panics);
    // Frees what still waits for a grace period: when the last user's call returns, none of the
    // file's memory is to be charged any more.
    panics.catch(|| core.pool.finish_retired());
    panics.catch(|| {
        tell!(debug, file = %core.id.name, "file closed");
    });
    panics.go_on();
}

/// Tries once more to write the unwritten data of a file that is being closed, now with no other
/// writer. (Data may be left because writes of the first attempt, or of other threads, have
/// failed.) Data that cannot be written now is lost.
fn write_last(core: &FileCore, panics: &mut Panics) {
    core.dirty().begin_close();
    wait_written(core, 0..u64::MAX);
    failpoint!(Closing);
    let failures = core.writes.errors.count();
    let mut outcome = Ok(());
    panics.catch(|| outcome = sync_blocks(core, 0..core.end_block(), None));
    if has_unwritten(core)
        && let Err(error) = core.writes.errors.check(&ErrorCursor::behind(failures))
    {
        core.cache.log_error(error);
    }
    if let Err(error) = outcome {
        core.cache.log_error(error);
    }
}
