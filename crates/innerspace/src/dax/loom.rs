//! The parts of this layer that the loom models check: the lock of an entry.

mod entry;
mod grab;
#[cfg(test)]
mod loom_models;
mod waits;
