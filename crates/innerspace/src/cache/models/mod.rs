//! Models of the cache: operations from two or three threads. `pairs` runs under real scheduling as
//! well.

#[cfg(shuttle)]
mod operations;
mod pairs;
