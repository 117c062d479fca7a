//! Which chunk is in which slot, and which slot is given up next.
//!
//! As long as there are free slots, the first of them is taken. Then slots are taken in a circle,
//! as the main queue of S3-FIFO does: a chunk that was used since the hand came by last (up to
//! three times) is passed over, and loses one use. So a scan, whose chunks are used once, pushes
//! out what was used no more than that. Chunks that come together lie in neighbouring slots, and
//! are read together.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use super::disk::Record;

/// A chunk of one version of one store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    /// A fingerprint of the store's name and version.
    pub(super) file: [u64; 2],
    /// The chunk's number in the store.
    pub(super) chunk: u64,
}

/// The most uses that are counted.
const MOST_USES: u8 = 3;

#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    places: HashMap<Key, u32>,
    /// Chunks that a thread is fetching.
    claimed: HashSet<Key>,
    hand: u32,
    /// The number of free slots. None of them is before `first_free`.
    free: u32,
    first_free: u32,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    /// A thread writes it.
    Busy,
    Full {
        record: Record,
        uses: u8,
    },
}

/// Returns a random number.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Table {
    pub(super) fn new(slots: u32) -> Table {
        Table {
            slots: vec![Slot::Free; slots as usize],
            places: HashMap::new(),
            claimed: HashSet::new(),
            hand: 0,
            free: slots,
            first_free: 0,
        }
    }

    /// Returns how many chunks there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Takes in a record that was found in the folder. Of two records for one chunk, the later
    /// slot's is dropped: in either case the checksum decides about the bytes.
    pub(super) fn adopt(&mut self, slot: u32, record: Record) {
        if let std::collections::hash_map::Entry::Vacant(place) = self.places.entry(record.key) {
            place.insert(slot);
            self.slots[slot as usize] = Slot::Full { record, uses: 0 };
            self.free -= 1;
        }
    }

    /// Finds a chunk, and counts the use.
    pub(super) fn use_chunk(&mut self, key: &Key) -> Option<(u32, Record)> {
        let slot = *self.places.get(key)?;
        match &mut self.slots[slot as usize] {
            Slot::Full { record, uses } => {
                *uses = (*uses + 1).min(MOST_USES);
                Some((slot, *record))
            }
            Slot::Free | Slot::Busy => None,
        }
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.places.contains_key(key)
    }

    /// Claims a chunk that is to be fetched, unless another thread has.
    pub(super) fn claim(&mut self, key: Key) -> bool {
        self.claimed.insert(key)
    }

    pub(super) fn is_claimed(&self, key: &Key) -> bool {
        self.claimed.contains(key)
    }

    pub(super) fn unclaim(&mut self, key: &Key) {
        self.claimed.remove(key);
    }

    /// Takes a slot to be written, and says whether a chunk was given up for it. `None` if all are
    /// being written.
    pub(super) fn take_slot(&mut self) -> Option<(u32, bool)> {
        if self.free > 0 {
            while !matches!(self.slots[self.first_free as usize], Slot::Free) {
                self.first_free += 1;
            }
            self.free -= 1;
            self.slots[self.first_free as usize] = Slot::Busy;
            return Some((self.first_free, false));
        }
        // After this many steps, every slot has been seen without a use.
        for _ in 0..self.slots.len() * (MOST_USES as usize + 1) {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len() as u32;
            let slot = &mut self.slots[at as usize];
            match slot {
                Slot::Busy | Slot::Free => {}
                Slot::Full { uses, .. } if *uses > 0 => *uses -= 1,
                Slot::Full { record, .. } => {
                    self.places.remove(&record.key);
                    *slot = Slot::Busy;
                    return Some((at, true));
                }
            }
        }
        None
    }

    /// Notes what was written to a slot.
    pub(super) fn fill_slot(&mut self, slot: u32, record: Record) {
        let earlier = self.places.insert(record.key, slot);
        self.slots[slot as usize] = Slot::Full { record, uses: 0 };
        if let Some(earlier) = earlier.filter(|earlier| *earlier != slot) {
            self.free_slot(earlier);
        }
    }

    /// Makes a slot free that is not.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Free;
        self.free += 1;
        self.first_free = self.first_free.min(slot);
    }

    /// Forgets a chunk, if it is still in its slot. Returns whether it was.
    pub(super) fn remove(&mut self, slot: u32, record: &Record) -> bool {
        match &self.slots[slot as usize] {
            Slot::Full { record: now, .. } if now == record => {
                self.places.remove(&record.key);
                self.free_slot(slot);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(chunk: u64) -> Record {
        Record {
            key: Key {
                file: [1, 2],
                chunk,
            },
            len: 1,
            sum: chunk,
        }
    }

    fn put(table: &mut Table, chunk: u64) -> u32 {
        let (slot, _) = table.take_slot().unwrap();
        table.fill_slot(slot, record(chunk));
        slot
    }

    #[test]
    fn a_chunk_that_was_used_outlives_a_scan_of_the_tiers_length() {
        let mut table = Table::new(8);
        put(&mut table, 100);
        assert!(table.use_chunk(&record(100).key).is_some());
        for chunk in 0..8 {
            put(&mut table, chunk);
        }
        assert!(table.has(&record(100).key));
        assert!(!table.has(&record(0).key));
        assert_eq!(table.len(), 8);
    }

    #[test]
    fn free_slots_are_taken_before_a_chunk_is_given_up() {
        let mut table = Table::new(4);
        table.adopt(0, record(0));
        table.adopt(2, record(2));
        assert_eq!([1, 3].map(|chunk| put(&mut table, chunk)), [1, 3]);
        assert!(table.remove(2, &record(2)));
        assert_eq!(table.take_slot(), Some((2, false)));
        assert_eq!(table.take_slot(), Some((0, true)));
    }

    #[test]
    fn slots_that_are_written_are_not_taken_twice() {
        let mut table = Table::new(2);
        let (first, _) = table.take_slot().unwrap();
        let (second, _) = table.take_slot().unwrap();
        assert_ne!(first, second);
        assert_eq!(table.take_slot(), None);
        table.free_slot(first);
        assert_eq!(table.take_slot(), Some((first, false)));
    }

    #[test]
    fn only_the_chunk_that_was_read_is_forgotten() {
        let mut table = Table::new(1);
        let slot = put(&mut table, 1);
        put(&mut table, 2);
        assert!(!table.remove(slot, &record(1)));
        assert!(table.remove(slot, &record(2)));
        assert_eq!(table.len(), 0);
    }
}
