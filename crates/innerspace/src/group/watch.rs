//! Notification of a group's events.
//!
//! Charging and reclaim only count events and set a flag. The service thread (or `tick`) looks at
//! the flag, updates the watchers of groups that have changed, and defers their callbacks, with no
//! lock held. In a memory with threads, the calls are deferred to the lane of the group, so that a
//! callback that hangs delays only those of the same group. At most one call to a callback is under
//! way at a time.
//!
//! A watcher is charged to its group, which keeps the group's number from being given to another.
//! The list's lock is an innermost lock: under it, no user code runs and no callback is dropped (a
//! watcher in the list is also held by its [`GroupWatch`]). A callback that is running when its
//! handle is dropped runs to completion.

use std::time::{Duration, Instant};

use super::GroupId;
use super::events::GroupEvents;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::members::{Members, Ticket};
use crate::sync::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, may_call_out};

pub(super) type Callback = Box<dyn Fn(&GroupEvents) + Send + Sync>;

/// The watchers of the groups of one tree.
#[derive(Default)]
pub(super) struct Watchers {
    /// Whether there are watchers.
    any: AtomicBool,
    /// Whether an event was counted since the watchers were last called.
    noted: AtomicBool,
    /// The watchers, in the order in which they were created.
    list: Mutex<Members<Arc<Watcher>>>,
}

struct Watcher {
    group: GroupId,
    /// The events as last reported.
    told: Mutex<GroupEvents>,
    changed: Condvar,
    callback: Option<Callback>,
    /// The charge for this watcher, which also keeps the group's number in use while the callback
    /// runs.
    _heap: Box<dyn Send + Sync>,
    /// Whether a call to the callback is due, or under way. Without a callback, this means nothing.
    is_called: AtomicBool,
    /// Whether the subscription has ended, so that a call that is due is not made.
    is_over: AtomicBool,
}

/// A subscription to a group's events, created by [`Group::watch`](super::Group::watch) or
/// [`Group::on_events`](super::Group::on_events). Dropping it ends the subscription; a callback
/// that is running runs to completion.
#[must_use = "the subscription ends when this is dropped"]
pub struct GroupWatch {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
    ticket: Ticket,
}

impl std::fmt::Debug for GroupWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GroupWatch").field(&self.events()).finish()
    }
}

impl Drop for GroupWatch {
    fn drop(&mut self) {
        // Relaxed: a call that begins at this very moment runs to completion.
        self.watcher.is_over.store(true, Ordering::Relaxed);
        self.watchers.change(|list| list.leave(self.ticket));
    }
}

impl GroupWatch {
    /// The heap bytes of a watcher, including its place in the list.
    pub(super) const HEAP: usize = size_of::<Watcher>() + 16 + 24 + 48;

