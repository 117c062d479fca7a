//! The part of this layer that loom's models include: the stocks of pages charged in advance.

mod id;
mod levels;
#[cfg(test)]
mod loom_models;
mod moves;
mod slot;
mod stock;

pub(crate) use id::GroupId;
