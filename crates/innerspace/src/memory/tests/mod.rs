//! Tests of whole memories: opening, closing, waiting, sampling.

#[cfg(all(not(loom), not(shuttle), not(miri)))]
mod closing;
#[cfg(all(unix, not(loom), not(shuttle), not(miri)))]
mod opening;
#[cfg(all(not(loom), not(shuttle), not(miri)))]
mod released;
#[cfg(not(shuttle))]
mod sampling;
#[cfg(all(not(loom), not(shuttle), not(miri)))]
mod steps;
#[cfg(all(not(loom), not(shuttle), not(miri)))]
mod waiting;
