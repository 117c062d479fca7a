//! Reclaim for B never calls A's store, and does not wait for A's dirty pages.
