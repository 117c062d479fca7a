//! A list of members that come and go. Each member has a ticket by which it is found again.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::failpoint;

/// A list whose members join at its end and leave from anywhere. Joining and leaving take time that
/// grows with the logarithm of the number of members.
#[derive(Debug)]
pub(crate) struct Members<T> {
    by_ticket: BTreeMap<Ticket, T>,
    last: Ticket,
}

/// The number of a member. It is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    /// A ticket that no member has.
    pub(crate) const NONE: Ticket = Ticket(0);
}

impl Ord for Ticket {
    fn cmp(&self, other: &Ticket) -> Ordering {
        failpoint!(MemberSeen);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Ticket) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Default for Members<T> {
    fn default() -> Members<T> {
        Members {
            by_ticket: BTreeMap::new(),
            last: Ticket::NONE,
        }
    }
}

impl<T> Members<T> {
    /// Adds the member that `make` returns for its ticket.
    pub(crate) fn join_with(&mut self, make: impl FnOnce(Ticket) -> T) -> &T {
        self.last.0 += 1;
        let ticket = self.last;
        self.by_ticket.entry(ticket).or_insert_with(|| make(ticket))
    }

    /// Adds a member and returns its ticket.
    pub(crate) fn join(&mut self, member: T) -> Ticket {
        self.join_with(|_| member);
        self.last
    }

    /// Removes the member with this ticket, if there is one.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let member = self.by_ticket.remove(&ticket);
        if self.by_ticket.is_empty() {
            // An empty map keeps its last node allocated.
            self.by_ticket = BTreeMap::new();
        }
        member
    }

    /// Removes the oldest member, if there is any.
    pub(crate) fn leave_first(&mut self) -> Option<T> {
        self.by_ticket.pop_first().map(|(_, member)| member)
    }

    /// Iterates over the members, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_ticket.values().inspect(|_| {
            failpoint!(MemberSeen);
        })
    }

    /// Returns the number of members.
    pub(crate) fn len(&self) -> usize {
        self.by_ticket.len()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::{Members, Ticket};

    #[test]
    fn members_are_found_again_and_keep_their_order() {
        let mut members = Members::default();
        let tickets = ["a", "b", "c"].map(|member| members.join(member));
        assert_eq!(members.leave(tickets[1]), Some("b"));
        assert_eq!(members.leave(tickets[1]), None);
        assert_eq!(members.leave(Ticket::NONE), None);
        members.join("d");
        assert_eq!(members.iter().copied().collect::<String>(), "acd");
        assert_eq!(members.len(), 3);
    }
}
