//! The guard against re-entry: the callbacks, store calls and file locks that this thread is inside
//! of.
//!
//! If a store's callback came back to its own file, or a device's handler to its own space, it
//! would wait for itself. So each layer lists here what it enters, and refuses calls that would
//! wait for themselves. In this module files and spaces are plain numbers: a file is named by its
//! address, a space by its identifier.
//!
//! Destructors of thread locals may call the library, too. The lists therefore have no destructors,
//! and exist as long as the thread; [`Ending`] frees their memory.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

crate::sync::thread_local! {
    /// The files whose stores this thread is calling.
    static STORE_CALLS: List<Called> = const { List::new() };
    /// The number of file locks that this thread holds and on which a thread may sleep. Block locks
    /// are not counted.
    static FILE_LOCKS: Cell<u32> = const { Cell::new(0) };
    /// The spaces in whose callbacks this thread is.
    static CALLBACKS: List<u64> = const { List::new() };
    /// The length of `CALLBACKS`. It needs no destructor, so reading it costs one load.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The number of calls of tasks that this thread is making.
    static TASKS: Cell<u32> = const { Cell::new(0) };
    /// The addresses of the caches whose queued work this thread is doing.
    static SERVED: List<usize> = const { List::new() };
    static ENDING: Ending = const { Ending };
}

/// A list of the things that one thread is inside of. It has no destructor.
struct List<T>(ManuallyDrop<RefCell<Vec<T>>>);

impl<T> List<T> {
    const fn new() -> List<T> {
        List(ManuallyDrop::new(RefCell::new(Vec::new())))
    }

    fn push(&self, inside: T) {
        // Makes the thread free the memory at its end.
        let _ = ENDING.try_with(|_| ());
        self.0.borrow_mut().push(inside);
    }

    /// Removes the last entry for which `is_it` is true.
    fn remove(&self, is_it: impl FnMut(&T) -> bool) {
        let mut list = self.0.borrow_mut();
        let at = list.iter().rposition(is_it);
        list.remove(at.expect("left once, by the thread that entered"));
        drop(list);
        if ENDING.try_with(|_| ()).is_err() {
            self.free();
        }
    }

    fn has(&self, is_it: impl FnMut(&T) -> bool) -> bool {
        self.0.borrow().iter().any(is_it)
    }

    fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Frees the memory if the list is empty.
    fn free(&self) {
        if self.len() == 0 {
            drop(self.0.take());
        }
    }
}

/// A thread local that frees the lists' memory when the thread ends.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = STORE_CALLS.try_with(List::free);
        let _ = CALLBACKS.try_with(List::free);
        let _ = SERVED.try_with(List::free);
    }
}

/// A file whose store is being called.
struct Called {
    file: usize,
    uses_files: Arc<AtomicBool>,
}

/// Notes that the stores being called use files. A store may have forgotten to declare that.
#[inline]
fn note_use() {
    let _ = STORE_CALLS.try_with(|calls| {
        for called in calls.0.borrow().iter() {
            // Relaxed: a thread that sees this late has treated the store as one that uses no
            // files.
            called.uses_files.store(true, Ordering::Relaxed);
        }
    });
}

/// Marks this thread as holding a file's lock, until it is dropped.
#[must_use = "the file counts as unlocked when this is dropped"]
pub(crate) struct FileLocked(PhantomData<*const ()>);

impl FileLocked {
    #[inline]
    pub(crate) fn begin() -> FileLocked {
        note_use();
        let _ = FILE_LOCKS.try_with(|locks| locks.set(locks.get() + 1));
        FileLocked(PhantomData)
    }
}

impl Drop for FileLocked {
    #[inline]
    fn drop(&mut self) {
        let _ = FILE_LOCKS.try_with(|locks| locks.set(locks.get() - 1));
    }
}

/// Marks this thread as calling the store of a file, until it is dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct InStoreCall(usize);

impl InStoreCall {
    /// Begins a call to the store of the file at address `file`. If the store uses a file of this
    /// library during the call, `uses_files` is set.
    pub(crate) fn begin(file: usize, uses_files: Arc<AtomicBool>) -> InStoreCall {
        note_use();
        let called = Called { file, uses_files };
        let _ = STORE_CALLS.try_with(|calls| calls.push(called));
        InStoreCall(file)
    }
}

