//! Takes a view of a random page, reads 8 bytes of it, and drops it.
//!
//! The baseline is the least work that any buffer pool with pinned pages can do: a dense table of
//! counts, indexed by page, with one atomic addition to pin and one to unpin. It can neither evict
//! nor hold more than one file.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::PagedFile;

use super::WhenWanted;
use crate::harness::{Budget, Contender, Plan, Row, Rows, Unit, below, thread_time, xorshift};
use crate::host::PAGE;

const NAME: &str = "view of a random page, 8 bytes, drop";
const PRESENT: u64 = 1 << 63;

/// The number of views of each page, in one word each.
struct DenseTable<'a> {
    holds: Vec<AtomicU64>,
    bytes: &'a [u8],
}

struct DenseView<'a> {
    hold: &'a AtomicU64,
    bytes: &'a [u8],
}

impl<'a> DenseTable<'a> {
    fn new(bytes: &'a [u8]) -> DenseTable<'a> {
        let holds = (0..bytes.len() / PAGE).map(|_| AtomicU64::new(PRESENT));
        DenseTable {
            holds: holds.collect(),
            bytes,
        }
    }

    #[inline]
    fn view(&self, page: usize) -> Option<DenseView<'_>> {
        let hold = self.holds.get(page)?;
        if hold.fetch_add(1, Ordering::Acquire) & PRESENT == 0 {
            hold.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let bytes = &self.bytes[page * PAGE..][..PAGE];
        Some(DenseView { hold, bytes })
    }
}

impl Drop for DenseView<'_> {
    #[inline]
    fn drop(&mut self) {
        self.hold.fetch_sub(1, Ordering::Release);
    }
}

/// Returns eight bytes of a page, from a place that `random` decides.
#[inline(always)]
fn eight(page: &[u8], random: u64) -> u64 {
    let at = random as usize % (PAGE / 8) * 8;
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight of them"))
}

/// Calls `look` with random pages, and adds up the results.
#[inline(always)]
fn run(
    bytes: u64,
    count: u64,
    mut seed: u64,
    look: impl Fn(u64, u64) -> Result<u64, Box<dyn Error>>,
) -> Result<u64, Box<dyn Error>> {
    let pages = bytes / PAGE as u64;
    let mut sum = 0u64;
    for _ in 0..count {
        let random = xorshift(&mut seed);
        sum = sum.wrapping_add(look(below(pages, random), random)?);
    }
    Ok(sum)
}

/// Takes views of random pages through `file`.
#[inline(never)]
pub(super) fn views(
    bytes: u64,
    file: &PagedFile,
    count: u64,
    seed: u64,
) -> Result<u64, Box<dyn Error>> {
    run(bytes, count, seed, |page, random| {
        let start = page * PAGE as u64;
        let view = file.view(start..start + PAGE as u64)?;
        Ok(eight(&view, random))
    })
}

pub(super) fn measure(
    plan: Plan,
    resident: &WhenWanted,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    if !rows.wants(NAME) {
        return Ok(());
    }
    let resident = resident.get()?;
    let count = plan.operations(400_000);
    let bytes = resident.bytes;
    let dense = DenseTable::new(resident.raw.bytes());
    let contenders = vec![
        Contender::new("dense table", || {
            let seed = resident.seed();
            thread_time(count, || {
                run(bytes, count, seed, |page, random| {
                    let view = dense.view(page as usize).ok_or("absent")?;
                    Ok(eight(view.bytes, random))
                })
            })
        }),
        Contender::new("innerspace", || {
            let seed = resident.seed();
            thread_time(count, || views(bytes, &resident.file, count, seed))
        }),
        Contender::new("quick_cache", || {
            let seed = resident.seed();
            thread_time(count, || {
                run(bytes, count, seed, |page, random| {
                    let view = resident.cache.get(&page).ok_or("absent")?;
                    Ok(eight(&view, random))
                })
            })
        }),
    ];
    let row = Row {
        name: NAME.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "dense table",
        budget: Budget::Ratio(1.5),
    };
    rows.add(row)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_view_counts_while_it_lives() {
        let bytes = vec![7; 3 * PAGE];
        let table = DenseTable::new(&bytes);
        let view = table.view(2).unwrap();
        assert_eq!(eight(view.bytes, 511), 0x0707_0707_0707_0707);
        assert_eq!(table.holds[2].load(Ordering::Relaxed), PRESENT + 1);
        drop(view);
        assert_eq!(table.holds[2].load(Ordering::Relaxed), PRESENT);
        table.holds[1].store(0, Ordering::Relaxed);
        assert!(table.view(1).is_none() && table.view(3).is_none());
        assert_eq!(table.holds[1].load(Ordering::Relaxed), 0);
    }
}
