//! Dirty blocks as runs of neighbours of which the same is noted: a file that is written from front to back has one run,
//! and another block of it makes that one longer.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Dirty;

/// What is noted of each block of a set.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The runs by their first blocks. They do not overlap; neighbours of the same entry may stay apart.
    runs: BTreeMap<u64, Run>,
    blocks: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    /// The block after the last.
    end: u64,
    entry: Dirty,
}

impl Runs {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Blocks in the set.
    pub(super) fn len(&self) -> usize {
        self.blocks
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.run_of(block).is_some()
    }

    /// What is noted of a block.
    pub(super) fn get(&self, block: u64) -> Option<Dirty> {
        self.run_of(block).map(|(_, run)| run.entry)
    }

    /// The highest block.
    pub(super) fn last(&self) -> Option<u64> {
        self.runs.last_key_value().map(|(_, run)| run.end - 1)
    }

    /// The blocks of a range and what is noted of each, ascending.
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Dirty)> + '_ {
        let (from, to) = (range.start, range.end);
        let first = self.run_of(from).map_or(from, |(start, _)| start);
        let runs = self.runs.range(first..);
        runs.take_while(move |(start, _)| **start < to)
            .flat_map(move |(start, run)| {
                let entry = run.entry;
                ((*start).max(from)..run.end.min(to)).map(move |block| (block, entry))
            })
    }

    /// Adds a block; one that is there keeps its age, and the higher barrier of the two.
    pub(super) fn note(&mut self, block: u64, entry: Dirty) {
        if let Some((_, run)) = self.runs.range_mut(..=block).next_back() {
            if run.end == block && run.entry == entry {
                run.end += 1;
                self.blocks += 1;
                return;
            }
            if block < run.end {
                let known = run.entry;
                if entry.barrier > known.barrier {
                    self.remove(block);
                    self.add(
                        block,
                        Dirty {
                            since: known.since,
                            barrier: entry.barrier,
                        },
                    );
                }
                return;
            }
        }
        self.add(block, entry);
    }

    /// Adds blocks, of which none is there.
    pub(super) fn note_run(&mut self, blocks: Range<u64>, entry: Dirty) {
        self.blocks += (blocks.end - blocks.start) as usize;
        if let Some((_, run)) = self.runs.range_mut(..blocks.end).next_back() {
            assert!(run.end <= blocks.start, "I5: {blocks:?} is dirty already");
            if run.end == blocks.start && run.entry == entry {
                run.end = blocks.end;
                return;
            }
        }
        let end = blocks.end;
        self.runs.insert(blocks.start, Run { end, entry });
    }

    /// Takes a block out.
    pub(super) fn remove(&mut self, block: u64) -> Option<Dirty> {
        let (start, run) = self.run_of(block)?;
        if start == block {
            self.runs.remove(&start);
        } else if let Some(before) = self.runs.get_mut(&start) {
            before.end = block;
        }
        if block + 1 < run.end {
            self.runs.insert(block + 1, run);
        }
        self.blocks -= 1;
        Some(run.entry)
    }

    /// Adds a block that is not there.
    fn add(&mut self, block: u64, entry: Dirty) {
        let end = block + 1;
        self.runs.insert(block, Run { end, entry });
        self.blocks += 1;
    }

    /// The run that a block is in, and its first block.
    fn run_of(&self, block: u64) -> Option<(u64, Run)> {
        let (start, run) = self.runs.range(..=block).next_back()?;
        (block < run.end).then_some((*start, *run))
    }

    /// Runs that are kept.
    #[cfg(all(test, not(loom), not(shuttle)))]
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
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
        let mut runs = Runs::default();
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
        let around: Vec<u64> = runs.range(498..503).map(|(block, _)| block).collect();
        assert_eq!(around, [498, 499, 501, 502]);
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
        let (mut runs, mut map) = (Runs::default(), BTreeMap::<u64, Dirty>::new());
        for _ in 0..20_000 {
            let (block, noted) = (next(40), entry(next(2), next(3)));
            let run = block..block + next(4);
            match next(4) {
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
            assert!(
                runs.range(range.clone())
                    .eq(in_map.map(|(block, entry)| (*block, *entry)))
            );
            assert_eq!(runs.len(), map.len());
            assert_eq!(runs.is_empty(), map.is_empty());
            assert_eq!(runs.last(), map.keys().next_back().copied());
            assert_eq!(runs.get(block), map.get(&block).copied());
            assert_eq!(runs.contains(block), map.contains_key(&block));
        }
    }
}
