//! Sets of blocks with a note for each, kept as runs of adjacent blocks with the same note. While a
//! file is written from front to back, each further block extends the last run, unless its note is
//! different.

use std::collections::BTreeMap;
use std::ops::Range;

/// The note for a dirty block: since when it has been dirty, and which barrier may hold it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dirty {
    /// The tick in which the block became dirty.
    pub(crate) since: u64,
    /// The highest barrier number that any write to the block carried; 0 for none.
    pub(crate) barrier: u64,
}

/// A set of blocks with a note for each.
#[derive(Debug)]
pub(crate) struct Runs<T> {
    /// The runs by their first blocks. They do not overlap. Adjacent runs may have the same note.
    runs: BTreeMap<u64, Run<T>>,
    blocks: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run<T> {
    /// The number of the block after the run's last one.
    end: u64,
    note: T,
}

impl<T> Default for Runs<T> {
    fn default() -> Runs<T> {
        Runs {
            runs: BTreeMap::new(),
            blocks: 0,
        }
    }
}

impl<T: Copy + PartialEq> Runs<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Returns the number of blocks in the set.
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.run_of(block).is_some()
    }

    /// Returns the note for a block, if it is in the set.
    pub(crate) fn get(&self, block: u64) -> Option<T> {
        self.run_of(block).map(|(_, run)| run.note)
    }

    /// Returns the highest block.
    pub(crate) fn last(&self) -> Option<u64> {
        self.runs.last_key_value().map(|(_, run)| run.end - 1)
    }

    /// Returns the runs that reach into a range, each cut to its part in the range, in ascending
    /// order.
    pub(crate) fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, T)> + '_ {
        let (from, to) = (range.start, range.end);
        let first = self.run_of(from).map_or(from, |(start, _)| start);
        let runs = self.runs.range(first..);
        runs.take_while(move |(start, _)| **start < to)
            .map(move |(start, run)| ((*start).max(from)..run.end.min(to), run.note))
    }

    /// Returns all runs in ascending order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Range<u64>, T)> + '_ {
        self.runs_in(0..u64::MAX)
    }

    /// Adds blocks. The caller ensures that none of them is in the set yet.
    pub(crate) fn note_run(&mut self, blocks: Range<u64>, note: T) {
        self.blocks += (blocks.end - blocks.start) as usize;
        // In most calls, the blocks follow the last run.
        if let Some(mut last) = self.runs.last_entry()
            && last.get().end == blocks.start
            && last.get().note == note
        {
            last.get_mut().end = blocks.end;
            return;
        }
        if let Some((_, run)) = self.runs.range_mut(..blocks.end).next_back() {
            assert!(run.end <= blocks.start, "I5: {blocks:?} is there already");
            if run.end == blocks.start && run.note == note {
                run.end = blocks.end;
                return;
            }
        }
        let end = blocks.end;
        self.runs.insert(blocks.start, Run { end, note });
    }

    /// Sets the note of blocks. Those that are not in the set are added.
    pub(crate) fn set(&mut self, blocks: Range<u64>, note: T) {
        self.remove_all(blocks.clone());
        self.note_run(blocks, note);
    }

    /// Removes a block, and returns its note.
    pub(crate) fn remove(&mut self, block: u64) -> Option<T> {
        self.take_run(block..block + 1).map(|(_, note)| note)
    }

    /// Removes the blocks of a range that are in one run with its first block. Returns the block
    /// after them, and the note. Returns `None` if the first block is not in the set.
    pub(crate) fn take_run(&mut self, blocks: Range<u64>) -> Option<(u64, T)> {
        let (start, run) = self.run_of(blocks.start)?;
        let end = run.end.min(blocks.end);
        if start == blocks.start {
            self.runs.remove(&start);
        } else if let Some(before) = self.runs.get_mut(&start) {
            before.end = blocks.start;
        }
        if end < run.end {
            self.runs.insert(end, run);
        }
        self.blocks -= (end - blocks.start) as usize;
        Some((end, run.note))
    }

    /// Removes all blocks of a range that are in the set.
    pub(crate) fn remove_all(&mut self, blocks: Range<u64>) {
        let mut next = blocks.start;
        while let Some(part) = self.first_in(next..blocks.end) {
            next = part.end;
            self.take_run(part);
        }
    }

    /// Returns the part of a range that is covered by the first run in the range.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.runs_in(range).next().map(|(blocks, _)| blocks)
    }

    /// Returns the end of the run that contains a block.
    pub(crate) fn run_end(&self, block: u64) -> Option<u64> {
        self.run_of(block).map(|(_, run)| run.end)
    }

    /// Removes the blocks whose note `keep` rejects.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(T) -> bool) {
        let blocks = &mut self.blocks;
        self.runs.retain(|start, run| {
            let keep = keep(run.note);
            if !keep {
                *blocks -= (run.end - start) as usize;
            }
            keep
        });
    }

    /// Returns the run that contains a block, and the run's first block.
    fn run_of(&self, block: u64) -> Option<(u64, Run<T>)> {
        let (start, run) = self.runs.range(..=block).next_back()?;
        (block < run.end).then_some((*start, *run))
    }

    /// Returns the number of runs.
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }
}

