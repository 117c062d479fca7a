//! Lookups of mappings alone: a tree of mappings, and three schemes of caching found mappings.
//! These are prototypes that do not use the library.

use std::collections::BTreeMap;

use crate::host::PAGE;

/// Where mappings that were found are remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scheme {
    /// Nowhere: each lookup walks the tree.
    None,
    /// In one place for the whole space, which has the last mapping that was found: the old way.
    OnePerSpace,
    /// In four slots for each thread, as in the library's accessors.
    PerThread,
}

/// How many times mappings were looked up, and how many times the tree was not needed. A lookup
/// counts when it is called, before any check.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Lookups {
    pub(super) calls: u64,
    pub(super) hits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    kind: usize,
}

/// A space's mappings, and threads that make lookups, one after the other.
#[derive(Debug)]
pub(super) struct Replay {
    scheme: Scheme,
    /// The mappings by their start.
    mappings: BTreeMap<u64, Mapping>,
    /// The number of changes to mappings that existed.
    changes: u64,
    /// The slots of each thread, with [`Scheme::PerThread`].
    threads: Vec<Slots>,
    /// The bounds of the last mapping found, with [`Scheme::OnePerSpace`].
    last: (u64, u64),
    lookups: Lookups,
}

const SLOTS: usize = 4;
/// The number of hints. A hint says which slot to look at first for a range of 2 MiB; several
/// ranges share one.
const HINTS: usize = 32;

/// The cache of one thread.
#[repr(align(64))]
#[derive(Clone, Default, Debug)]
struct Slots {
    starts: [u64; SLOTS],
    lengths: [u64; SLOTS],
    hints: [u8; HINTS],
    /// The space's number of changes at the time when the slots were filled.
    changes: u64,
}

fn hint(at: u64) -> usize {
    (at >> 21) as usize % HINTS
}

impl Slots {
    #[inline(always)]
    fn holds(&self, slot: usize, at: u64) -> bool {
        at.wrapping_sub(self.starts[slot]) < self.lengths[slot]
    }

    #[inline(always)]
    fn hinted(&self, changes: u64, at: u64) -> Option<(u64, u64)> {
        let slot = usize::from(self.hints[hint(at)]) % SLOTS;
        (self.changes == changes && self.holds(slot, at)).then(|| self.bounds(slot))
    }

    fn bounds(&self, slot: usize) -> (u64, u64) {
        (self.starts[slot], self.starts[slot] + self.lengths[slot])
    }

    /// Searches all slots, after emptying those that were filled before a change.
    #[inline(never)]
    fn searched(&mut self, changes: u64, at: u64) -> Option<(u64, u64)> {
        if self.changes != changes {
            self.lengths = [0; SLOTS];
            self.changes = changes;
        }
        let slot = (0..SLOTS).find(|slot| self.holds(*slot, at))?;
        self.hints[hint(at)] = slot as u8;
        Some(self.bounds(slot))
    }

    fn put(&mut self, at: u64, (start, end): (u64, u64)) {
        let slot = (at / PAGE as u64) as usize % SLOTS;
        self.starts[slot] = start;
        self.lengths[slot] = end - start;
        self.hints[hint(at)] = slot as u8;
    }
}

impl Replay {
    /// Creates a space without mappings, and `threads` threads.
    pub(super) fn new(scheme: Scheme, threads: usize) -> Replay {
        let threads = match scheme {
            Scheme::PerThread => vec![Slots::default(); threads],
            Scheme::None | Scheme::OnePerSpace => Vec::new(),
        };
        Replay {
            scheme,
            mappings: BTreeMap::new(),
            changes: 0,
            threads,
            last: (0, 0),
            lookups: Lookups::default(),
        }
    }

    /// Makes another space with the same mappings, an empty cache and no counts.
    pub(super) fn fork(&self) -> Replay {
        Replay {
            mappings: self.mappings.clone(),
            ..Replay::new(self.scheme, self.threads.len())
        }
    }

    /// Maps a range, replaces the mappings there, and merges it with neighbours of the same kind.
    pub(super) fn map(&mut self, mut start: u64, mut end: u64, kind: usize) {
        let mut changed = self.cut(start, end);
        let before = self.mappings.range(..start).next_back();
        let before = before.map(|(at, mapping)| (*at, *mapping));
        if let Some((at, found)) = before.filter(|(_, m)| m.end == start && m.kind == kind) {
            self.mappings.remove(&at);
            (start, changed) = (at, true);
            debug_assert_eq!(found.kind, kind);
        }
        if let Some(after) = self.mappings.get(&end).filter(|m| m.kind == kind).copied() {
            self.mappings.remove(&end);
            (end, changed) = (after.end, true);
        }
        self.mappings.insert(start, Mapping { end, kind });
        self.invalidate(changed);
    }

