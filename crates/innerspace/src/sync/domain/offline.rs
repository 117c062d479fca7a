//! Accessors that are offline: no grace period looks at them.
//!
//! A grace period looks at the state of each reader that is *online*. A memory may have very many
//! accessors, few of which are in use, and a tenant's grace periods must not become slower with the
//! accessors of others. So an accessor begins offline, and goes online in its next section. When
//! [`MOST_ONLINE`] accessors are online, the next one to go online looks at the [`AT_ONCE`] that
//! went online first, and takes offline those that are in no section.
//!
//! The flag [`OFFLINE`] is a bit of the word that an access compares with what it has cached, as
//! [`FENCED`] is. It therefore costs an access nothing; an accessor that is offline takes the slow
//! path and goes online there ([`Sections::order`](super::Sections::order)), before it reads
//! anything else. The argument is in `docs/protocols/sections.md`.
//!
//! Threads without an accessor have readers of their own, which are always online: there is one
//! for each thread.
//!
//! The terms online and offline are liburcu's: M. Desnoyers et al., "User-Level Implementations of
//! Read-Copy Update", IEEE Transactions on Parallel and Distributed Systems 23(2), 2012.

use super::participant::OFFLINE;
use super::{Domain, FENCED, Participant, Participants};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::sync::members::Ticket;
use crate::sys::barrier::{self, BarrierMode};

/// Once this many accessors are online, some are taken offline before another one goes online.
/// There are more only if all that were looked at were in a section.
const MOST_ONLINE: usize = if cfg!(loom) { 1 } else { 256 };

/// The number of accessors that are looked at when some are to be taken offline.
const AT_ONCE: usize = if cfg!(loom) { 1 } else { 64 };

impl Participant {
    /// Returns whether no grace period looks at the reader.
    #[inline(always)]
    pub(super) fn is_offline(&self) -> bool {
        // Relaxed: the barrier that opened the section orders the load after the store to `state`.
        self.alone.load(Ordering::Relaxed) & OFFLINE != 0
    }
}

impl Domain {
    /// Brings an accessor online. Its owner is in a section and has read nothing in it yet.
    #[cold]
    pub(super) fn go_online(&self, own: &Arc<Participant>) {
        // In a child of fork(2) the list may stay locked for ever, as in `unregister`.
        if self.foreign_maker().is_some() {
            return;
        }
        let mut participants = self.participants.lock();
        if own.ticket() != Ticket::NONE {
            // Another thread has tried to take the accessor offline, has found it in this section,
            // and has put it back.
            return;
        }
        if participants.accessors.len() >= MOST_ONLINE {
            self.take_some_offline(&mut participants);
        }
        self.bring_online(&mut participants, own);
    }

    /// Adds an accessor that is offline to the list.
    pub(super) fn bring_online(&self, participants: &mut Participants, own: &Arc<Participant>) {
        self.tell_pace(own);
        own.alone.fetch_and(!OFFLINE, Ordering::Relaxed);
        participants.join(own.clone());
    }

    /// Prepares a reader for the list: it has to fence if the other readers do, and counts grace
    /// periods from now on. The caller has locked the list.
    pub(super) fn tell_pace(&self, reader: &Participant) {
        if self.fenced.load(Ordering::Relaxed) {
            reader.alone.fetch_or(FENCED, Ordering::Relaxed);
        }
        let graces = self.grace_periods();
        reader.graces_seen.store(graces, Ordering::Relaxed);
    }

    /// Looks at the [`AT_ONCE`] accessors that went online first, and takes offline those that are
    /// in no section. The others go to the end of the list.
    fn take_some_offline(&self, participants: &mut Participants) {
        let oldest = (0..AT_ONCE).map_while(|_| participants.accessors.leave_first());
        let oldest: Vec<_> = oldest.collect();
        for participant in &oldest {
            participant.set_ticket(Ticket::NONE);
            participant.alone.fetch_or(OFFLINE, Ordering::SeqCst);
        }
        if self.mode == BarrierMode::Membarrier {
            // The barrier is needed even where readers fence, since they may fence before they load
            // the flag. In the other mode, the read-modify-writes order everything.
            barrier::heavy();
        }
        for participant in oldest {
            if self.read_state(&participant) & 1 == 0 {
                continue;
            }
            participant.alone.fetch_and(!OFFLINE, Ordering::Relaxed);
            participants.join(participant);
        }
    }

    /// Removes an accessor that is being dropped.
    pub(super) fn end_accessor(&self, participant: &Participant) {
        // In a child of fork(2) the lock may have been held by a thread that exists only in the
        // parent.
        if self.foreign_maker().is_some() {
            return;
        }
        let mut participants = self.participants.lock();
        let left = participants.accessors.leave(participant.ticket());
        drop(participants);
        drop(left);
    }
}

impl Participants {
    fn join(&mut self, accessor: Arc<Participant>) {
        self.accessors.join_with(|ticket| {
            accessor.set_ticket(ticket);
            accessor
        });
    }
}
