//! The loops, which are the same for the raw pointer and for every form, so that only the access
//! differs.
//!
//! `single` and `session` are never inlined, so that a hit path can be read in their assembly.

use super::{Access, Accessor, Fault, PAGES, Revocable};
use crate::harness::{below, xorshift};

/// A loop that accesses the space `count` times, at places that `seed` decides.
pub(super) trait Workload {
    const NAME: &'static str;
    /// The number of operations in a full run.
    const OPERATIONS: u64;
    fn run<A: Access>(access: &mut A, base: u64, count: u64, seed: u64) -> Result<u64, Fault>;
}

/// Loads of 8 bytes, uniform over all pages, which may overlap each other.
pub(super) struct Independent;
/// Loads of 8 bytes, uniform over all pages, each of which waits for the last.
pub(super) struct Dependent;
/// Loads of 8 bytes one after the other.
pub(super) struct Sequential;
/// Stores of 8 bytes, uniform over all pages.
pub(super) struct Stores;

/// Makes each access in a section of its own.
#[inline(never)]
pub(super) fn single<W: Workload, A: Accessor>(
    accessor: &mut A,
    count: u64,
    seed: u64,
) -> Result<u64, Fault> {
    let base = accessor.base();
    W::run(accessor, base, count, seed)
}

/// Makes all accesses in one section.
#[inline(never)]
pub(super) fn session<W: Workload, A: Accessor>(
    accessor: &mut A,
    count: u64,
    seed: u64,
) -> Result<u64, Fault> {
    let base = accessor.base();
    let mut session = accessor.session();
    W::run(&mut session, base, count, seed)
}

/// Revokes pages in batches of a mailbox's size, then loads from each.
#[inline(never)]
pub(super) fn revoke_and_load<A: Revocable>(
    accessor: &mut A,
    count: u64,
    mut seed: u64,
) -> Result<u64, Fault> {
    const BATCH: usize = 64;
    let base = accessor.base();
    let mut places = [0; BATCH];
    let mut sum = 0u64;
    for _ in 0..count.div_ceil(BATCH as u64) {
        for at in &mut places {
            *at = base + place(xorshift(&mut seed));
            accessor.revoke(*at);
        }
        for at in places {
            sum = sum.wrapping_add(accessor.load(at)?);
        }
    }
    Ok(sum)
}

/// Returns a multiple of 8 below the end of the space, uniform if `random` is.
#[inline(always)]
fn place(random: u64) -> u64 {
    below(PAGES * 4096, random) & !7
}

impl Workload for Independent {
    const NAME: &'static str = "random independent loads";
    const OPERATIONS: u64 = 400_000;

    #[inline(always)]
    fn run<A: Access>(access: &mut A, base: u64, count: u64, mut seed: u64) -> Result<u64, Fault> {
        let mut sum = 0u64;
        for _ in 0..count {
            sum = sum.wrapping_add(access.load(base + place(xorshift(&mut seed)))?);
        }
        Ok(sum)
    }
}

impl Workload for Dependent {
    const NAME: &'static str = "random dependent loads";
    const OPERATIONS: u64 = 60_000;

    /// The step is mixed in, because otherwise the walk would soon enter a cycle short enough to be
    /// cached.
    #[inline(always)]
    fn run<A: Access>(access: &mut A, base: u64, count: u64, seed: u64) -> Result<u64, Fault> {
        let mut value = seed;
        for step in 0..count {
            let mixed = value ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            value = access.load(base + place(mixed))?;
        }
        Ok(value)
    }
}

impl Workload for Sequential {
    const NAME: &'static str = "sequential loads";
    const OPERATIONS: u64 = 4_000_000;

    #[inline(always)]
    fn run<A: Access>(access: &mut A, base: u64, count: u64, seed: u64) -> Result<u64, Fault> {
        assert!(
            count * 8 <= PAGES * 4096 / 2,
            "the run ends before the space does"
        );
        let start = base + ((place(seed) / 2) & !4095);
        let mut sum = 0u64;
        for number in 0..count {
            sum = sum.wrapping_add(access.load(start + number * 8)?);
        }
        Ok(sum)
    }
}

impl Workload for Stores {
    const NAME: &'static str = "random stores";
    const OPERATIONS: u64 = 400_000;

    #[inline(always)]
    fn run<A: Access>(access: &mut A, base: u64, count: u64, mut seed: u64) -> Result<u64, Fault> {
        for _ in 0..count {
            let random = xorshift(&mut seed);
            access.store(base + place(random), random)?;
        }
        Ok(seed)
    }
}
