//! Points in the middle of an operation at which a test can run code of its own.
//!
//! `failpoint!(Name)` marks a point. In tests `on` arms it. Outside tests and under the model
//! checkers the macro expands to nothing.

/// Marks a point in an operation at which a test can step in. With `if`, the point counts only when
/// the condition holds; the condition is evaluated in tests only.
#[cfg_attr(
    any(loom, shuttle),
    allow(unused_macros, reason = "only tests step in")
)]
macro_rules! failpoint {
    ($name:ident) => {
        #[cfg(all(test, not(any(loom, shuttle))))]
        $crate::sync::failpoint::reached(stringify!($name));
    };
    ($name:ident if $condition:expr) => {
        #[cfg(all(test, not(any(loom, shuttle))))]
        if $condition {
            $crate::sync::failpoint::reached(stringify!($name));
        }
    };
}
pub(crate) use failpoint;

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) use armed::*;

#[cfg(all(test, not(any(loom, shuttle))))]
mod armed {
    use std::cell::{Cell, RefCell};
    use std::marker::PhantomData;

    type Work = Box<dyn FnOnce()>;

    thread_local! {
        static ARMED: RefCell<Vec<(&'static str, Work)>> = const { RefCell::new(Vec::new()) };
        static COUNTED: Cell<(&'static str, u64)> = const { Cell::new(("", 0)) };
    }

    /// Runs `work`, and returns how often this thread reached the failpoint `name` in it.
    pub(crate) fn count(name: &'static str, work: impl FnOnce()) -> u64 {
        COUNTED.set((name, 0));
        work();
        COUNTED.replace(("", 0)).1
    }

    /// An armed failpoint. Dropping it panics if this thread has not reached the point since.
    #[must_use = "the point must be reached before this is dropped"]
    pub(crate) struct Armed(&'static str, PhantomData<*const ()>);

    /// Runs `work` the next time that this thread reaches the failpoint `name`.
    pub(crate) fn on(name: &'static str, work: impl FnOnce() + 'static) -> Armed {
        ARMED.with_borrow_mut(|armed| armed.push((name, Box::new(work))));
        Armed(name, PhantomData)
    }

    /// Counts the failpoint `name`, and runs the work armed for it, if there is any.
    pub(crate) fn reached(name: &'static str) {
        let (counted, times) = COUNTED.get();
        if counted == name {
            COUNTED.set((counted, times + 1));
        }
        if let Some(work) = take(name) {
            work();
        }
    }

    fn take(name: &str) -> Option<Work> {
        // A thread that ends reaches failpoints without its list.
        let found = ARMED.try_with(|armed| {
            let mut armed = armed.borrow_mut();
            let first = armed.iter().position(|(wanted, _)| *wanted == name)?;
            Some(armed.remove(first).1)
        });
        found.ok().flatten()
    }

    impl Drop for Armed {
        fn drop(&mut self) {
            let left = take(self.0).is_some();
            assert!(
                !left || std::thread::panicking(),
                "failpoint {} was not reached",
                self.0
            );
        }
    }
}
