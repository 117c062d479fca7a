//! Models of the cache: operations from two or three threads. `pairs` also runs on real threads.

#[cfg(shuttle)]
mod operations;
mod pairs;