    /// Creates a watcher of `group`, whose events are `seen` now.
    pub(super) fn new(
        watchers: Arc<Watchers>,
        group: GroupId,
        seen: GroupEvents,
        callback: Option<Callback>,
        heap: Box<dyn Send + Sync>,
    ) -> GroupWatch {
        let watcher = Arc::new(Watcher {
            group,
            told: Mutex::new(seen),
            changed: Condvar::new(),
            callback,
            _heap: heap,
            is_called: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let ticket = watchers.change(|list| list.join(watcher.clone()));
        GroupWatch {
            watchers,
            watcher,
            ticket,
        }
    }

    /// Returns the events as last reported.
    pub fn events(&self) -> GroupEvents {
        *self.watcher.told.lock()
    }

    /// Waits until events other than `seen` are reported, for at most `timeout`. Returns the events
    /// as last reported.
    ///
    /// The service thread reports events about once a second, and when memory is short. In a memory
    /// without a service thread, [`Memory::tick`](crate::Memory::tick) reports them.
    pub fn wait_timeout(&self, seen: &GroupEvents, timeout: Duration) -> GroupEvents {
        // `None` if the deadline is past the end of the clock.
        let deadline = Instant::now().checked_add(timeout);
        let mut told = self.watcher.told.lock();
        let mut left = timeout;
        // A wake-up may be spurious.
        while *told == *seen && !left.is_zero() {
            (told, _) = self.watcher.changed.wait_timeout(told, left);
            left = deadline.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
        }
        *told
    }
}

impl Watchers {
    /// Notes that an event was counted. Without watchers, writes to no cache line that all groups
    /// share.
    #[inline]
    pub(super) fn note(&self) {
        if self.any.load(Ordering::Relaxed) {
            self.noted.store(true, Ordering::Release);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Members<Arc<Watcher>>) -> T) -> T {
        let mut list = self.list.lock();
        let changed = change(&mut list);
        self.any.store(list.len() > 0, Ordering::Relaxed);
        changed
    }

    /// Updates every watcher whose group has counted events since the last call. `events` returns
    /// the events of a group. Returns the callbacks to call now, each with its group.
    pub(super) fn tell(
        &self,
        events: impl Fn(GroupId) -> GroupEvents,
    ) -> Vec<(GroupId, Box<dyn FnOnce() + Send>)> {
        let mut calls: Vec<(GroupId, Box<dyn FnOnce() + Send>)> = Vec::new();
        if !self.noted.swap(false, Ordering::Acquire) {
            return calls;
        }
        let list: Vec<Arc<Watcher>> = self.list.lock().iter().cloned().collect();
        for watcher in list {
            let events = events(watcher.group);
            let mut told = watcher.told.lock();
            if *told == events {
                continue;
            }
            *told = events;
            // Relaxed: `is_called` changes only while `told` is locked. A call that is under way,
            // or due, looks at the events once more.
            let is_called = watcher.is_called.swap(true, Ordering::Relaxed);
            drop(told);
            watcher.changed.notify_all();
            if watcher.callback.is_some() && !is_called {
                calls.push((watcher.group, Box::new(move || watcher.call())));
            }
        }
        calls
    }
}

impl Watcher {
    /// Calls the callback until it has been called with the events as last reported, or the
    /// subscription has ended. The caller holds no lock. A panic in the callback is resumed at the
    /// end.
    fn call(&self) {
        let Some(callback) = &self.callback else {
            return;
        };
        may_call_out();
        let (mut known, mut panics) = (None, Panics::default());
        loop {
            let events = {
                let told = self.told.lock();
                if known == Some(*told) || self.is_over.load(Ordering::Relaxed) {
                    self.is_called.store(false, Ordering::Relaxed);
                    break;
                }
                *told
            };
            known = Some(events);
            panics.catch(|| callback(&events));
        }
        panics.go_on();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::super::{Group, GroupTree};
    use super::*;
    use crate::sync::thread;
    use crate::units::{MIB, PageCount};

    #[test]
    fn events_are_noted_while_there_are_watchers() {
        let tree = Arc::new(GroupTree::new(PageCount(1000)));
        let root = Group::root(tree.clone());
        let is_noted = || {
            assert!(tree.try_charge(root.id(), PageCount(1001)).is_err());
            tree.watchers.noted.swap(false, Ordering::Relaxed)
        };
        assert!(!is_noted());
        let watches = [root.watch().unwrap(), root.watch().unwrap()];
        assert!(is_noted());
        let [first, second] = watches;
        drop(first);
        assert!(is_noted());
        drop(second);
        assert!(!is_noted());
    }

    #[test]
    fn who_is_woken_for_nothing_waits_on() {
        let tree = Arc::new(GroupTree::new(PageCount(1000)));
        let group = Group::root(tree.clone())
            .create_child("tenant", MIB)
            .unwrap();
        let watch = group.watch().unwrap();
        let seen = watch.events();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| watch.wait_timeout(&seen, Duration::MAX));
            let wake = || {
                let told = watch.watcher.told.lock();
                let sleeps = watch.watcher.changed.is_waited_on();
                drop(told);
                watch.watcher.changed.notify_all();
                sleeps
            };
            // The waiter sleeps, is woken, and sleeps again, unless its time is over.
            for _ in 0..100 {
                while !wake() && !waiting.is_finished() {
                    thread::yield_now();
                }
                thread::yield_now();
            }
            assert!(tree.try_charge(group.id(), PageCount(300)).is_err());
            tree.call_watchers();
            assert_eq!(waiting.join().unwrap().refused, 1);
        });
        let now = watch.events();
        assert_eq!(
            watch.wait_timeout(&now, Duration::ZERO),
            now,
            "and gives up in time"
        );
    }
}
