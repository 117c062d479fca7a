//! std under the names of `crate::sync`, until that module is there.

pub(crate) use std::sync::{Arc, MutexGuard};

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
}

pub(crate) mod raw {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

pub(crate) mod thread {
    pub(crate) use std::thread::*;
}

pub(crate) use std::thread_local;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
