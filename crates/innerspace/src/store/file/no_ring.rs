//! A stand-in for [`ring`](super::ring) where there is no io_uring(7): every request is performed
//! by plain calls.

use super::file_io::FileIo;
use super::watch::Watch;
use crate::store::Batch;
use crate::sync::Arc;

pub(super) fn takes_reads(_: &FileIo, _: &Watch) -> bool {
    false
}

pub(super) fn launch(_: &FileIo, _: &Arc<Watch>, batch: Batch) -> Batch {
    batch
}

/// The reads in flight of a memory. Here there are none.
#[derive(Default)]
pub(crate) struct Flights;

impl Flights {
    pub(crate) fn look_after(&self) {}

    pub(crate) fn wait_quiet(&self) {}
}
