//! Reads by io_uring(7). [`in_flight`] decides which engine a file uses and which reads go through
//! a ring; [`flights`] has the ring and its thread.

mod flights;
mod in_flight;

use flights::Flight;
pub(crate) use flights::Flights;
use in_flight::{Source, direct_reads};

use super::file_io::FileIo;
use super::watch::Watch;
use crate::store::{Batch, Operation};
use crate::sync::Arc;

/// Returns whether reads of this file go through a ring now.
pub(super) fn takes_reads(file_io: &FileIo, watch: &Watch) -> bool {
    direct_reads(file_io, watch).is_some()
}

/// Submits the reads that can go through a ring. Returns the other requests.
pub(super) fn launch(file_io: &FileIo, watch: &Arc<Watch>, mut batch: Batch) -> Batch {
    if !takes_reads(file_io, watch) {
        return batch;
    }
    let mut reads = Vec::new();
    let mut rest = Batch::new();
    let mut flights = None;
    while let Some(mut request) = batch.take() {
        let by_ring = match request.operation() {
            Operation::Read => request.by_ring(),
            Operation::Write => None,
        };
        let Some(ring) = by_ring else {
            rest.push(request);
            continue;
        };
        match Source::of_read(file_io, watch, request.offset(), request.iovecs()) {
            Some((transfer, source)) => {
                reads.push((transfer, Flight { request, source }));
                flights = Some(ring);
            }
            None => rest.push(request),
        }
    }
    if let Some(flights) = flights {
        flights.launch(reads);
    }
    rest
}