impl Runs<Dirty> {
    /// Adds a block. A block that is already there keeps the tick in which it became dirty, and
    /// gets the higher of the two barrier numbers.
    pub(crate) fn note(&mut self, block: u64, entry: Dirty) {
        let barrier = entry.barrier;
        match self.get(block) {
            None => self.note_run(block..block + 1, entry),
            Some(known) if barrier > known.barrier => {
                self.set(block..block + 1, Dirty { barrier, ..known });
            }
            Some(_) => {}
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl<T: Copy + PartialEq> Runs<T> {
        /// Returns all blocks in ascending order.
        pub(crate) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
            self.all().flat_map(|(blocks, _)| blocks)
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    fn entry(since: u64, barrier: u64) -> Dirty {
        Dirty { since, barrier }
    }

    #[test]
    fn what_is_written_in_order_is_one_run() {
        let mut runs = Runs::<Dirty>::default();
        for block in 10..500 {
            runs.note(block, entry(1, 0));
        }
        for block in (500..1000).step_by(10) {
            runs.note_run(block..block + 10, entry(1, 0));
        }
        assert_eq!((runs.runs(), runs.len(), runs.last()), (1, 990, Some(999)));
        assert_eq!(runs.remove(500), Some(entry(1, 0)));
        assert_eq!((runs.runs(), runs.len()), (2, 989));
        assert_eq!(runs.remove(500), None);
        let around: Vec<_> = runs.runs_in(498..503).map(|(blocks, _)| blocks).collect();
        assert_eq!(around, [498..500, 501..503]);
    }

    #[test]
    fn runs_are_the_same_as_a_map_of_blocks() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 16) % below
        };
        let (mut runs, mut map) = (Runs::<Dirty>::default(), BTreeMap::<u64, Dirty>::new());
        for _ in 0..20_000 {
            let (block, noted) = (next(40), entry(next(2), next(3)));
            let run = block..block + next(4);
            match next(5) {
                4 => {
                    let gone = map.range(run.clone()).map(|(block, _)| *block);
                    gone.collect::<Vec<u64>>()
                        .iter()
                        .for_each(|block| assert!(map.remove(block).is_some()));
                    runs.remove_all(run);
                }
                0 => assert_eq!(runs.remove(block), map.remove(&block)),
                1 if !run.is_empty() && map.range(run.clone()).next().is_none() => {
                    runs.note_run(run.clone(), noted);
                    map.extend(run.map(|block| (block, noted)));
                }
                _ => {
                    runs.note(block, noted);
                    let known = map.entry(block).or_insert(noted);
                    known.barrier = known.barrier.max(noted.barrier);
                }
            }
            let range = next(40)..next(45);
            let in_map = map.iter().filter(|(block, _)| range.contains(block));
            let in_runs = runs.runs_in(range.clone());
            let in_runs = in_runs.flat_map(|(blocks, note)| blocks.map(move |block| (block, note)));
            assert!(in_runs.eq(in_map.map(|(block, entry)| (*block, *entry))));
            assert!(runs.blocks().eq(map.keys().copied()));
            assert_eq!(runs.len(), map.len());
            assert_eq!(runs.is_empty(), map.is_empty());
            assert_eq!(runs.last(), map.keys().next_back().copied());
            assert_eq!(runs.get(block), map.get(&block).copied());
            assert_eq!(runs.contains(block), map.contains_key(&block));
        }
    }

    #[test]
    fn a_run_is_taken_as_far_as_one_note_goes() {
        let mut runs = Runs::default();
        runs.note_run(10..20, 1u64);
        runs.note_run(20..30, 2);
        assert_eq!(runs.take_run(9..30), None);
        assert_eq!(runs.take_run(12..15), Some((15, 1)));
        assert_eq!(runs.take_run(16..40), Some((20, 1)));
        assert_eq!(runs.take_run(20..40), Some((30, 2)));
        assert!(runs.blocks().eq([10, 11, 15]));
        assert_eq!((runs.len(), runs.runs()), (3, 2));
        runs.note_run(40..50, 7);
        runs.retain(|note| note > 1);
        assert!(runs.blocks().eq(40..50));
        assert_eq!(runs.len(), 10);
    }
}
