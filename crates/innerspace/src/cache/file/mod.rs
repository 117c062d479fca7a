//! The public side: the handle, opening, typed access, and `std::io`.

pub(crate) mod array;
pub(crate) mod close;
pub(crate) mod closing;
pub(crate) mod cursor;
pub(crate) mod handle;
pub(crate) mod inner;
pub(crate) mod options;
pub(crate) mod released;
pub(crate) mod stats;
