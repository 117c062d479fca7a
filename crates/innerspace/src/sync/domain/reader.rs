//! Sections of threads without an accessor. Such a thread walks a page table or an index with a
//! participant of its own.

use std::cell::{Cell, RefCell};
use std::hint::cold_path;

use super::*;
use crate::sync::Weak;

/// A thread's own participant in one domain. It ends with the thread.
struct Own {
    domain_id: u64,
    domain: Weak<Domain>,
    participant: Arc<Participant>,
}

impl Drop for Own {
    fn drop(&mut self) {
        // A thread-local destructor that runs later would otherwise find the freed participant in
        // `LAST`.
        let _ = LAST.try_with(|last| last.set(NOBODY));
        if let Some(domain) = self.domain.upgrade() {
            domain.unregister(&self.participant);
        }
    }
}

crate::sync::thread_local! {
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };

    /// The domain whose participant this thread looked up last, and that participant.
    ///
    /// Each new section reads this value. It has no destructor, so reading it costs a load and a
    /// comparison. No other domain can have the same address while the thread's list holds a `Weak`
    /// of this one.
    static LAST: Cell<(*const Domain, *const Participant)> = const { Cell::new(NOBODY) };
}

const NOBODY: (*const Domain, *const Participant) = (std::ptr::null(), std::ptr::null());

/// An open section of the calling thread. Dropping it closes the section. Sections may be nested.
#[derive(Debug)]
pub(crate) struct Reader<'domain> {
    /// A raw pointer, so that a `Reader` is not `Send` and stays with its thread.
    participant: *const Participant,
    domain: &'domain Domain,
}

impl Domain {
    /// Opens a section of the calling thread.
    #[inline]
    pub(crate) fn reader(self: &Arc<Domain>) -> Reader<'_> {
        let (domain, last) = LAST.with(Cell::get);
        let participant = match std::ptr::eq(domain, Arc::as_ptr(self)) {
            true => last,
            false => self.own_participant(),
        };
        let reader = Reader {
            participant,
            domain: self,
        };
        reader.enter(self.mode);
        reader
    }

    /// Returns this thread's participant, and registers one if there is none. A thread whose list
    /// `OWN` is already destroyed gets one for this section only.
    #[cold]
    fn own_participant(self: &Arc<Domain>) -> *const Participant {
        let known = OWN.try_with(|own| {
            let own = own.borrow();
            let known = own.iter().find(|own| own.domain_id == self.id);
            known.map(|own| Arc::as_ptr(&own.participant))
        });
        let participant = match known {
            Ok(Some(participant)) => participant,
            Ok(None) => self.register_thread(),
            Err(_) => return self.register_passing(),
        };
        LAST.with(|last| last.set((Arc::as_ptr(self), participant)));
        participant
    }

    /// Adds the reader of a thread to the domain's list, except in a child of fork(2).
    fn add(&self, participant: Participant) -> Arc<Participant> {
        // In a child of fork(2) the list may stay locked for ever, as in `unregister`.
        if self.foreign_maker().is_some() {
            return Arc::new(participant);
        }
        let mut participants = self.participants.lock();
        self.tell_pace(&participant);
        let join = |ticket| {
            participant.set_ticket(ticket);
            Arc::new(participant)
        };
        participants.threads.join_with(join).clone()
    }

    /// Removes the reader of a thread.
    fn unregister(&self, participant: &Participant) {
        // In a child of fork(2) the lock may have been held by a thread that exists only in the
        // parent.
        if self.foreign_maker().is_some() {
            return;
        }
        let left = self.participants.lock().threads.leave(participant.ticket());
        drop(left);
    }

    fn register_thread(self: &Arc<Domain>) -> *const Participant {
        let participant = self.add(Participant::new(CacheBinding::of_nothing()));
        let pointer = Arc::as_ptr(&participant);
        let domain = Arc::downgrade(self);
        OWN.with(|own| {
            let mut own = own.borrow_mut();
            own.retain(|own| own.domain.strong_count() > 0);
            own.push(Own {
                domain_id: self.id,
                domain,
                participant,
            });
        });
        pointer
    }

    /// Creates a participant for one section of a thread that is ending and whose list `OWN` is
    /// already destroyed, for example where a thread-local destructor drops a file. The domain's
    /// list keeps the participant alive. In a child of fork(2) nothing is added to that list, so
    /// the participant is leaked.
    #[cold]
    fn register_passing(&self) -> *const Participant {
        let participant = self.add(Participant {
            passing: true,
            ..Participant::new(CacheBinding::of_nothing())
        });
        match self.foreign_maker() {
            Some(_) => Arc::into_raw(participant),
            None => Arc::as_ptr(&participant),
        }
    }
}

