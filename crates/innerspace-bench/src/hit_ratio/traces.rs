//! The traces: the block of each request.

use std::collections::HashSet;

use crate::harness::xorshift;

/// The requests, and the size of the memory that serves them.
pub(super) struct Trace {
    pub(super) name: &'static str,
    pub(super) blocks: Vec<u32>,
    /// The approximate number of pages for data.
    pub(super) pages: u64,
}

impl Trace {
    pub(super) fn distinct(&self) -> u64 {
        self.blocks.iter().collect::<HashSet<_>>().len() as u64
    }
}

/// Returns all traces. A `shrink` above 1 makes the long ones shorter.
pub(super) fn all(shrink: u64) -> [Trace; 4] {
    [
        zipf(shrink),
        scan_and_hot_set(shrink),
        larger_loop(shrink),
        recorded(),
    ]
}

/// Random numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        (xorshift(&mut self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Creates requests for block `n` with a probability in proportion to `1 / (n + 1)^0.9`. A tenth of
/// the blocks fit.
fn zipf(shrink: u64) -> Trace {
    let distinct = 40_000 / shrink;
    let mut sum = 0.0;
    let sums: Vec<f64> = (0..distinct)
        .map(|n| {
            sum += ((n + 1) as f64).powf(-0.9);
            sum
        })
        .collect();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let draw = |_| {
        let at = random.next() * sum;
        sums.partition_point(|up_to| *up_to <= at) as u32
    };
    Trace {
        name: "zipf 0.9, a tenth fits",
        blocks: (0..800_000 / shrink).map(draw).collect(),
        pages: distinct / 10,
    }
}

/// Creates random requests for half of the memory. Every second request belongs to a scan whose
/// blocks are not used again.
fn scan_and_hot_set(shrink: u64) -> Trace {
    let pages = 4_000 / shrink;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let request = |n: u64| match n % 2 {
        0 => (random.next() * (pages / 2) as f64) as u32,
        _ => (pages + n / 2) as u32,
    };
    Trace {
        name: "hot set beside a scan",
        blocks: (0..160_000 / shrink).map(request).collect(),
        pages,
    }
}

/// Creates a loop that is a tenth longer than what fits in memory.
fn larger_loop(shrink: u64) -> Trace {
    let pages = 4_000 / shrink;
    let round = pages * 11 / 10;
    Trace {
        name: "loop, a tenth larger",
        blocks: (0..20 * round).map(|n| (n % round) as u32).collect(),
        pages,
    }
}

/// Returns the pages of a database file that SQLite 3.40 read while it served 900 point, range and
/// join queries and inserts over two tables with three indexes, with its own cache set to 8 pages.
/// Each number is stored as the difference from the last one, zigzag, 7 bits in a byte.
fn recorded() -> Trace {
    Trace {
        name: "recorded: SQLite queries",
        blocks: decode(include_bytes!("sqlite.trace")),
        pages: 320,
    }
}

fn decode(bytes: &[u8]) -> Vec<u32> {
    let mut blocks = Vec::new();
    let (mut block, mut value, mut shift) = (0i64, 0u64, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            block += (value >> 1) as i64 ^ -((value & 1) as i64);
            blocks.push(u32::try_from(block).expect("a page number of a small file"));
            (value, shift) = (0, 0);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_trace_is_whole() {
        let trace = recorded();
        assert_eq!((trace.blocks.len(), trace.distinct()), (78_681, 1306));
    }

    #[test]
    fn differences_are_decoded() {
        // 5, then 3, then 200.
        assert_eq!(decode(&[10, 3, 0x8a, 0x03]), [5, 3, 200]);
    }
}
