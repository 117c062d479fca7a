//! The section of a thread that has no accessor: it walks a table or an index with a participant of its own.

use super::*;
use crate::sync::Weak;
use std::cell::RefCell;

/// A thread's own participant in one domain; gone with the thread.
struct Own {
    domain_id: u64,
    domain: Weak<Domain>,
    participant: Arc<Participant>,
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(domain) = self.domain.upgrade() {
            domain.unregister(&self.participant);
        }
    }
}

crate::sync::thread_local! {
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
}

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
        let participant = OWN.with(|own| {
            let own = own.borrow();
            match own.iter().find(|own| own.domain_id == self.id) {
                Some(own) => Arc::as_ptr(&own.participant),
                None => {
                    drop(own);
                    self.register_thread()
                }
            }
        });
        let reader = Reader {
            participant,
            domain: self,
        };
        reader.enter(self.mode);
        reader
    }

    #[cold]
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
        // SAFETY: the thread's list holds an `Arc` of it until the thread ends or the domain is gone; a `Reader` is
        // neither `Send` nor outlives the domain it borrows.
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
