//! The guard against re-entry: the callbacks and store calls that this thread is in, and the file
//! locks that it holds.
//!
//! If a store's callback called back into its own file, or a device's handler into its own space,
//! the thread would wait for itself. So each layer records here what it enters, and refuses calls
//! that would wait for themselves. In this module files and spaces are plain numbers: a file is
//! named by its address, a space by its identifier.
//!
//! Destructors of thread locals may call the library, too. The list therefore has no destructor,
//! and exists as long as the thread; [`Ending`] frees its memory.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};

crate::sync::thread_local! {
    /// The places that this thread is in.
    static PLACES: Places = const { Places(ManuallyDrop::new(RefCell::new(Vec::new()))) };
    /// The number of file locks that this thread holds and on which other threads may sleep. Block
    /// locks are not counted.
    static FILE_LOCKS: Cell<u32> = const { Cell::new(0) };
    /// The number of callbacks of spaces in `PLACES`. This value needs no destructor, so reading it
    /// costs one load.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static ENDING: Ending = const { Ending };
}

/// A place where a thread can be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A call to the store of the file at this address.
    Store(usize),
    /// A callback of this space.
    Space(u64),
    /// The call of a task.
    Task,
    /// The queued work of the cache at this address.
    Cache(usize),
}

/// The flag that is set if the thread uses files in a place. `None` for places other than store
/// calls.
type UsesFiles = Option<Arc<AtomicBool>>;

/// The places where one thread is, the innermost last. The list has no destructor.
struct Places(ManuallyDrop<RefCell<Vec<(Place, UsesFiles)>>>);

impl Places {
    fn push(&self, place: Place, uses_files: UsesFiles) {
        // Makes the thread free the list's memory when it ends.
        let _ = ENDING.try_with(|_| ());
        self.0.borrow_mut().push((place, uses_files));
    }

    /// Removes the innermost entry for `place`.
    fn remove(&self, place: Place) {
        let mut list = self.0.borrow_mut();
        let at = list.iter().rposition(|(one, _)| *one == place);
        list.remove(at.expect("left once, by the thread that entered"));
        drop(list);
        if ENDING.try_with(|_| ()).is_err() {
            self.free();
        }
    }

    /// Frees the memory if the list is empty.
    fn free(&self) {
        if self.0.borrow().is_empty() {
            drop(self.0.take());
        }
    }
}

/// A thread local that frees the list's memory when the thread ends.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = PLACES.try_with(Places::free);
    }
}

/// Marks this thread as being in a place, until it is dropped.
#[must_use = "the thread leaves the place when this is dropped"]
pub(crate) struct Inside(Place, PhantomData<*const ()>);

impl Inside {
    fn begin(place: Place, uses_files: UsesFiles) -> Inside {
        let _ = PLACES.try_with(|places| places.push(place, uses_files));
        Inside(place, PhantomData)
    }

    /// Begins a call to the store of the file at address `file`. If the store uses a file of this
    /// library during the call, `uses_files` is set.
    pub(crate) fn store_call(file: usize, uses_files: Arc<AtomicBool>) -> Inside {
        note_use();
        Inside::begin(Place::Store(file), Some(uses_files))
    }

    /// Begins a callback of a space: a device's handler, or the part of a fault or a change in
    /// which stores may be called, to fill blocks or to free memory.
    pub(crate) fn callback(space: u64) -> Inside {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Inside::begin(Place::Space(space), None)
    }

    /// Begins the call of a task on a direct-access file.
    pub(crate) fn task() -> Inside {
        Inside::begin(Place::Task, None)
    }

    /// Begins the queued work of the cache at this address.
    pub(crate) fn serving(cache: usize) -> Inside {
        Inside::begin(Place::Cache(cache), None)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Place::Space(_) = self.0 {
            let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
        }
        let _ = PLACES.try_with(|places| places.remove(self.0));
    }
}

/// Sets the flags of the stores that this thread is calling, because they use files. A store may
/// have failed to declare that it uses files.
#[inline]
fn note_use() {
    let _ = PLACES.try_with(|places| {
        for uses_files in places
            .0
            .borrow()
            .iter()
            .filter_map(|(_, flag)| flag.as_ref())
        {
            // Relaxed: the flag orders nothing. Until a thread sees it, the thread treats the store
            // as one that uses no files.
            uses_files.store(true, Ordering::Relaxed);
        }
    });
}

/// Returns whether this thread is in a place for which `is_it` is true.
fn is_inside(is_it: impl Fn(Place) -> bool) -> bool {
    let any = |places: &Places| places.0.borrow().iter().any(|(place, _)| is_it(*place));
    PLACES.try_with(any).unwrap_or(false)
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

/// Returns whether this thread is calling the store of the file at this address.
pub(crate) fn is_in_store_call(file: usize) -> bool {
    is_inside(|place| place == Place::Store(file))
}

/// Returns whether this thread is calling the store of any file.
fn is_in_any_store_call() -> bool {
    is_inside(|place| matches!(place, Place::Store(_)))
}

/// Returns whether this thread is calling stores, but not the store of the file at this address.
pub(crate) fn is_in_other_store_calls(file: usize) -> bool {
    is_in_any_store_call() && !is_in_store_call(file)
}

/// Returns whether this thread holds no file's lock and is in no store call.
pub(crate) fn is_outermost() -> bool {
    FILE_LOCKS.try_with(Cell::get).unwrap_or(0) == 0 && !is_in_any_store_call()
}

/// Returns the number of callbacks of spaces that this thread is in.
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
    is_inside(|place| place == Place::Space(space))
}

/// Returns whether this thread is in a callback of a space and in no store call, as in a device's
/// handler.
pub(crate) fn is_in_device() -> bool {
    callback_depth() > 0 && !is_in_any_store_call()
}

/// Returns whether this thread is making the call of a task. The result of such a call is for
/// another thread, and the calls queued behind it wait for it.
pub(crate) fn is_in_task() -> bool {
    is_inside(|place| place == Place::Task)
}

/// Returns whether this thread is doing the queued work of the cache at this address. If so,
/// waiting for that work here would never end.
pub(crate) fn is_serving(cache: usize) -> bool {
    is_inside(|place| place == Place::Cache(cache))
}
