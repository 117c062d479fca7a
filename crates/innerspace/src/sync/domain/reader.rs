//! The section of a thread that has no accessor: it walks a table or an index with a participant of its own.

use super::*;
use crate::sync::Weak;
use std::cell::{Cell, RefCell};

/// A thread's own participant in one domain; gone with the thread.
struct Own {
    domain_id: u64,
    domain: Weak<Domain>,
    participant: Arc<Participant>,
}

impl Drop for Own {
    fn drop(&mut self) {
        // A destructor of the thread that runs later would find it freed.
        let _ = LAST.try_with(|last| last.set(NOBODY));
        if let Some(domain) = self.domain.upgrade() {
            domain.unregister(&self.participant);
        }
    }
}

crate::sync::thread_local! {
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };

    /// The domain in which this thread had a section last, and its participant there: what is looked up for every view. It
    /// needs no destructor, so that reading it costs a load and a comparison.
    static LAST: Cell<(u64, *const Participant)> = const { Cell::new(NOBODY) };
}

/// No domain has the number 0.
const NOBODY: (u64, *const Participant) = (0, std::ptr::null());

/// An open section of the calling thread; closed when dropped. May be nested.
#[derive(Debug)]
pub(crate) struct Reader<'domain> {
    /// Bound to the thread by being a raw pointer, kept by the thread's list.
    participant: *const Participant,
    domain: &'domain Domain,
}

impl Domain {
    /// Opens a section of the calling thread.
    #[inline]
    pub(crate) fn reader(self: &Arc<Domain>) -> Reader<'_> {
        let (id, participant) = LAST.with(Cell::get);
        let participant = if id == self.id {
            participant
        } else {
            self.find_thread()
        };
        let reader = Reader {
            participant,
            domain: self,
        };
        reader.enter(self.mode);
        reader
    }

    /// This thread's participant, which is the last one from now on.
    #[cold]
    fn find_thread(self: &Arc<Domain>) -> *const Participant {
        let known = OWN.with(|own| {
            let own = own.borrow();
            let known = own.iter().find(|own| own.domain_id == self.id);
            known.map(|own| Arc::as_ptr(&own.participant))
        });
        let participant = known.unwrap_or_else(|| self.register_thread());
        LAST.with(|last| last.set((self.id, participant)));
        participant
    }

    fn register_thread(self: &Arc<Domain>) -> *const Participant {
        let participant = Arc::new(Participant::new());
        self.participants.lock().push(participant.clone());
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
}

impl Reader<'_> {
    /// The domain the section is one of.
    pub(crate) fn domain(&self) -> &Domain {
        self.domain
    }

    fn participant(&self) -> &Participant {
        // SAFETY: the thread's list holds an `Arc` of it until the thread ends or the domain is gone, and an entry that goes
        // clears `LAST`; a `Reader` is neither `Send` nor outlives the domain it borrows.
        unsafe { &*self.participant }
    }

    #[inline]
    fn enter(&self, mode: BarrierMode) {
        let participant = self.participant();
        // Relaxed: `depth` and the value of `state` belong to this thread.
        let depth = participant.depth.load(Ordering::Relaxed);
        participant.depth.store(depth + 1, Ordering::Relaxed);
        if depth > 0 {
            return;
        }
        let odd = participant.state.load(Ordering::Relaxed) + 1;
        match mode {
            BarrierMode::Membarrier => {
                participant.state.store(odd, Ordering::Release);
                BarrierMode::Membarrier.light();
            }
            BarrierMode::Fences => {
                participant.state.swap(odd, Ordering::SeqCst);
            }
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
            match self.domain.mode {
                BarrierMode::Membarrier => participant.state.store(even, Ordering::Release),
                BarrierMode::Fences => {
                    participant.state.swap(even, Ordering::SeqCst);
                }
            }
        }
    }
}
