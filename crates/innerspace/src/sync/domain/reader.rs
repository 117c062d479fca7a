//! Sections of threads without an accessor. Such a thread walks a page table or an index with a
//! participant of its own.

use std::cell::{Cell, RefCell};
use std::hint::cold_path;
use std::marker::PhantomData;

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

    /// The domain in which this thread had its last section, and its participant there. It is set
    /// only if that domain has an asymmetric barrier and the thread has no [`Reader`] in it.
    ///
    /// Every view reads this value. It has no destructor, so reading it costs a load and a
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

/// An open section of the calling thread that contains no other section: see [`Domain::look`].
#[derive(Debug)]
pub(crate) struct Look<'domain> {
    participant: *const Participant,
    _domain: PhantomData<&'domain Domain>,
}

impl Drop for Look<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as in `Reader::participant`.
        let participant = unsafe { &*self.participant };
        // Release, as in `Reader::drop`.
        participant.step(Ordering::Release);
    }
}

impl Participant {
    /// Adds one to `state`, as only its owner may. It is one instruction, so that no value has to
    /// stay in a register between opening and closing.
    #[inline(always)]
    fn step(&self, order: Ordering) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state + 1, order);
    }
}

impl Domain {
    /// Opens a section of the calling thread for a short look. The thread opens no other section
    /// until this one is over, so no nesting is counted.
    ///
    /// Returns `None` where that takes more than two plain stores: if the thread has a section open
    /// or had its last one in another domain, if this domain has no asymmetric barrier, or if the
    /// thread's fences are due to be judged. The caller then opens a [`Reader`].
    #[inline(always)]
    pub(crate) fn look(self: &Arc<Domain>) -> Option<Look<'_>> {
        let (domain, pointer) = LAST.with(Cell::get);
        if domain != Arc::as_ptr(self) {
            cold_path();
            return None;
        }
        // SAFETY: as in `Reader::participant`.
        let participant = unsafe { &*pointer };
        debug_assert!(
            participant.state.load(Ordering::Relaxed) & 1 == 0,
            "a look inside a section"
        );
        participant.step(Ordering::Release);
        if participant.order() {
            // The fences are due to be judged, which a `Reader` does.
            participant.step(Ordering::Release);
            return None;
        }
        Some(Look {
            participant: pointer,
            _domain: PhantomData,
        })
    }

    /// Opens a section of the calling thread.
    #[inline]
    pub(crate) fn reader(self: &Arc<Domain>) -> Reader<'_> {
        let reader = Reader {
            participant: self.own_participant(),
            domain: self,
        };
        reader.enter(self.mode);
        reader
    }

    /// Returns this thread's participant, and registers one if there is none.
    fn own_participant(self: &Arc<Domain>) -> *const Participant {
        let known = OWN.try_with(|own| {
            let own = own.borrow();
            let known = own.iter().find(|own| own.domain_id == self.id);
            known.map(|own| Arc::as_ptr(&own.participant))
        });
        match known {
            Ok(Some(participant)) => participant,
            Ok(None) => self.register_thread(),
            Err(_) => self.register_passing(),
        }
    }

    /// Adds the reader of a thread.
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

    /// Creates a participant for one section of a thread that is ending and has lost its list, for
    /// example where a thread-local destructor drops a file. The domain's list keeps the
    /// participant alive.
    #[cold]
    fn register_passing(&self) -> *const Participant {
        let participant = self.add(Participant {
            passing: true,
            ..Participant::new(CacheBinding::of_nothing())
        });
        Arc::as_ptr(&participant)
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
        // held by the domain's list until its only `Reader` is dropped. A `Reader` is not `Send`
        // and does not outlive the domain that it borrows.
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
        // No `look` is possible until this section is over. Forgetting another domain's entry does
        // no harm: the next reader of that domain sets it again.
        LAST.with(|last| last.set(NOBODY));
        let state = participant.state.load(Ordering::Relaxed);
        debug_assert!(state & 1 == 0, "a section inside a look");
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
            } else if self.domain.mode == BarrierMode::Membarrier {
                LAST.with(|last| last.set((self.domain, self.participant)));
            }
        }
    }
}