    /// Unmaps a range.
    pub(super) fn unmap(&mut self, start: u64, end: u64) {
        let changed = self.cut(start, end);
        self.invalidate(changed);
    }

    /// Removes a range from the mappings. Returns whether any of it was mapped.
    fn cut(&mut self, start: u64, end: u64) -> bool {
        let first = self.mappings.range(..start).next_back();
        let first = first.filter(|(_, mapping)| mapping.end > start);
        let others = self.mappings.range(start..end);
        let cut: Vec<u64> = first.into_iter().chain(others).map(|(at, _)| *at).collect();
        for at in &cut {
            let Some(old) = self.mappings.remove(at) else {
                continue;
            };
            if *at < start {
                self.mappings.insert(*at, Mapping { end: start, ..old });
            }
            if end < old.end {
                self.mappings.insert(end, old);
            }
        }
        !cut.is_empty()
    }

    fn invalidate(&mut self, changed: bool) {
        if changed {
            self.last = (0, 0);
            self.changes += 1;
        }
    }

    /// Returns the bounds of the mapping that contains `at`, looked up as in a fault of this
    /// thread.
    #[inline(always)]
    pub(super) fn find(&mut self, thread: usize, at: u64) -> Option<(u64, u64)> {
        self.lookups.calls += 1;
        let found = match self.scheme {
            Scheme::PerThread => {
                let slots = &mut self.threads[thread];
                slots
                    .hinted(self.changes, at)
                    .or_else(|| slots.searched(self.changes, at))
            }
            Scheme::OnePerSpace => {
                Some(self.last).filter(|(start, end)| (*start..*end).contains(&at))
            }
            Scheme::None => None,
        };
        if found.is_some() {
            self.lookups.hits += 1;
            return found;
        }
        self.missed(thread, at)
    }

    #[inline(never)]
    fn missed(&mut self, thread: usize, at: u64) -> Option<(u64, u64)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        let bounds = (*start, mapping.end);
        if at >= mapping.end {
            return None;
        }
        match self.scheme {
            Scheme::PerThread => self.threads[thread].put(at, bounds),
            Scheme::OnePerSpace => self.last = bounds,
            Scheme::None => {}
        }
        Some(bounds)
    }

    /// Returns the counts so far.
    pub(super) fn lookups(&self) -> Lookups {
        self.lookups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_finds_the_same_and_counts_what_it_did() {
        let schemes = [Scheme::None, Scheme::OnePerSpace, Scheme::PerThread];
        let hits = schemes.map(|scheme| {
            let mut replay = Replay::new(scheme, 2);
            replay.map(0x1000, 0x5000, 0);
            replay.map(0x8000, 0x9000, 1);
            for _ in 0..10 {
                assert_eq!(replay.find(0, 0x1234), Some((0x1000, 0x5000)));
                assert_eq!(replay.find(1, 0x8000), Some((0x8000, 0x9000)));
            }
            replay.unmap(0x2000, 0x3000);
            assert_eq!(replay.find(0, 0x1234), Some((0x1000, 0x2000)));
            assert_eq!(replay.find(0, 0x2000), None);
            assert_eq!(replay.mappings.len(), 3);
            let mut child = replay.fork();
            child.unmap(0x8000, 0x9000);
            assert_eq!((child.mappings.len(), replay.mappings.len()), (2, 3));
            assert_eq!(child.lookups(), Lookups::default());
            assert_eq!(replay.lookups().calls, 22);
            replay.lookups().hits
        });
        assert_eq!(hits, [0, 0, 18]);
    }

    #[test]
    fn neighbours_of_one_kind_are_one_mapping() {
        let mut replay = Replay::new(Scheme::None, 0);
        replay.map(0x1000, 0x2000, 0);
        replay.map(0x3000, 0x4000, 0);
        replay.map(0x4000, 0x5000, 1);
        replay.map(0x2000, 0x3000, 0);
        assert_eq!(replay.find(0, 0x2000), Some((0x1000, 0x4000)));
        assert_eq!(replay.find(0, 0x4000), Some((0x4000, 0x5000)));
        replay.map(0x1800, 0x4800, 2);
        assert_eq!(replay.find(0, 0x1000), Some((0x1000, 0x1800)));
        assert_eq!(replay.find(0, 0x4fff), Some((0x4800, 0x5000)));
    }
}
