//! Behaviour of the pool, with an owner that keeps its blocks in a map.

#[cfg(not(shuttle))]
mod accessed;
#[cfg(not(shuttle))]
mod freeing;
#[cfg(not(shuttle))]
mod groups;
#[cfg(not(shuttle))]
mod limits;
#[cfg(not(shuttle))]
mod lists;
mod mock;
#[cfg(shuttle)]
mod models;
#[cfg(not(shuttle))]
mod pressure;
