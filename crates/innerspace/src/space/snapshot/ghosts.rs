//! Pages that a space has given back at recent restores. If such a page is stored to again soon
//! after, the next restore keeps it.

/// The number of consecutive restores without a store to a page after which no more stores to that
/// page are expected.
pub(super) const IDLE: u8 = 4;

/// The number of places. A page's number selects its place, which remembers one page, the newest.
const PLACES: usize = 1 << 10;
/// The bits of a place that count restores. The other bits are the page's number.
const CLOCK_BITS: u32 = 24;
const CLOCK: u64 = (1 << CLOCK_BITS) - 1;

/// The pages that were given back lately.
#[derive(Debug)]
pub(super) struct Ghosts(Box<[u64; PLACES]>);

impl Ghosts {
    /// The size in bytes.
    pub(super) const SIZE: usize = PLACES * size_of::<u64>();

    /// Creates a table that remembers no page: the number in each place is greater than any page's.
    pub(super) fn new() -> Ghosts {
        Ghosts(Box::new([u64::MAX; PLACES]))
    }

    fn place(page: u64) -> usize {
        // Pages of the same leaf get neighbouring places; pages of different leaves do not.
        (page ^ (page >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PLACES
    }

    /// Remembers that a page was given back at restore number `restore`.
    pub(super) fn add(&mut self, page: u64, restore: u32) {
        self.0[Ghosts::place(page)] = page << CLOCK_BITS | u64::from(restore) & CLOCK;
    }

    /// Returns whether a page was given back a few restores before number `restore`. In rare cases
    /// also true for a page given back long before, because the count wraps around.
    pub(super) fn has(&self, page: u64, restore: u32) -> bool {
        let place = self.0[Ghosts::place(page)];
        let age = u64::from(restore).wrapping_sub(place) & CLOCK;
        place >> CLOCK_BITS == page && age <= u64::from(IDLE)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_remembered_for_a_few_restores() {
        let mut ghosts = Ghosts::new();
        assert!(!ghosts.has(0, 1));
        ghosts.add(77, 10);
        assert!(ghosts.has(77, 11) && ghosts.has(77, 14));
        assert!(!ghosts.has(77, 15), "too long ago");
        assert!(!ghosts.has(78, 11) && !ghosts.has(77 + (1 << 20), 11));
        ghosts.add(77, 20);
        assert!(ghosts.has(77, 21), "again");
        // The highest page of the widest space, at the highest count.
        let last = (1 << 36) - 1;
        ghosts.add(last, u32::MAX);
        assert!(ghosts.has(last, 0));
    }
}
