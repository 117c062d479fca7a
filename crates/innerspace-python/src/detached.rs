//! Values that are dropped with the interpreter's lock released.

use std::ops::{Deref, DerefMut};

use pyo3::Python;

/// A value whose drop may wait, for a disk or for a thread that needs the interpreter. While it
/// waits, other threads of the program run Python.
#[derive(Debug)]
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Detached<T> {
        Detached(Some(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only the drop takes the value")
    }
}

impl<T: Send> DerefMut for Detached<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only the drop takes the value")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = &mut self.0;
        let dropped = Python::try_attach(|py| {
            let value = value.take();
            py.detach(move || drop(value));
        });
        // The interpreter is ending, and no thread can take its lock any more: a drop that needs
        // it would wait for ever. The process ends soon, and with it the memory.
        if dropped.is_none() {
            std::mem::forget(value.take());
        }
    }
}
