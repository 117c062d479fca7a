//! The elements of a strided array, gathered from a file and scattered to it.
//!
//! The array is a list of parts, each of the same shape. Neighbouring elements are moved together
//! as a *run*. Runs at a fixed distance are read one after the other, and the file's own read-ahead
//! finds the stride. Parts that lie anywhere (fancy indexing) have many reads in flight at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use innerspace::PagedFile;
use innerspace::file::{FileError, Ready};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::errors::Raise;

/// The runs that are moved between two looks at Python's signals, and their bytes.
const RUNS: usize = 2048;
const RUN_BYTES: usize = 4 << 20;

/// The reads in flight at a time, at most.
const IN_FLIGHT: usize = 64;

/// How long a wait is before it looks at Python's signals.
const LOOK: Duration = Duration::from_millis(50);

/// The offsets of the runs of an array, in order.
#[derive(Debug)]
pub(crate) struct Shape {
    starts: Vec<u64>,
    /// The length and stride of each dimension over runs, outermost first.
    dimensions: Vec<(usize, i64)>,
    /// The bytes of a run.
    run: usize,
}

impl Shape {
    /// Makes the list of runs. The buffer has `bytes` for all of them.
    pub(crate) fn new(
        starts: &[u8],
        shape: &[usize],
        strides: &[i64],
        item: usize,
        bytes: usize,
    ) -> PyResult<Shape> {
        let mut dimensions: Vec<_> = (shape.iter().copied())
            .zip(strides.iter().copied())
            .filter(|(len, _)| *len != 1)
            .collect();
        let mut run = item;
        while let Some((len, stride)) = dimensions.last().copied()
            && usize::try_from(stride) == Ok(run)
        {
            run = run.checked_mul(len).ok_or_else(too_large)?;
            dimensions.pop();
        }
        let starts: Vec<u64> = (starts.chunks_exact(8))
            .map(|start| u64::from_ne_bytes(start.try_into().expect("eight bytes")))
            .collect();
        let runs =
            (dimensions.iter()).try_fold(starts.len(), |all, (len, _)| all.checked_mul(*len));
        match runs.and_then(|runs| runs.checked_mul(run)) {
            Some(all) if all == bytes && shape.len() == strides.len() => Ok(Shape {
                starts,
                dimensions,
                run,
            }),
            _ => Err(PyValueError::new_err(
                "the buffer has not the size of the array",
            )),
        }
    }

    /// Returns the offset of each run.
    fn offsets(&self) -> impl Iterator<Item = u64> + Send + '_ {
        let inner: usize = self.dimensions.iter().map(|(len, _)| len).product();
        self.starts.iter().flat_map(move |start| {
            let mut at = vec![0; self.dimensions.len()];
            let mut offset = start.cast_signed();
            (0..inner).map(move |_| {
                let here = offset;
                for (index, (len, stride)) in at.iter_mut().zip(&self.dimensions).rev() {
                    *index += 1;
                    offset += stride;
                    if *index < *len {
                        break;
                    }
                    offset -= stride * (*len as i64);
                    *index = 0;
                }
                here.cast_unsigned()
            })
        })
    }

    /// How many runs are moved between two looks at the signals.
    fn batch(&self) -> usize {
        (RUN_BYTES / self.run.max(1)).clamp(1, RUNS)
    }
}

fn too_large() -> PyErr {
    PyMemoryError::new_err("the array is larger than the address space")
}

/// Reads the runs into `into`, one after the other.
pub(crate) fn gather(
    py: Python<'_>,
    file: &PagedFile,
    slow: bool,
    into: &mut [u8],
    shape: &Shape,
) -> PyResult<()> {
    if into.is_empty() {
        return Ok(());
    }
    let offsets = shape.offsets();
    if slow || shape.starts.len() > 1 {
        return scattered(py, file, into, shape, offsets);
    }
    let into_len = into.len();
    let mut offsets = offsets.zip(into.chunks_mut(shape.run)).peekable();
    // A reader remembers blocks for small runs; it would only hold memory for large ones. A single
    // run is one of many calls, whose order is known only to the file.
    let is_small = shape.run < file.block_size() as usize;
    let mut reader = (is_small && into_len > shape.run).then(|| file.block_reader());
    while offsets.peek().is_some() {
        let batch = offsets.by_ref().take(shape.batch());
        let reader = &mut reader;
        let read = move || -> Result<(), FileError> {
            for (offset, into) in batch {
                let got = match reader {
                    Some(reader) => reader.read_at(into, offset)?,
                    None => file.read_at(into, offset)?,
                };
                if got < into.len() {
                    file.read_exact_at(into, offset)?;
                }
            }
            Ok(())
        };
        py.detach(read).raise(py)?;
        py.check_signals()?;
    }
    Ok(())
}

