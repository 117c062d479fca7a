//! LRU and the optimum, computed: the number of requests that find their block among `capacity`
//! blocks.

use std::collections::{BTreeSet, HashMap};

/// Returns the hits of a cache that evicts the block used least recently.
pub(super) fn lru(trace: &[u32], capacity: usize) -> u64 {
    // The time of each cached block's last use, in both directions.
    let mut last_use = HashMap::new();
    let mut by_time = BTreeSet::new();
    let mut hits = 0;
    for (time, block) in trace.iter().enumerate() {
        match last_use.insert(*block, time) {
            Some(before) => {
                hits += 1;
                by_time.remove(&(before, *block));
            }
            None if by_time.len() == capacity => {
                if let Some((_, oldest)) = by_time.pop_first() {
                    last_use.remove(&oldest);
                }
            }
            None => {}
        }
        by_time.insert((time, *block));
    }
    hits
}

/// Returns the hits of a cache that knows the future and evicts the block that is used again last
/// (L. Belady, 1966).
pub(super) fn optimum(trace: &[u32], capacity: usize) -> u64 {
    let mut next_use = vec![usize::MAX; trace.len()];
    let mut seen = HashMap::new();
    for (time, block) in trace.iter().enumerate().rev() {
        if let Some(next) = seen.insert(*block, time) {
            next_use[time] = next;
        }
    }
    let mut cached: HashMap<u32, usize> = HashMap::new();
    let mut by_next = BTreeSet::new();
    let mut hits = 0;
    for (time, block) in trace.iter().enumerate() {
        let next = next_use[time];
        if let Some(due) = cached.insert(*block, next) {
            hits += 1;
            by_next.remove(&(due, *block));
        }
        by_next.insert((next, *block));
        // The newcomer itself may be the best block to drop.
        if by_next.len() > capacity
            && let Some((_, farthest)) = by_next.pop_last()
        {
            cached.remove(&farthest);
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_trace_counted_by_hand() {
        // 1, 2 and 3 fill the cache. With room for two, LRU keeps the last two.
        let trace = [1, 2, 3, 1, 2, 1, 3, 2];
        assert_eq!(lru(&trace, 2), 1);
        assert_eq!(lru(&trace, 3), 5);
        // 3 is not kept: 1, 2, 1 are found, and 2 at the end.
        assert_eq!(optimum(&trace, 2), 4);
        assert_eq!(optimum(&trace, 3), 5);
    }

    #[test]
    fn a_loop_one_larger_than_the_cache() {
        let trace: Vec<u32> = (0..100).map(|n| n % 11).collect();
        assert_eq!(lru(&trace, 10), 0);
        assert!(optimum(&trace, 10) > 75);
    }
}
