//! What the models of loom see of this layer: the lock of an entry.

mod entry;
mod grab;
#[cfg(test)]
mod loom_models;
mod waits;