/// A run that is being read.
struct Pending<'a> {
    into: &'a mut [u8],
    offset: u64,
    /// Keeps the request; `None` where it could not be made.
    ready: Option<Ready>,
}

/// Reads runs that lie anywhere: those that are not cached are put in flight, many at a time.
fn scattered<'a>(
    py: Python<'_>,
    file: &PagedFile,
    into: &'a mut [u8],
    shape: &'a Shape,
    offsets: impl Iterator<Item = u64> + Send,
) -> PyResult<()> {
    let mut runs = offsets.zip(into.chunks_mut(shape.run)).peekable();
    let block = file.block_size();
    let each = shape.run as u64 / block * block + 2 * block;
    let room = file.group().stats().max.map_or(u64::MAX, |max| max.bytes());
    let room = (room / 8 / each).clamp(1, IN_FLIGHT as u64) as usize;
    let mut pending: VecDeque<Pending<'a>> = VecDeque::with_capacity(room);
    let mut is_late = false;
    while runs.peek().is_some() || !pending.is_empty() {
        let mut left = shape.batch();
        let (runs, pending, late) = (&mut runs, &mut pending, &mut is_late);
        let read = || -> Result<(), FileError> {
            while left > 0 && !*late {
                left -= 1;
                if pending.len() < room
                    && let Some((offset, into)) = runs.next()
                {
                    begin(file, pending, offset, into)?;
                } else if let Some(mut first) = pending.pop_front() {
                    if let Some(ready) = &mut first.ready
                        && ready.wait_timeout(LOOK).is_err()
                    {
                        pending.push_front(first);
                        *late = true;
                        return Ok(());
                    }
                    // What was in flight is cached now, or is read here; a failure is found again.
                    file.read_exact_at(first.into, first.offset)?;
                } else {
                    break;
                }
            }
            Ok(())
        };
        py.detach(read).raise(py)?;
        is_late = false;
        py.check_signals()?;
    }
    Ok(())
}

/// Reads a run if it is cached; otherwise puts its blocks in flight.
fn begin<'a>(
    file: &PagedFile,
    pending: &mut VecDeque<Pending<'a>>,
    offset: u64,
    into: &'a mut [u8],
) -> Result<(), FileError> {
    match file.try_read_at(into, offset) {
        Ok(got) if got == into.len() => return Ok(()),
        Ok(_) => return file.read_exact_at(into, offset),
        Err(error) if error.would_block() => {}
        Err(error) => return Err(error),
    }
    let block = file.block_size();
    let end = offset + into.len() as u64;
    let mut at = offset;
    let mut last = None;
    while at < end {
        // A view over several blocks would move them, so each block has a future of its own. The
        // last one is waited for.
        let next = ((at / block + 1) * block).min(end);
        let mut ready = file.ready(at..next);
        let mut context = Context::from_waker(Waker::noop());
        if Pin::new(&mut ready).poll(&mut context).is_pending() {
            last = Some(ready);
        }
        at = next;
    }
    pending.push_back(Pending {
        into,
        offset,
        ready: last,
    });
    Ok(())
}

/// Waits for a view, and handles signals meanwhile.
pub(crate) fn wait_for(py: Python<'_>, ready: &mut Ready) -> PyResult<Result<(), FileError>> {
    loop {
        match py.detach(|| ready.wait_timeout(LOOK).map(|view| view.map(drop))) {
            Ok(done) => return Ok(done),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Writes the runs from `from`, one after the other.
pub(crate) fn scatter(
    py: Python<'_>,
    file: &PagedFile,
    from: &[u8],
    shape: &Shape,
) -> PyResult<()> {
    if from.is_empty() {
        return Ok(());
    }
    let mut runs = shape.offsets().zip(from.chunks(shape.run)).peekable();
    while runs.peek().is_some() {
        let batch = runs.by_ref().take(shape.batch());
        let write = || -> Result<(), FileError> {
            for (offset, from) in batch {
                file.write_at(from, offset)?;
            }
            Ok(())
        };
        py.detach(write).raise(py)?;
        py.check_signals()?;
    }
    Ok(())
}
