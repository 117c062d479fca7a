//! A short list that one thread fills with plain stores, and that any thread may drain meanwhile.
//! The batches of frames on their way to an LRU list use it.
//!
//! An entry is a hint: it names an item whose *mark* says whether the item is still pending. The
//! thread that processes or removes the item clears the mark, under one of the user's locks.
//! Entries are therefore never removed. A drain that comes to the entry of an item processed
//! earlier finds no mark, or a later mark, which has its own entry.
//!
//! An item that was added before a drain began has been processed when the drain ends, and only
//! once. The steps and the argument are in `docs/protocols/per-thread.md`.
//!
//! *The owner* is one thread at a time, as in [`super::per_thread`], or the holder of a mutex.

use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// The list, which keeps the last `N` entries. `N` is a power of two.
#[derive(Debug)]
pub(crate) struct Pending<const N: usize> {
    /// The number of entries added so far. Only the owner writes it and the entries.
    number: AtomicU64,
    entries: [AtomicU32; N],
}

/// The position up to which a [`Pending`] was drained. It is kept under the lock that makes drains
/// come one after another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen(u64);

/// Whether the owner must drain before it adds more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Room {
    Left,
    None,
}

impl<const N: usize> Pending<N> {
    pub(crate) fn new() -> Pending<N> {
        const { assert!(N.is_power_of_two()) }
        Pending {
            number: AtomicU64::new(0),
            entries: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline(always)]
    fn place(&self, number: u64) -> &AtomicU32 {
        &self.entries[number as usize % N]
    }

    /// Calls `mark` to mark the item that the entry names, and then adds the entry. Only the owner
    /// calls this.
    #[inline(always)]
    pub(crate) fn add(&self, entry: u32, mark: impl FnOnce()) -> Room {
        let number = self.number.load(Ordering::Relaxed);
        mark();
        self.place(number).store(entry, Ordering::Release);
        self.number.store(number + 1, Ordering::Release);
        match (number as usize + 1) % N {
            0 => Room::None,
            _ => Room::Left,
        }
    }

    /// Passes the entries since the last multiple of `N` below the number of entries to `each`, in
    /// order. There are 1 to `N` of them, or none if no entry was ever added. Only the owner calls
    /// this.
    #[inline]
    pub(crate) fn drain_own(&self, each: impl FnMut(u32)) {
        let number = self.number.load(Ordering::Relaxed);
        // The last multiple of `N` below `number`. The owner drained the entries before it when it
        // reached this multiple.
        let first = number.saturating_sub(1) / N as u64 * N as u64;
        (first..number)
            .map(|at| self.place(at).load(Ordering::Relaxed))
            .for_each(each);
    }

    /// Passes to `each`, in order, those of the last `N` entries that were added after `seen`. Then
    /// moves `seen` to the end. Any thread may call this.
    pub(crate) fn drain(&self, seen: &mut Seen, each: impl FnMut(u32)) {
        let number = self.number.load(Ordering::Acquire);
        self.entries_from(seen.0, number).for_each(each);
        seen.0 = number;
    }

    /// Iterates over the last `N` entries, in order.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.entries_from(0, self.number.load(Ordering::Acquire))
    }

    fn entries_from(&self, first: u64, number: u64) -> impl Iterator<Item = u32> {
        let first = first.max(number.saturating_sub(N as u64));
        (first..number).map(|at| self.place(at).load(Ordering::Acquire))
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::model::Builder;

    use super::*;
    use crate::sync::atomic::AtomicU8;
    use crate::sync::{Arc, Mutex, MutexGuard, thread};

    const NOWHERE: u8 = 0;
    const MARKED: u8 = 1;
    const LISTED: u8 = 2;

    struct World {
        pending: Pending<2>,
        /// The mark of each item, indexed by the item's number. Number 0 stands for no item.
        marks: [AtomicU8; 4],
        list: Mutex<Vec<u32>>,
        seen: Mutex<Seen>,
    }

    impl World {
        fn mark(&self, thing: u32) -> &AtomicU8 {
            &self.marks[thing as usize]
        }

        fn add(&self, thing: u32) {
            assert_eq!(self.mark(thing).load(Ordering::Acquire), NOWHERE);
            let room = self.pending.add(thing, || {
                self.mark(thing).store(MARKED, Ordering::Release);
            });
            if room == Room::None {
                self.pending.drain_own(|entry| self.deal_with(entry));
            }
        }

        fn deal_with(&self, thing: u32) {
            if self.mark(thing).load(Ordering::Acquire) == MARKED {
                self.if_marked(thing, LISTED, |list| list.push(thing));
            }
        }

        fn if_marked(&self, thing: u32, next: u8, work: impl Fn(&mut MutexGuard<'_, Vec<u32>>)) {
            let mut list = self.list.lock();
            if self.mark(thing).load(Ordering::Relaxed) == MARKED {
                work(&mut list);
                self.mark(thing).store(next, Ordering::Release);
            }
        }

        /// Takes the item out, wherever it is, as freeing a frame does.
        fn remove(&self, thing: u32) {
            let mut list = self.list.lock();
            list.retain(|other| *other != thing);
            self.mark(thing).store(NOWHERE, Ordering::Release);
        }

        fn drain(&self) {
            let mut seen = self.seen.lock();
            self.pending.drain(&mut seen, |entry| self.deal_with(entry));
        }

        fn validate(&self, expected: &[u32]) {
            let mut list = self.list.lock().clone();
            list.sort_unstable();
            assert_eq!(list, expected);
            for thing in expected {
                assert_eq!(self.mark(*thing).load(Ordering::Relaxed), LISTED);
            }
        }
    }

    /// Runs an owner concurrently with a thread that drains, twice. Afterwards each of `expected`
    /// must be listed once.
    fn owner_beside_drainer(owner: fn(&World), expected: &'static [u32]) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let world = Arc::new(World {
                pending: Pending::new(),
                marks: std::array::from_fn(|_| AtomicU8::new(NOWHERE)),
                list: Mutex::new(Vec::new()),
                seen: Mutex::new(Seen::default()),
            });
            let theirs = world.clone();
            let drainer = thread::spawn(move || {
                theirs.drain();
                theirs.drain();
            });
            owner(&world);
            // This drain is complete even if the other thread drains at the same time.
            world.drain();
            world.validate(expected);
            drainer.join().unwrap();
            world.validate(expected);
        });
    }

    #[test]
    fn what_is_added_beside_a_drain_is_not_lost() {
        owner_beside_drainer(|world| world.add(1), &[1]);
    }

    #[test]
    fn what_two_drain_at_once_is_dealt_with_once() {
        owner_beside_drainer(
            |world| {
                world.add(1);
                world.add(2);
            },
            &[1, 2],
        );
    }

    #[test]
    fn what_is_written_over_was_dealt_with() {
        owner_beside_drainer(
            |world| (1..4).for_each(|thing| world.add(thing)),
            &[1, 2, 3],
        );
    }

    #[test]
    fn what_is_taken_out_and_comes_again_is_there_once() {
        owner_beside_drainer(
            |world| {
                world.add(1);
                world.remove(1);
                world.add(1);
            },
            &[1],
        );
    }

    #[test]
    fn an_entry_of_an_earlier_time_does_no_harm() {
        owner_beside_drainer(
            |world| {
                world.add(1);
                world.add(2);
                world.remove(1);
                world.add(1);
                world.remove(2);
            },
            &[1],
        );
    }
}
