//! Getting memory: a frame with its charge, or a charge alone.
//!
//! [`request`] has the two levels of every request: a hit, and one cold path. [`frame`] is the
//! result of a request, [`heap`] the charge for structures on the heap, [`freeing`] drops
//! references in runs, and [`trial`] holds back refusals that may still be resolved.

mod frame;
mod freeing;
mod heap;
mod request;
mod trial;

pub(crate) use frame::PoolFrame;
pub(crate) use freeing::Freeing;
pub(crate) use heap::HeapCharge;
pub(crate) use request::AllocMode;
pub(crate) use trial::{Trial, note_failure};