impl Drop for InStoreCall {
    fn drop(&mut self) {
        let _ = STORE_CALLS.try_with(|calls| calls.remove(|called| called.file == self.0));
    }
}

/// Returns whether this thread is calling the store of the file at this address.
pub(crate) fn is_in_store_call(file: usize) -> bool {
    STORE_CALLS
        .try_with(|calls| calls.has(|called| called.file == file))
        .unwrap_or(false)
}

/// Returns whether this thread is calling the store of any file.
fn is_in_any_store_call() -> bool {
    STORE_CALLS
        .try_with(|calls| calls.len() > 0)
        .unwrap_or(false)
}

/// Returns whether this thread is calling stores, but not the store of the file at this address.
pub(crate) fn is_in_other_store_calls(file: usize) -> bool {
    is_in_any_store_call() && !is_in_store_call(file)
}

/// Returns whether this thread holds no file's lock and is in no store call.
pub(crate) fn is_outermost() -> bool {
    FILE_LOCKS.try_with(Cell::get).unwrap_or(0) == 0 && !is_in_any_store_call()
}

/// Marks this thread as inside a callback of a space, until it is dropped. Such a callback is a
/// device's handler, or a store's callback for a fault or a change.
#[must_use = "the callback ends when this is dropped"]
pub(crate) struct InCallback(u64);

impl InCallback {
    pub(crate) fn begin(space: u64) -> InCallback {
        change_callbacks(|spaces| spaces.push(space));
        InCallback(space)
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        change_callbacks(|spaces| spaces.remove(|space| *space == self.0));
    }
}

fn change_callbacks(change: impl FnOnce(&List<u64>)) {
    let _ = CALLBACKS.try_with(|spaces| {
        change(spaces);
        let _ = DEPTH.try_with(|depth| depth.set(spaces.len()));
    });
}

/// Returns the number of callbacks of spaces in which this thread is.
#[inline(always)]
pub(crate) fn callback_depth() -> usize {
    DEPTH.try_with(Cell::get).unwrap_or(1)
}

/// Returns whether this thread is in a callback of the space.
#[inline(always)]
pub(crate) fn is_in_callback(space: u64) -> bool {
    callback_depth() != 0 && is_listed(space)
}

#[cold]
fn is_listed(space: u64) -> bool {
    CALLBACKS
        .try_with(|spaces| spaces.has(|inside| *inside == space))
        .unwrap_or(false)
}

/// Returns whether this thread is in a callback of a space and in no store call, as in a device's
/// handler.
pub(crate) fn is_in_device() -> bool {
    callback_depth() > 0 && !is_in_any_store_call()
}

/// Marks this thread as making the call of a task on a direct-access file, until it is dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct InTask(PhantomData<*const ()>);

impl InTask {
    pub(crate) fn begin() -> InTask {
        let _ = TASKS.try_with(|tasks| tasks.set(tasks.get() + 1));
        InTask(PhantomData)
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        let _ = TASKS.try_with(|tasks| tasks.set(tasks.get() - 1));
    }
}

/// Returns whether this thread is making the call of a task. The result of such a call is for
/// another thread, and the calls queued behind it wait for it.
pub(crate) fn is_in_task() -> bool {
    TASKS.try_with(|tasks| tasks.get() > 0).unwrap_or(false)
}

/// Marks this thread as doing the queued work of a cache, until it is dropped.
#[must_use = "the work ends when this is dropped"]
pub(crate) struct Serving(usize);

impl Serving {
    /// Begins the queued work of the cache at this address.
    pub(crate) fn begin(cache: usize) -> Serving {
        let _ = SERVED.try_with(|served| served.push(cache));
        Serving(cache)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = SERVED.try_with(|served| served.remove(|cache| *cache == self.0));
    }
}

/// Returns whether this thread is doing the queued work of the cache at this address. If so,
/// waiting for that work here would never end.
pub(crate) fn is_serving(cache: usize) -> bool {
    SERVED
        .try_with(|served| served.has(|inside| *inside == cache))
        .unwrap_or(false)
}
