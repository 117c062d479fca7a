//! What the models of loom see of this layer: the stocks of pages that are charged ahead.

mod id;
mod levels;
#[cfg(test)]
mod loom_models;
mod moves;
mod slot;
mod stock;

pub(crate) use id::GroupId;
