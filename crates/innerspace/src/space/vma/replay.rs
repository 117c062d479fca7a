//! The lookup of mappings by itself, for table T5: the tree and the sequence of a space, and the
//! schemes of caching that were in use before the one that accessors have.

use super::area::{Backing, Protection, Residence, Sharing, Vma};
use super::cache::{Sequence, VmaCache, VmaLookups};
use super::set::VmaSet;
use crate::cache::Reading;
use crate::sync::Arc;

/// What remembers mappings that were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmaScheme {
    /// Nothing: each lookup walks the tree.
    None,
    /// One mapping for the whole space, whoever found it last: the old way.
    OnePerSpace,
    /// Four slots for each thread, as accessors have.
    PerThread,
}

/// A space's mappings, and threads that look addresses up, one after the other. Replays a trace of
/// events.
///
/// Addresses are page-aligned where they are bounds. Calls and hits are counted as a space counts
/// them: a call when it is made, before anything is checked.
#[derive(Debug)]
pub struct VmaReplay {
    scheme: VmaScheme,
    vmas: VmaSet,
    sequence: Sequence,
    /// None where the scheme has none.
    threads: Vec<Thread>,
    /// The one of the whole space: bounds.
    last: (u64, u64),
    /// Without slots of their own.
    counted: VmaLookups,
}

/// The cache of one thread.
#[derive(Debug)]
struct Thread {
    cache: VmaCache,
    /// For what an accessor has besides: caches that are a power of two apart share few places of
    /// the processor's first cache.
    _apart: [u64; 8],
}

impl Thread {
    fn new(sequence: &Sequence) -> Thread {
        Thread {
            cache: VmaCache::new(sequence),
            _apart: [0; 8],
        }
    }
}

/// The bounds of no mapping. In place of an `Option`, which a function would return by memory.
const NOWHERE: (u64, u64) = (0, 0);

fn bounds(vma: &Vma) -> (u64, u64) {
    (vma.start, vma.end)
}

/// What tells mappings apart.
const KINDS: [u8; 5] = [3, 1, 4, 0, 5];

impl VmaReplay {
    /// Kinds of mappings.
    pub const KINDS: usize = KINDS.len();

    /// No mappings, and so many threads.
    pub fn new(scheme: VmaScheme, threads: usize) -> VmaReplay {
        let sequence = Sequence::default();
        let caches = match scheme {
            VmaScheme::PerThread => threads,
            VmaScheme::None | VmaScheme::OnePerSpace => 0,
        };
        VmaReplay {
            scheme,
            vmas: VmaSet::new(Arc::default()),
            threads: (0..caches).map(|_| Thread::new(&sequence)).collect(),
            sequence,
            last: NOWHERE,
            counted: VmaLookups::default(),
        }
    }

    /// Another space with the same mappings, of which nothing is remembered and nothing was
    /// counted: what fork makes.
    pub fn fork(&self) -> VmaReplay {
        VmaReplay {
            vmas: self.vmas.clone(),
            ..VmaReplay::new(self.scheme, self.threads.len())
        }
    }

    /// Maps a range in place of what is there. It merges with neighbours, unless their `kind`,
    /// below [`VmaReplay::KINDS`], tells them apart.
    ///
    /// # Panics
    /// With any other kind.
    pub fn map(&mut self, start: u64, end: u64, kind: usize) {
        let protection = Protection::from_bits(KINDS[kind]).expect("a protection's bits");
        let vma = Vma {
            start,
            end,
            protection,
            ceiling: protection,
            sharing: Sharing::Private,
            residence: Residence::Pageable,
            reading: Reading::Normal,
            backing: Backing::Anonymous,
        };
        let changed = !self.vmas.put(vma).removed.is_empty();
        self.invalidate(changed);
    }

    /// Unmaps a range.
    pub fn unmap(&mut self, start: u64, end: u64) {
        let changed = !self.vmas.remove(&(start..end)).removed.is_empty();
        self.invalidate(changed);
    }

    fn invalidate(&mut self, changed: bool) {
        if changed {
            self.last = NOWHERE;
            self.sequence.bump();
        }
    }

    /// The mapping that contains `at`, as a fault of this thread looks for it.
    ///
    /// # Panics
    /// In debug builds, when each thread has a cache and there is no such thread; otherwise that
    /// one has none.
    #[inline(always)]
    pub fn find(&mut self, thread: usize, at: u64) -> Option<(u64, u64)> {
        let (start, end) = match self.threads.get(thread) {
            Some(own) => match own.cache.find_hinted(&self.sequence, at) {
                Some(bounds) => bounds,
                None => self.find_without_hint(thread, at),
            },
            None => self.find_in_common(at),
        };
        (end != 0).then_some((start, end))
    }

    fn find_without_hint(&mut self, thread: usize, at: u64) -> (u64, u64) {
        let mut named = None;
        let tree = || self.vmas.find_containing(at);
        let cache = &mut self.threads[thread].cache;
        let found = cache.find_without_hint(&self.sequence, at, &mut named, tree);
        found.map_or(NOWHERE, bounds)
    }

    /// Without slots of the thread's own.
    fn find_in_common(&mut self, at: u64) -> (u64, u64) {
        debug_assert_ne!(self.scheme, VmaScheme::PerThread, "no such thread");
        self.counted.calls += 1;
        let (start, end) = self.last;
        if self.scheme == VmaScheme::OnePerSpace && (start..end).contains(&at) {
            self.counted.hits += 1;
            return self.last;
        }
        self.counted.misses += 1;
        match self.vmas.find_containing(at) {
            Some(vma) => {
                self.last = bounds(vma);
                self.last
            }
            None => NOWHERE,
        }
    }

    /// What was counted so far.
    pub fn lookups(&self) -> VmaLookups {
        match self.scheme {
            VmaScheme::PerThread => self.sequence.lookups(),
            _ => self.counted,
        }
    }

    /// The number of mappings.
    pub fn mappings(&self) -> usize {
        self.vmas.iter().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_finds_the_same_and_counts_what_it_did() {
        let schemes = [
            VmaScheme::None,
            VmaScheme::OnePerSpace,
            VmaScheme::PerThread,
        ];
        let mut replays = schemes.map(|scheme| VmaReplay::new(scheme, 2));
        for replay in &mut replays {
            replay.map(0x1000, 0x5000, 0);
            replay.map(0x8000, 0x9000, 1);
            for _ in 0..10 {
                assert_eq!(replay.find(0, 0x1234), Some((0x1000, 0x5000)));
                assert_eq!(replay.find(1, 0x8000), Some((0x8000, 0x9000)));
            }
            replay.unmap(0x2000, 0x3000);
            assert_eq!(replay.find(0, 0x1234), Some((0x1000, 0x2000)));
            assert_eq!(replay.find(0, 0x2000), None);
            assert_eq!(replay.mappings(), 3);
            let mut child = replay.fork();
            child.unmap(0x8000, 0x9000);
            assert_eq!((child.mappings(), replay.mappings()), (2, 3));
            assert_eq!(child.lookups(), VmaLookups::default());
        }
        let hits = replays.each_ref().map(|replay| {
            let found = replay.lookups();
            assert_eq!((found.calls, found.hits + found.misses), (22, 22));
            found.hits
        });
        assert_eq!(hits, [0, 0, 18]);
    }
}