impl Reader<'_> {
    /// Returns the domain of this section.
    pub(crate) fn domain(&self) -> &Domain {
        self.domain
    }

    fn participant(&self) -> &Participant {
        // SAFETY: the thread's list holds an `Arc` of the participant until the thread ends or the
        // domain is gone, and an entry that leaves the list clears `LAST`. A passing participant is
        // held by the domain's list until its only `Reader` is dropped, or is never freed. A
        // `Reader` is not `Send` and does not outlive the domain that it borrows.
        unsafe { &*self.participant }
    }

    #[inline]
    fn enter(&self, mode: BarrierMode) {
        let participant = self.participant();
        // Relaxed: only this thread changes `depth` and `state`.
        let depth = participant.depth.load(Ordering::Relaxed);
        participant.depth.store(depth + 1, Ordering::Relaxed);
        if depth > 0 {
            return;
        }
        let state = participant.state.load(Ordering::Relaxed);
        debug_assert!(state & 1 == 0, "a section that nobody counts");
        participant.set_state(state + 1, mode);
        if mode == BarrierMode::Membarrier && participant.order() {
            self.domain.judge_fences(participant);
        }
    }
}

impl Drop for Reader<'_> {
    #[inline]
    fn drop(&mut self) {
        let participant = self.participant();
        let depth = participant.depth.load(Ordering::Relaxed);
        participant.depth.store(depth - 1, Ordering::Relaxed);
        if depth == 1 {
            let even = participant.state.load(Ordering::Relaxed) + 1;
            participant.set_state(even, self.domain.mode);
            if participant.passing {
                cold_path();
                self.domain.unregister(participant);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(loom, shuttle, miri))))]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::sync::thread;

    /// Opens a section when its thread ends. Sends the size of an allocation that is made at the
    /// place of the section's participant, if there is one.
    struct AtEnd(Arc<Domain>, Sender<Option<usize>>);

    impl Drop for AtEnd {
        fn drop(&mut self) {
            let AtEnd(domain, sender) = self;
            let section = domain.reader();
            assert!(
                section.participant().passing,
                "the thread has lost its list"
            );
            let participant = section.participant.addr();
            let sizes = (16..1024).step_by(16);
            let made: Vec<Vec<u8>> = sizes.map(Vec::with_capacity).collect();
            let is_there = |made: &&Vec<u8>| {
                (made.as_ptr().addr()..made.as_ptr().addr() + made.capacity())
                    .contains(&participant)
            };
            sender
                .send(made.iter().find(is_there).map(Vec::capacity))
                .unwrap();
        }
    }

    std::thread_local! {
        static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_section_of_a_thread_that_ends_uses_no_freed_participant() {
        let own = Domain::new();
        let mut parents = Domain::new();
        Arc::get_mut(&mut parents).unwrap().maker = Process::another();
        for domain in [own, parents] {
            let (sender, receiver) = channel();
            let thread = thread::spawn(move || {
                // Destructors run in reverse order, so the list is gone when `AtEnd` is dropped.
                AT_END.with(|end| end.replace(Some(AtEnd(domain.clone(), sender))));
                drop(domain.reader());
            });
            thread.join().unwrap();
            assert_eq!(receiver.recv().unwrap(), None);
        }
    }
}
