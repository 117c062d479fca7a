//! Handling of short transfers: loops that repeat a store's reads and writes until all bytes are
//! transferred, and the error of a read that stays short ([`short_read_error`]). The cache uses
//! them, and so may tools that work on a store. A request in flight that comes back short is
//! continued in `cache/read/requests.rs`, `take_result`.

use std::io::{self, IoSlice, IoSliceMut};

use super::{KnownSince, Store, StoreError};

/// Repeats a call to a store for as long as it fails with `Interrupted`, as std does.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Reads until `buf` is full or the store ends, and returns the number of bytes read. Repeats short
/// reads and interrupted calls.
///
/// # Errors
/// Those of the store; [`InvalidData`](io::ErrorKind::InvalidData) if it claims to have read more
/// than it was asked for; [`StoreError::Shrank`] if it ends before bytes that it had earlier.
/// `Shrank` names the whole read, even if only a part of it failed.
pub fn read_exact_or_eof<S: Store + ?Sized>(
    store: &S,
    buf: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    read_on(buf.len(), offset, |done| {
        store.read_at(&mut buf[done..], offset + done as u64)
    })
}

/// Reads like [`read_exact_or_eof`] into buffers that are filled one after the other. The caller
/// must not use `bufs` afterwards: its slices have been advanced.
pub(crate) fn read_vectored_or_eof<S: Store + ?Sized>(
    store: &S,
    mut bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> io::Result<usize> {
    IoSliceMut::advance_slices(&mut bufs, 0);
    let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
    let mut filled = 0;
    read_on(wanted, offset, |done| {
        IoSliceMut::advance_slices(&mut bufs, done - filled);
        filled = done;
        store.read_vectored_at(bufs, offset + done as u64)
    })
}

/// Repeats `call` until `wanted` bytes are read or the store ends. Each call gets the number of
/// bytes read so far, and reads on from there. Returns the number of bytes read.
fn read_on(
    wanted: usize,
    offset: u64,
    mut call: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < wanted {
        match uninterrupted(|| call(done)) {
            Ok(0) => break,
            // A store that claims to have read more than was asked for is faulty, and the bytes are
            // unknown.
            Ok(count) if count > wanted - done => return Err(io::ErrorKind::InvalidData.into()),
            Ok(count) => done += count,
            Err(error) => return Err(widen(error, offset, wanted as u64)),
        }
    }
    Ok(done)
}

/// Makes [`StoreError::Shrank`], from a part of a read, name the whole read. Returns other errors
/// unchanged.
fn widen(error: io::Error, whole_offset: u64, whole_len: u64) -> io::Error {
    match error.downcast::<StoreError>() {
        Ok(StoreError::Shrank {
            now, was, since, ..
        }) => {
            let (offset, wanted) = (whole_offset, whole_len);
            StoreError::Shrank {
                offset,
                wanted,
                now,
                was,
                since,
            }
            .into()
        }
        Ok(other) => other.into(),
        Err(error) => error,
    }
}

/// Returns the error of a read of `wanted` bytes at `offset` that ended after `got` bytes, in a
/// store that had `was` bytes when it was opened. The error says that the store shrank, or that it
/// delivered less than it has. If the store's length cannot be determined, returns the error of
/// [`Store::len`].
pub fn short_read_error<S: Store + ?Sized>(
    store: &S,
    offset: u64,
    wanted: u64,
    got: u64,
    was: u64,
) -> io::Error {
    match uninterrupted(|| store.len()) {
        Ok(now) if now < was => StoreError::Shrank {
            offset,
            wanted,
            now,
            was,
            since: KnownSince::Opened,
        }
        .into(),
        Ok(len) => StoreError::ShortRead {
            offset,
            wanted,
            got,
            len,
        }
        .into(),
        Err(error) => error,
    }
}

/// Writes all of `buf` at `offset`. Repeats short writes and interrupted calls.
///
/// # Errors
/// Those of the store; [`StoreError::WriteZero`] if it writes nothing;
/// [`InvalidData`](io::ErrorKind::InvalidData) if it claims to have written more than it was asked
/// to. After an error any part may have been written.
pub fn write_all_at<S: Store + ?Sized>(store: &S, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let (at, rest) = (offset + done as u64, &buf[done..]);
        let count = uninterrupted(|| store.write_at(rest, at))?;
        done += check_written(count, rest.len(), at)?;
    }
    Ok(())
}

/// Checks `count`, which a store returned for a write of `wanted` bytes. Returns the count if it is
/// possible, and an error otherwise.
pub(super) fn check_written(count: usize, wanted: usize, offset: u64) -> io::Result<usize> {
    if count == 0 && wanted > 0 {
        let wanted = wanted as u64;
        return Err(StoreError::WriteZero { offset, wanted }.into());
    }
    // A store that claims to have written more than it was given is faulty, and the bytes that it
    // wrote are unknown.
    let possible = (count <= wanted).then_some(count);
    possible.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Writes like [`write_all_at`] from buffers that are written one after the other. The caller must
/// not use `bufs` afterwards: its slices have been advanced.
///
/// # Errors
/// Those of [`write_all_at`].
pub fn write_all_vectored_at<S: Store + ?Sized>(
    store: &S,
    mut bufs: &mut [IoSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut bufs, 0);
    let mut wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
    while !bufs.is_empty() {
        let count = uninterrupted(|| store.write_vectored_at(bufs, offset))?;
        check_written(count, wanted, offset)?;
        IoSlice::advance_slices(&mut bufs, count);
        offset += count as u64;
        wanted -= count;
    }
    Ok(())
}

/// Zeros in memory, aligned for direct I/O.
#[repr(align(4096))]
struct Zeros([u8; 64 << 10]);

static ZEROS: Zeros = Zeros([0; 64 << 10]);

/// Writes `len` zeros at `offset`, and lengthens the store like any write. Allocates nothing.
///
/// # Errors
/// Those of [`write_all_at`], and [`InvalidInput`](io::ErrorKind::InvalidInput) if the range ends
/// beyond the largest offset.
pub fn write_zeros<S: Store + ?Sized>(store: &S, offset: u64, len: u64) -> io::Result<()> {
    let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
    let mut at = offset;
    while at < end {
        // The first step ends at a multiple of the buffer's size, so that all later steps are
        // aligned.
        let step = (ZEROS.0.len() as u64 - at % ZEROS.0.len() as u64).min(end - at);
        write_all_at(store, &ZEROS.0[..step as usize], at)?;
        at += step;
    }
    Ok(())
}
