//! In place of [`ring`](super::ring) where there is no io_uring(7): every request is a call.

use super::engine::Engine;
use super::watch::FileState;
use crate::store::Batch;
use crate::sync::Arc;

pub(super) fn takes_reads(_: &Engine, _: &FileState) -> bool {
    false
}

pub(super) fn launch(_: &Engine, _: &Arc<FileState>, batch: Batch) -> Batch {
    batch
}
