//! A loom model of threads' magazines and a thread that drains them. It has the steps of
//! `frame::magazine`, over a list in place of the buddy lists.

use super::super::stack::{CAPACITY, Stack};
use super::model;
use crate::FrameId;
use crate::sync::per_thread::{Draining, Drains, PerThread};
use crate::sync::{Arc, Mutex, thread};

/// The magazines of two threads, and the lists behind them.
struct Free {
    drains: Drains,
    own: [PerThread<Stack>; 2],
    listed: Mutex<Vec<u32>>,
}

impl Free {
    /// Does what `Allocator::give` does, for this thread.
    fn give(&self, thread: usize, id: u32) {
        match self.own[thread].enter(&self.drains) {
            Some(magazine) if magazine.len() < CAPACITY => magazine.push(FrameId(id)),
            Some(magazine) => {
                let mut listed = self.listed.lock();
                magazine.take_coldest(CAPACITY / 2, |id| listed.push(id.0));
                drop(listed);
                magazine.push(FrameId(id));
            }
            None => self.listed.lock().push(id),
        }
    }

    /// Does what `Allocator::take` does, for this thread. An empty magazine is filled while its
    /// owner is at it.
    fn take(&self, thread: usize) -> Option<u32> {
        let own = self.own[thread].enter(&self.drains);
        let taken = own.and_then(|magazine| magazine.pop().or_else(|| self.fill(&magazine)));
        taken.map(|id| id.0).or_else(|| self.take_listed())
    }

    /// Does what `Allocator::take_half` does.
    fn fill(&self, magazine: &Stack) -> Option<FrameId> {
        let mut listed = self.listed.lock();
        let start = listed.len() - listed.len().min(CAPACITY);
        listed
            .drain(start..)
            .for_each(|id| magazine.push(FrameId(id)));
        drop(listed);
        magazine.pop()
    }

    /// Does what `Allocator::take_listed` does, for a thread without a magazine.
    fn take_listed(&self) -> Option<u32> {
        let mut listed = self.listed.lock();
        if let Some(id) = listed.pop() {
            return Some(id);
        }
        drop(listed);
        let _away = self.drain();
        self.listed.lock().pop()
    }

    /// Does what `Allocator::drain_magazines` does.
    fn drain(&self) -> Draining<'_> {
        let draining = self.drains.begin(&self.own);
        let mut listed = self.listed.lock();
        for own in &self.own {
            own.look().take_coldest(CAPACITY, |id| listed.push(id.0));
            assert_eq!(own.look().len(), 0, "an owner is at its magazine");
        }
        draining
    }
}

fn free(listed: Vec<u32>) -> Arc<Free> {
    Arc::new(Free {
        drains: Drains::new(),
        own: [PerThread::new(Stack::new()), PerThread::new(Stack::new())],
        listed: Mutex::new(listed),
    })
}

/// An owner takes one of two frames, and the other is in its magazine for a while. A thread that
/// needs a frame gets the other one.
#[test]
fn what_is_on_its_way_to_a_magazine_is_found() {
    model(3, || {
        let free = free(vec![1, 2]);
        let theirs = free.clone();
        let needer = thread::spawn(move || theirs.take_listed());
        let own = free.take(0);
        let other = needer.join().unwrap();
        let mut taken = [own.expect("there are two"), other.expect("there are two")];
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

/// One frame is in use, and the other is in the second magazine. The first is freed, and the charge
/// that was given back is used to take the other. Another thread with a charge always finds one of
/// the two. (One thread plays both owners, one after the other.)
#[test]
fn who_has_a_charge_finds_the_frame_that_was_freed_or_the_one_that_was_not_taken() {
    model(3, || {
        let free = free(Vec::new());
        free.own[1].look().push(FrameId(2));
        let theirs = free.clone();
        let needer = thread::spawn(move || theirs.take_listed());
        free.give(0, 1);
        let own = free.take(1);
        let other = needer.join().unwrap();
        let mut taken = [own.expect("there are two"), other.expect("there are two")];
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

/// An owner fills its magazine and overfills it, and takes a frame again, while another thread
/// drains. No frame is lost, and none is in two places.
#[test]
fn a_magazine_loses_nothing_to_who_empties_it() {
    model(3, || {
        let free = free(Vec::new());
        let theirs = free.clone();
        let drainer = thread::spawn(move || drop(theirs.drain()));
        (1..=3).for_each(|id| free.give(0, id));
        let taken = free.take(0);
        drainer.join().unwrap();
        let mut all = std::mem::take(&mut *free.listed.lock());
        let own = free.own[0].look();
        all.extend((0..own.len()).map(|at| own.get(at).0));
        all.extend(taken);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}
